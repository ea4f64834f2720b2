"""An engine's own flags on the command line: `--max-num-seqs 128 --no-enable-prefix-caching` -> its config's fields."""

from __future__ import annotations

from difflib import get_close_matches

from sim.commands.main import wrong_use
from sim.engines import ENGINES, EngineConfig


def engine_flags(preset: str, arguments: list[str]) -> dict[str, object]:
    """Parse what is left of a command line against a preset's fields. Raises Failure (wrong use), UnknownName."""
    config: type[EngineConfig] = ENGINES.maker(preset)  # type: ignore[assignment]
    flags: dict[str, object] = {}
    rest = list(arguments)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        negated = name.removeprefix("no_")
        if not flag.startswith("--"):
            raise wrong_use(f"unexpected argument {flag!r}")
        if name in config.model_fields and config.model_fields[name].annotation is bool:
            flags[name] = value if equals else True
        elif negated != name and negated in config.model_fields and not equals:
            flags[negated] = False
        elif name in config.model_fields:
            if not equals and not rest:
                raise wrong_use(f"{flag} needs a value")
            flags[name] = value if equals else rest.pop(0)
        else:
            raise wrong_use(_unknown(flag, preset, config))
    return flags


def _unknown(flag: str, preset: str, config: type[EngineConfig]) -> str:
    known = ["--" + name.replace("_", "-") for name in config.model_fields]
    close = get_close_matches(flag, known, 1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"engine {preset} has no flag {flag}{hint} (see: tokenwork list engine --verbose)"
