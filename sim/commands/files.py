"""The files that a command writes beside its result on stdout: may they go there, and then, there they go."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sim.commands.errors import wrong_use
from sim.commands.options import check_out

if TYPE_CHECKING:
    from sim.results.perfetto.events import Window
    from sim.results.run import RunResult


@dataclass(frozen=True, slots=True)
class Files:
    """A folder for the report and a file for Perfetto, either of them or none."""

    out: Path | None
    perfetto: Path | None
    force: bool
    """Whether they may replace what is there."""
    window: str | None

    def check(self) -> None:
        """Before anything runs. Raises Failure."""
        if self.out is not None:
            check_out(self.out, self.force)
        if self.perfetto is not None:
            _check_file(self.perfetto, self.force)
        elif self.window is not None:
            raise wrong_use("--perfetto-window is for --perfetto FILE")
        if self.window is not None:
            _window(self.window)

    def write(self, run: RunResult) -> None:
        """What was asked for, with a line on stderr for each."""
        if self.out is not None:
            from sim.results.report import write_report

            write_report(run, self.out)
            print(f"report: {self.out / 'report.html'}", file=sys.stderr)
        if self.perfetto is not None:
            from sim.results.perfetto.write import EVERYTHING, write_perfetto

            window = EVERYTHING if self.window is None else _window(self.window)
            found = write_perfetto(run, self.perfetto, window=window)
            left_out = "".join(f"; {note}" for note in found.left_out)
            print(f"perfetto: {self.perfetto} ({len(found.events):,} events{left_out})", file=sys.stderr)


def _check_file(path: Path, force: bool) -> None:
    if path.is_dir():
        raise wrong_use(f"--perfetto {path}: is a folder, must be a file such as run.json.gz")
    if path.exists() and not force:
        raise wrong_use(f"--perfetto {path}: exists already (--force replaces it)")
    if not path.absolute().parent.is_dir():
        raise wrong_use(f"--perfetto {path}: there is no folder {path.absolute().parent}")
    if not os.access(path.absolute().parent, os.W_OK):
        raise wrong_use(f"--perfetto {path}: {path.absolute().parent} is not writable")


def _window(text: str) -> Window:
    """`100:160` or `100s:160s`. Raises Failure."""
    from sim.results.perfetto.events import Window

    try:
        begin, end = (float(part.strip().removesuffix("s")) for part in text.split(":"))
        window = Window(round(begin * 1e9), round(end * 1e9))
    except (ValueError, OverflowError):
        raise wrong_use(f"--perfetto-window {text}: must be FROM:UNTIL in seconds, such as 100:160") from None
    if not 0 <= window.from_ns < window.until_ns:
        raise wrong_use(f"--perfetto-window {text}: FROM must be >= 0 and before UNTIL")
    return window
