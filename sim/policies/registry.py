"""Names for policies: one registry per kind, open to third parties by entry points `tokenwork.<kind>`."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from importlib.metadata import entry_points
from inspect import signature
from typing import Any, TypeVar, get_type_hints

T = TypeVar("T")


class UnknownName(ValueError):
    """No such policy, or no such parameter; the message lists what there is."""


class Registry:
    """Makes policies of one kind by name. Duplicates raise; an unknown name or parameter lists what exists."""

    def __init__(self, kind: str, noun: str = "policy") -> None:
        self.kind = kind
        self.what = f"{kind} {noun}"
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
        return list(signature(self.maker(name)).parameters)

    def make(self, name: str, **parameters: Any) -> Any:
        """Raises UnknownName for a name or parameter that does not exist, ValueError for a senseless value."""
        maker = self.maker(name)
        accepted = signature(maker).parameters
        for key in parameters:
            if key not in accepted:
                known = ", ".join(accepted) or "none"
                raise UnknownName(f"{self.what} {name!r} has no parameter {key!r}: it has {known}")
        for key, parameter in accepted.items():
            if parameter.default is parameter.empty and key not in parameters:
                raise UnknownName(f"{self.what} {name!r} needs {key}")
        hints = get_type_hints(getattr(maker, "__init__", maker))
        checked = {key: _checked(key, value, hints.get(key)) for key, value in parameters.items()}
        return maker(**checked)

    def maker(self, name: str) -> Callable[..., Any]:
        """The class behind a name. Raises UnknownName."""
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
        for entry in entry_points(group=f"tokenwork.{self.kind}"):
            self.register(entry.name)(entry.load())


def _checked(name: str, value: Any, hint: Any) -> Any:
    """A parameter as its type wants it. Raises ValueError."""
    if hint is bool and not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got {value!r}")
    if hint is int and (isinstance(value, bool) or not isinstance(value, int)):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    if hint is float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name} must be a number, got {value!r}")
        return float(value)
    return value


ORDER = Registry("order")
ADMISSION = Registry("admission")
BUDGET = Registry("budget")
PREEMPTION = Registry("preemption")
EVICTION = Registry("eviction")
REGISTRIES = {registry.kind: registry for registry in (ORDER, ADMISSION, BUDGET, PREEMPTION, EVICTION)}
