"""A profile in words and tables, for a terminal: what it is for, its weights, how wrong it is, what to beware of."""

from __future__ import annotations

from calibrate.fit_report import errors_text, pool_text
from costmodel.features import Feature
from costmodel.profile import Profile, Rate, Weight

US_PER_S = 1e6
GB = 1e9
UNITS: dict[str, str] = {
    "steps": "step",
    "device_steps": "step with tokens",
    "requests": "request",
    "gemm_rows": "token (GEMM row)",
    "logit_rows": "row of the language model head",
    "prefill_steps": "step with a chunk",
    "prefill_chunks": "chunk",
    "prefill_tokens": "prefill token",
    "prefill_pairs": "(query, key) pair of a chunk",
    "prefill_hidden_pairs": "pair that the mask of a chunk with context hides",
    "prefill_kv_tokens": "KV token read by chunks",
    "decode_steps": "step with decodes",
    "decode_requests": "decode token",
    "decode_rows": "decode token",
    "verify_requests": "verification",
    "verify_extra_rows": "verify token after the first",
    "verify_extra_pairs": "(query, key) pair of those",
    "verify_kv_tokens": "KV token read by verifications",
    "mixed_decode_kv_tokens": "KV token read by decodes beside a chunk, more",
    "decode_kv_tokens": "KV token read by decodes",
}
"""Seconds per ..."""


def profile_text(profile: Profile) -> str:
    """Everything but the provenance's hashes."""
    blocks = [
        f"profile {profile.name}: {profile.model} ({profile.dtype}) on {profile.device}, {profile.engine}\n"
        f"fitted to {profile.provenance.dataset}: {_seen(profile)}",
        "weights\n" + weights_text(profile),
    ]
    if profile.fit_errors:
        blocks.append("error against the steps it was fitted to\n" + errors_text(profile.fit_errors))
    if profile.held_out_errors:
        title = "error against held-out regions (each predicted by a fit to the others)\n"
        blocks.append(title + errors_text(profile.held_out_errors))
    if profile.noise_floor_ratio is not None:
        blocks.append(
            f"noise floor: single samples differ from the median of their step by {profile.noise_floor_ratio:.1%}"
        )
    if profile.worst_steps:
        blocks.append("the worst steps\n" + "\n".join(profile.worst_steps))
    if profile.rates:
        blocks.append("also measured\n" + "\n".join(map(_rate, profile.rates)))
    blocks.append(range_text(profile))
    for title, lines in (("assumed", profile.assumed), ("derived", profile.derived), ("warning", profile.warnings)):
        blocks += [f"{title}: {line}" for line in lines]
    return "\n\n".join(blocks)


def weights_text(profile: Profile) -> str:
    """One line per weight, in microseconds."""
    return "\n".join(_weight(each) for each in profile.weights)


def range_text(profile: Profile) -> str:
    """What the fit has seen, and the pool."""
    seen = profile.valid_range
    verification = "verification measured" if seen.verification else "verification not measured"
    return (
        f"valid up to {seen.max_decode_requests:,} decodes, {seen.max_prefill_tokens:,} prefill tokens, contexts of "
        f"{seen.max_context_tokens:,}, {seen.max_decode_kv_tokens:,} KV tokens read; {verification}\n"
        + pool_text(profile.pool)
    )


def _seen(profile: Profile) -> str:
    counts = [file.num_steps for file in profile.provenance.files if file.num_steps]
    return f"{sum(counts):,} steps of {len(profile.provenance.files)} files ({profile.provenance.evidence})"


def _weight(each: Weight) -> str:
    feature = Feature(each.quantity, each.past, each.past_each)
    beyond = f" beyond {feature.past:,}" if feature.past else ""
    beyond += f" beyond {feature.past_each:,} of each decode" if feature.past_each else ""
    interval = ""
    if each.low_s_per_unit is not None and each.high_s_per_unit is not None:
        interval = f", {each.low_s_per_unit * US_PER_S:.4g} to {each.high_s_per_unit * US_PER_S:.4g} agree with it too"
    head = f"{each.s_per_unit * US_PER_S:>12.5g} us per {UNITS[each.quantity]}{beyond}"
    return f"{head} ({each.part}, {each.origin}{interval})"


def _rate(rate: Rate) -> str:
    shown = f"{rate.value / GB:.2f} GB/s" if rate.unit == "B/s" else f"{rate.value * US_PER_S:.2f} us"
    return f"{rate.what}: {shown} (quartiles {rate.noise_ratio:.0%} apart)"
