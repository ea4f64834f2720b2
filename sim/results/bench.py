"""Results of `vllm bench serve` (and of tools that write its fields): read, recomputed, checked for being usable."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sim.results.arrays import FloatArray
from sim.results.wording import number

MOST_BYTES = 1 << 30
CLOSE_RATIO = 0.01
"""What should be equal may differ by so much: fields are rounded, clocks start at different places."""
LATENCIES = ("ttft", "tpot", "itl", "e2el")
STATISTICS = ("mean", "median", "p90", "p95", "p99")
OTHER_NAMES = {"e2el": "e2e_latency"}
"""SGLang's."""


class BadBench(ValueError):
    """Not a benchmark's result; the text says what is wrong."""


@dataclass(frozen=True, slots=True)
class Check:
    """Whether a file agrees with itself in one respect."""

    holds: bool
    text: str


@dataclass(frozen=True, slots=True)
class Bench:
    """One result. Successful requests only; what the file does not say is None."""

    completed: int
    failed: int | None
    duration_s: float
    input_tokens: int | None
    output_tokens: int | None
    request_rate: float | None
    """inf = all at once."""
    max_concurrency: int | None
    latency_ms: Mapping[str, float] = field(default_factory=dict)
    """`mean_ttft_ms` and so on, recomputed where each request is in the file."""
    n: Mapping[str, int] = field(default_factory=dict)
    """Latency -> requests (or gaps) it was computed from."""
    streamed: bool = True
    """False: a request's tokens came all at once, so that TTFT and TPOT say nothing."""
    checks: tuple[Check, ...] = ()
    results_in_file: int = 1

    @property
    def usable(self) -> bool:
        return all(check.holds for check in self.checks)

    def value(self, name: str) -> float | None:
        """A field of latencies; None where it is missing or says nothing."""
        latency = name.split("_")[1]
        return None if not self.streamed and latency != "e2el" else self.latency_ms.get(name)


def read_bench(path: Path) -> Bench:
    """JSON, or JSONL with a result per line, of which the last one counts. Raises BadBench, OSError."""
    if path.stat().st_size > MOST_BYTES:
        raise BadBench(f"{path.name}: larger than {MOST_BYTES >> 20} MiB")
    results = _documents(path)
    raw = results[-1]
    for name in ("completed", "duration"):
        if not _finite(raw.get(name)):
            raise BadBench(f"{path.name}: no result of a benchmark: {name} must be a number, got {raw.get(name)!r:.80}")
    if raw["duration"] <= 0:
        raise BadBench(f"{path.name}: duration must be > 0, got {raw['duration']}")
    return _bench(raw, len(results), path.name)


def _documents(path: Path) -> list[dict[str, Any]]:
    """Python's reader takes the bare `Infinity` that these tools write."""
    text = path.read_text(encoding="utf-8-sig")
    try:
        found = [json.loads(text)]
    except (ValueError, RecursionError):
        try:
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError) as error:
            raise BadBench(f"{path.name}: neither JSON nor JSON lines: {error}") from None
    if not found or not all(isinstance(each, dict) for each in found):
        raise BadBench(f"{path.name}: a result is a table of fields")
    return found


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _number(raw: Mapping[str, Any], name: str) -> float | None:
    value = raw.get(name)
    return float(value) if value is not None and _finite(value) else None


def _rate(value: Any) -> float | None:
    """A number, the text "inf", or a bare Infinity."""
    try:
        rate = float(value) if isinstance(value, int | float | str) else math.nan
    except ValueError:
        return None
    return None if math.isnan(rate) else rate


# -- one result


@dataclass(frozen=True)
class Rows:
    """Requests of a detailed result that succeeded, times in ms."""

    output_tokens: FloatArray
    ttft: FloatArray
    e2el: FloatArray
    itl: FloatArray
    """Pooled."""
    tpot: FloatArray
    """Of answers with more than one token."""
    failed: int
    streamed: bool


def _bench(raw: dict[str, Any], results: int, name: str) -> Bench:
    rows = _rows(raw, name)
    completed = int(raw["completed"]) if rows is None else len(rows.ttft)
    output = _number(raw, "total_output_tokens") if rows is None else float(rows.output_tokens.sum())
    inputs = _number(raw, "total_input_tokens")
    if inputs is None and rows is not None:
        inputs = float(sum(each for each, error in zip(raw["input_lens"], raw["errors"], strict=True) if not error))
    failed = _number(raw, "failed") if rows is None else float(rows.failed)
    latency, n = _latencies(raw, rows, completed)
    streamed = rows.streamed if rows is not None else _means_say_streamed(latency, completed, output)
    cap = _number(raw, "max_concurrency")
    bench = Bench(
        completed=completed,
        failed=None if failed is None else int(failed),
        duration_s=float(raw["duration"]),
        input_tokens=None if inputs is None else int(inputs),
        output_tokens=None if output is None else int(output),
        request_rate=_rate(raw.get("request_rate")),
        max_concurrency=None if cap is None else int(cap),
        latency_ms=latency,
        n=n,
        streamed=streamed,
        results_in_file=results,
    )
    return replace(bench, checks=tuple(_checks(raw, bench, rows)))


def _rows(raw: dict[str, Any], name: str) -> Rows | None:
    """None without `--save-detailed`. Failed rows are in the lists, with times of 0: they are left out."""
    columns = [raw.get(each) for each in ("output_lens", "ttfts", "itls", "input_lens")]
    if not all(isinstance(each, list) and each for each in columns):
        return None
    size = len(raw["ttfts"])
    raw["errors"] = raw.get("errors") or [""] * size
    if any(len(raw[each]) != size for each in ("output_lens", "itls", "errors", "input_lens")):
        raise BadBench(f"{name}: output_lens, ttfts, itls, errors and input_lens must be equally long")
    good = [at for at in range(size) if not raw["errors"][at] and raw["output_lens"][at]]
    try:
        output = np.array([raw["output_lens"][at] for at in good], float)
        ttft = np.array([raw["ttfts"][at] for at in good], float) * 1000
        gaps = [np.array(raw["itls"][at], float) * 1000 for at in good]
    except (TypeError, ValueError):
        raise BadBench(f"{name}: ttfts, output_lens and itls must hold numbers") from None
    whole = raw.get("e2els") or raw.get("latencies")
    decoding = np.array([each.sum() for each in gaps])
    given = isinstance(whole, list) and len(whole) == size
    e2el = np.array([whole[at] for at in good], float) * 1000 if given and whole is not None else ttft + decoding
    many = output > 1
    silent = many & (np.array([len(each) for each in gaps]) == 0)
    return Rows(
        output_tokens=output,
        ttft=ttft,
        e2el=e2el,
        itl=np.concatenate([np.zeros(0), *gaps]),
        tpot=(e2el - ttft)[many & ~silent] / (output - 1)[many & ~silent],
        failed=size - len(good),
        streamed=not (silent.any() and silent.sum() == many.sum()),
    )


def _latencies(raw: Mapping[str, Any], rows: Rows | None, completed: int) -> tuple[dict[str, float], dict[str, int]]:
    values: dict[str, float] = {}
    n: dict[str, int] = {}
    for latency in LATENCIES:
        if rows is not None:
            sample: FloatArray = getattr(rows, latency)
            n[latency] = len(sample)
            if len(sample):
                values[f"mean_{latency}_ms"] = float(sample.mean())
                for statistic, q in zip(STATISTICS[1:], (50, 90, 95, 99), strict=True):
                    values[f"{statistic}_{latency}_ms"] = float(np.percentile(sample, q))
            continue
        n[latency] = completed
        for statistic in STATISTICS:
            names = (f"{statistic}_{latency}_ms", f"{statistic}_{OTHER_NAMES.get(latency, latency)}_ms")
            found = next((value for each in names if (value := _number(raw, each)) is not None), None)
            if found is not None:
                values[names[0]] = found
    return values, n


def _means_say_streamed(latency: Mapping[str, float], completed: int, output: float | None) -> bool:
    ttft, e2el, tpot = (latency.get(f"mean_{name}_ms") for name in ("ttft", "e2el", "tpot"))
    if ttft is None or output is None or output <= completed:
        return True
    return not (tpot == 0 or (e2el is not None and ttft >= (1 - 1e-6) * e2el))


# -- checks


def _near(value: float, wanted: float) -> bool:
    return abs(value - wanted) <= CLOSE_RATIO * abs(wanted)


def _checks(raw: Mapping[str, Any], bench: Bench, rows: Rows | None) -> list[Check]:
    checks = []
    if not bench.streamed:
        checks.append(
            Check(False, "not streamed - TTFT/TPOT unusable: answers of many tokens have no gaps between them")
        )
    rate = bench.completed / bench.duration_s
    given = _number(raw, "request_throughput")
    if given is not None:
        checks.append(Check(_near(given, rate), f"request_throughput {given:.6g} = completed / duration {rate:.6g}"))
    if rows is None or len(np.unique(rows.output_tokens)) == 1:
        checks += _sum_check(bench)
    checks += _concurrency_check(bench, rate)
    if rows is not None and rows.failed:
        checks.append(Check(True, f"{rows.failed} failed of {rows.failed + len(rows.ttft)} left out of all latencies"))
    said = _number(raw, "mean_ttft_ms")
    if rows is not None and said is not None and len(rows.ttft):
        mine = float(rows.ttft.mean())
        checks.append(Check(_near(said, mine), f"mean_ttft_ms {number(said)} = mean of successful rows {number(mine)}"))
    again = _number(raw, "total_output_tokens_retokenized")
    if again is not None and bench.output_tokens is not None and again != bench.output_tokens:
        text = (
            f"{bench.output_tokens:,} output tokens asked for are used, not {again:,.0f} counted by a tokenizer again"
        )
        checks.append(Check(True, text))
    return checks


def _sum_check(bench: Bench) -> list[Check]:
    """Holds exactly where all answers are equally long; where it does not, they may not be: nothing is said."""
    ttft, tpot, e2el = (bench.value(f"mean_{name}_ms") for name in ("ttft", "tpot", "e2el"))
    if ttft is None or tpot is None or e2el is None or not bench.output_tokens or not bench.completed:
        return []
    gaps = bench.output_tokens / bench.completed - 1
    total = ttft + gaps * tpot
    return [Check(True, f"TTFT + {gaps:,.4g} TPOT = {total:,.3f} ms = mean E2E")] if _near(total, e2el) else []


def _concurrency_check(bench: Bench, rate: float) -> list[Check]:
    """Little's law: what is inside on average cannot be more than the cap."""
    e2el = bench.value("mean_e2el_ms")
    if e2el is None or not bench.max_concurrency:
        return []
    inside = rate * e2el / 1000
    text = f"rate x E2E = {inside:.4f} requests at once, max_concurrency {bench.max_concurrency}"
    return [Check(inside <= (1 + CLOSE_RATIO) * bench.max_concurrency, text)]
