"""Admission by an estimate of what running requests will still write, corrected by what happens (SGLang)."""

from __future__ import annotations

from sim.core.cohort import FOREVER
from sim.core.events import Admitted, Ended, GaveWay, PolicyEvent, Ran, RoomMade, WentIdle
from sim.core.plan import ADMIT, Blocker, Decision, defer, reject
from sim.core.request import Request
from sim.kv.store import Hit
from sim.policies.protocols import Account, AdmissionPolicy, EngineView
from sim.policies.registry import ADMISSION

NO_TOKENS = defer(Blocker.BLOCKS, "estimated tokens do not fit")

INIT_RATIO = 0.7
MIN_FACTOR = 0.14
DECAY_STEPS = 600
SPARE_TOKENS = 20
"""SGLANG_{INIT_NEW_TOKEN_RATIO, MIN_NEW_TOKEN_RATIO_FACTOR, NEW_TOKEN_RATIO_DECAY_STEPS, RETRACT_DECODE_STEPS}."""


class RatioAccount:
    """One scan: what is free, less what running requests are expected to write and what the scan has promised.

    Made for engines that take blocks after the scan; where they are taken at once, what a scan lets in counts twice in
    it. Source: SGLang 0.5.23 `mem_cache/prefill_budget.py` (`PrefillBudget`).
    """

    __slots__ = ("_now", "_policy", "_total")

    def __init__(self, policy: NewTokenRatio) -> None:
        self._policy = policy
        self._now = 0
        """Tokens promised for prefills of this step, `current_offset`."""
        self._total: float | None = None
        """Those, and all that is still to be written, `total_offset`. Most steps never ask."""

    def _free_tokens(self, engine: EngineView) -> int:
        """What is free when this step's prefills have not taken theirs."""
        return (engine.store.free_blocks + engine.promised_blocks) * engine.block_tokens

    def rem_total(self, engine: EngineView) -> float:
        """Tokens left for whole answers."""
        return self._free_tokens(engine) - self._promised(engine)

    def cur_rem(self, engine: EngineView) -> int:
        """Tokens left for prefills in this step."""
        self._promised(engine)
        return self._free_tokens(engine) - self._now

    def _promised(self, engine: EngineView) -> float:
        if self._total is None:
            self._now = engine.cohort.size if self._policy.mixed else 0
            self._total = self._now + self._policy.ratio * self._policy.left_tokens(engine)
        return self._total

    def decide(self, engine: EngineView, request: Request, hit: Hit, chunk_blocks: int) -> Decision:
        """A candidate is not discounted; the page more is what rounding may cost. What it hits is not free any more."""
        clip, page = self._policy.clip_tokens, engine.block_tokens
        to_write = min(max(request.max_tokens - request.output_tokens, 0), clip)
        need = request.known_tokens - hit.tokens + to_write + page
        return ADMIT if need < self.rem_total(engine) - hit.free_blocks * page else NO_TOKENS

    def charge(self, engine: EngineView, request: Request, tokens: int, *, last: bool) -> None:
        """Its answer is charged with its last chunk, and whole: what it has written before a retraction counts too."""
        before, page = self._promised(engine), engine.block_tokens
        prefill = engine.blocks(tokens) * page + page
        self._now += prefill
        self._total = before + prefill + (min(request.max_tokens, self._policy.clip_tokens) if last else 0)

    def allow(self, engine: EngineView, request: Request, tokens: int) -> int:
        """A prompt that has begun gets what is left, and all that it wants where nothing is: it must get on."""
        left = int(self.rem_total(engine))
        return min(tokens, left) if left > 0 else tokens

    def spent(self, engine: EngineView) -> Decision | None:
        return NO_TOKENS if self.rem_total(engine) <= 0 or self.cur_rem(engine) <= 0 else None


@ADMISSION.register("new-token-ratio")
class NewTokenRatio(AdmissionPolicy):
    """Expect running requests to write a share of what their max_tokens leaves them; a candidate all of it.

    The share falls with every decode step that fits, and is set anew when somebody had to be retracted. Source: SGLang
    0.5.23 `schedule_policy.py` (`PrefillAdder`), `new_token_ratio_tracker.py`.

    `conservativeness` scales the share (SGLang schedule_conservativeness). `clip_tokens`: nobody is expected to write
    more (SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION). `mixed`: decodes join prefill steps. `reset_when_idle`: the share is
    as at the start again when there is nothing to run.
    """

    charges = True
    lasting_yes = False  # every decode step takes a whole token and gives back a share of one

    def __init__(
        self,
        conservativeness: float = 1.0,
        clip_tokens: int = 4096,
        mixed: bool = False,
        reset_when_idle: bool = True,
    ) -> None:
        if not conservativeness > 0:
            raise ValueError(f"conservativeness must be > 0, got {conservativeness}")
        if clip_tokens < 1:
            raise ValueError(f"clip_tokens must be >= 1, got {clip_tokens}")
        self.clip_tokens = clip_tokens
        self.mixed = mixed
        self.reset_when_idle = reset_when_idle
        self._first = min(INIT_RATIO * conservativeness, 1.0)
        self._least = self._first * MIN_FACTOR
        self._decay = (self._first - self._least) / DECAY_STEPS
        self._start = self._first
        self._steps = 0
        """Decode steps since the share was `_start`: counted, so that it does not matter how many came at once."""
        self._running: dict[Request, None] = {}
        self._long: dict[Request, int] = {}
        """Of these, those with max_tokens above the clip, and up to which decode step they surely have it before them.

        A request gets one token from its prefill and at most one per decode step.
        """
        self._all_long_until = FOREVER
        """The least of these steps."""
        self._decode_steps = 0
        self._final_tokens = 0
        """Sum of prompt + max_tokens over the running."""

    @property
    def ratio(self) -> float:
        """The share, `new_token_ratio`."""
        return max(self._start - self._steps * self._decay, self._least) if self._steps else self._start

    def left_tokens(self, engine: EngineView) -> int:
        """What the decoding requests may still write, none of them more than the clip: max_tokens - outputs, summed.

        Nobody is looked at where no max_tokens is above the clip (a context is prompt + outputs - 1), nor where all
        are far above. Request by request if some came to run without being admitted.
        """
        clip, cohort = self.clip_tokens, engine.cohort
        if len(self._running) != len(engine.running):
            return sum(min(_left(request), clip) for request in engine.running if request.decoding)
        if len(self._long) == len(self._running) and self._decode_steps <= self._all_long_until:
            return clip * cohort.size
        prefilling = sum(request.prompt_tokens + request.max_tokens for request in engine.prefilling)
        left = self._final_tokens - prefilling - cohort.context_tokens - cohort.size
        return left - sum(max(0, _left(request) - clip) for request in self._long if request.decoding)

    def feasible(self, engine: EngineView, request: Request) -> Decision:
        expected = min(request.max_tokens, self.clip_tokens)
        need = request.prompt_tokens + expected + engine.block_tokens
        pool = engine.pool_blocks * engine.block_tokens
        if need < pool:
            return ADMIT
        detail = f"prompt {request.prompt_tokens} + {expected} expected + {engine.block_tokens} spare tokens >= {pool}"
        return reject("prompt + expected output > KV", detail)

    def open(self, engine: EngineView) -> Account:
        return RatioAccount(self)

    def decide(self, engine: EngineView, request: Request, hit: Hit, chunk_blocks: int) -> Decision:
        return self.open(engine).decide(engine, request, hit, chunk_blocks)

    def observe(self, event: PolicyEvent) -> None:
        match event:
            case Ran(steps=steps, decode_requests=decodes, prefill_tokens=prefill, preempted=preempted):
                if decodes:
                    self._decode_steps += steps
                if decodes and not prefill and not preempted:
                    self._steps += steps
            case Admitted(request=request):
                self._enter(request)
            case GaveWay(request=request) | Ended(request=request):
                self._leave(request)
            case RoomMade(survivors=survivors):
                written = sum(request.output_tokens for request in survivors) + SPARE_TOKENS * len(survivors)
                self._set(min(1.0, written / (sum(request.max_tokens for request in survivors) + 1)))
            case WentIdle() if self.reset_when_idle:
                self._set(self._first)

    def _set(self, ratio: float) -> None:
        self._start, self._steps = ratio, 0

    def _enter(self, request: Request) -> None:
        self._running[request] = None
        self._final_tokens += request.prompt_tokens + request.max_tokens
        if request.max_tokens > self.clip_tokens:
            in_flight = 2  # scheduled steps that have not run, at most
            until = self._decode_steps + _left(request) - 1 - self.clip_tokens - in_flight
            self._long[request] = until
            self._all_long_until = min(self._all_long_until, until)

    def _leave(self, request: Request) -> None:
        if request not in self._running:
            return
        del self._running[request]
        self._final_tokens -= request.prompt_tokens + request.max_tokens
        if self._long.pop(request, FOREVER) == self._all_long_until:
            self._all_long_until = min(self._long.values(), default=FOREVER)


def _left(request: Request) -> int:
    return request.max_tokens - request.output_tokens
