"""The table of reforms: what has no kernel of its own, as core ops that have one. The same up to the rounding of sums.

Unlike simplifications they do not make a graph smaller, so they run once, after everything is a core op.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tierup.ir.graph import Node, ValueId
from tierup.ir.types import DType
from tierup.reference.resize import Axis, coordinates, nearest_index, outside, taps
from tierup.rewrite.decompose.core import Core
from tierup.rewrite.walk import Rewriter, Rule, Values

_MOST_TAPS = 8  # of a filter on one axis; each is a lookup and a product for every element


@dataclass(frozen=True, slots=True)
class Reform:
    """One row: what it is called, the ops it looks at, its algebra, and the rule."""

    name: str
    ops: tuple[str, ...]
    algebra: str
    rule: Rule


def _numbers(out: Rewriter, value: ValueId | None) -> tuple[int, ...] | None:
    """The integers of a small tensor, where all are known."""
    content = None if value is None else out.content(value)
    numbers = tuple(dim for dim in content or () if isinstance(dim, int))
    return numbers if content is not None and len(numbers) == len(content) else None


def padded_pool(out: Rewriter, node: Node) -> Values | None:
    """pool(x, pads) = pool(pad(x, pads), 0): what is padded is never the largest, and adds nothing."""
    if node.op not in ("core.pool_sum", "core.pool_max"):
        return None
    x, pads = node.inputs
    numbers, shape, dtype = _numbers(out, pads), out.shape(x), out.dtype(x)
    if x is None or shape is None or dtype is None or numbers is None or not any(numbers):
        return None
    if any(value is not None for value in node.outputs[1:]):
        return None
    b, spatial = Core(out), len(shape) - 2
    least = -np.inf if dtype.is_float else np.iinfo(dtype.numpy).min
    fill = b.weight(np.array(0 if node.op == "core.pool_sum" else least).astype(dtype.numpy))
    widths = [0, 0, *numbers[:spatial], 0, 0, *numbers[spatial:]]
    wide = b.op("pad", x, b.integers(widths), fill, mode="constant")
    wanted = tuple(value is not None for value in node.outputs)
    return out.node(node.op, [wide, b.integers([0] * len(numbers))], node.attrs, outputs=wanted)


def _tables(out: Rewriter, node: Node) -> Values | None:
    """Sizes that are numbers: where each element comes from, and with which weight, is a table."""
    x, dtype, nearest = node.inputs[0], out.dtype(node.inputs[0]), node.attrs["mode"] == "nearest"
    axes = _resized(out, node)
    if x is None or axes is None or (not nearest and dtype not in (DType.F32, DType.F64)):
        return None
    b, y = Core(out), x
    for axis in axes:
        looked_up = _nearest(b, node, y, axis) if nearest else _filtered(b, node, y, axis)
        if looked_up is None:
            return None
        y = _beyond(b, node, looked_up, axis, nearest)
    return [y]


def _resized(out: Rewriter, node: Node) -> list[Axis] | None:
    """The axes that change; None where something about them is known only in the call, or one is empty."""
    x, sizes, scales, roi = node.inputs
    shape, after = out.shape(x), None if sizes is None else out.content(sizes)
    factors, crop = (None if value is None else out.constant(value) for value in (scales, roi))
    if shape is None or after is None or factors is None or crop is None:
        return None
    crops = node.attrs["coordinate_transformation_mode"] == "tf_crop_and_resize"
    axes = []
    for number, (before, behind) in enumerate(zip(shape, after, strict=True)):
        ends = (float(crop[number]), float(crop[len(shape) + number])) if crops else (0.0, 1.0)
        if before == behind and factors[number] == 1 and ends == (0.0, 1.0):
            continue
        if not isinstance(before, int) or not isinstance(behind, int) or 0 in (before, behind):
            return None
        axes.append(Axis(number, before, behind, float(factors[number]), *ends))
    return axes


def _nearest(b: Core, node: Node, x: ValueId, axis: Axis) -> ValueId:
    return b.gather(x, b.weight(nearest_index(node.attrs, axis)), axis.index)


def _filtered(b: Core, node: Node, x: ValueId, axis: Axis) -> ValueId | None:
    """Σ over taps of x[index[tap]] · weight[tap]."""
    index, weights = taps(node.attrs, coordinates(node.attrs, axis, np.dtype(np.float64)), axis)
    if weights.shape[1] > _MOST_TAPS:
        return None
    behind = (1,) * (b.rank(x) - axis.index - 1)
    total: ValueId | None = None
    for tap in range(weights.shape[1]):
        weight = b.weight(weights[:, tap].astype(b.dtype(x).numpy).reshape(-1, *behind))
        part = b.mul(b.gather(x, b.weight(np.ascontiguousarray(index[:, tap])), axis.index), weight)
        total = part if total is None else b.add(total, part)
    return total


def _beyond(b: Core, node: Node, y: ValueId, axis: Axis, nearest: bool) -> ValueId:
    """The extrapolation value where a crop reaches outside the data."""
    precision = np.dtype(np.float32 if nearest else np.float64)
    bad = outside(node.attrs, coordinates(node.attrs, axis, precision), axis)
    if bad is None or not bad.any():
        return y
    value = b.like(float(node.attrs.get("extrapolation_value", 0.0)), y)
    return b.select(b.weight(bad.reshape(-1, *((1,) * (b.rank(y) - axis.index - 1)))), value, y)


REFORMS = (Reform("resize by tables", ("core.resize",), "resize(x) = Σ x[index] · weight, axis by axis", _tables),)
_BY_OP = {op: row for row in REFORMS for op in row.ops}


def reformed(out: Rewriter, node: Node) -> Values | None:
    """What the row for a node makes of it."""
    row = _BY_OP.get(node.op)
    return None if row is None else row.rule(out, node)
