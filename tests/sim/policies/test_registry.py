"""Names: built-in, unknown, and from other distributions by entry points."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from typing import Any, Literal

import pytest

from sim.core.plan import ADMIT
from sim.engines import UNKNOWN_HARDWARE, Reference
from sim.engines.config import ENGINES, EngineConfig
from sim.policies.guarded import GuardedAdmission, guarded, is_ours
from sim.policies.parameters import as_type, type_words
from sim.policies.protocols import AdmissionPolicy, OrderPolicy
from sim.policies.registry import REGISTRIES, Registry, UnknownName


@dataclass(frozen=True)
class FakeEntry:
    """What `importlib.metadata.entry_points` gives."""

    name: str
    value: str
    what: Any

    def load(self) -> Any:
        if isinstance(self.what, BaseException):
            raise self.what
        return self.what


class Foreign(AdmissionPolicy):
    """Lets everybody in."""

    def __init__(self, alpha: float = 0.5) -> None:
        self.alpha = alpha

    def decide(self, *about: Any) -> Any:
        return ADMIT


class OwnEngine(Reference):
    preset = "own-engine"


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[FakeEntry]]:
    """Group -> its entry points, to be filled by a test."""
    groups: dict[str, list[FakeEntry]] = {}
    monkeypatch.setattr(metadata, "entry_points", lambda *, group: groups.get(group, []))
    return groups


def test_an_entry_point_adds_a_policy(installed: dict[str, list[FakeEntry]]) -> None:
    installed["tokenwork.admission"] = [FakeEntry("foreign", "theirs:Foreign", Foreign)]
    registry = Registry("admission", base=AdmissionPolicy)
    assert registry.names() == ["foreign"]
    assert registry.make("foreign", alpha=1).alpha == 1.0
    with pytest.raises(ValueError, match="alpha must be a number"):
        registry.make("foreign", alpha="much")


def test_an_entry_point_adds_an_engine(installed: dict[str, list[FakeEntry]]) -> None:
    installed["tokenwork.engine"] = [FakeEntry("own-engine", "theirs:OwnEngine", OwnEngine)]
    registry = Registry("engine", "preset", base=EngineConfig)
    assert registry.maker("own-engine") is OwnEngine


@pytest.mark.parametrize("kind", [*REGISTRIES, "engine"])
def test_every_kind_is_open(kind: str, installed: dict[str, list[FakeEntry]]) -> None:
    registry = {**REGISTRIES, "engine": ENGINES}[kind]
    assert registry.base is not object


def test_a_broken_plugin_disables_itself_and_nothing_else(
    installed: dict[str, list[FakeEntry]], capsys: pytest.CaptureFixture[str]
) -> None:
    installed["tokenwork.admission"] = [
        FakeEntry("works", "theirs:Foreign", Foreign),
        FakeEntry("gone", "theirs:Gone", ImportError("no module named theirs")),
        FakeEntry("exits", "theirs:Exits", SystemExit(3)),
        FakeEntry("taken", "theirs:Foreign", Foreign),
        FakeEntry("wrong-kind", "theirs:NoPolicy", OrderPolicy),
    ]
    registry = Registry("admission", base=AdmissionPolicy)
    registry.register("taken")(Foreign)
    assert registry.names() == ["taken", "works"]
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        "tokenwork: admission policy 'exits' of a plug-in is disabled: SystemExit: 3",
        "tokenwork: admission policy 'gone' of a plug-in is disabled: ImportError: no module named theirs",
        "tokenwork: admission policy 'taken' of a plug-in is disabled: "
        "ValueError: admission policy 'taken' is registered twice",
        "tokenwork: admission policy 'wrong-kind' of a plug-in is disabled: "
        "TypeError: theirs:NoPolicy is no AdmissionPolicy",
    ]
    assert registry.names() == ["taken", "works"]
    assert capsys.readouterr().err == ""  # told once


def test_only_foreign_policies_are_guarded() -> None:
    """Built-ins run as they are, so that they stay fast."""
    spec = Reference().spec(UNKNOWN_HARDWARE)
    assert guarded(spec) is spec
    assert is_ours(spec.admission)
    from dataclasses import replace

    theirs = guarded(replace(spec, admission=Foreign()))
    assert isinstance(theirs.admission, GuardedAdmission)
    assert theirs.admission.alpha == 0.5
    assert theirs.order is spec.order


def test_unknown_names_list_what_there_is() -> None:
    with pytest.raises(
        UnknownName, match=r"unknown admission policy 'optimstic': known are .*did you mean 'optimistic'"
    ):
        REGISTRIES["admission"].make("optimstic")


@pytest.mark.parametrize(
    ("wanted", "value", "expected"),
    [
        (int, 3, 3),
        (float, 3, 3.0),
        (float | None, None, None),
        (float | None, 2, 2.0),
        (Literal["a", "b"], "b", "b"),
        (str, "x", "x"),
        (list[int], [1], [1]),
    ],
)
def test_values_as_their_types_want_them(wanted: Any, value: object, expected: object) -> None:
    given = as_type("p", value, wanted)
    assert (given, type(given)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("wanted", "value", "message"),
    [
        (int, True, "p must be a whole number, got True"),
        (int, 1.5, "p must be a whole number, got 1.5"),
        (int | None, "x", "p must be a whole number, got 'x'"),
        (bool, 1, "p must be true or false, got 1"),
        (float, float("nan"), "p must be a number, got nan"),
        (str, 4, "p must be a text, got 4"),
        (Literal["a", "b"], "c", "p must be one of a, b, got 'c'"),
    ],
)
def test_values_of_another_type_are_refused(wanted: Any, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_type("p", value, wanted)


def test_types_in_words() -> None:
    assert type_words(float | None) == "float | none"
    assert type_words(Literal["recompute", "swap"]) == "recompute | swap"
