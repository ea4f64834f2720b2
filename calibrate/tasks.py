"""What a run times: one frozen description per task, the same text (`key`) in every run and version."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from costmodel.shape import StepShape

MAX_COUNT = 1 << 48
"""Above any real number of tokens or bytes."""

TASK_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "step": ("prefill", "decode", "verify"),
    "gemm": ("gemm", "rows", "n", "k"),
    "prefill_attention": ("tokens", "context"),
    "decode_attention": ("contexts",),
    "verify_attention": ("width", "contexts"),
    "copy": ("num_bytes", "num_blocks"),
    "swap_out": ("num_bytes", "num_blocks"),
    "swap_in": ("num_bytes", "num_blocks"),
    "launch": (),
}
"""Kind of task -> the fields that say its shape; the others are left at their defaults."""

GEMMS: Final = ("qkv", "o", "gate_up", "down", "lm_head")
MAY_BE_ZERO = ("context", "num_blocks")


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """What was run, in the model's own shapes. Only the fields of its kind (`TASK_FIELDS`) are set."""

    kind: str
    prefill: tuple[tuple[int, int], ...] = ()
    """Per chunk: (tokens, tokens of earlier context)."""
    decode: tuple[int, ...] = ()
    """Per decode: tokens of context before the step."""
    verify: tuple[tuple[int, int], ...] = ()
    """Per verification: (width = drafts + 1 query tokens, tokens of context before the step)."""
    gemm: str = ""
    rows: int = 0
    n: int = 0
    k: int = 0
    tokens: int = 0
    context: int = 0
    contexts: tuple[int, ...] = ()
    width: int = 0
    num_bytes: int = 0
    num_blocks: int = 0

    def __post_init__(self) -> None:
        complaint = _complaint(self)
        if complaint:
            raise ValueError(complaint)

    @property
    def key(self) -> str:
        """The same text for the same task, in any run and version."""
        return json_line(self.as_json())

    @property
    def shape(self) -> StepShape:
        """Of a step: what the cost model sees of it."""
        assert self.kind == "step", self.kind
        return StepShape(self.prefill, len(self.decode), sum(self.decode), self.verify)

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind} | {name: getattr(self, name) for name in TASK_FIELDS[self.kind]}

    @classmethod
    def from_json(cls, raw: object) -> Self:
        if not isinstance(raw, dict) or not isinstance(raw.get("kind"), str):
            raise ValueError(f"task must be an object with a kind, got {raw!r:.80}")
        kind = raw["kind"]
        known = ("kind", *TASK_FIELDS.get(kind, raw))
        unknown = [name for name in raw if name not in known]
        if unknown:
            raise ValueError(f"task of kind {kind!r} has no field {unknown[0]!r}: allowed are {', '.join(known[1:])}")
        if kind not in TASK_FIELDS:
            raise ValueError(_unknown_kind(kind))
        return cls(**{name: _frozen(value) for name, value in raw.items()})


def _unknown_kind(kind: str) -> str:
    return f"unknown kind of task {kind!r}: known are {', '.join(TASK_FIELDS)}"


def _complaint(task: TaskSpec) -> str | None:
    """What is wrong with a task, or None."""
    if task.kind not in TASK_FIELDS:
        return _unknown_kind(task.kind)
    for field in fields(task)[1:]:
        value = getattr(task, field.name)
        if field.name not in TASK_FIELDS[task.kind]:
            if value != field.default:
                return f"{field.name} does not belong to a task of kind {task.kind!r}"
        elif field.name == "gemm":
            if value not in GEMMS:
                return f"unknown gemm {value!r}: known are {', '.join(GEMMS)}"
        elif not _valid(field.name, value):
            low = 0 if field.name in MAY_BE_ZERO else 1
            return f"{field.name}={value!r:.80} must be whole numbers >= {low} (contexts >= 0), at most {MAX_COUNT}"
    if task.kind == "step" and not (task.prefill or task.decode or task.verify):
        return "a step needs at least one of prefill, decode, verify"
    if task.kind.endswith("_attention") and not (task.tokens or task.contexts):
        return "contexts must not be empty"
    return None


def _valid(name: str, value: object) -> bool:
    """Pairs are (tokens or width >= 1, context >= 0)."""
    if name in ("prefill", "verify"):
        return isinstance(value, tuple) and all(
            isinstance(pair, tuple) and len(pair) == 2 and _count(pair[0], 1) and _count(pair[1], 0) for pair in value
        )
    if name in ("decode", "contexts"):
        return isinstance(value, tuple) and all(_count(context, 0) for context in value)
    return _count(value, 0 if name in MAY_BE_ZERO else 1)


def _count(value: object, low: int) -> bool:
    return type(value) is int and low <= value <= MAX_COUNT


def _frozen(value: object) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def json_line(raw: object) -> str:
    """Compact, in the order given, and never NaN."""
    return json.dumps(raw, separators=(",", ":"), allow_nan=False)
