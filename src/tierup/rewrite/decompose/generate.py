"""Ops that make tensors out of sizes and numbers. Random ones stay whole."""

from __future__ import annotations

import math

import numpy as np

from tierup.ir.graph import Node, ValueId
from tierup.ir.types import DType, dtype_from_code
from tierup.reference.generate import constant
from tierup.rewrite.decompose.core import Core, Declined, Decomposition


def _constant(b: Core, n: Node) -> ValueId:
    return b.weight(np.asarray(constant(n)))


def _constant_of_shape(b: Core, n: Node) -> ValueId:
    value = n.attrs.get("value")
    fill = np.zeros((), np.float32) if value is None else value.array.reshape(())
    return b.op("broadcast", b.weight(fill), b.input(n))


def _attr_dtype(b: Core, n: Node, name: str, default: DType | None = None) -> DType:
    code = n.attrs.get(name)
    dtype = default if code is None else dtype_from_code(code)
    if dtype is None:
        raise Declined(f"there is no dtype with number {code}")
    return dtype


def _eye_like(b: Core, n: Node) -> ValueId:
    """1 where column = row + k"""
    shape = b.shape(b.input(n))
    row, column = (b.iota(shape, axis) for axis in (0, 1))
    on = b.eq(column, b.add(row, b.like(n.attrs["k"], row)))
    return b.cast(on, _attr_dtype(b, n, "dtype", b.dtype(b.input(n))))


def _range(b: Core, n: Node) -> ValueId:
    """start + i · delta: integers in their own dtype, floats in f64 and rounded once; where delta is 0, there are -1,
    which ends the call"""
    start, limit, delta = (b.reshape(b.input(n, i), ()) for i in range(3))
    dtype = b.dtype(start)
    step = b.out.constant(b.input(n, 2))
    if step is not None and not step.reshape(-1)[0]:
        raise Declined("a range cannot advance by 0")
    if dtype.is_integer:
        (count,) = b.result_shape(n)
        if step is None:
            (by,) = b.elems(delta, "the step of a range")
            count = b.dims.select(b.dims.emit("eq", by, 0), -1, count)
        counter = b.iota((count,), 0, DType.I64)
        return b.cast(b.add(b.cast(start, DType.I64), b.mul(counter, b.cast(delta, DType.I64))), dtype)
    start, limit, delta = (b.cast(x, DType.F64) for x in (start, limit, delta))
    steps = b.op("ceil", b.div(b.sub(limit, start), delta))
    count = b.cast(b.max(steps, b.like(0, steps)), DType.I64)
    if step is None:
        count = b.select(b.eq(delta, b.like(0, delta)), b.like(-1, count), count)
    counter = b.op("iota", b.reshape(count, (1,)), axis=0, dtype=DType.F64.code)
    return b.cast(b.add(start, b.mul(counter, delta)), dtype)


def _window(*terms: float) -> Decomposition:
    """Σ terms[k] · cos(k · 2πn/N), N one less where the window is symmetric; a single sample is 1"""

    def decomposition(b: Core, n: Node) -> ValueId:
        (size,) = b.elems(b.input(n), "the length of a window")
        period = size if n.attrs["periodic"] else b.dims.sub(size, 1)
        step = b.div(b.number(2 * math.pi, DType.F64), b.scalar(b.dims.max(period, 1), DType.F64))
        phase = b.mul(b.iota([size], 0, DType.F64), step)
        result = b.like(terms[0], phase)
        for k, term in enumerate(terms[1:], start=1):
            wave = b.op("cos", b.mul(b.like(k, phase), phase))
            result = b.add(result, b.mul(b.like(term, phase), wave))
        alone = b.eq(b.scalar(size, DType.I64), b.number(1, DType.I64))
        result = b.select(alone, b.like(1, result), result)
        return b.cast(result, _attr_dtype(b, n, "output_datatype"))

    return decomposition


GENERATE: dict[str, Decomposition] = {
    "onnx.BlackmanWindow": _window(0.42, -0.5, 0.08),
    "onnx.Constant": _constant,
    "onnx.ConstantOfShape": _constant_of_shape,
    "onnx.EyeLike": _eye_like,
    "onnx.HammingWindow": _window(25 / 46, -21 / 46),
    "onnx.HannWindow": _window(0.5, -0.5),
    "onnx.Range": _range,
}
