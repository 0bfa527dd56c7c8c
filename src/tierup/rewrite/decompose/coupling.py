"""Class probabilities from those of pairs of classes: Wu, Lin and Weng's second method, as in libsvm.

A Loop changes the probabilities of all rows, class by class, until no row is far from where it should be; a row that is
there stays as it is. `reference/linear_models.py` has the same in NumPy.
"""

from __future__ import annotations

import numpy as np

from tierup.ir.graph import Attrs, Graph, ValueId
from tierup.ir.types import Dim, DType
from tierup.rewrite.decompose.core import Core, Declined
from tierup.rewrite.decompose.elementwise import sigmoid
from tierup.rewrite.walk import Rewriter

_LOOP_VERSION = 21
_MOST_CLASSES = 16  # each is some ops of the Loop's body
_LEAST_STEPS = 100
_NEAR = 0.005  # over the number of classes
_LEAST = 1e-7  # a probability of a pair


def coupled(b: Core, scores: ValueId, slopes: ValueId, shifts: ValueId, classes: int) -> ValueId:
    """[rows, classes] from the scores [rows, pairs] of the pairs, whose order is that of libsvm."""
    if classes > _MOST_CLASSES:
        raise Declined(f"probabilities of more than {_MOST_CLASSES} classes are coupled in too many steps")
    q = _matrix(b, scores, slopes, shifts, classes)
    rows: Dim = b.shape(scores)[0]
    start = b.broadcast(b.like(1 / classes, scores), (rows, classes))
    trips, always = b.scalar(max(_LEAST_STEPS, classes), DType.I64), b.number(1, DType.BOOL)
    results = b.out.node(
        "onnx.Loop", (trips, always, start, q), Attrs({"captures": 1}), version=_LOOP_VERSION,
        outputs=(True,), graphs=(("body", _body(b, b.dtype(scores), rows, classes)),),
    )  # fmt: skip
    assert results[0] is not None
    return results[0]


def _matrix(b: Core, scores: ValueId, slopes: ValueId, shifts: ValueId, classes: int) -> ValueId:
    """Q, [rows, classes, classes]: of r, the probabilities of the first of two classes, -r rᵀ element by element; on
    the diagonal the sums of squares of columns."""
    rows, one = b.shape(scores)[0], b.like(1, scores)
    won = b.sub(one, sigmoid(b, b.add(b.mul(scores, slopes), shifts)))
    won = b.clamp(won, b.like(_LEAST, scores), b.like(1 - _LEAST, scores))
    none = b.broadcast(b.like(0, scores), (rows, 1))
    upper, (first, second) = np.zeros((classes, classes), np.int64), np.triu_indices(classes, 1)
    upper[first, second], upper[second, first] = np.arange(first.size), first.size + np.arange(first.size)
    np.fill_diagonal(upper, 2 * first.size)
    listed = b.concat([won, b.sub(one, won), none], 1)
    r = b.reshape(b.gather(listed, b.integers(upper.reshape(-1).tolist()), 1), (rows, classes, classes))
    squares = b.reduce("sum", b.mul(r, r), (1,))
    beside = b.neg(b.mul(r, b.transpose(r, (0, 2, 1))))
    return b.select(b.weight(np.eye(classes, dtype=np.bool_)[None]), squares, beside)


def _body(b: Core, dtype: DType, rows: Dim, classes: int) -> Graph:
    """Its number, whether to go on, probabilities and Q in; whether to go on and better probabilities out."""
    out = Rewriter(b.out.weights, b.out.source)
    c = Core(out)
    out.open_input(DType.I64, ())
    out.open_input(DType.BOOL, ())
    p, q = out.open_input(dtype, (rows, classes)), out.open_input(dtype, (rows, classes, classes))
    count = c.shape(p)[0]
    slope = c.reduce("sum", c.mul(q, c.unsqueeze(p, 1)), (2,), keepdims=False)
    value = c.reduce("sum", c.mul(p, slope), (1,))
    apart = c.reduce("max", c.abs(c.sub(slope, value)), (1,))
    far = c.le(c.like(_NEAR / classes, p), apart)
    new, one, two = p, c.like(1, p), c.like(2, p)
    for t in range(classes):
        row = c.reshape(c.slice(q, {1: (t, t + 1, 1)}), (count, classes))
        own, steep = (c.slice(x, {1: (t, t + 1, 1)}) for x in (row, slope))
        change = c.div(c.sub(value, steep), own)
        whole = c.add(one, change)
        here = c.weight((np.arange(classes) == t).astype(dtype.numpy)[None])
        new = c.div(c.add(new, c.mul(change, here)), whole)
        grown = c.add(value, c.mul(change, c.add(c.mul(change, own), c.mul(two, steep))))
        value = c.div(grown, c.mul(whole, whole))
        slope = c.div(c.add(slope, c.mul(change, row)), whole)
    some = c.reduce("max", c.cast(far, DType.I32), (0, 1), keepdims=False)
    return out.finish([c.lt(c.number(0, DType.I32), some), c.select(far, new, p)])
