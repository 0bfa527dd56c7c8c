"""One frozen Config. The environment is read here and nowhere else: field `x` is also `TIERUP_X`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tierup.errors import ConfigError

MAX_THREADS = 1024


def _available_threads() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of one model. What is not given comes from the environment, then from the defaults.

    threads       how many cores a call may use (default: those that this process may run on)
    precision     "f32": compute in the model's own types
    adapt         whether the model may change while it serves
    cache_dir     machine code and other files that can be made again
    data_dir      what was measured and learned
    store_url     where learned records are shared; None: a file in data_dir
    force_tier    None, or the tier that calls wait for; nodes that it cannot run fall back and are counted
    """

    threads: int | None = None
    precision: str | None = None
    adapt: bool | None = None
    cache_dir: Path | None = None
    data_dir: Path | None = None
    store_url: str | None = None
    force_tier: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None:
                value = _from_environment(field.name, os.environ)
            if value is None and field.name in _DEFAULTS:
                value = _DEFAULTS[field.name]()
            object.__setattr__(self, field.name, value if value is None else _CHECKS[field.name](field.name, value))


def _from_environment(name: str, environment: Mapping[str, str]) -> str | None:
    return environment.get(f"TIERUP_{name.upper()}") or None


def _integer(least: int, most: int) -> Any:
    def check(name: str, value: Any) -> int:
        try:
            number = int(value) if isinstance(value, str) or int(value) == value else None
        except (TypeError, ValueError):
            number = None
        if number is None or isinstance(value, bool) or not least <= number <= most:
            raise ConfigError(f"{name} must be a whole number from {least} to {most}, but is {value!r}")
        return number

    return check


def _flag(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    known = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if isinstance(value, str) and value.lower() in known:
        return known[value.lower()]
    raise ConfigError(f"{name} must be true or false, but is {value!r}")


def _path(name: str, value: Any) -> Path:
    if not isinstance(value, str | os.PathLike) or "\0" in os.fspath(value):
        raise ConfigError(f"{name} must be a path, but is {value!r}")
    return Path(value).expanduser()


def _precision(name: str, value: Any) -> str:
    if value != "f32":
        raise ConfigError(f"{name} must be 'f32', the one precision that this version computes in, but is {value!r}")
    return "f32"


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be a string, but is {value!r}")
    return value


def _cache_dir() -> Path:
    import platformdirs  # some milliseconds, and only needed where no folder was given

    return Path(platformdirs.user_cache_dir("tierup", appauthor=False))


def _data_dir() -> Path:
    import platformdirs

    return Path(platformdirs.user_data_dir("tierup", appauthor=False))


_DEFAULTS: dict[str, Any] = {
    "threads": _available_threads,
    "precision": lambda: "f32",
    "adapt": lambda: True,
    "cache_dir": _cache_dir,
    "data_dir": _data_dir,
}
_CHECKS: dict[str, Any] = {
    "threads": _integer(1, MAX_THREADS),
    "precision": _precision,
    "adapt": _flag,
    "cache_dir": _path,
    "data_dir": _path,
    "store_url": _text,
    "force_tier": _integer(0, 2),
}
