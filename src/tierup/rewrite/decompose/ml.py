"""The ops of ai.onnx.ml that are arithmetic over features, and look-ups of numbers. Strings and maps stay whole."""

from __future__ import annotations

import numpy as np

from tierup.ir.graph import Node, ValueId
from tierup.ir.types import Array, DType
from tierup.reference.ml import label_table
from tierup.rewrite.decompose.core import Core, Declined, Decomposition

_LONGEST = 1 << 16  # numbers from the least to the largest key: a table of places is looked up by position
_MOST_KEYS = 256  # that every element is compared with


def _extract(b: Core, n: Node) -> ValueId:
    """Features picked on the last axis"""
    x, picks = b.input(n), b.input(n, 1)
    shape = b.shape(x)
    rows = x if len(shape) > 1 else b.unsqueeze(x, 0)
    return b.gather(rows, b.reshape(picks, [b.dims.product(b.shape(picks))]), b.rank(rows) - 1)


def _binarize(b: Core, n: Node) -> ValueId:
    """1 above the threshold, else 0; integers are compared as f64, which holds the threshold"""
    x = b.input(n)
    wide = b.cast(x, DType.F64) if b.dtype(x).is_integer else b.wide(x)
    return b.cast(b.lt(b.like(n.attrs["threshold"], wide), wide), b.dtype(x))


def _features(b: Core, n: Node) -> ValueId:
    """The inputs side by side, each cut or filled with zeros to its width"""
    rows: list[ValueId] = []
    for index, width in enumerate(n.attrs["inputdimensions"]):
        x = b.input(n, index)
        shape = b.shape(x)
        flat = b.reshape(x, (1, b.dims.product(shape)) if len(shape) < 2 else (shape[0], b.dims.product(shape[1:])))
        size = b.shape(flat)[1]
        if not isinstance(size, int):
            raise Declined("the number of features is known only in the call")
        kept = b.cast(b.part(flat, 1, 0, min(size, width)), DType.F32)
        missing = b.integers([0, 0, 0, max(width - size, 0)])
        rows.append(kept if size >= width else b.op("pad", kept, missing, b.like(0, kept), mode="constant"))
    return b.concat(rows, 1)


def _impute(b: Core, n: Node) -> ValueId:
    """The imputed value where the one to replace stands; NaN may be that one"""
    x = b.input(n)
    kind = "int64" if b.dtype(x).is_integer else "float"
    values = b.weight(np.array(n.attrs[f"imputed_value_{kind}s"], b.dtype(x).numpy))
    old = n.attrs[f"replaced_value_{kind}"]
    found = b.inverse(b.eq(x, x)) if old != old else b.eq(x, b.like(old, x))
    return b.select(found, values if b.rank(x) else b.reshape(values, ()), x)


def _scale(b: Core, n: Node) -> ValueId:
    """(x - offset) · scale"""
    x = b.input(n)
    work = DType.F64 if b.dtype(x) is DType.F64 else DType.F32
    offset, factor = (
        b.weight(np.array(n.attrs.get(name) or neutral, work.numpy)) for name, neutral in (("offset", 0), ("scale", 1))
    )
    return b.cast(b.mul(b.sub(b.cast(x, work), offset), factor), DType.F32)


def _normalize(b: Core, n: Node) -> ValueId:
    """Each row over its norm; rows of norm 0 stay as they are"""
    x = b.input(n)
    values = b.wide(x) if b.dtype(x).is_float else b.cast(x, DType.F32)
    rows = values if b.rank(x) > 1 else b.reshape(values, (1, b.dims.product(b.shape(x))))
    match n.attrs["norm"]:
        case "MAX":
            size = b.reduce("max", rows, (1,))
        case "L1":
            size = b.reduce("sum", b.abs(rows), (1,))
        case _:
            size = b.sqrt(b.reduce("sum", b.mul(rows, rows), (1,)))
    nothing = b.eq(size, b.like(0, size))
    scaled = b.div(rows, b.select(nothing, b.like(1, size), size))
    return b.cast(b.reshape(b.select(nothing, rows, scaled), b.shape(x)), DType.F32)


def _label_encode(b: Core, n: Node) -> ValueId:
    """The value at the place of each element among the keys, the last of equals; elsewhere the default"""
    x = b.input(n)
    keys, values, default = label_table(n)
    if keys.dtype.kind != b.dtype(x).numpy.kind or keys.dtype.kind not in "if" or values.dtype.kind not in "if":
        raise Declined("it looks up strings, or keys of another type")
    keys, other = keys.astype(b.dtype(x).numpy), b.weight(np.array(default).astype(values.dtype).reshape(()))
    if not keys.size:
        return b.broadcast(other, b.shape(x))
    if b.dtype(x).is_integer and int(keys.max()) - int(keys.min()) < _LONGEST:
        return _by_position(b, x, keys, values, other)
    if keys.size > _MOST_KEYS:
        raise Declined(f"there are more than {_MOST_KEYS} keys, far from each other")
    each, known = b.unsqueeze(x, b.rank(x)), b.weight(keys)
    same = b.eq(each, known)
    if b.dtype(x).is_float:  # NaN is the same as NaN here
        same = b.either(same, b.both(b.inverse(b.eq(each, each)), b.inverse(b.eq(known, known))))
    last = b.rank(x)
    place = b.op("argmax", b.cast(same, DType.I32), axis=last, keepdims=0, last=1)
    found = b.reduce("max", same, (last,), keepdims=False)
    return b.select(found, b.gather(b.weight(values), place, 0), other)


def _by_position(b: Core, x: ValueId, keys: Array, values: Array, other: ValueId) -> ValueId:
    """Keys that lie near each other, as a table with an entry for each number from the least to the largest."""
    least, largest = int(keys.min()), int(keys.max())
    places, there = np.zeros(largest - least + 1, np.int64), np.zeros(largest - least + 1, np.bool_)
    places[keys.astype(np.int64) - least], there[keys.astype(np.int64) - least] = np.arange(keys.size), True
    inside = b.both(b.le(b.like(least, x), x), b.le(x, b.like(largest, x)))
    at = b.sub(b.cast(b.clamp(x, b.like(least, x), b.like(largest, x)), DType.I64), b.number(least, DType.I64))
    found = b.both(inside, b.gather(b.weight(there), at, 0))
    return b.select(found, b.gather(b.weight(values[places]), at, 0), other)


def _one_hot(b: Core, n: Node) -> ValueId:
    """1 where an element is the category, else 0"""
    x, categories = b.input(n), np.array(n.attrs.get("cats_int64s") or (), np.int64)
    if not n.attrs["zeros"] or len(set(categories.tolist())) < categories.size:
        raise Declined("an element of no category is an error, or a category is there twice")
    same = b.eq(b.unsqueeze(b.cast(x, DType.I64), b.rank(x)), b.weight(categories))
    return b.cast(same, DType.F32)


ML: dict[str, Decomposition] = {
    "ml.ArrayFeatureExtractor": _extract,
    "ml.Binarizer": _binarize,
    "ml.FeatureVectorizer": _features,
    "ml.Imputer": _impute,
    "ml.LabelEncoder": _label_encode,
    "ml.Normalizer": _normalize,
    "ml.OneHotEncoder": _one_hot,
    "ml.Scaler": _scale,
}
