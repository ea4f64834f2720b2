"""`python -m calibrate.import_tables TABLES --out PROFILE.json`: the command without the command line of the product."""

from __future__ import annotations

import argparse
from pathlib import Path

from calibrate.commands import import_tables


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m calibrate.import_tables", description=import_tables.__doc__)
    parser.add_argument("tables", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cross-check", type=Path)
    parser.add_argument("--force", action="store_true")
    arguments = parser.parse_args()
    import_tables(arguments.tables, arguments.out, arguments.cross_check, arguments.force)


if __name__ == "__main__":
    main()
