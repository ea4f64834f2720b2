"""The data of one step: the draft that passes fill in, and the plan that comes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from costmodel.shape import StepShape
from sim.core.request import Request

if TYPE_CHECKING:
    from sim.policies.protocols import Account, Meter


class Verdict(Enum):
    ADMIT = "admit"
    DEFER = "defer"
    REJECT = "reject"


class Blocker(Enum):
    """What a waiting request waits for."""

    NOTHING = "nothing"
    STEP = "step"
    """The step in progress: nobody has looked at it yet. Books hold NOTHING; results know that somebody waited."""
    SLOTS = "slots"
    BLOCKS = "blocks"
    WORK = "work"
    POLICY = "policy"

    __hash__ = object.__hash__


@dataclass(frozen=True, slots=True)
class Decision:
    """An answer to "may this request run?". Reports count `reason`, so it names a rule; numbers go into `detail`."""

    verdict: Verdict
    blocker: Blocker = Blocker.NOTHING
    reason: str = ""
    detail: str = ""


ADMIT = Decision(Verdict.ADMIT)


def defer(blocker: Blocker, reason: str) -> Decision:
    return Decision(Verdict.DEFER, blocker, reason)


def reject(reason: str, detail: str) -> Decision:
    return Decision(Verdict.REJECT, Blocker.NOTHING, reason, detail)


class PreemptionMode(Enum):
    """What becomes of a request whose blocks are taken."""

    RECOMPUTE = "recompute"
    """Its KV is dropped; it waits to be computed again."""
    SWAP = "swap"
    """Its KV moves to the host; it waits for room to come back."""
    FAIL = "fail"
    """It ends."""

    __hash__ = object.__hash__


class Item:
    """A request's share of a step when it is more than the next token of a decode."""

    __slots__ = ("admitted", "context", "emits", "new_blocks", "request", "tokens")

    def __init__(self, request: Request, tokens: int, context: int, new_blocks: int, admitted: bool) -> None:
        self.request = request
        self.tokens = tokens
        self.context = context
        """Tokens computed before this step (a hit's included)."""
        self.new_blocks = new_blocks
        self.admitted = admitted
        """In this very step."""
        self.emits = False
        """The step computes its last known token, so an output token comes out."""

    @property
    def hit_tokens(self) -> int:
        """Cached tokens that it was admitted with in this step."""
        return self.context if self.admitted else 0


class StepDraft:
    """What the passes of a turn have decided so far. One draft becomes one forward, or none."""

    __slots__ = (
        "account",
        "agreed",
        "all_decodes",
        "blocked",
        "decodes",
        "deferred",
        "items",
        "meter",
        "preempted",
        "refused",
        "rejected",
        "selected",
        "swapped_in",
        "swapped_in_blocks",
        "swapped_out_blocks",
        "to_take",
    )

    def __init__(self, meter: Meter, account: Account) -> None:
        self.meter = meter
        self.account = account
        self.items: list[Item] = []
        """In batch order, decodes left out."""
        self.decodes: set[Request] | None = None
        """The decodes scheduled, if they were walked one by one; see `all_decodes`."""
        self.all_decodes = False
        """Every member of the cohort decodes in this step."""
        self.preempted: list[Request] = []
        self.refused: list[Request] = []
        """A request for each time that its blocks were asked for and refused."""
        self.deferred: Decision | None = None
        """Why the scan of the queue ended with somebody left in it."""
        self.agreed = False
        """Whether the admission policy would have let `blocked` in."""
        self.blocked: Request | None = None
        """Whom it was said to; None where the answer is the same for everybody."""
        self.rejected = 0
        """Requests that ended in the scan."""
        self.swapped_in: list[Request] = []
        """Brought back from the host in this step, in order."""
        self.swapped_in_blocks = 0
        self.swapped_out_blocks = 0
        """Moved to the device and to the host before the forward."""
        self.selected: list[Request] = []
        """Who may take part in this step if there is work for him left (pass `Select`)."""
        self.to_take: list[tuple[Request, int, int]] = []
        """Where blocks are taken after the scan: (request, new blocks, full blocks)."""

    @property
    def empty(self) -> bool:
        return not (self.all_decodes or self.items or self.decodes)

    @property
    def some_decode(self) -> bool:
        """Whether decodes have been scheduled already."""
        return self.all_decodes or bool(self.decodes)

    def has(self, decode: Request) -> bool:
        """Whether a decoding request has its token of this step."""
        return self.all_decodes or (self.decodes is not None and decode in self.decodes)

    def item_of(self, request: Request) -> Item | None:
        return next((item for item in self.items if item.request is request), None)


class BatchPlan:
    """One forward, valid for up to `steps` identical steps. Only the engine core writes it.

    The first step's decisions (blocks, queue) are taken when the plan is made; the further ones follow from it and are
    applied when the core is told how far it got.
    """

    __slots__ = (
        "committed",
        "decode_requests",
        "decode_step",
        "decodes",
        "deferred",
        "items",
        "number",
        "preempted",
        "refused",
        "scheduled",
        "shape",
        "steps",
        "swapped_blocks",
    )

    def __init__(self, number: int, draft: StepDraft, shape: StepShape, decode_step: int) -> None:
        self.number = number
        self.shape = shape
        """Of the first step; `shape.after(i)` of the i-th."""
        self.steps = 1
        self.scheduled = 1
        self.committed = 0
        self.items = draft.items
        self.decode_requests = shape.decode_requests
        self.decode_step = decode_step
        """The cohort's step counter before the plan: its decodes are cohort steps decode_step .. + steps - 1."""
        self.decodes = draft.decodes
        """None if the whole cohort (or nobody) decodes, else who does."""
        self.preempted = draft.preempted
        self.refused = draft.refused
        self.deferred = draft.deferred
        self.swapped_blocks = draft.swapped_in_blocks + draft.swapped_out_blocks
        """Moved between device and host before the forward, both ways together."""
