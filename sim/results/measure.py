"""What every metric, table and figure starts from: times per request, in ns, and whether the SLOs were met."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from costmodel.work import EQUAL_WORK
from sim.core.lifecycle import TERMINAL, State
from sim.core.plan import Blocker
from sim.results.arrays import CHUNK, BoolArray, FloatArray, IntArray, SmallIntArray, same, view
from sim.results.blocked import WAITED_FOR, blocked_by_engine
from sim.results.columns import NEVER, STATE_CODES, STATES
from sim.results.run import RunResult, Slo
from sim.results.steps import Plans
from sim.results.tokens import Gaps, Spans, TokenTimes, event_gaps, spans, token_times
from sim.results.waste import LastBlocks, last_blocks

NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Clients:
    names: tuple[str, ...]
    of: SmallIntArray
    """Of each request, the place of its client's name."""


@dataclass(frozen=True)
class Measured:
    """A run seen per request. Columns have shape (num_requests,) and `NEVER` or NaN where there is no such time.

    A request that was running when the run began (an initial state) has no arrival and so no latency.
    """

    result: RunResult

    # -- what came, and how it ended

    @cached_property
    def arrived(self) -> BoolArray:
        """False for what a run that was stopped did not get to."""
        return ~same(view(self.result.requests.engine), NEVER)

    @cached_property
    def num_offered(self) -> int:
        return int(self.arrived.sum())

    def ended(self, state: State) -> BoolArray:
        return self.arrived & same(view(self.result.requests.state), STATE_CODES[state])

    @cached_property
    def ends(self) -> dict[State, int]:
        """Offered requests by the state that they are in at the end: the values add up to `num_offered` (law 1)."""
        return {state: int(self.ended(state).sum()) for state in STATES}

    def state_of(self, row: int) -> State:
        return STATES[self.result.requests.state[row]]

    @property
    def num_alive(self) -> int:
        return sum(count for state, count in self.ends.items() if state not in TERMINAL)

    @cached_property
    def admitted(self) -> BoolArray:
        return ~same(self.admitted_ns, NEVER) | ~same(self.tokens.events, 0)

    @cached_property
    def admitted_ns(self) -> IntArray:
        """First admission in this run; NEVER for requests that were running when it began."""
        admitted_ns = view(self.result.requests.admitted_ns).copy()
        admitted_ns[: self.result.initial_rows] = NEVER
        return admitted_ns

    @cached_property
    def clients(self) -> Clients:
        """Who sent what; nobody where the trace names no clients."""
        given = self.result.trace.clients
        names = tuple(sorted(set(given or ())))
        code = {name: at for at, name in enumerate(names)}
        return Clients(names, np.fromiter((code[name] for name in given or ()), np.int32))

    # -- the clock

    @cached_property
    def start_ns(self) -> int:
        """First arrival."""
        arrivals = self.result.trace.arrival_ns[self.arrived]
        return int(arrivals.min()) if len(arrivals) else 0

    @cached_property
    def end_ns(self) -> int:
        """Last terminal event; where requests are left, the instant at which the run stopped."""
        if self.num_alive or not self.num_offered:
            return self.result.outcome.end_ns
        return int(view(self.result.requests.end_ns).max())

    @property
    def duration_s(self) -> float:
        return (self.end_ns - self.start_ns) / NS_PER_S

    @property
    def waiting_seen(self) -> IntArray:
        """Waiting requests in its engine when each request arrived."""
        return view(self.result.requests.waiting_seen)

    # -- tokens

    @cached_property
    def _token_books(self) -> tuple[TokenTimes, BoolArray, Gaps, LastBlocks]:
        """What comes of the spans, which take more memory than all of it."""
        logs, table = self.result.logs, self.spans
        times = token_times(table, logs, len(self.arrived))
        served = self.ended(State.FINISHED) & ~same(times.events, 0) & ~same(self.admitted_ns, NEVER)
        blocks = last_blocks(
            table, self.result.trace.prompt_tokens, [each.block_tokens for each in self.result.engines]
        )
        return times, served, event_gaps(table.pick(served[table.row]), logs), blocks

    @property
    def spans(self) -> Spans:
        return spans(self.result.logs)

    @property
    def tokens(self) -> TokenTimes:
        return self._token_books[0]

    @property
    def served(self) -> BoolArray:
        """Finished with at least one token, so that all latencies are defined."""
        return self._token_books[1]

    @property
    def gaps(self) -> Gaps:
        """Between output events of the same request, over all served requests."""
        return self._token_books[2]

    @property
    def last_blocks(self) -> LastBlocks:
        """Room in the last blocks of requests with output, and all the room that they held."""
        return self._token_books[3]

    @cached_property
    def output_tokens(self) -> IntArray:
        return view(self.result.requests.output_tokens)

    @cached_property
    def joined_tokens(self) -> int:
        """Tokens of served requests that came in one event with another."""
        return int(np.maximum(0, self.output_tokens - self.tokens.events)[self.served].sum())

    # -- latencies, of any request that has them

    def _since_arrival(self, time_ns: IntArray) -> IntArray:
        return np.where((time_ns == NEVER) | (self.admitted_ns == NEVER), NEVER, time_ns - self.result.trace.arrival_ns)

    @property
    def queue_ns(self) -> IntArray:
        """Arrival to first admission."""
        return self._since_arrival(self.admitted_ns)

    @cached_property
    def ttft_ns(self) -> IntArray:
        return self._since_arrival(self.tokens.first_ns)

    @cached_property
    def e2e_ns(self) -> IntArray:
        """Arrival to last token; of finished requests."""
        return np.where(self.served, self._since_arrival(self.tokens.last_ns), NEVER)

    @cached_property
    def tpot_ns(self) -> FloatArray:
        """(E2E - TTFT) / (output_tokens - 1); NaN for answers of one token."""
        return self._per(np.where(self.served, self.e2e_ns - self.ttft_ns, NEVER), self.output_tokens - 1)

    @property
    def normalised_ns(self) -> FloatArray:
        """E2E / output_tokens."""
        return self._per(self.e2e_ns, self.output_tokens)

    def _per(self, time_ns: IntArray, tokens: IntArray) -> FloatArray:
        ratio = np.full(len(tokens), np.nan)
        defined = (time_ns != NEVER) & (tokens > 0)
        ratio[defined] = time_ns[defined] / tokens[defined]
        return ratio

    # -- what the waits were for

    @cached_property
    def waits(self) -> BoolArray:
        """Who stood in the queue from arrival on: all but those of an initial state."""
        return self.arrived & (~same(self.admitted_ns, NEVER) | ~self.admitted)

    @property
    def wait_until_ns(self) -> IntArray:
        """First admission, or the end before one, or the end of the run."""
        until_ns = np.where(self.admitted_ns != NEVER, self.admitted_ns, view(self.result.requests.end_ns))
        return np.where(until_ns == NEVER, self.end_ns, until_ns)

    @property
    def came_in_ns(self) -> IntArray:
        """When each came into its engine's queue, or left without: its arrival, unless it had to wait outside."""
        came_in_ns = view(self.result.requests.came_in_ns)
        return np.where(came_in_ns == NEVER, self.result.trace.arrival_ns, np.minimum(came_in_ns, self.wait_until_ns))

    @property
    def blocked_ns(self) -> IntArray:
        """Time spent waiting, by what blocked the head of the queue; outside it the front's limits did, a policy.

        Shape: (len(WAITED_FOR), num_requests)
        """
        return self._blocked_ns(slice(None), self.came_in_ns, self.wait_until_ns)

    @cached_property
    def total_blocked_ns(self) -> IntArray:
        """`blocked_ns` summed over all requests, some of them at a time. Shape: (len(WAITED_FOR),)"""
        total = np.zeros(len(WAITED_FOR), np.int64)
        came_in_ns, until_ns = self.came_in_ns, self.wait_until_ns
        for at in range(0, len(self.arrived), CHUNK):
            total += self._blocked_ns(slice(at, at + CHUNK), came_in_ns, until_ns).sum(axis=1)
        return total

    def _blocked_ns(self, rows: slice, came_in_ns: IntArray, until_ns: IntArray) -> IntArray:
        waits = self.waits[rows]
        engine = np.where(waits, view(self.result.requests.engine)[rows], NEVER)
        blocked = blocked_by_engine(self.result.logs, engine, came_in_ns[rows], until_ns[rows])
        outside_ns = came_in_ns[rows] - self.result.trace.arrival_ns[rows]
        blocked[WAITED_FOR.index(Blocker.POLICY)] += np.where(waits, outside_ns, 0)
        return blocked

    # -- targets

    @cached_property
    def slo_met(self) -> BoolArray:
        """Finished and within every target given; equality passes, one token alone has a TPOT of 0 (vLLM)."""
        met = self.served.copy()
        for meets in self.slo_each.values():
            met &= meets
        return met

    @cached_property
    def slo_each(self) -> dict[str, BoolArray]:
        """For each target that was given, by its field in `Slo`: who meets it, unfinished requests never."""
        slo = self.result.slo
        seconds = {"ttft_s": self.ttft_ns, "tpot_s": np.nan_to_num(self.tpot_ns), "e2e_s": self.e2e_ns}
        return {name: self.served & (seconds[name] / NS_PER_S <= target) for name, target in targets(slo).items()}

    # -- steps

    @cached_property
    def plans(self) -> list[Plans]:
        """One per engine."""
        run = self.result
        works = run.token_work or (EQUAL_WORK,) * len(run.logs)
        each = zip(run.logs, run.engines, works, strict=True)
        return [Plans(log, facts, work, self.end_ns) for log, facts, work in each]


def targets(slo: Slo) -> dict[str, float]:
    """The targets that were given, by field."""
    given = {"ttft_s": slo.ttft_s, "tpot_s": slo.tpot_s, "e2e_s": slo.e2e_s}
    return {name: target for name, target in given.items() if target is not None}
