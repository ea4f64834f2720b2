"""An engine's own flags on the command line: `--max-num-seqs 128 --no-enable-prefix-caching` -> its config's fields.

A command that takes them knows only its own options. Before the line is parsed, every other option is rewritten to
`--engine-flag NAME=VALUE`; which of them an engine has is asked when the preset is known.
"""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

from sim.commands.errors import wrong_use
from sim.engines import ENGINES, EngineConfig, VllmV1

REWRITTEN = "--engine-flag"


def rewritten(arguments: list[str], own: Collection[str]) -> list[str]:
    """The line with all options that are not in `own` (`--limit`, ...) as `--engine-flag NAME=VALUE`."""
    switches = {f"--{no}{name}" for name in _switches() for no in ("", "no-")}
    rest, out = list(arguments), []
    while rest:
        argument = rest.pop(0)
        flag, equals, value = argument.partition("=")
        if not flag.startswith("--") or flag in own:
            out.append(argument)
            continue
        if not equals and flag in switches:
            value = "true"
            if flag.startswith("--no-"):
                flag, value = "--" + flag.removeprefix("--no-"), "false"
        elif not equals:
            if not rest:
                raise wrong_use(f"{flag} needs a value")
            value = rest.pop(0)
        out += [REWRITTEN, f"{flag.removeprefix('--')}={value}"]
    return out


def _switches() -> set[str]:
    """Flags of any preset that are yes or no."""
    return {
        name.replace("_", "-")
        for preset in ENGINES.names()
        for name, field in _config(preset).model_fields.items()
        if field.annotation in (bool, bool | None)
    }


def engine_flags(preset: str, flags: list[str]) -> dict[str, object]:
    """`NAME=VALUE` texts as fields of a preset. Raises Failure (wrong use), UnknownName."""
    config = _config(preset)
    fields: dict[str, object] = {}
    for text in flags:
        flag, _, value = text.partition("=")
        name = _name(text)
        if name not in config.model_fields:
            raise wrong_use(_unknown(f"--{flag}", preset, config))
        fields[name] = value
    return fields


def shared_flags(base: object, presets: list[str], flags: list[str]) -> dict[str, dict[str, object]]:
    """A variant per preset (none given: one without a name, of the base's), each with those flags that it has.

    A flag that none of them has is wrong use. Raises Failure, UnknownName.
    """
    before = {"preset": base} if isinstance(base, str) else dict(base) if isinstance(base, dict) else {}
    names = presets or [str(before.get("preset", VllmV1.preset))]
    if len(set(names)) < len(names):
        raise wrong_use(f"--engines {','.join(names)}: each preset once (its flags vary with --vary)")
    unknown = [flag for flag in flags if not any(_name(flag) in _config(name).model_fields for name in names)]
    if unknown:
        engine_flags(names[0], unknown)
    return {
        name if presets else "": {
            "engine": {"preset": name}
            | engine_flags(name, [f for f in flags if _name(f) in _config(name).model_fields])
        }
        for name in names
    }


def _name(flag: str) -> str:
    """Of `max-num-seqs=64`: the config's field."""
    return flag.partition("=")[0].replace("-", "_")


def _config(preset: str) -> type[EngineConfig]:
    return ENGINES.maker(preset)  # type: ignore[return-value]


def _unknown(flag: str, preset: str, config: type[EngineConfig]) -> str:
    known = ["--" + name.replace("_", "-") for name in config.model_fields]
    close = get_close_matches(flag, known, 1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"engine {preset} has no flag {flag}{hint} (see: tokenwork list engine --verbose)"
