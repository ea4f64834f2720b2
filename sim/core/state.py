"""What an engine holds - queues, running requests, blocks - and the one place for each change of state.

What passes may do with it while a step is drafted is `sim.core.drafting`; when steps are drafted and what comes of
them is `sim.core.engine`.
"""

from __future__ import annotations

from copy import deepcopy

from sim.core.cohort import FOREVER, DecodeCohort
from sim.core.endings import Endings
from sim.core.events import Ended, PolicyEvent
from sim.core.front import Front
from sim.core.in_flight import InFlight
from sim.core.lifecycle import Event, State, after
from sim.core.observer import Observer
from sim.core.plan import StepDraft
from sim.core.queue import FifoQueue
from sim.core.request import Request
from sim.core.spec import EngineSpec, Quirk
from sim.kv.host import HostPool
from sim.policies.protocols import Policy


class EngineState:
    """The state and its only writer. Policies read it through `sim.policies.protocols.EngineView`.

    Slots, here and in the classes on top: CPython looks attributes up more slowly in objects with more than 30 of them.
    """

    __slots__ = (
        "_decode_seq",
        "_endings",
        "_in_flight",
        "_latest_seq",
        "_listeners",
        "_marked",
        "_preemptions_since_token",
        "_prefill_tokens_out",
        "_takes_late",
        "admission",
        "block_tokens",
        "budget",
        "cohort",
        "front",
        "host",
        "latched",
        "latest_draft",
        "learners",
        "most_blocks",
        "now_ns",
        "observer",
        "order",
        "peak_used_blocks",
        "pool_blocks",
        "preemption",
        "prefilling",
        "promised_blocks",
        "reserved_blocks",
        "running",
        "spec",
        "store",
        "swapped",
        "waiting",
    )
    latest_draft: StepDraft
    """What the passes said when a step was last planned; its meter has what the step left over."""

    def __init__(self, spec: EngineSpec, observer: Observer | None = None) -> None:
        self.spec = spec
        self.observer = observer or Observer()
        self.order, self.admission = deepcopy(spec.order), deepcopy(spec.admission)
        self.budget, self.preemption = deepcopy(spec.budget), deepcopy(spec.preemption)
        self._listeners = [
            policy.observe
            for policy in (self.order, self.admission, self.budget, self.preemption)
            if type(policy).observe is not Policy.observe
        ]
        self.now_ns = 0
        """The caller's time: given when a step is planned, and set by a driver before it commits or cancels."""
        self.store = spec.new_store()
        self.host = HostPool(spec.host)
        self.block_tokens = self.store.block_tokens
        self.pool_blocks = self.most_blocks = self.store.total_blocks
        """What the pool can have from now on: what fits may have to wait, what does not can never run. The other is the
        most that it has had."""
        self.front = None if spec.front is None else Front(spec.front)
        self.waiting = self.order.queue()
        self.swapped = FifoQueue()
        self.running: dict[Request, None] = {}
        """In list order (`EngineSpec.list_order`)."""
        self.prefilling: dict[Request, None] = {}
        """Of the running: those with more to compute than the next decode's token, in list order."""
        self.cohort = DecodeCohort(self.block_tokens, self._decoded)
        self.learners: dict[Request, None] = {}
        """Decoding requests whose output others may hit: their blocks must be registered as they fill."""
        self.latched = False
        """Admission is closed until somebody leaves (pass `Admit`, `latches`)."""
        self.reserved_blocks = 0
        self.promised_blocks = 0
        """Granted in the step being drafted, not taken yet (`EngineSpec.takes_blocks`); they do not count as free."""
        self.peak_used_blocks = 0
        self._endings = Endings(fewest=2 if Quirk.FIRST_TOKEN_NOT_CHECKED in spec.quirks else 1)
        self._in_flight = InFlight(spec.depth, self.cohort, self._endings)
        self._prefill_tokens_out = 0 if Quirk.PREFILL_EMITS_NOTHING in spec.quirks else 1
        self._takes_late = spec.takes_blocks == "after the scan"
        self._latest_seq = 0
        self._decode_seq = 0
        """No decode stands behind this number in list order."""
        self._preemptions_since_token = 0
        self._marked: dict[Request, tuple[Event, str]] = {}
        """Cancelled or timed out, but computed until the engine is through with them (quirk LEAVERS_RUN_ON)."""

    # -- what policies may ask

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def final_kv_tokens(self, request: Request) -> int:
        return request.prompt_tokens + request.max_tokens - self._prefill_tokens_out

    def held_blocks(self, request: Request) -> int:
        """Blocks that a running request holds, shared ones included."""
        return self.blocks(request.computed_tokens) if request.decoding else request.held_blocks

    @property
    def free_slots(self) -> int:
        return self.spec.max_running - len(self.running)

    @property
    def used_blocks(self) -> int:
        return self.store.total_blocks - self.store.free_blocks

    # -- what a driver may ask

    @property
    def idle(self) -> bool:
        return not (self.running or self.num_waiting or self.swapped or self._in_flight.plans)

    @property
    def num_waiting(self) -> int:
        """Requests that wait to be admitted, in the engine's queue or outside it."""
        return len(self.waiting) + (0 if self.front is None else len(self.front.outside))

    @property
    def committed_step(self) -> int:
        """Cohort steps whose tokens have been delivered."""
        return self._in_flight.committed_step

    def delivered_run(self, request: Request) -> tuple[int, int]:
        """The cohort steps start .. stop - 1, unbroken up to now, that have brought a decoding request its tokens."""
        if not request.decoding:
            return 0, 0
        return request.join_step, max(request.join_step, self._in_flight.committed_step)

    def delivered_tokens(self, request: Request) -> int:
        """Output tokens that have come out; those of forwards in flight have not."""
        start, stop = self.delivered_run(request)
        return request.outputs + stop - start - self._in_flight.undelivered_tokens(request)

    # -- what passes may ask

    @property
    def decodes_come_first(self) -> bool:
        """Whether every decode stands before every prefill in list order."""
        return not self.prefilling or next(iter(self.prefilling)).seq > self._decode_seq

    def blocks_to_add(self, request: Request, tokens: int) -> int:
        """Blocks that a running request lacks for computing `tokens` more."""
        if request.decoding:
            return 1 if request.computed_tokens % self.block_tokens == 0 else 0
        return max(0, self.blocks(request.computed + tokens) - request.held_blocks)

    def would_decode(self, request: Request) -> bool:
        """Whether a swapped request has nothing to compute but its newest output."""
        done = request.computed
        return done >= request.prompt_tokens and request.known_tokens - done == self._prefill_tokens_out

    # -- the one place for each change of state

    def _enter_running(self, request: Request, computed_tokens: int, event: Event) -> None:
        self._latest_seq += 1
        request.seq = self._latest_seq
        request.computed = computed_tokens
        request.state = after(request.state, event, request.id)
        out_of_order = False
        if self.spec.list_order == "arrival":
            request.seq = request.number
            out_of_order = bool(self.running) and next(reversed(self.running)).seq > request.seq
        self.running[request] = None
        self.prefilling[request] = None
        if out_of_order:
            self.running, self.prefilling = _in_order(self.running), _in_order(self.prefilling)
        request.reserved_blocks = self.admission.reservation(self, request)
        self.reserved_blocks += request.reserved_blocks

    def _leave_running(self, request: Request, *, returns: bool, scheduled: int = 0, over: bool = False) -> None:
        """Take a request out of the running list and give its blocks back.

        `scheduled`: tokens that it had been given in the step being drafted. `over`: its last token is delivered.
        """
        known = self._in_flight.known_tokens(request, scheduled=scheduled, over=over)
        held = request.held_blocks
        if request.decoding:
            held = self.blocks(request.computed_tokens + scheduled)
            self._stop_decoding(request, last_step=FOREVER if returns else self._in_flight.committed_step)
        del self.running[request]
        self.prefilling.pop(request, None)
        self.store.release(request, held, known // self.block_tokens, returns=returns)
        request.held_blocks = 0
        self.reserved_blocks -= request.reserved_blocks
        request.reserved_blocks = 0
        self.latched = False

    def _start_decoding(self, request: Request) -> None:
        self.prefilling.pop(request, None)
        if self.spec.list_order == "decoding":
            self._latest_seq += 1
            request.seq = self._latest_seq
            del self.running[request]
            self.running[request] = None
        self._decode_seq = max(self._decode_seq, request.seq)
        self.cohort.join(request)
        self._endings.enter(request, self.cohort.step)
        if self.store.knows_contents and self.store.learns_from(request):
            self.learners[request] = None

    def _stop_decoding(self, request: Request, *, last_step: int = FOREVER) -> None:
        """It leaves the cohort; tokens after `last_step`, or after its end, never come out."""
        request.held_blocks = self.blocks(request.computed_tokens)
        self.cohort.leave(request, last_step=min(last_step, self._endings.leave(request)))
        self.learners.pop(request, None)
        self._in_flight.stop_decoding(request)

    def _decoded(self, request: Request, start: int, stop: int) -> None:
        """A run of cohort steps is over for a request; a token still in flight is reported when it is delivered."""
        self.observer.decoded(request, start, self._in_flight.owe(request, start, stop))

    def _finalise(self, request: Request, event: Event, reason: str, detail: str = "") -> None:
        if request in self._marked:
            event, reason = self._marked.pop(request)
        request.state = after(request.state, event, request.id)
        request.outputs -= self._in_flight.undelivered_tokens(request)
        self._in_flight.forget(request)
        self._endings.forget(request)
        self.observer.ended(request, reason, detail)
        if self._listeners:
            self._tell_all(Ended(request, self.now_ns))

    def _tell_all(self, event: PolicyEvent) -> None:
        """To the policies that listen. Most engines have none, so callers ask first."""
        for listen in self._listeners:
            listen(event)

    def _note_peak(self) -> None:
        used_blocks = self.store.total_blocks - self.store.free_blocks
        if used_blocks > self.peak_used_blocks:
            self.peak_used_blocks = used_blocks

    def check_invariants(self) -> None:
        """The books agree with each other between two steps (law 4 and what the other laws stand on).

        AssertionError on our own bugs.
        """
        self.cohort.check_invariants(request for request in self.running if request.decoding)
        for request in self.running:
            assert request.state is State.RUNNING
            assert self.held_blocks(request) >= self.blocks(request.computed_tokens)
        assert all(request.state is State.SWAPPED for request in self.swapped)
        assert all(request.state is State.QUEUED for request in self.waiting)
        assert [*self.prefilling] == [request for request in self.running if request in self.prefilling]
        assert not any(request.decoding for request in self.prefilling)
        assert all(request.decoding for request in self.learners)
        assert not self.promised_blocks
        assert [*self.running] == sorted(self.running, key=lambda request: request.seq)
        assert len(self.running) <= self.spec.max_running
        assert self.reserved_blocks == sum(request.reserved_blocks for request in self.running)
        self.store.check_invariants(sum(map(self.held_blocks, self.running)))
        self.host.check_invariants()
        if not self.running and Quirk.CACHE_LEAKS not in self.spec.quirks:
            assert self.store.free_blocks == self.store.total_blocks


def _in_order(requests: dict[Request, None]) -> dict[Request, None]:
    return dict.fromkeys(sorted(requests, key=lambda request: request.seq))
