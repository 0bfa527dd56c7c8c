"""Reductions, softmax, running sums, normalisations and losses against loops and plain formulas."""

from __future__ import annotations

import itertools
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.oracle.cases import close, from_onnx, infer, numbers, one, run

from tierup.errors import InputError
from tierup.ir import dims
from tierup.ir.dims import DimBuilder
from tierup.ir.graph import Attrs, Node
from tierup.ir.infer import InferError
from tierup.ir.types import DType
from tierup.reference.bind import bind

FLOATS = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)


def draw(shape: tuple[int, ...], dtype: Any = np.float32, low: float = -2, high: float = 2, seed: int = 0) -> Any:
    return np.asarray(np.random.default_rng(seed).uniform(low, high, shape)).astype(dtype)


REDUCE: dict[str, Any] = {  # over a list of Python floats
    "ReduceL1": lambda v: math.fsum(map(abs, v)),
    "ReduceL2": lambda v: math.sqrt(math.fsum(x * x for x in v)),
    "ReduceLogSum": lambda v: math.log(math.fsum(v)) if v else -math.inf,
    "ReduceLogSumExp": lambda v: math.log(math.fsum(map(math.exp, v))) if v else -math.inf,
    "ReduceMax": lambda v: max(v, default=-math.inf),
    "ReduceMean": lambda v: math.fsum(v) / len(v) if v else math.nan,
    "ReduceMin": lambda v: min(v, default=math.inf),
    "ReduceProd": math.prod,
    "ReduceSum": math.fsum,
    "ReduceSumSquare": lambda v: math.fsum(x * x for x in v),
}


def naive(function: Any, x: Any, axes: tuple[int, ...], keep: bool) -> Any:
    """Every result element from the list of elements that it covers."""
    axes = tuple(axis % x.ndim for axis in axes)
    shape = tuple(1 if axis in axes else size for axis, size in enumerate(x.shape))
    result = np.empty(shape, object)
    for place in np.ndindex(shape):
        window = tuple(slice(None) if axis in axes else slice(i, i + 1) for axis, i in enumerate(place))
        result[place] = function(x[window].reshape(-1).tolist())
    return result if keep else np.squeeze(result, axes)


AXES: tuple[tuple[tuple[int, ...], tuple[int, ...] | None], ...] = (
    ((2, 3, 4), None),
    ((2, 3, 4), (1,)),
    ((2, 3, 4), (0, -1)),
    ((2, 0, 4), (1,)),
    ((0, 3), (1,)),
    ((5,), (0,)),
    ((), None),
)


@pytest.mark.parametrize("op", REDUCE)
@pytest.mark.parametrize("dtype", FLOATS)
def test_reduce(op: str, dtype: Any) -> None:
    """Axes as an attribute (opset 11), and as an input (18)."""
    for (shape, axes), keep in itertools.product(AXES, (0, 1)):
        x = draw(shape, dtype, low=0.5)
        expected = naive(
            REDUCE[op], x.astype(np.float64), tuple(range(len(shape))) if axes is None else axes, bool(keep)
        )
        given = None if axes is None else np.array(axes)
        ulps = 2 if dtype in (np.float16, ml_dtypes.bfloat16) else 16
        close(one(op, x, given, keepdims=keep), expected, ulps)
        if dtype is not ml_dtypes.bfloat16:
            close(one(op, x, version=11, keepdims=keep, **({} if axes is None else {"axes": axes})), expected, ulps)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.uint64])
def test_reduce_integers(dtype: Any) -> None:
    x = np.random.default_rng(0).integers(0, 9, (3, 4)).astype(dtype) - (4 if np.dtype(dtype).kind == "i" else 0)
    x = x.astype(dtype)
    for op in ("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"):
        expected = naive(lambda v, f=REDUCE[op]: int(f(v)), x, (1,), False)
        assert one(op, x, np.array([1]), keepdims=0).tolist() == expected.tolist()


def test_reduce_integers_wrap() -> None:
    x = np.array([2**31 - 1, 1], np.int32)
    assert one("ReduceSum", x, keepdims=0).item() == -(2**31)
    assert one("ReduceProd", np.full(40, 3, np.int64), keepdims=0).item() == 3**40 - (1 << 64) * round(
        3**40 / (1 << 64)
    )


def test_reduce_of_nothing() -> None:
    for dtype, low, high in ((np.int32, -(2**31), 2**31 - 1), (np.uint8, 0, 255), (np.bool_, False, True)):
        empty = np.zeros((2, 0), dtype)
        assert one("ReduceMax", empty, np.array([1]), keepdims=0).tolist() == [low] * 2
        assert one("ReduceMin", empty, np.array([1]), keepdims=0).tolist() == [high] * 2
    assert one("ReduceMean", np.zeros((2, 0), np.int64), np.array([1])).tolist() == [[0], [0]]


def test_reduce_without_axes_may_do_nothing() -> None:
    x = draw((2, 3), low=0.5)
    wide = x.astype(np.float64)
    for op, expected in (
        ("ReduceSum", wide), ("ReduceMax", wide), ("ReduceMean", wide), ("ReduceSumSquare", wide**2),
        ("ReduceLogSum", np.log(wide)), ("ReduceL1", wide), ("ReduceL2", wide), ("ReduceLogSumExp", wide),
    ):  # fmt: skip
        for axes in (None, np.array([], np.int64)):
            close(one(op, x, axes, noop_with_empty_axes=1), expected)
        assert one(op, x, np.array([], np.int64)).shape == (1, 1)


def test_reduce_nan_and_infinity() -> None:
    x = np.array([[1, np.nan], [np.inf, 2], [-np.inf, -np.inf]], np.float32)
    axis = np.array([1])
    np.testing.assert_array_equal(one("ReduceMax", x, axis, keepdims=0), [np.nan, np.inf, -np.inf])
    np.testing.assert_array_equal(one("ReduceLogSumExp", x, axis, keepdims=0), [np.nan, np.inf, -np.inf])
    assert one("ReduceLogSumExp", np.array([1000, 1000], np.float32), keepdims=0).item() == pytest.approx(1000.6931)


def test_reduce_axes_from_data() -> None:
    """Axes that only a call knows: the rank stays known where it can be."""
    tensor, axes = (DType.F32, (2, 3, 4)), (DType.I64, (2,))
    assert infer("ReduceSum", tensor, axes)[0].shape == (None,) * 3
    assert infer("ReduceSum", tensor, axes, keepdims=0)[0].shape == (None,)
    assert infer("ReduceSum", tensor, (DType.I64, None), keepdims=0)[0].shape is None
    assert infer("ReduceSum", (DType.F32, None), None, keepdims=0)[0].shape == ()
    assert infer("ReduceSum", (DType.F32, None), None)[0].shape is None
    for bad in ((3,), (-4,), (1, 1)):
        with pytest.raises(InferError):
            infer("ReduceSum", tensor, (DType.I64, (len(bad),)), contents=[None, bad])


@pytest.mark.parametrize(
    ("op", "expected"), [("ReduceProd", 48), ("ReduceSum", 12), ("ReduceMax", 6), ("ReduceMin", 2)]
)
def test_reduce_of_sizes(op: str, expected: int) -> None:
    builder = DimBuilder()
    content = (builder.of(0, 0), builder.of(0, 1), 2)
    (out,) = infer(op, (DType.I64, (3,)), None, contents=[content], builder=builder, keepdims=0)
    values = dims.evaluate(builder.ops, lambda op, value, index: (6, 4)[index])
    assert numbers(out.content, values) == [expected]


@pytest.mark.parametrize("dtype", [*FLOATS, np.int32, np.uint8])
def test_arg_reduction(dtype: Any) -> None:
    x = np.random.default_rng(0).integers(0, 4, (3, 5, 2)).astype(dtype)  # few values: many ties
    for op, best in (("ArgMax", max), ("ArgMin", min)):
        for axis, last, keep in itertools.product((0, 1, -1), (0, 1), (0, 1)):
            result = one(op, x, axis=axis, select_last_index=last, keepdims=keep)
            expected = naive(lambda v, b=best, e=last: place(v, b(v), e), x.astype(int), (axis,), bool(keep))
            assert result.tolist() == expected.tolist()
    assert one("ArgMax", x, axis=1, version=7).shape == (3, 1, 2)
    with pytest.raises(InputError):
        one("ArgMax", np.zeros((2, 0), np.float32), axis=1)


def place(values: list[int], value: int, last: int) -> int:
    return len(values) - 1 - values[::-1].index(value) if last else values.index(value)


def softmax(x: Any, log: bool) -> Any:
    shifted = x - x.max(-1, keepdims=True)
    result = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result if log else np.exp(result)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
def test_softmax(op: str, dtype: Any) -> None:
    x = draw((2, 3, 4), dtype, low=-9, high=9)
    for axis in (0, 1, 2, -1, -3):
        moved = np.moveaxis(x.astype(np.float64), axis, -1)
        close(one(op, x, axis=axis), np.moveaxis(_softmax(op, moved), -1, axis), ulps=4)
    if dtype is not ml_dtypes.bfloat16:
        for axis in (0, 1, 2):  # before opset 13 the axes from `axis` on are one
            flat = x.astype(np.float64).reshape(int(np.prod(x.shape[:axis])), -1)
            for opset in (7, 11):
                close(one(op, x, version=opset, axis=axis), _softmax(op, flat).reshape(x.shape), ulps=4)
        close(one(op, x, version=11, axis=-1), _softmax(op, x.astype(np.float64)), ulps=4)
    for shape in ((0, 3), (2, 0)):
        assert one(op, np.zeros(shape, dtype)).shape == shape


def _softmax(op: str, x: Any) -> Any:
    if op != "Hardmax":
        return softmax(x, op == "LogSoftmax")
    return (np.arange(x.shape[-1]) == x.argmax(-1)[..., None]).astype(float)


def test_softmax_extremes() -> None:
    x = np.array([[1e4, 0], [-np.inf, 0], [np.nan, 0]], np.float32)
    np.testing.assert_array_equal(one("Softmax", x), [[1, 0], [0, 1], [np.nan, np.nan]])
    np.testing.assert_array_equal(one("LogSoftmax", x)[:2], [[0, -1e4], [-np.inf, 0]])
    assert one("Hardmax", np.array([3, 3, 1], np.float32)).tolist() == [1, 0, 0]
    with pytest.raises(InferError):
        infer("Softmax", (DType.F32, ()))


@pytest.mark.parametrize("dtype", [*FLOATS, np.int32, np.uint64])
@pytest.mark.parametrize("op", ["CumSum", "CumProd"])
def test_cumulative(op: str, dtype: Any) -> None:
    x = np.random.default_rng(0).integers(1, 4, (3, 4)).astype(dtype)
    whole = sum if op == "CumSum" else math.prod
    for axis, exclusive, reverse in itertools.product((0, 1, -1), (0, 1), (0, 1)):
        rows = np.moveaxis(x.astype(int), axis, -1)
        rows = rows[..., ::-1] if reverse else rows
        sums = np.array([[whole(row[: i + 1 - exclusive].tolist()) for i in range(len(row))] for row in rows])
        expected = np.moveaxis(sums[..., ::-1] if reverse else sums, -1, axis)
        result = one(op, x, np.array(axis), exclusive=exclusive, reverse=reverse)
        assert result.astype(int).tolist() == expected.tolist()
    assert one(op, np.zeros((2, 0), np.float32), np.array(1), exclusive=1).shape == (2, 0)
    node = Node(f"onnx.{op}", 26, (0, 1), (2,), Attrs({"exclusive": 0, "reverse": 0}))
    with pytest.raises(InputError, match="axis 4"):  # known only in the call
        bind(node)(np.zeros(3), np.array(4))


EPSILON = float(np.float32(1e-5))  # as ONNX stores it


def normalised(x: Any, axes: tuple[int, ...]) -> Any:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + EPSILON)


def channels(p: Any, rank: int) -> Any:
    return p.astype(np.float64).reshape(-1, *(1,) * (rank - 2))


@pytest.mark.parametrize("dtype", FLOATS)
def test_batch_normalization(dtype: Any) -> None:
    shape = (2, 3, 4, 5)
    x, scale, bias, mean = draw(shape, dtype), *(draw((3,), dtype, seed=s) for s in (1, 2, 3))
    variance = draw((3,), dtype, low=0.5, seed=4)
    wide = x.astype(np.float64)
    inference = (wide - channels(mean, 4)) / np.sqrt(channels(variance, 4) + EPSILON) * channels(scale, 4) + channels(
        bias, 4
    )
    training = normalised(wide, (0, 2, 3)) * channels(scale, 4) + channels(bias, 4)
    ulps = 4 if dtype in (np.float16, ml_dtypes.bfloat16) else 64
    close(one("BatchNormalization", x, scale, bias, mean, variance), inference, ulps)
    results = run("BatchNormalization", x, scale, bias, mean, variance, outputs=3, training_mode=1, momentum=0.75)
    averages = [0.75 * old.astype(np.float64) + 0.25 * new
                for old, new in ((mean, wide.mean((0, 2, 3))), (variance, wide.var((0, 2, 3))))]  # fmt: skip
    for result, expected in zip(results, (training, *averages), strict=True):
        close(result, expected, ulps)
    if dtype is ml_dtypes.bfloat16:
        return
    for opset in (7, 9):
        close(one("BatchNormalization", x, scale, bias, mean, variance, version=opset), inference, ulps)
        results = run("BatchNormalization", x, scale, bias, mean, variance, version=opset, outputs=5, momentum=0.75)
        batch = (wide.mean((0, 2, 3)), wide.var((0, 2, 3)))
        for result, expected in zip(results, (training, *averages, *batch), strict=True):
            close(result, expected, ulps)


def test_batch_normalization_forms() -> None:
    x = draw((4, 2, 3))
    per_place = [draw((2, 3), low=0.5, seed=s) for s in range(4)]
    expected = (x - per_place[2]) / np.sqrt(per_place[3] + 1e-5) * per_place[0] + per_place[1]
    np.testing.assert_allclose(one("BatchNormalization", x, *per_place, version=7, spatial=0), expected, rtol=1e-5)
    single = [draw((1,), low=0.5, seed=s) for s in range(4)]
    assert one("BatchNormalization", draw((5,)), *single).shape == (5,)
    mixed = [
        *(draw((2,), np.float32, seed=s) for s in (1, 2)),
        *(draw((2,), np.float64, low=0.5, seed=s) for s in (3, 4)),
    ]
    results = run("BatchNormalization", x.astype(np.float16), *mixed, outputs=3, training_mode=1)
    assert [r.dtype for r in results] == [np.float16, np.float64, np.float64]
    with pytest.raises(InferError, match="should be equal"):
        infer("BatchNormalization", (DType.F32, (4, 2, 3)), *[(DType.F32, (3,))] * 4)


@pytest.mark.parametrize("dtype", FLOATS)
def test_group_and_instance_normalization(dtype: Any) -> None:
    x, scale, bias = draw((2, 6, 3, 2), dtype), draw((6,), dtype, seed=1), draw((6,), dtype, seed=2)
    wide, ulps = x.astype(np.float64), 4 if dtype in (np.float16, ml_dtypes.bfloat16) else 64
    grouped = normalised(wide.reshape(2, 3, -1), (2,)).reshape(x.shape)
    close(
        one("GroupNormalization", x, scale, bias, num_groups=3), grouped * channels(scale, 4) + channels(bias, 4), ulps
    )
    few = [np.repeat(p[:3], 2) for p in (scale, bias)]
    expected = grouped * channels(few[0], 4) + channels(few[1], 4)
    close(one("GroupNormalization", x, scale[:3], bias[:3], version=18, num_groups=3), expected, ulps)
    instance = normalised(wide, (2, 3)) * channels(scale, 4) + channels(bias, 4)
    close(one("InstanceNormalization", x, scale, bias), instance, ulps)
    with pytest.raises(InferError, match="do not divide"):
        infer("GroupNormalization", (DType.F32, (2, 6, 3)), (DType.F32, (6,)), (DType.F32, (6,)), num_groups=4)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("axis", [-1, 1, 0])
def test_layer_and_rms_normalization(dtype: Any, axis: int) -> None:
    x, scale, bias = draw((2, 3, 4), dtype), draw((4,), dtype, seed=1), draw((3, 4), dtype, seed=2)
    bias = bias[0] if axis == -1 else bias
    wide, axes = x.astype(np.float64), tuple(range(axis % 3, 3))
    ulps = 4 if dtype in (np.float16, ml_dtypes.bfloat16) else 64
    y, mean, inverse = run("LayerNormalization", x, scale, bias, axis=axis, outputs=3)
    close(y, normalised(wide, axes) * scale.astype(np.float64) + bias.astype(np.float64), ulps)
    close(mean, wide.mean(axes, keepdims=True), 64)
    close(inverse, 1 / np.sqrt(wide.var(axes, keepdims=True) + EPSILON), 64)
    close(one("LayerNormalization", x, scale, axis=axis), normalised(wide, axes) * scale.astype(np.float64), ulps)
    root = np.sqrt((wide * wide).mean(axes, keepdims=True) + EPSILON)
    close(one("RMSNormalization", x, scale, axis=axis), wide / root * scale.astype(np.float64), ulps)


def test_layer_normalization_stash() -> None:
    x, scale = draw((2, 4), np.float16), draw((4,), np.float16)
    results = run("LayerNormalization", x, scale, outputs=3, stash_type=DType.BF16.code)
    assert [r.dtype for r in results] == [np.float16, ml_dtypes.bfloat16, ml_dtypes.bfloat16]
    assert one("RMSNormalization", x, scale.astype(np.float32)).dtype == np.float32


def test_other_normalizations() -> None:
    x = draw((2, 3, 4, 2), np.float64)
    for attrs, axes in (({}, (0, 2, 3)), ({"axes": (-1, 0)}, (0, 3))):
        deviation = x.std(axes, keepdims=True) + 1e-9  # as ONNX's function body has it
        close(one("MeanVarianceNormalization", x, **attrs), (x - x.mean(axes, keepdims=True)) / deviation, 64)
    for p, axis in itertools.product((1, 2), (-1, 1)):
        norm = (np.abs(x) ** p).sum(axis, keepdims=True) ** (1 / p)
        close(one("LpNormalization", x, p=p, axis=axis), x / norm)
    assert not one("LpNormalization", np.zeros((2, 3), np.float32)).any()
    with pytest.raises(InferError, match="p must be"):
        infer("LpNormalization", (DType.F32, (2,)), p=3)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 99])
def test_lrn(size: int) -> None:
    x = draw((2, 5, 3), np.float64)
    expected = np.empty_like(x)
    for c in range(5):
        window = x[:, max(0, c - (size - 1) // 2) : min(4, c + math.ceil((size - 1) / 2)) + 1]
        expected[:, c] = x[:, c] / (2 + 0.5 / size * (window**2).sum(1)) ** 0.75
    close(one("LRN", x, size=size, alpha=0.5, beta=0.75, bias=2.0), expected)
    assert one("LRN", x[:, :0], size=size).shape == (2, 0, 3)


def test_lrn_does_not_loop_over_a_hostile_size() -> None:
    assert one("LRN", draw((1, 3, 2)), size=1 << 62).shape == (1, 3, 2)


def test_dropout() -> None:
    x = draw((50, 40))
    for opset, kind in ((7, np.float32), (10, np.bool_), (12, np.bool_), (22, np.bool_)):
        y, mask = run("Dropout", x, version=opset, outputs=2, wide=opset > 7)
        assert (y == x).all()
        assert mask.dtype == kind
        assert mask.all()
    ratio, training = np.array(0.25, np.float32), np.array(True)
    y, mask = run("Dropout", x, ratio, training, outputs=2, seed=3)
    np.testing.assert_allclose(y, np.where(mask, x / 0.75, 0), rtol=1e-6)
    assert 0.7 < mask.mean() < 0.8  # 5 standard errors
    assert (one("Dropout", x, ratio, training, seed=3) == y).all()
    assert (one("Dropout", x, np.array(0, np.float32), training) == x).all()
    assert (one("Dropout", x, ratio, np.array(False)) == x).all()


LABEL_SHAPES = ((3,), (3, 2), (3, 2, 4))


@pytest.mark.parametrize("op", ["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("ignore", [None, 1, -5])
def test_losses(op: str, reduction: str, ignore: int | None) -> None:
    attrs = {"reduction": reduction, **({} if ignore is None else {"ignore_index": ignore})}
    for shape, weighted in itertools.product(LABEL_SHAPES, (False, True)):
        scores = draw((shape[0], 5, *shape[1:]))
        labels = np.random.default_rng(1).integers(0, 5, shape)
        if ignore is not None:
            labels.reshape(-1)[0] = ignore
        weight = draw((5,), low=0.1, seed=2) if weighted else None
        inputs = (scores, labels, weight) if weighted else (scores, labels)
        result = one(op, *inputs, **attrs)
        logs = scores.astype(np.float64)
        if op.startswith("Softmax"):
            logs = np.moveaxis(softmax(np.moveaxis(logs, 1, -1), True), -1, 1)
        close(result, naive_loss(logs, labels, weight, reduction, ignore), 64)


def naive_loss(logs: Any, labels: Any, weight: Any, reduction: str, ignore: int | None) -> Any:
    losses, weights = np.zeros(labels.shape), np.zeros(labels.shape)
    for where in np.ndindex(labels.shape):
        label = labels[where]
        if label != ignore:
            weights[where] = 1 if weight is None else weight[label]
            losses[where] = -logs[(where[0], label, *where[1:])] * weights[where]
    return losses if reduction == "none" else losses.sum() / (weights.sum() if reduction == "mean" else 1)


def test_loss_outputs_and_labels() -> None:
    scores, labels = draw((3, 5, 2)), np.array([[0, 4], [1, 2], [3, 3]], np.int32)
    loss, logs = run("SoftmaxCrossEntropyLoss", scores, labels, outputs=2)
    expected = from_onnx("SoftmaxCrossEntropyLoss", scores, labels, outputs=2)
    close(loss, expected[0], 64)
    close(logs, expected[1], 64)
    for bad in (5, -1):
        with pytest.raises(InputError, match="outside the 5 classes"):
            one("NegativeLogLikelihoodLoss", scores, np.full((3, 2), bad))
    with pytest.raises(InferError, match="should be equal"):
        infer("NegativeLogLikelihoodLoss", (DType.F32, (3, 5)), (DType.I64, (4,)))
