"""Names for policies: one registry per kind, open to third parties by entry points and by files of their own.

An entry point `NAME = "package.module:Class"` in the group `tokenwork.<kind>` adds a policy; one that cannot be loaded
disables itself with a message on stderr. `path/to/mine.py:Class` is a name too (`sim.policies.files`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from difflib import get_close_matches
from importlib import metadata
from typing import Any, TypeVar

from sim.policies.files import is_file, policy_class
from sim.policies.parameters import checked, parameters_of
from sim.policies.protocols import AdmissionPolicy, BudgetPolicy, EvictionPolicy, OrderPolicy, PreemptionPolicy
from sim.policies.unknown import UnknownName

__all__ = ["ADMISSION", "BUDGET", "EVICTION", "ORDER", "PREEMPTION", "REGISTRIES", "Registry", "UnknownName"]

T = TypeVar("T")


class Registry:
    """Makes policies of one kind by name. Duplicates raise; an unknown name or parameter lists what exists.

    `base`: what a third party's class must derive from. `files`: whether a class in a file is a name too.
    """

    def __init__(self, kind: str, noun: str = "policy", *, base: type = object, files: bool = False) -> None:
        self.kind = kind
        self.what = f"{kind} {noun}"
        self.base = base
        self._files = files
        self._makers: dict[str, Callable[..., Any]] = {}
        self._plugins_loaded = False

    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        def add(cls: type[T]) -> type[T]:
            if name in self._makers:
                raise ValueError(f"{self.what} {name!r} is registered twice")
            self._makers[name] = cls
            return cls

        return add

    def names(self) -> list[str]:
        self._load_plugins()
        return sorted(self._makers)

    def parameters(self, name: str) -> list[str]:
        """What a policy can be given. Raises UnknownName."""
        return list(parameters_of(self.maker(name)))

    def make(self, name: str, **parameters: Any) -> Any:
        """Raises UnknownName for a name or parameter that does not exist, ValueError for a senseless value."""
        maker = self.maker(name)
        return maker(**checked(maker, f"{self.what} {name!r}", parameters))

    def maker(self, name: str) -> Callable[..., Any]:
        """The class behind a name, or in a file. Raises UnknownName."""
        if self._files and is_file(name):
            return policy_class(name, self.base)
        if name not in self._makers:
            self._load_plugins()
        if name not in self._makers:
            close = get_close_matches(name, self._makers, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise UnknownName(f"unknown {self.what} {name!r}: known are {', '.join(sorted(self._makers))}{hint}")
        return self._makers[name]

    def _load_plugins(self) -> None:
        if self._plugins_loaded:
            return
        self._plugins_loaded = True
        for entry in sorted(metadata.entry_points(group=f"tokenwork.{self.kind}"), key=lambda entry: entry.name):
            try:
                cls = entry.load()
                if not (isinstance(cls, type) and issubclass(cls, self.base)):
                    raise TypeError(f"{entry.value} is no {self.base.__name__}")
                self.register(entry.name)(cls)
            except (Exception, SystemExit) as error:
                why = f"{type(error).__name__}: {error}"
                print(f"tokenwork: {self.what} {entry.name!r} of a plug-in is disabled: {why}", file=sys.stderr)


ORDER = Registry("order", base=OrderPolicy, files=True)
ADMISSION = Registry("admission", base=AdmissionPolicy, files=True)
BUDGET = Registry("budget", base=BudgetPolicy, files=True)
PREEMPTION = Registry("preemption", base=PreemptionPolicy, files=True)
EVICTION = Registry("eviction", base=EvictionPolicy, files=True)
REGISTRIES = {registry.kind: registry for registry in (ORDER, ADMISSION, BUDGET, PREEMPTION, EVICTION)}
