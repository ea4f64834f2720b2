"""`tokenwork`: finds the command, loads its module, and turns errors into one line and an exit status.

Exit status: 0 done, 1 bad data or a failed run, 2 wrong use (command, config, missing file), 130 interrupted.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import entry_points, version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from sim.commands.errors import Failure

COMMANDS = {
    "replay": "sim.commands.replay:replay",
    "compare": "sim.commands.compare:compare",
    "explain": "sim.commands.explain:explain",
    "conformance": "sim.commands.conformance:conformance",
    "textbook": "sim.commands.textbook:textbook",
    "list": "sim.commands.list:list_",
}
"""Name -> module:function. What `sim` must not import (calibrate) comes as an entry point `tokenwork.commands`."""

TAKE_ENGINE_FLAGS = {"replay", "compare"}
"""Commands that take an engine's own flags beside their own options."""


class LazyGroup(TyperGroup):
    """Knows the names of commands and imports a command's module when that one is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*COMMANDS, *sorted(entry.name for entry in _plugins())]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return load(cmd_name)


def load(name: str) -> Any:
    """Import a command's module and make the command; None if there is no such command."""
    target = COMMANDS.get(name)
    if target is None:
        return next((get_command(entry.load()) for entry in _plugins() if entry.name == name), None)
    module, _, function = target.partition(":")
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name)(getattr(import_module(module), function))
    return get_command(app)


def _plugins() -> Any:
    return entry_points(group="tokenwork.commands")


app = typer.Typer(
    cls=LazyGroup,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Replay LLM request traces through a serving engine's scheduler, on a clock calibrated on real hardware.",
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"tokenwork {version('tokenwork')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options before the command."""


def main() -> None:
    """The console script."""
    try:
        status = app(_arguments(sys.argv[1:]), standalone_mode=False)
    except Exception as error:
        status = _report(error)
    except KeyboardInterrupt:
        print("tokenwork: interrupted before there was a result", file=sys.stderr)
        status = 130
    sys.exit(status if isinstance(status, int) else 0)


def _arguments(arguments: list[str]) -> list[str]:
    """The command line, an engine's own flags rewritten to something that the command knows."""
    if not TAKE_ENGINE_FLAGS.intersection(arguments[:1]):
        return arguments
    from sim.commands.flags import rewritten

    own = {option for parameter in load(arguments[0]).params for option in parameter.opts}
    return rewritten(arguments, own | {"--help"})


def _report(error: Exception) -> int:
    """Print an error that is a user's to mend as one line; raise what is a bug of ours."""
    show = getattr(error, "show", None)
    if callable(show):  # typer's own usage errors
        show()
        return int(getattr(error, "exit_code", 2))
    if isinstance(error, typer.Exit | typer.Abort):
        return int(getattr(error, "exit_code", 1))
    status = _status(error)
    if status is None:
        raise error
    print(f"tokenwork: {_one_line(error)}", file=sys.stderr)
    return status


def _status(error: Exception) -> int | None:
    from costmodel.profile import ProfileError
    from sim.policies.guard import PolicyBroke
    from sim.policies.registry import UnknownName
    from sim.scenario import ScenarioError
    from workloads.formats import TraceError

    if isinstance(error, Failure):
        return error.status
    if isinstance(error, TraceError | PolicyBroke):
        return 1
    if isinstance(error, ScenarioError | UnknownName | ProfileError | OSError):
        return 2
    return None


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())
