"""Policies from a file: `path/to/mine.py:MyPolicy` is the name of the class `MyPolicy` in that file.

This runs the file. Whoever reads names out of a description that may come from strangers asks `is_file` first.
"""

from __future__ import annotations

import sys
from functools import cache
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

from sim.policies.unknown import UnknownName


class BadPolicyFile(UnknownName):
    """There is no such file or class, it is of another kind, or running it failed; the text says which."""


def is_file(name: str) -> bool:
    """Whether a policy's name names a class in a file."""
    return name.rpartition(":")[0].endswith(".py") or name.endswith(".py")


def without_folder(name: str) -> str:
    """`dir/mine.py:MyPolicy` -> `mine.py:MyPolicy`: what may be handed on."""
    path, class_name = _parts(name)
    return f"{path.name}:{class_name}"


def file_sha256(name: str) -> str:
    """Of the bytes of the file in a policy's name. Raises BadPolicyFile."""
    return sha256(_read(_parts(name)[0])).hexdigest()


def policy_class(name: str, base: type) -> type[Any]:
    """The class in its file, after running that. Raises BadPolicyFile."""
    path, class_name = _parts(name)
    module = _run(path, _read(path))
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        raise BadPolicyFile(f"{path.name} has no class {class_name!r}: it has {_classes(module, base)}")
    if not issubclass(found, base):
        raise BadPolicyFile(f"{path.name}: {class_name} is not a subclass of {base.__name__}")
    return found


def _parts(name: str) -> tuple[Path, str]:
    path, _, class_name = name.rpartition(":")
    if not path or not class_name:
        raise BadPolicyFile(f"{name}: expected FILE.py:CLASS")
    return Path(path), class_name


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadPolicyFile(f"{path}: {error.strerror}") from None


def _classes(module: ModuleType, base: type) -> str:
    own = [
        name
        for name, each in vars(module).items()
        if isinstance(each, type) and each.__module__ == module.__name__ and issubclass(each, base)
    ]
    return ", ".join(own) or f"no {base.__name__}"


@cache
def _run(path: Path, content: bytes) -> ModuleType:
    """The module that a file makes; the same content is run once, so that its classes are the same classes."""
    name = f"policy_file_{sha256(content).hexdigest()[:16]}"
    spec = spec_from_loader(name, loader=None, origin=path.name)
    assert spec is not None
    module = module_from_spec(spec)
    module.__file__ = str(path)
    sys.modules[name] = module  # dataclasses and type hints look there
    try:
        exec(compile(content, str(path), "exec"), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        what = error.msg if isinstance(error, SyntaxError) else error
        raise BadPolicyFile(f"{path.name}, line {_line(error, str(path))}: {type(error).__name__}: {what}") from None
    return module


def _line(error: BaseException, path: str) -> int:
    """Where in the file an exception came from: the last of its lines on the way there."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return error.lineno or 0
    line, at = 0, error.__traceback__
    while at is not None:
        if at.tb_frame.f_code.co_filename == path:
            line = at.tb_lineno
        at = at.tb_next
    return line
