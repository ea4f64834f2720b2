"""SGLang: our core driven as the recorder drove SGLang's scheduler (tests/golden/FORMAT.md).

A step of the log is one turn of the loop: arrivals, the scan for a prefill, else a decode, and what comes of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

from sim.conformance.recorder import RECORDERS, Log, NotCovered, Recorder
from sim.conformance.workload import Arrivals, Prompts
from sim.core.admit import NO_SLOT, a_slot_is_free, not_latched
from sim.core.cohort import FOREVER
from sim.core.engine import EngineCore
from sim.core.observer import Observer
from sim.core.plan import ADMIT, BatchPlan, Decision
from sim.core.request import Request
from sim.engines import UNKNOWN_HARDWARE
from sim.engines.sglang import Sglang
from sim.kv.radix import RadixStore
from sim.kv.store import Hit
from sim.policies.pages import PageMeter
from sim.policies.protocols import Account, EngineView
from sim.policies.ratio import NewTokenRatio, RatioAccount


@RECORDERS.register(Sglang.preset)
class SglangRecorder(Recorder):
    compared: ClassVar[tuple[str, ...]] = (
        "step",
        "ratio",
        "avail",
        "evictable",
        "protected",
        "running",
        "waiting",
        "chunked",
        "order",
        "budget0",
        "decisions",
        "stop",
        "action",
        "retract_order_keep_first",
        "retracted",
        "ratio_after",
        "decoded",
        "finished",
    )
    unverified: ClassVar[tuple[str, ...]] = (
        "a candidate paying for its whole answer, only running ones at the ratio",
        "who comes back needing room for the rest of his answer only",
        "the clip of expected output at 4096",
        "the ratio's least value, and its reset when idle (the recordings were made without)",
        "the victim's being the one with the fewest outputs (all had equally many)",
        "KV of a retracted request staying out of the tree",
        "a chunk in flight going on while the latch is closed",
        "lpm's rule for beginnings that several waiting requests share, and its longest queue",
        "dfs-weight",
        "mixed chunks",
        "a pool without prefix cache",
        "the end of a last request that does not fit alone",
    )

    def emit(self, input: dict[str, Any], *, max_stretch: int = FOREVER) -> Log:
        return {"steps": list(Loop(input, max_stretch=max_stretch).turns())}


def preset(input: dict[str, Any]) -> Sglang:
    """The preset's flags for a scenario. Raises NotCovered."""
    for row in input["requests"]:
        for name in ("ignore_eos", "priority"):
            if row.get(name):
                raise NotCovered(name)
    return Sglang(
        schedule_policy=input["policy"],
        max_running_requests=input["max_running"],
        chunked_prefill_size=input["chunked_prefill_size"],
        max_prefill_tokens=input.get("max_prefill_tokens", 16384),
        page_size=input.get("page_size", 1),
        schedule_conservativeness=input.get("conservativeness", 1.0),
        enable_mixed_chunk=input.get("mixed_chunk", False),
        disable_radix_cache=input.get("disable_radix", False),
        clip=input.get("clip_max_new_tokens", 4096),
        max_total_tokens=input["num_kv_tokens"],
    )


class WatchedAccount(RatioAccount):
    """Notes what it is asked, as the recorder did after each call of the adder."""

    __slots__ = ("_rows",)

    def __init__(self, policy: NewTokenRatio, rows: list[dict[str, Any]]) -> None:
        super().__init__(policy)
        self._rows = rows

    def decide(self, engine: EngineView, request: Request, hit: Hit, chunk_blocks: int) -> Decision:
        decision = super().decide(engine, request, hit, chunk_blocks)
        result = "OTHER" if decision is ADMIT else "NO_TOKEN"  # if it is let in after all, `charge` says so
        row = {"id": int(request.id), "kind": "add", "added": False, "result": result, "prefix": hit.tokens}
        self._rows.append({**row, **self._left(engine)})
        return decision

    def charge(self, engine: EngineView, request: Request, tokens: int, *, last: bool) -> None:
        super().charge(engine, request, tokens, last=last)
        row = self._rows[-1] if self._rows else {}
        if row.get("id") != int(request.id):
            row = {"id": int(request.id), "kind": "continue_chunk", "prefix": request.computed, "extend": tokens}
            self._rows.append({**row, "done": last})
            return
        result = "NO_TOKEN" if self.spent(engine) is not None else "CONTINUE" if _meter(engine).has_left() else "OTHER"
        row.update(added=True, result=result, extend=tokens, is_chunk=not last, **self._left(engine))

    def _left(self, engine: EngineView) -> dict[str, Any]:
        return {"rem_total": round(self.rem_total(engine), 4), "rem_chunk": _rem_chunk(_meter(engine))}


def _meter(engine: EngineView) -> PageMeter:
    assert isinstance(engine, EngineCore)
    meter = engine.latest_draft.meter
    assert isinstance(meter, PageMeter)
    return meter


def _rem_chunk(meter: PageMeter) -> int | None:
    return meter.chunk_left if meter.chunked else None


class WatchedRatio(NewTokenRatio):
    """As the preset's, but never reset. `rows`: the decisions of the scan in progress."""

    def __init__(self, config: Sglang) -> None:
        super().__init__(
            config.schedule_conservativeness, config.clip, config.enable_mixed_chunk, reset_when_idle=False
        )
        self.rows: list[dict[str, Any]] = []

    def open(self, engine: EngineView) -> Account:
        return WatchedAccount(self, self.rows)


class Listener(Observer):
    """Remembers who ended."""

    def __init__(self) -> None:
        self.ended_ids: list[int] = []

    def ended(self, request: Request, reason: str, detail: str) -> None:
        self.ended_ids.append(int(request.id))


class Loop:
    """The recorder's loop around our core."""

    def __init__(self, input: dict[str, Any], *, max_stretch: int = FOREVER) -> None:
        config = preset(input)
        spec = replace(config.spec(UNKNOWN_HARDWARE), admission=WatchedRatio(config))
        self.listener = Listener()
        self.core = EngineCore(spec, self.listener, max_stretch=max_stretch)
        admission = self.core.admission
        assert isinstance(admission, WatchedRatio)
        self.admission = admission
        self.max_steps: int = input["steps"]
        self.arrivals = Arrivals(input["requests"])
        self.prompts = Prompts(config.page_size)

    def turns(self) -> Iterator[dict[str, Any]]:
        for step in range(self.max_steps):
            self._arrive(step)
            if self.core.idle and not self.arrivals:
                return
            yield self._turn(step)

    def _arrive(self, step: int) -> None:
        for row in self.arrivals.due(step):
            request = self.prompts.request(row)
            self.core.submit(request, stop_after=row.get("true_output_len") or row["max_new_tokens"])

    def _turn(self, step: int) -> dict[str, Any]:
        core = self.core
        turn = {"step": step, **self._state()}
        closed = any(guard(core, core.latest_draft) for guard in (a_slot_is_free, not_latched))
        scans = bool(core.prefilling or (core.waiting and not closed))
        budget = self._budget() if scans else {}
        self.admission.rows.clear()
        plan = core.plan_step()
        if scans:
            turn |= budget | self._scan()
        turn |= self._run(plan)
        return turn

    def _state(self) -> dict[str, Any]:
        """What the recorder saw before anything was decided."""
        core, store, page = self.core, self.core.store, self.core.block_tokens
        protected = store.protected_blocks if isinstance(store, RadixStore) else 0
        return {
            "ratio": round(self.admission.ratio, 6),
            "avail": (store.free_blocks - store.cached_blocks) * page,
            "evictable": store.cached_blocks * page,
            "protected": protected * page,
            "running": _ids(request for request in core.running if request.decoding),
            "waiting": _ids(core.waiting),
            "chunked": next(iter(_ids(core.prefilling)), None),
        }

    def _budget(self) -> dict[str, Any]:
        """The adder right after its construction."""
        account, meter = self.admission.open(self.core), self.core.budget.open(self.core)
        assert isinstance(account, RatioAccount)
        assert isinstance(meter, PageMeter)
        left = {"rem_total": round(account.rem_total(self.core), 4), "cur_rem": account.cur_rem(self.core)}
        return {"budget0": {**left, "rem_input": meter.input_left, "rem_chunk": _rem_chunk(meter)}}

    def _scan(self) -> dict[str, Any]:
        """How the queue was gone through: its order is that of who was let in, then of who was not."""
        rows, draft = [*self.admission.rows], self.core.latest_draft
        let_in = [item.request for item in draft.items if item.admitted]
        left = [request for request in self.core.waiting if request not in draft.preempted]
        scan: dict[str, Any] = {"order": _ids([*let_in, *left]), "decisions": rows}
        added = [row for row in rows if row["kind"] == "add"]
        if added and added[-1]["result"] != "CONTINUE":
            scan["stop"] = added[-1]["result"]
        elif draft.deferred is not None:
            scan["stop"] = "batch_is_full" if draft.deferred is NO_SLOT else "budget_other_before"
        return scan

    def _run(self, plan: BatchPlan | None) -> dict[str, Any]:
        """What ran, and what came of it."""
        if plan is None:
            return {"action": "idle"}
        core, mixed = self.core, bool(plan.items and plan.decode_requests)
        turn: dict[str, Any] = {"action": "mixed" if mixed else "prefill" if plan.items else "decode"}
        if plan.preempted:
            victims = _ids(plan.preempted)
            stay = _ids(request for request in core.running if request.decoding)
            turn |= {"retract_order_keep_first": [*stay, *reversed(victims)], "retracted": victims}
            turn["ratio_after"] = round(self.admission.ratio, 6)
        if plan.decode_requests:
            prefilled = {item.request for item in plan.items}
            turn["decoded"] = _ids(each for each in core.running if each.decoding and each not in prefilled)
        self.listener.ended_ids = []
        core.cut(plan, 1)
        core.commit_step(plan, 1)
        return turn | {"finished": self.listener.ended_ids}


def _ids(requests: Iterable[Request]) -> list[int]:
    return [int(request.id) for request in requests]
