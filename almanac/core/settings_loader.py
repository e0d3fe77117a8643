"""Reads the settings from options, the environment and the TOML file, and checks them against their rows."""

import difflib
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any, cast

from almanac.core.settings import InvalidSetting, Settings, environment_names

_PREFIX = "ALMANAC_"
# Read beside the settings. Those with the last prefix configure the tests.
_OTHER_VARIABLES = ("ALMANAC_CONFIG", "ALMANAC_TOKEN", "ALMANAC_SUPERVISOR_PID", "ALMANAC_TEST_")


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """The settings, and the source of each one."""

    settings: Settings
    sources: dict[str, str]


def load(
    environ: Mapping[str, str], file: Mapping[str, Any] | None = None, options: Mapping[str, Any] | None = None
) -> LoadedSettings:
    """Settings from options, environment, the parsed TOML file and defaults, in that order."""
    file, options = file or {}, {k: v for k, v in (options or {}).items() if v is not None}
    _refuse_unknown(file)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for item in fields(Settings):
        raw, source = _find(item, environ, file, options)
        if source != "default":
            values[item.name] = _parse(item, raw, source)
        sources[item.name] = source
    return LoadedSettings(Settings(**values), sources)


def unknown_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment variables with our prefix that are no setting, each with the most similar one or nothing."""
    known: dict[str, str] = {}  # the names without the prefix
    for item in fields(Settings):
        names = environment_names(item)
        if item.metadata["secret"]:
            names = (*names, *(f"{name}_FILE" for name in names))
        # A setting with a name of its own, such as REDIS_URL, may have been given our prefix.
        known |= {item.name.upper(): names[0]} | {name.removeprefix(_PREFIX): name for name in names}
    accepted = set(known.values())
    unknown = [name for name in environ if name.startswith(_PREFIX) and not name.startswith(_OTHER_VARIABLES)]
    return {
        name: known[near[0]] if (near := difflib.get_close_matches(name.removeprefix(_PREFIX), known, 1)) else ""
        for name in sorted(unknown)
        if name not in accepted
    }


def _refuse_unknown(file: Mapping[str, Any]) -> None:
    known = [item.name for item in fields(Settings)]
    for name in file:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise InvalidSetting(f"The settings file has an unknown entry {name!r}.{hint}")


def _find(
    item: "Field[Any]", environ: Mapping[str, str], file: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[Any, str]:
    if item.name in options:
        return options[item.name], f"option --{item.name.replace('_', '-')}"
    for name in environment_names(item):
        if environ.get(name, "") != "":
            if environ.get(f"{name}_FILE", "") != "" and item.metadata["secret"]:
                raise InvalidSetting(f"{name} and {name}_FILE are both set.", remedy="Unset one of them.")
            return environ[name], f"environment {name}"
        if item.metadata["secret"] and environ.get(f"{name}_FILE", "") != "":
            return _read_secret(item.name, f"{name}_FILE", environ), f"environment {name}_FILE"
    if item.name in file:
        return file[item.name], "file"
    return None, "default"


def _read_secret(setting: str, name: str, environ: Mapping[str, str]) -> str:
    """The content of the file that a variable such as ALMANAC_SECRET_FILE names, as container platforms mount it."""
    try:
        value = Path(environ[name]).expanduser().read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidSetting(f"{setting} (from environment {name}) cannot be read: {reason}.") from None
    if not value:
        raise InvalidSetting(f"{setting} (from environment {name}) is an empty file.")
    return value


def _parse(item: "Field[Any]", raw: Any, source: str) -> Any:
    try:
        value = _PARSERS[cast("type | types.GenericAlias", item.type)](raw)
        _check(value, item.metadata)
    except ValueError as error:
        raise InvalidSetting(f"{item.name} (from {source}) {error}.") from None
    return value


def _check(value: Any, row: Mapping[str, Any]) -> None:
    """Compare a value with the bounds of its row. ValueError if it is outside them."""
    if row["choices"] and value not in row["choices"]:
        raise ValueError(f"must be one of: {', '.join(row['choices'])}")
    if row["min"] is not None and value < row["min"]:
        raise ValueError(f"must be at least {row['min']:g}")
    if row["max"] is not None and value > row["max"]:
        raise ValueError(f"must be at most {row['max']:g}")
    if row["begins"] and value and not value.startswith(row["begins"]):
        raise ValueError(f"must begin with {' or '.join(row['begins'])}")
    if row["form"] and value and not re.fullmatch(row["form"][0], value):
        raise ValueError(f"must {row['form'][1]}")


def _to_bool(raw: Any) -> bool:
    text = str(raw).strip().lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off"):
        return False
    raise ValueError("must be true or false")


def _to_int(raw: Any) -> int:
    try:
        return int(str(raw).strip())
    except ValueError:
        raise ValueError("must be a whole number") from None


def _to_float(raw: Any) -> float:
    try:
        value = float(str(raw).strip())
    except ValueError:
        raise ValueError("must be a number") from None
    if not value < 1e9:  # also refuses nan
        raise ValueError("must be a finite number")
    return value


def _to_names(raw: Any) -> tuple[str, ...]:
    parts = cast("list[Any]", raw) if isinstance(raw, list | tuple) else _without_brackets(str(raw).strip()).split(",")
    return tuple(p for p in (str(part).strip().strip("\"'") for part in parts) if p)


def _without_brackets(text: str) -> str:
    # ["a", "b"] is a list; [::1]:8000 is an address.
    return text[1:-1] if text.startswith("[") and text.endswith("]") and not text.startswith("[:") else text


_PARSERS: dict[Any, Callable[[Any], Any]] = {
    bool: _to_bool,
    int: _to_int,
    float: _to_float,
    str: lambda raw: str(raw).strip(),
    Path: lambda raw: Path(str(raw)).expanduser(),
    tuple[str, ...]: _to_names,
}
