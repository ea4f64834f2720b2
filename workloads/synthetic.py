"""Workloads from a few numbers: a frozen recipe and a seed give the same `Trace` every time."""

from __future__ import annotations

from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from workloads.arrivals import Arrivals, arrival_ns
from workloads.config import Config, wrong
from workloads.lengths import Lengths, Tokens, length_tokens
from workloads.max_tokens import MaxTokensRule, resolve_max_tokens
from workloads.prefix import PrefixChain
from workloads.rng import picks, uniforms
from workloads.trace import UNKNOWN, IntArray, PrefixIds, Trace

Weight = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]
Ratio = Annotated[float, Field(ge=0, le=1)]

NO_PREFIX = -1


class SharedPrefixes(Config):
    """Beginnings that many prompts share, such as system prompts. They come on top of the drawn prompt length."""

    num_prefixes: int = Field(ge=1, le=1_000_000)
    prefix_tokens: Tokens
    group_tokens: Tokens = 64
    """Tokens behind one prefix id; engines share whole blocks inside it."""
    popularity: Literal["uniform", "zipf"] = "uniform"
    zipf_exponent: float = Field(default=1.0, ge=0, le=10)
    """Prefix k (from 1) is chosen in proportion to 1 / k ** zipf_exponent."""
    share_ratio: Ratio = 1.0
    """Of requests that have one of them (0-1)."""

    @model_validator(mode="after")
    def _whole_groups(self) -> Self:
        if self.prefix_tokens % self.group_tokens:
            raise wrong(
                f"prefix_tokens must be a multiple of group_tokens={self.group_tokens}, got {self.prefix_tokens}"
            )
        return self


class Cancels(Config):
    """Some clients go away after a fixed time."""

    share_ratio: Ratio
    """Of requests whose client does (0-1)."""
    after_s: Seconds


class SyntheticConfig(Config):
    """A workload's recipe."""

    name: str = "synthetic"
    num_requests: int = Field(ge=1, le=10_000_000)
    arrivals: Arrivals
    prompt_tokens: Lengths
    output_tokens: Lengths
    prefixes: SharedPrefixes | None = None
    max_tokens: str | None = None
    """`fixed:N`, `factor:F` or `true`; without it requests name none."""
    priorities: dict[int, Weight] = Field(default={})
    """Priority (smaller is more important) -> weight."""
    clients: dict[str, Weight] = Field(default={})
    """Client -> weight."""
    queue_timeout_s: Seconds | None = None
    timeout_s: Seconds | None = None
    cancels: Cancels | None = None

    @field_validator("max_tokens")
    @classmethod
    def _a_rule(cls, text: str | None) -> str | None:
        if text is not None and MaxTokensRule.of(text).kind == "model_len":
            raise ValueError(f"max_tokens={text} is what a replay does for requests that name none: leave it out")
        return text


def generate(config: SyntheticConfig, seed: int) -> Trace:
    """The workload of this recipe. Request i is the same for every `num_requests`, but for its stretched arrival."""
    num = config.num_requests
    which_prefix = _which_prefix(config.prefixes, num, seed)
    prefix_tokens = 0 if config.prefixes is None else config.prefixes.prefix_tokens
    own_tokens = length_tokens(config.prompt_tokens, num, seed, "prompt_tokens")
    trace = Trace(
        name=config.name,
        format="synthetic",
        arrival_ns=arrival_ns(config.arrivals, num, seed),
        prompt_tokens=own_tokens + np.where(which_prefix == NO_PREFIX, 0, prefix_tokens),
        output_tokens=length_tokens(config.output_tokens, num, seed, "output_tokens"),
        max_tokens=np.full(num, UNKNOWN, dtype=np.int64),
        priority=_priorities(config, seed),
        clients=_clients(config, seed),
        queue_timeout_ns=_all_after(config.queue_timeout_s, num),
        timeout_ns=_all_after(config.timeout_s, num),
        cancel_after_ns=_cancels(config.cancels, num, seed),
        prefix=None if config.prefixes is None else _prefix_ids(config.prefixes, which_prefix),
        notes=(f"generated with seed {seed}",),
    )
    return trace if config.max_tokens is None else resolve_max_tokens(trace, config.max_tokens)


def _which_prefix(prefixes: SharedPrefixes | None, num: int, seed: int) -> IntArray:
    """The prefix of each request, or NO_PREFIX."""
    if prefixes is None:
        return np.full(num, NO_PREFIX, dtype=np.int64)
    exponent = prefixes.zipf_exponent if prefixes.popularity == "zipf" else 0.0
    weights = np.arange(1, prefixes.num_prefixes + 1, dtype=np.float64) ** -exponent
    chosen = picks(seed, "prefix", num, weights.tolist())
    return np.where(uniforms(seed, "prefix_share", num) < prefixes.share_ratio, chosen, NO_PREFIX)


def _prefix_ids(prefixes: SharedPrefixes, which_prefix: IntArray) -> PrefixIds:
    chain = PrefixChain()
    num_groups = prefixes.prefix_tokens // prefixes.group_tokens
    ids: dict[int, tuple[int, ...]] = {NO_PREFIX: ()}
    for prefix in dict.fromkeys(which_prefix.tolist()):  # in order of first use
        if prefix != NO_PREFIX:
            ids[prefix] = chain.chained([prefix] * num_groups)
    return PrefixIds(prefixes.group_tokens, [ids[prefix] for prefix in which_prefix.tolist()])


def _priorities(config: SyntheticConfig, seed: int) -> IntArray | None:
    if not config.priorities:
        return None
    chosen = picks(seed, "priority", config.num_requests, list(config.priorities.values()))
    return np.array(list(config.priorities), dtype=np.int64)[chosen]


def _clients(config: SyntheticConfig, seed: int) -> list[str] | None:
    if not config.clients:
        return None
    names = list(config.clients)
    chosen = picks(seed, "client", config.num_requests, list(config.clients.values()))
    return [names[i] for i in chosen.tolist()]


def _all_after(after_s: float | None, num: int) -> IntArray | None:
    return None if after_s is None else np.full(num, round(after_s * 1e9), dtype=np.int64)


def _cancels(cancels: Cancels | None, num: int, seed: int) -> IntArray | None:
    if cancels is None:
        return None
    leaves = uniforms(seed, "cancel", num) < cancels.share_ratio
    return np.where(leaves, round(cancels.after_s * 1e9), UNKNOWN)
