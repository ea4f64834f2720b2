"""What an import of tables prints: the fit's error per region, known points, token weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from calibrate.compose import StepComposer
from costmodel.profile import KvPool, Profile, RegionError
from costmodel.shape import StepShape
from costmodel.token_weights import TokenWeightsModel

CHECKED_DECODES = ((64, 2048), (128, 2048), (256, 1024))
CHECKED_CHUNKS = (512, 2048, 8192)
CHECKED_DRAFTS = (1, 2)
MS_PER_S = 1e3
US_PER_S = 1e6


def fit_report(profile: Profile, composer: StepComposer) -> str:
    device_model = TokenWeightsModel([term for term in profile.terms() if term.part != "host"])
    host_model = TokenWeightsModel(profile.terms())
    blocks = (
        "error against the steps it was fitted to\n" + errors_text(profile.fit_errors),
        "error against held-out regions (each predicted by a fit to the others)\n"
        + errors_text(profile.held_out_errors),
        "the worst steps\n" + "\n".join(profile.worst_steps),
        "decode steps, device time without host overhead\n" + _decodes_text(composer, device_model, host_model),
        "token weights in decode tokens (finite differences, device time), composed | fitted\n"
        + _weights_text(composer, device_model),
        pool_text(profile.pool),
    )
    return "\n\n".join(blocks)


def errors_text(rows: Sequence[RegionError]) -> str:
    width = max(len(row.region) for row in rows)
    lines = [f"{'region':<{width}}  steps   MAPE  median    P90  worst    bias"]
    for row in rows:
        ratios = (row.mape_ratio, row.median_ratio, row.p90_ratio, row.worst_ratio)
        cells = "  ".join(f"{ratio:>5.1%}" for ratio in ratios)
        lines.append(f"{row.region:<{width}}  {row.num_steps:>5}  {cells}  {row.bias_ratio:>+6.1%}")
    return "\n".join(lines)


def _decodes_text(composer: StepComposer, device: TokenWeightsModel, host: TokenWeightsModel) -> str:
    lines = []
    for requests, context in CHECKED_DECODES:
        shape = StepShape((), requests, requests * context)
        composed, fitted, whole = (f(shape) * MS_PER_S for f in (composer.seconds, device.seconds, host.seconds))
        lines.append(
            f"{requests} decodes at {context}: composed {composed:.2f} ms, fitted {fitted:.2f} ms"
            f" ({whole:.2f} ms with host overhead)"
        )
    return "\n".join(lines)


def _weights_text(composer: StepComposer, model: TokenWeightsModel) -> str:
    lines = []
    for requests, context in CHECKED_DECODES:
        composed, fitted = (_weights(seconds, requests, context) for seconds in (composer.seconds, model.seconds))
        cells = " ".join(f"{a:.2f}|{b:.2f}" for a, b in zip(composed[1:], fitted[1:], strict=True))
        verify = " ".join(f"{value:.2f}" for value in _verify_weights(model, requests, context))
        lines.append(
            f"beside {requests} decodes at {context}: a decode token {composed[0] * US_PER_S:.0f}|"
            f"{fitted[0] * US_PER_S:.0f} us; prefill token, chunk {CHECKED_CHUNKS}: {cells}; "
            f"extra verify token, drafts {CHECKED_DRAFTS}: {verify} (derived)"
        )
    return "\n".join(lines)


def _weights(seconds: Callable[[StepShape], float], requests: int, context: int) -> list[float]:
    """Seconds of one more decode (over a doubling of the batch), then a prefill token of each chunk in decodes."""
    batch_s = seconds(StepShape((), requests, requests * context))
    decode_s = (seconds(StepShape((), 2 * requests, 2 * requests * context)) - batch_s) / requests
    chunks = [
        (seconds(StepShape(((tokens, 0),), requests, requests * context)) - batch_s) / tokens / decode_s
        for tokens in CHECKED_CHUNKS
    ]
    return [decode_s, *chunks]


def _verify_weights(model: TokenWeightsModel, requests: int, context: int) -> list[float]:
    decode_s = _weights(model.seconds, requests, context)[0]

    def seconds(width: int) -> float:
        return model.seconds(StepShape(verify=((width, context),) * requests))

    return [(seconds(drafts + 1) - seconds(1)) / (requests * drafts) / decode_s for drafts in CHECKED_DRAFTS]


def pool_text(pool: KvPool | None) -> str:
    """The KV pool line by line."""
    if pool is None:
        return "pool: unknown, the engine's flags must say"
    lines = [f"{item.num_bytes:>+18,} B  {item.what} ({item.source})" for item in pool.arithmetic]
    head = f"pool: {pool.num_blocks:,} blocks of {pool.block_tokens} tokens"
    return "\n".join([head, *lines, f"{pool.bytes_per_token:>18,} B  per token"])
