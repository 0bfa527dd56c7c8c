"""Who can be measured: the table of contenders, and which of them a run has."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from typing import Literal

from msgspec import Struct

from tierup.errors import ConfigError

Settings = dict[str, int | bool]


class Contender(Struct, frozen=True, eq=False):
    """One row: the package it needs, and whether it computes what Tierup is compared on.

    `is_peer`: it takes the caller's arrays, gives arrays back and computes in f32, so that a ratio with it is fair.
    `tries_threads`: a single thread is tried as well as all, since small models run better on one.
    `cache`: whether it keeps what it compiled, and where: in a place of its own, or where it is told.
    `variants`: settings that are tried; the fastest are the ones that are measured.
    """

    name: str
    package: str
    is_peer: bool = True
    precision: str = "f32"
    tries_threads: bool = True
    needs_source: bool = False
    cache: Literal["none", "own", "told"] = "none"
    variants: tuple[Settings, ...] = ({},)

    def settings(self, threads: int) -> tuple[Settings, ...]:
        """Everything to try on this many threads."""
        counts = (threads, 1) if self.tries_threads and threads > 1 else (threads,)
        return tuple({"threads": count, **variant} for variant in self.variants for count in counts)

    def has_choice(self, threads: int) -> bool:
        return len(self.settings(threads)) > 1

    @property
    def version(self) -> str:
        return importlib.metadata.version(self.package)

    def absence(self, source: str) -> str | None:
        """Why it cannot be measured, or None."""
        if not is_installed(self.package):
            return f"the package '{self.package}' is not installed"
        if self.needs_source and not source:
            return "it needs the module that the model was exported from: --source FILE.py:NAME"
        return None


# The likeliest to be fast come first, since the time for trials ends.
_TORCH_COMPILE: tuple[Settings, ...] = (
    {"freezing": True},
    {},
    {"freezing": True, "max_autotune": True},
    {"freezing": True, "cpp_wrapper": True},
)

TABLE = {
    row.name: row
    for row in (
        Contender("tierup", "tierup", is_peer=False, tries_threads=False, cache="own"),
        Contender("onnxruntime", "onnxruntime"),
        Contender("onnxruntime-bound", "onnxruntime", is_peer=False),
        Contender("openvino", "openvino", cache="told"),
        Contender("openvino-bf16", "openvino", is_peer=False, precision="bf16", cache="told"),
        Contender("tierup-bf16", "tierup", is_peer=False, precision="bf16", tries_threads=False, cache="own"),
        Contender("torch-eager", "torch", needs_source=True),
        Contender(
            "torch-compile",
            "torch",
            tries_threads=False,  # each setting compiles for a quarter of a minute
            needs_source=True,
            cache="own",
            variants=_TORCH_COMPILE,
        ),
    )
}
_GROUPS = {"torch": ("torch-eager", "torch-compile")}


def is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def choose(text: str) -> list[Contender]:
    """Tierup and those that a list such as `onnxruntime,torch` names, each once."""
    names = ["tierup"]
    for name in filter(None, (part.strip() for part in text.split(","))):
        if name not in TABLE and name not in _GROUPS:
            known = ", ".join([*(row for row in TABLE if row != "tierup"), *_GROUPS])
            raise ConfigError(f"there is no contender '{name}'; those that can be named are {known}")
        names += _GROUPS.get(name, (name,))
    return [TABLE[name] for name in dict.fromkeys(names)]
