"""The table of reforms: what has no kernel of its own, as core ops that have one. The same up to the rounding of sums.

Unlike simplifications they do not make a graph smaller, so they run once, after everything is a core op.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tierup.ir.graph import Node
from tierup.rewrite.decompose.core import Core
from tierup.rewrite.rules.columns import single_column
from tierup.rewrite.rules.integer_weights import integer_weight
from tierup.rewrite.rules.nonzero import by_counts
from tierup.rewrite.rules.one_hot import row_of_matrix
from tierup.rewrite.rules.pool_places import with_places
from tierup.rewrite.rules.ranking import by_ranks, one_by_one
from tierup.rewrite.rules.resizing import by_lookups
from tierup.rewrite.rules.row import numbers
from tierup.rewrite.rules.transposed import as_convolutions
from tierup.rewrite.rules.weights_left import weights_on_the_left
from tierup.rewrite.walk import Rewriter, Rule, Values


class Reform(Struct, frozen=True):
    """One row: what it is called, the ops it looks at, its algebra, and the rule."""

    name: str
    ops: tuple[str, ...]
    algebra: str
    rule: Rule


POOLED = frozenset(("core.pool_sum", "core.pool_max"))


def padded_pool(out: Rewriter, node: Node) -> Values | None:
    """pool(x, pads) = pool(pad(x, pads), 0): what is padded is never the largest, and adds nothing."""
    if node.op not in POOLED:
        return None
    x, pads = node.inputs
    widths, shape, dtype = numbers(out, pads), out.shape(x), out.dtype(x)
    if x is None or shape is None or dtype is None or widths is None or not any(widths):
        return None
    if any(value is not None for value in node.outputs[1:]):
        return None
    b, spatial = Core(out), len(shape) - 2
    least = -np.inf if dtype.is_float else np.iinfo(dtype.numpy).min
    fill = b.weight(np.array(0 if node.op == "core.pool_sum" else least).astype(dtype.numpy))
    around = [0, 0, *widths[:spatial], 0, 0, *widths[spatial:]]
    wide = b.op("pad", x, b.integers(around), fill, mode="constant")
    wanted = tuple(value is not None for value in node.outputs)
    return out.node(node.op, [wide, b.integers([0] * len(widths))], node.attrs, outputs=wanted)


REFORMS = (
    Reform("phases", ("core.conv_transpose",), "convᵀ(x, w)[i·s + p] = conv(x, taps of phase p)[i]", as_convolutions),
    Reform("top by ranks", ("core.topk",), "topk(x)[k] = x[i] where as many as k come before i", by_ranks),
    Reform("top one by one", ("core.topk",), "topk(x)[k] = the best of what comes behind topk(x)[k - 1]", one_by_one),
    Reform("places by counts", ("core.nonzero",), "nonzero(x)[k] = i where k before i are not zero", by_counts),
    Reform("places of maxima", ("core.pool_max",), "the better of two places of a window at a time", with_places),
    Reform("resize by lookups", ("core.resize",), "resize(x) = Σ x[index] · weight, axis by axis", by_lookups),
    Reform("row of a matrix", ("core.matmul",), "[i = 0, i = 1, …] · w = w[i]", row_of_matrix),
    Reform("weights on the left", ("core.matmul",), "v · softmax(s)ᵀ = (softmax(s) · vᵀ)ᵀ", weights_on_the_left),
    Reform("single column", ("core.matmul",), "a · x = Σ a[…, k] · x[k] where x has one column", single_column),
    Reform("integer weight", ("core.matmul",), "a · (s · w) = s · (a · w)", integer_weight),
)
_BY_OP: dict[str, list[Reform]] = {}
for _row in REFORMS:
    for _op in _row.ops:
        _BY_OP.setdefault(_op, []).append(_row)


def reformed(out: Rewriter, node: Node) -> Values | None:
    """What the first row that applies makes of a node."""
    made = (row.rule(out, node) for row in _BY_OP.get(node.op, ()))
    return next((values for values in made if values is not None), None)
