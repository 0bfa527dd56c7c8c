"""One frozen Config. The environment is read here and nowhere else: field `x` is also `TIERUP_X`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tierup.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

MAX_THREADS = 1024
# Rounding to nearest in bf16 is off by at most 2^-8 of a number: of a product of two by (1 + 2^-8)² - 1.
BF16_ERROR_BOUND = 2.0**-7 + 2.0**-16


def _available_threads() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Config:
    """Settings of one model. What is not given comes from the environment, then from the defaults.

    threads       how many cores a call may use (default: those that this process may run on). A process has one pool of
                  threads, for all its models: the one that was loaded last decides
    precision     "f32": compute in the model's own types. "bf16": products and convolutions of f32 round both sides to
                  bf16 and sum up in f32, on machines with instructions for that; the report says what it costs
    adapt         whether a model may go on changing once it is on tier 1; without, nothing is measured or learned
    watch         whether calls are watched while they are served: their times, those of their regions, what inputs are
                  like, and whether answers are still right. Without, a plan is judged by its trial alone
    cache_dir     plans, machine code and other files that can be made again
    data_dir      what was measured and learned
    store_url     where learned records are shared: a folder, or a database's URL (for postgresql://, install the extra
                  `postgres`); None: a file in data_dir
    force_tier    None: tier 0 answers until tier 1 is built in the background. 0: tier 0 only. 1 or 2: loading waits
                  for that tier, whose kernels are neither proved nor tried; nodes that it cannot run fall back and
                  are counted
    stress_swap_every  for tests: answer with another variant of the plan after every so many calls
    stress_deopt       for tests: fail guards at random, with this probability: the baseline answers such a call
    stress_seed        what those draws begin with
    """

    __slots__ = ("_values",)
    _values: dict[str, Any]

    def __init__(
        self,
        *,
        threads: int | None = None,
        precision: str | None = None,
        adapt: bool | None = None,
        watch: bool | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        store_url: str | None = None,
        force_tier: int | None = None,
        stress_swap_every: int | None = None,
        stress_deopt: float | None = None,
        stress_seed: int | None = None,
    ) -> None:
        given = {
            "threads": threads,
            "precision": precision,
            "adapt": adapt,
            "watch": watch,
            "cache_dir": cache_dir,
            "data_dir": data_dir,
            "store_url": store_url,
            "force_tier": force_tier,
            "stress_swap_every": stress_swap_every,
            "stress_deopt": stress_deopt,
            "stress_seed": stress_seed,
        }
        object.__setattr__(self, "_values", {name: _filled(name, value) for name, value in given.items()})

    @property
    def threads(self) -> int:
        return int(self._values["threads"])

    @property
    def precision(self) -> str:
        return str(self._values["precision"])

    @property
    def adapt(self) -> bool:
        return bool(self._values["adapt"])

    @property
    def watch(self) -> bool:
        return bool(self._values["watch"])

    @property
    def cache_dir(self) -> Path:
        from pathlib import Path  # milliseconds; a warm start takes the text

        return Path(self.cache_path)

    @property
    def cache_path(self) -> str:
        """`cache_dir` as text."""
        return str(self._values["cache_dir"])

    @property
    def data_dir(self) -> Path:
        from pathlib import Path

        return Path(self._values["data_dir"])

    @property
    def store_url(self) -> str | None:
        url: str | None = self._values["store_url"]
        return url

    @property
    def force_tier(self) -> int | None:
        tier: int | None = self._values["force_tier"]
        return tier

    @property
    def stress_swap_every(self) -> int:
        return int(self._values["stress_swap_every"])

    @property
    def stress_deopt(self) -> float:
        return float(self._values["stress_deopt"])

    @property
    def stress_seed(self) -> int:
        return int(self._values["stress_seed"])

    @property
    def stressed(self) -> bool:
        """Whether a stress switch is on."""
        return bool(self.stress_swap_every or self.stress_deopt)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Config does not change; make another one")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self._values == other._values

    def __hash__(self) -> int:
        return hash(tuple(self._values.values()))

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"


def _filled(name: str, value: Any) -> Any:
    """A setting, checked: as given, from the environment, or its default."""
    if value is None:
        value = _from_environment(name, os.environ)
    if value is None and name in _DEFAULTS:
        value = _DEFAULTS[name]()
    return None if value is None else _CHECKS[name](name, value)


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


def _share(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if isinstance(value, bool) or not 0 <= number <= 1:
        raise ConfigError(f"{name} must be a number from 0 to 1, but is {value!r}")
    return number


def _flag(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    known = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if isinstance(value, str) and value.lower() in known:
        return known[value.lower()]
    raise ConfigError(f"{name} must be true or false, but is {value!r}")


def _path(name: str, value: Any) -> str:
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str) or "\0" in text:
        raise ConfigError(f"{name} must be a path, but is {value!r}")
    return os.path.expanduser(text)


def _precision(name: str, value: Any) -> str:
    if value not in ("f32", "bf16"):
        raise ConfigError(f"{name} must be 'f32' or 'bf16', but is {value!r}")
    return str(value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be a string, but is {value!r}")
    return value


def _user_folder(variable: str, usual: str, kind: str) -> str:
    """Where the platform keeps files of this kind: the XDG folders on Linux, elsewhere as platformdirs knows it."""
    if os.uname().sysname == "Linux":
        folder = os.environ.get(variable, "")
        return os.path.join(folder if folder.strip() else os.path.expanduser(usual), "tierup")
    import platformdirs

    return str(getattr(platformdirs, f"user_{kind}_dir")("tierup", appauthor=False))


_DEFAULTS: dict[str, Any] = {
    "threads": _available_threads,
    "precision": lambda: "f32",
    "adapt": lambda: True,
    "watch": lambda: True,
    "cache_dir": lambda: _user_folder("XDG_CACHE_HOME", "~/.cache", "cache"),
    "data_dir": lambda: _user_folder("XDG_DATA_HOME", "~/.local/share", "data"),
    "stress_swap_every": lambda: 0,
    "stress_deopt": lambda: 0.0,
    "stress_seed": lambda: 0,
}
_CHECKS: dict[str, Any] = {
    "threads": _integer(1, MAX_THREADS),
    "precision": _precision,
    "adapt": _flag,
    "watch": _flag,
    "cache_dir": _path,
    "data_dir": _path,
    "store_url": _text,
    "force_tier": _integer(0, 2),
    "stress_swap_every": _integer(0, 10**9),
    "stress_deopt": _share,
    "stress_seed": _integer(0, 2**63 - 1),
}
