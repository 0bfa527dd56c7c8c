"""Inputs that change from call to call: several sets of the same shapes, drawn at random, on disk for all contenders.

Constant inputs would let everybody run from warm caches and predicted branches. Floats are normal. Integers that index
a table (token ids) are drawn below its length; masks are ones with some padding behind them; other integers stay as
they were made up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tierup.errors import InputError
from tierup.ir.graph import Graph
from tierup.ir.types import Array, TensorType

Feeds = dict[str, Array]

MAX_TRAFFIC_BYTES = 1 << 28  # of all inputs of a traffic: contenders hold them in memory
MAX_SETS = 2048
PADDED_SHARE = 0.25  # of a mask's rows; at most this share of such a row is padding
# They change the type or the shape of indices, not what they are.
_TRANSPARENT = {"onnx.Cast", "onnx.Reshape", "onnx.Unsqueeze", "onnx.Squeeze", "onnx.Identity", "onnx.Flatten"}


def index_bounds(graph: Graph) -> dict[str, int]:
    """Input name -> how many rows the smallest table has that it indexes."""
    origin = {value: value for value in graph.inputs}
    found: dict[str, int] = {}
    for node in graph.nodes:
        if node.op in _TRANSPARENT and node.inputs[0] in origin and node.outputs[0] is not None:
            origin[node.outputs[0]] = origin[node.inputs[0]]
        if node.op != "onnx.Gather" or node.inputs[0] is None or node.inputs[1] not in origin:
            continue
        table = graph.type(node.inputs[0])
        rows = table.shape[node.attrs.get("axis", 0)] if isinstance(table, TensorType) and table.shape else None
        if isinstance(rows, int) and rows > 0:
            name = graph.value_name(origin[node.inputs[1]])
            found[name] = min(rows, found.get(name, rows))
    return found


def is_quantised(graph: Graph) -> bool:
    """Whether the model rounds values that it computes to steps."""
    return any("QuantizeLinear" in node.op for _, node in graph.walk())


def redraw(
    base: Mapping[str, Array], drawn: Collection[str], bounds: Mapping[str, int], random: np.random.Generator
) -> Feeds:
    """`base` with new values for the inputs in `drawn`, in the same shapes."""
    return {
        name: _values(name, array, bounds.get(name), random) if name in drawn else array for name, array in base.items()
    }


def _values(name: str, array: Array, bound: int | None, random: np.random.Generator) -> Array:
    if array.dtype.kind == "f":
        return np.asarray(random.standard_normal(array.shape)).astype(array.dtype)
    if array.dtype.kind in "iu" and bound is not None:
        return np.asarray(random.integers(0, bound, array.shape)).astype(array.dtype)
    if array.dtype.kind in "iub" and "mask" in name.lower() and array.ndim >= 2:
        return _mask(array, random)
    return array


def _mask(array: Array, random: np.random.Generator) -> Array:
    """Ones; the rows of some sequences end in zeros."""
    length = array.shape[-1]
    padding = random.integers(0, int(length * PADDED_SHARE) + 1, array.shape[:-1])
    padding = np.where(random.random(array.shape[:-1]) < PADDED_SHARE, padding, 0)
    mask: Array = (np.arange(length) < (length - padding)[..., None]).astype(array.dtype)
    return mask


def draw_sets(
    base: Mapping[str, Array], drawn: Collection[str], bounds: Mapping[str, int], count: int, seed: int
) -> list[Feeds]:
    """`count` sets in the shapes of `base`."""
    random = np.random.default_rng(seed)
    return [redraw(base, drawn, bounds, random) for _ in range(count)]


def draw_traffic(
    bases: Sequence[Mapping[str, Array]],
    which: Sequence[int],
    drawn: Collection[str],
    bounds: Mapping[str, int],
    count: int,
    seed: int,
) -> tuple[list[Feeds], list[int]]:
    """Sets of inputs, and which of them each call takes, for a traffic whose calls have the shapes of `bases[which]`.

    Calls of one shape rotate over up to `count` sets, fewer where the memory for all would not suffice. The first call
    takes the first set.
    """
    random = np.random.default_rng(seed)
    total_bytes = sum(array.nbytes for base in bases for array in base.values())
    variants = max(1, min(count, MAX_TRAFFIC_BYTES // max(1, total_bytes), MAX_SETS // len(bases)))
    sets: list[Feeds] = []
    index_of: dict[tuple[int, int], int] = {}
    seen = [0] * len(bases)
    order = []
    for base in which:
        key = (base, seen[base] % variants)
        seen[base] += 1
        if key not in index_of:
            index_of[key] = len(sets)
            sets.append(redraw(bases[base], drawn, bounds, random))
        order.append(index_of[key])
    return sets, order


def write_sets(folder: Path, sets: Sequence[Mapping[str, Array]]) -> None:
    """0.npz, 1.npz and so on. InputError for what other libraries could not be given."""
    for index, feeds in enumerate(sets):
        arrays: Any = {name: _storable(name, value) for name, value in feeds.items()}
        np.savez(folder / f"{index}.npz", **arrays)


def _storable(name: str, value: object) -> Array:
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "biufcU":
            return value
        if value.dtype.kind == "O" and all(isinstance(item, str) for item in value.flat):
            return value.astype(str)
    raise InputError(f"input '{name}' is no plain array; a benchmark can give others only numbers and strings")
