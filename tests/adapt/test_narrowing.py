"""What rounding to bf16 costs, as it is measured and as the report says it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper
from tests.rewrite.graphs import const, ints, made
from tests.security.models import model, node, value

import tierup
from tierup.adapt.narrowing import rounding_errors, unrounded
from tierup.ir.graph import Attrs
from tierup.ir.types import DType
from tierup.profile.identity import identify
from tierup.reference.conv import convolve
from tierup.reference.evaluate import evaluate


def test_errors_are_those_of_the_roundings_left_out() -> None:
    """Against numbers that round to what was given, exact products are off by the roundings, in units of Σ|a·w|."""
    random = np.random.default_rng(3)
    w = random.standard_normal((40, 8)).astype(np.float32)

    def build(b):  # type: ignore[no-untyped-def]
        right = b.op("core.cast", const(b, w), to=DType.BF16.code, saturate=1)
        return b.op("core.matmul", b.open_input(DType.BF16, ("n", 40)), right, to=DType.F32.code)

    graph, weights = made(build)
    assert [n.op for n in unrounded(graph).nodes] == ["core.matmul"]
    x = random.standard_normal((30, 40)).astype(DType.BF16.numpy)
    result = (x.astype(np.float64) @ w.astype(DType.BF16.numpy).astype(np.float64)).astype(np.float32)
    errors = rounding_errors(graph, weights, [x], [result], 2.0**-20, np.random.default_rng(0))
    assert errors.size == result.size
    assert 2.0**-14 < np.sqrt(np.mean(errors**2)) < errors.max() < 2.0**-7  # not all of one sign


def test_nothing_is_measured_where_nothing_is_rounded() -> None:
    graph, weights = made(lambda b: b.op("core.matmul", b.open_input(DType.F32, ("n", 2)), const(b, [[1], [2]])))
    x = np.ones((1, 2), np.float32)
    assert rounding_errors(graph, weights, [x], [x], 1.0, np.random.default_rng(0)).size == 0


def test_errors_of_a_convolution() -> None:
    """The same with windows: its pads are no side of it."""
    random = np.random.default_rng(3)
    w = random.standard_normal((4 * 6, 8)).astype(np.float32)
    attrs = {"kernel_shape": (2, 2), "strides": (1, 1), "dilations": (1, 1), "group": 1, "algorithm": "direct"}

    def build(b):  # type: ignore[no-untyped-def]
        right = b.op("core.cast", const(b, w), to=DType.BF16.code, saturate=1)
        x = b.open_input(DType.BF16, ("n", 4, 5, 6))
        return b.op("core.conv_last", x, right, ints(b, 1, 0, 0, 1), to=DType.F32.code, **attrs)

    graph, weights = made(build)
    x = random.standard_normal((30, 4, 5, 6)).astype(DType.BF16.numpy)
    (result,) = evaluate(graph, weights, [x])
    errors = rounding_errors(graph, weights, [x], [result], 2.0**-20, np.random.default_rng(0))
    assert errors.size == result.size
    assert 2.0**-14 < np.sqrt(np.mean(errors**2)) < errors.max() < 2.0**-7


def test_bf16_rounds_convolutions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIERUP_FORCE_TIER")
    random = np.random.default_rng(0)
    w, x = random.standard_normal((8, 6, 3, 3)).astype(np.float32), random.standard_normal((2, 6, 9, 9))
    single = model(
        [node("Conv", ["x", "w"], ["y"])], [value("x", ["batch", 6, 9, 9])], [value("y", ["batch", 8, 7, 7])],
        [numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    config = tierup.Config(precision="bf16", cache_dir=tmp_path, data_dir=tmp_path)
    with tierup.load(single, config=config) as loaded:
        loaded(x=x.astype(np.float32))
        report = loaded.settle()
        assert report.tier > 0, report.reason
        got = loaded(x=x.astype(np.float32))["y"]
    sides = [x.astype(np.float32).astype(np.float64), w.astype(np.float64)]
    exact, size = convolve(Attrs(), *sides), convolve(Attrs(), *map(np.abs, sides))
    off = np.abs(got - exact) / size
    assert off.max() <= 2.0**-7 + 2.0**-16 + 12 * 2.0**-23
    if "avx512_bf16" in identify().features:
        assert off.max() > 2.0**-12  # f32 would be off by some 2^-23
        assert any(proof["narrowed"] for proof in report.to_dict()["proofs"])


def test_bf16_rounds_products_and_says_what_it_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides to 8 bits: off by at most 2^-7 + 2^-16 of the products' sizes, and f32's own rounding."""
    monkeypatch.delenv("TIERUP_FORCE_TIER")
    random = np.random.default_rng(0)
    w, x = random.standard_normal((64, 32)).astype(np.float32), random.standard_normal((9, 64)).astype(np.float32)
    single = model(
        [node("MatMul", ["x", "w"], ["y"])], [value("x", ["batch", 64])], [value("y", ["batch", 32])],
        [numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    config = tierup.Config(precision="bf16", cache_dir=tmp_path, data_dir=tmp_path)
    with tierup.load(single, config=config) as loaded:
        loaded(x=x)
        report = loaded.settle()
        assert report.tier > 0, report.reason
        got = loaded(x=x)["y"]
        exact, size = x.astype(np.float64) @ w, np.abs(x.astype(np.float64)) @ np.abs(w)
        off = np.abs(got - exact) / size
        assert off.max() <= 2.0**-7 + 2.0**-16 + 12 * 2.0**-23
        found = report.to_dict()
        assert found["precision"] == "bf16"
        if "avx512_bf16" in identify().features:
            assert off.max() > 2.0**-12  # f32 would be off by some 2^-23
            costs = [proof["narrowed"] for proof in found["proofs"] if proof["narrowed"]]
            assert costs
            assert max(costs) < 2.0**-7
            assert "round their sides" in str(report)
    with tierup.load(single, config=tierup.Config(cache_dir=tmp_path, data_dir=tmp_path)) as plain:
        plain(x=x)
        plain.settle()
        assert (np.abs(plain(x=x)["y"] - exact) <= 12 * 2.0**-23 * size).all()  # the plan of bf16 is another
