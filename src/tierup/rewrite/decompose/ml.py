"""The ops of ai.onnx.ml that are plain arithmetic over features. Labels, maps and trees stay whole."""

from __future__ import annotations

import numpy as np

from tierup.ir.graph import Node, ValueId
from tierup.ir.types import DType
from tierup.rewrite.decompose.core import Core, Declined, Decomposition
from tierup.rewrite.decompose.scores import transform


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


def _regress(b: Core, n: Node) -> ValueId:
    """x · coefficientsᵀ + intercepts, then the post transform, which leaves a single column alone"""
    x, targets = b.input(n), n.attrs["targets"]
    work = DType.F64 if b.dtype(x) is DType.F64 else DType.F32
    rows = b.cast(x if b.rank(x) == 2 else b.unsqueeze(x, 0), work)
    coefficients = np.array(n.attrs.get("coefficients") or (), work.numpy).reshape(targets, -1)
    scores = b.matmul(rows, b.weight(np.ascontiguousarray(coefficients.T)))
    if n.attrs.get("intercepts"):
        scores = b.add(scores, b.weight(np.array(n.attrs["intercepts"], work.numpy)))
    if targets == 1:
        scores = scores if n.attrs["post_transform"] != "PROBIT" else transform(b, "PROBIT", scores)
    else:
        scores = transform(b, n.attrs["post_transform"], scores)
    return b.cast(scores, DType.F32)


ML: dict[str, Decomposition] = {
    "ml.ArrayFeatureExtractor": _extract,
    "ml.Binarizer": _binarize,
    "ml.FeatureVectorizer": _features,
    "ml.Imputer": _impute,
    "ml.LinearRegressor": _regress,
    "ml.Normalizer": _normalize,
    "ml.Scaler": _scale,
}
