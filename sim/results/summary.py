"""The sentences that console, HTML and Markdown have in common, from metrics to words."""

from __future__ import annotations

from collections.abc import Callable

from sim.core.lifecycle import TERMINAL, State
from sim.core.plan import Blocker
from sim.results.blocked import WAITED_FOR
from sim.results.measure import targets
from sim.results.metrics import Metrics, Row
from sim.results.run import RunResult
from sim.results.wording import count, number, percent, size, visible

BLOCKER_WORDS = {
    Blocker.BLOCKS: "KV blocks",
    Blocker.WORK: "work",
    Blocker.SLOTS: "slots",
    Blocker.POLICY: "policy",
    Blocker.STEP: "the step in progress",
}

LATENCIES = (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("E2E", "e2e_s"), ("queue", "queue_s"))
"""The rows of the table that is read first. Never pooled gaps: their median says nothing about a request."""

FEW = "few: fewer than 10 requests are expected beyond this percentile"


def whole(metrics: Metrics, name: str) -> int:
    """A count."""
    return int(metrics.rows[name].value or 0)


def value(row: Row) -> str:
    """`412`, `n/a (n=0: all answers have one token)`, `inf`; a number that means nothing is not printed."""
    if row.state == "n/a":
        return f"n/a ({row.note})"
    if row.state in ("unstable", "inf"):
        return "n/a" if row.state == "unstable" else "inf"
    assert row.value is not None
    if row.unit == "ratio":
        return percent(row.value)
    return f"{row.value:,}" if isinstance(row.value, int) else number(row.value)


def offered_line(metrics: Metrics) -> str:
    """offered 12,000 = finished 11,871 + timed_out 96 + rejected 33 (prompt > KV): all ends add up (law 1)."""
    ends = sorted(State, key=lambda state: (state is not State.FINISHED, state not in TERMINAL))
    parts = [_end(metrics, state) for state in ends if whole(metrics, f"num_{state.value}") or state is State.FINISHED]
    return f"offered {whole(metrics, 'num_offered'):,} = " + " + ".join(parts)


def _end(metrics: Metrics, state: State) -> str:
    number_of = f"{state.value} {whole(metrics, f'num_{state.value}'):,}"
    if state is State.FINISHED:
        return number_of
    return number_of + reasons(metrics.reasons.get(state.value, {}))


def reasons(counts: dict[str, int]) -> str:
    """` (prompt > KV)`, ` (prompt > KV 30, prompt > max_model_len 3)`; empty if none is known."""
    if not counts:
        return ""
    if len(counts) == 1:
        return f" ({visible(next(iter(counts)))})"
    return " (" + ", ".join(f"{visible(reason)} {times:,}" for reason, times in counts.items()) + ")"


def targets_text(run: RunResult) -> str:
    """ttft<=2s tpot<=50ms"""
    shown = [
        f"{name.removesuffix('_s')}<={target:g}s" if target >= 1 else f"{name.removesuffix('_s')}<={1000 * target:g}ms"
        for name, target in targets(run.slo).items()
    ]
    return " ".join(shown)


def rates_line(metrics: Metrics) -> str:
    row = metrics.rows
    return (
        f"duration {value(row['duration_s'])} s   offered {value(row['offered_per_s'])} req/s   "
        f"finished {value(row['finished_per_s'])} req/s   output {value(row['output_tokens_per_s'])} tok/s"
    )


def slo_line(metrics: Metrics, run: RunResult) -> str:
    if not targets(run.slo):
        return "SLO none given: no goodput   (--slo ttft=2 --slo tpot=0.05)"
    row = metrics.rows
    return (
        f"SLO {targets_text(run)}   goodput {value(row['goodput_per_s'])} req/s   met "
        f"{value(row['slo_met_offered_ratio'])} of offered ({value(row['slo_met_finished_ratio'])} of finished)"
    )


def never_served(metrics: Metrics) -> str | None:
    """`P99 TTFT of offered: inf (1.1 % were never served)`; None if everybody was."""
    offered, finished = whole(metrics, "num_offered"), whole(metrics, "num_finished")
    if offered == finished:
        return None
    row = metrics["p99_offered_ttft_s"]
    fate = "had not finished" if metrics.verdict.partial else "were never served"
    text = value(row) if row.value is None or row.state == "unstable" else f"{number(1000 * row.value)} ms"
    return f"P99 TTFT of offered: {text} ({percent((offered - finished) / offered)} {fate})"


def blocked_shares(metrics: Metrics) -> list[tuple[str, float]]:
    """Who waited for what, as shares of all waiting, greatest first; nothing if nobody waited."""
    seconds = {BLOCKER_WORDS[b]: metrics.value(f"queue_{b.value}_s") or 0.0 for b in WAITED_FOR}
    total = sum(seconds.values())
    shares = [(word, part / total) for word, part in seconds.items() if part]
    return sorted(shares, key=lambda share: -share[1])


def blocked_line(metrics: Metrics) -> str:
    shares = blocked_shares(metrics)
    if not shares:
        return "nothing: nobody waited"
    total = sum(metrics.value(f"queue_{blocker.value}_s") or 0.0 for blocker in WAITED_FOR)
    return "   ".join(f"{word} {percent(share)}" for word, share in shares) + f"   ({number(total)} s in all)"


def kv_line(metrics: Metrics) -> str:
    row = metrics.rows
    parts = [f"used mean {value(row['mean_kv_used_ratio'])} max {value(row['max_kv_used_ratio'])}"]
    if row["max_kv_reserved_ratio"].value:
        reserved = row["mean_kv_reserved_ratio"], row["max_kv_reserved_ratio"]
        parts.append(f"reserved mean {value(reserved[0])} max {value(reserved[1])}")
    if row["last_block_waste_ratio"].value is not None:
        parts.append(f"waste {value(row['last_block_waste_ratio'])}")
    if row["prefix_hit_ratio"].value is not None:
        parts.append(f"prefix hit {value(row['prefix_hit_ratio'])}")
        parts.append(f"evicted {whole(metrics, 'evicted_blocks'):,}")
    return "   ".join(parts)


def preempted_line(metrics: Metrics) -> str:
    times = whole(metrics, "num_preemptions")
    if not times:
        return "nobody"
    rehit, swaps, again = (whole(metrics, name) for name in ("rehit_tokens", "num_swaps", "recomputed_tokens"))
    swapped = ""
    if swaps:
        moved = f"{whole(metrics, 'swapped_blocks'):,} blocks = {size(whole(metrics, 'swapped_bytes'))} moved"
        swapped = f"{swaps:,} swapped, {moved}" + ("; " if again else "")
    return (
        f"{count(times, 'time')}, {count(whole(metrics, 'num_preempted_requests'), 'request')}: {swapped}"
        + (f"{again:,} tokens again = {value(metrics['recomputed_ratio'])} of work" if again or not swaps else "")
        + (f" (+{rehit:,} hit)" if rehit else "")
    )


def steps_line(metrics: Metrics) -> str:
    row = metrics.rows
    if not whole(metrics, "num_steps"):
        return "none"
    line = (
        f"{whole(metrics, 'num_steps'):,}   mean {number(1000 * (row['mean_step_s'].value or 0))} ms   "
        f"spread {number(1000 * (row['std_step_s'].value or 0))} ms   "
        f"batch mean {value(row['mean_batch_requests_by_step'])} max {value(row['max_batch_requests'])}"
    )
    starved = whole(metrics, "num_starved_steps")
    return line + (f"   prefill starved in {starved:,} steps" if starved else "")


def in_one_line(line: str) -> str:
    """The console keeps parts apart by three spaces, which HTML and Markdown fold."""
    return line.replace("<=", " ≤ ").replace("   (", " (").replace("   ", " · ")


def clients_line(metrics: Metrics) -> str | None:
    """How equal clients were served; None where there are no two of them."""
    delivered, ttft = metrics["client_tokens_jain_ratio"], metrics["client_ttft_min_max_ratio"]
    if delivered.value is None:
        return None
    return (
        f"{whole(metrics, 'num_clients'):,}   delivered of asked: Jain's index {delivered.value:.3f}   "
        f"mean TTFT: shortest {value(ttft)} of longest"
    )


def facts(metrics: Metrics) -> list[tuple[str, str]]:
    """The lines below the latencies: (label, line)."""
    lines = [(label, of(metrics)) for label, of in FACTS.items()]
    return [(label, line) for label, line in lines if line is not None]


FACTS: dict[str, Callable[[Metrics], str | None]] = {
    "queue blocked by": blocked_line,
    "KV blocks": kv_line,
    "preempted": preempted_line,
    "steps": steps_line,
    "clients": clients_line,
}
"""Label -> line, None where there is nothing to say."""


def warnings(run: RunResult) -> list[str]:
    """What a reader must know to trust the figures: rows left out, assumptions made."""
    trace = run.trace
    lines = []
    if trace.bad_rows:
        lines.append(f"{count(len(trace.bad_rows), 'malformed row')} of the trace left out")
    if trace.failed_rows:
        lines.append(f"{count(len(trace.failed_rows), 'row')} of requests that failed when recorded left out")
    return [*lines, *(visible(note) for note in run.notes)]
