"""`python -m calibrate.import_tables TABLES --out PROFILE.json`: the command without the product's command line."""

from __future__ import annotations

import typer

from calibrate.commands import import_tables


def main() -> None:
    """Exit status 2 for wrong use and unreadable tables."""
    try:
        typer.run(import_tables)
    except (OSError, ValueError) as error:
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(2) from error


if __name__ == "__main__":
    main()
