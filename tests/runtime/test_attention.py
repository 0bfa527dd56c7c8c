"""Attention as one kernel: the forms that are found, and answers against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from tests.security.models import model, node, value

import tierup
from tierup.codegen.target import target_of
from tierup.frontends.onnx import load_onnx
from tierup.ir.types import DType
from tierup.plan.cut import cut
from tierup.plan.regions import Region
from tierup.profile.machine import identify
from tierup.rewrite.assume import Assumptions
from tierup.rewrite.rewrite import lower_to_core

RANDOM = np.random.default_rng(0)
HEADS, WIDTH = 2, 24


def constant(name: str, content: Any, dtype: Any = np.int64) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(content, dtype), name)


def heads(name: str) -> list[onnx.NodeProto]:
    """[batch, length, heads · width] -> [batch, heads, length, width]"""
    return [
        node("Reshape", [name, "split"], [f"{name}_split"]),
        node("Transpose", [f"{name}_split"], [f"{name}_heads"], perm=[0, 2, 1, 3]),
    ]


def exported(*, mask: str = "float", joined: bool = True, nan_is_zero: bool = False) -> onnx.ModelProto:
    """As exporters write it: heads split, scaled, masked, joined again."""
    nodes = [*heads("q"), *heads("k"), *heads("v")]
    nodes.append(node("Transpose", ["k_heads"], ["kt"], perm=[0, 1, 3, 2]))
    nodes.append(node("MatMul", ["q_heads", "kt"], ["scores"]))
    nodes.append(node("Mul", ["scores", "scale"], ["scaled"]))
    if mask == "bool":
        nodes.append(node("Where", ["mask", "scaled", "least"], ["masked"]))
    elif mask == "float":
        nodes.append(node("Add", ["scaled", "mask"], ["masked"]))
    nodes.append(node("Softmax", ["masked" if mask else "scaled"], ["weights"], axis=-1))
    if nan_is_zero:
        nodes += [node("IsNaN", ["weights"], ["nan"]), node("Where", ["nan", "zero", "weights"], ["kept"])]
    nodes.append(node("MatMul", ["kept" if nan_is_zero else "weights", "v_heads"], ["mixed"]))
    if joined:
        nodes.append(node("Transpose", ["mixed"], ["turned"], perm=[0, 2, 1, 3]))
        nodes.append(node("Reshape", ["turned", "join"], ["y"]))
    else:
        nodes.append(node("Relu", ["mixed"], ["y"]))
    inputs = [value(name, ["b", length, HEADS * WIDTH]) for name, length in (("q", "m"), ("k", "n"), ("v", "n"))]
    if mask:
        kind = TensorProto.BOOL if mask == "bool" else TensorProto.FLOAT
        inputs.append(value("mask", ["b", 1, "m", "n"] if mask == "float" else [1, 1, 1, "n"], kind))
    weights = [
        constant("split", [0, 0, HEADS, WIDTH]),
        constant("join", [0, 0, HEADS * WIDTH]),
        constant("scale", WIDTH**-0.5, np.float32),
        constant("least", -1e30, np.float32),
        constant("zero", 0, np.float32),
    ]
    return model(nodes, inputs, [value("y", [None] * (3 if joined else 4))], weights)


def kinds(proto: onnx.ModelProto) -> list[str]:
    imported = load_onnx(proto)
    graph = lower_to_core(imported.graph, imported.weights, Assumptions(imported.graph))
    return [unit.kind for unit in cut(graph, imported.weights).order if isinstance(unit, Region)]


def in_bf16(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32).astype(DType.BF16.numpy).astype(np.float64)


def expected(feeds: dict[str, np.ndarray], rounded: bool = False) -> np.ndarray:
    """In float64, joined; with the sides of both products in bf16, if `rounded`."""
    q, k, v = (
        feeds[name].astype(np.float64).reshape(*feeds[name].shape[:2], HEADS, WIDTH).transpose(0, 2, 1, 3)
        for name in "qkv"
    )
    if rounded:
        q, k, v = map(in_bf16, (q, k, v))
    scores = q @ k.swapaxes(-1, -2) * WIDTH**-0.5
    mask = feeds.get("mask")
    if mask is not None:
        scores = np.where(mask, scores, -1e30) if mask.dtype == bool else scores + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
    weights = weights / weights.sum(-1, keepdims=True)
    return (in_bf16(weights) if rounded else weights) @ v


def draw(b: int, m: int, n: int, mask: str) -> dict[str, np.ndarray]:
    feeds = {
        name: RANDOM.standard_normal((b, length, HEADS * WIDTH)).astype(np.float32)
        for name, length in (("q", m), ("k", n), ("v", n))
    }
    if mask == "float":
        feeds["mask"] = np.where(RANDOM.random((b, 1, m, n)) < 0.3, -1e30, 0).astype(np.float32)
    elif mask == "bool":
        feeds["mask"] = RANDOM.random((1, 1, 1, n)) < 0.7
        feeds["mask"][..., :1] = True
    return feeds


@pytest.mark.parametrize("mask", ["", "float", "bool"])
@pytest.mark.parametrize("joined", [True, False])
def test_answers(mask: str, joined: bool) -> None:
    compiled = tierup.load(exported(mask=mask, joined=joined), config=tierup.Config(force_tier=1))
    assert compiled.report().fallback_nodes == 0
    for b, m, n in (
        (1, 1, 1),
        (2, 9, 9),
        (1, 16, 32),
        (1, 33, 70),
        (3, 7, 100),
        (1, 9, 61),
        (2, 15, 1),
        (0, 4, 4),
        (2, 0, 5),
    ):
        feeds = draw(b, m, n, mask)
        mixed = expected(feeds)
        wanted = mixed.transpose(0, 2, 1, 3).reshape(b, m, HEADS * WIDTH) if joined else np.maximum(mixed, 0)
        # sums of n weights below 1 and products of width 24: some eps of the largest value
        np.testing.assert_allclose(compiled.run(feeds)["y"], wanted, atol=4e-6)


@pytest.mark.parametrize("other", [False, True], ids=["for this alone", "also for others"])
def test_a_factor_behind_the_product_that_makes_q(other: bool) -> None:
    """The kernel applies it to the scores, and reads q without it: the product before must leave that in memory. It
    cannot be made part of a weight that is too large to be cast beforehand."""
    proto = exported(mask="")
    proto.graph.node.insert(0, node("Cast", ["w"], ["wide"], to=TensorProto.FLOAT))
    proto.graph.node.insert(1, node("MatMul", ["x", "wide"], ["made"]))
    proto.graph.node.insert(2, node("Mul", ["made", "two"], ["q"]))
    w = RANDOM.integers(-5, 5, (400, HEADS * WIDTH)).astype(np.int8)
    proto.graph.initializer.extend([constant("w", w, np.int8), constant("two", 2, np.float32)])
    proto.graph.input[0].CopyFrom(value("x", ["b", "m", 400]))
    if other:
        proto.graph.node.append(node("Neg", ["q"], ["z"]))
        proto.graph.output.append(value("z", [None] * 3))
    assert kinds(proto).count("attention") == 1
    compiled = tierup.load(proto, config=tierup.Config(force_tier=1))
    feeds = draw(2, 9, 13, "")
    feeds["x"] = RANDOM.standard_normal((2, 9, 400)).astype(np.float32) / 200
    del feeds["q"]
    q = 2 * (feeds["x"].astype(np.float64) @ w)
    wanted = expected({**feeds, "q": q}).transpose(0, 2, 1, 3).reshape(2, 9, HEADS * WIDTH)
    answer = compiled.run(feeds)
    np.testing.assert_allclose(answer["y"], wanted, atol=1e-5)
    if other:
        np.testing.assert_allclose(answer["z"], -q, atol=1e-4)


@pytest.mark.parametrize("n", [5, 16, 32, 53, 64])
def test_numbers_of_keys_that_fill_panels_or_do_not(n: int) -> None:
    """Known beforehand: of wide and narrow panels those that are there, the last one full or not."""
    proto, sizes = exported(), {"b": 1, "m": 11, "n": n}
    for given in proto.graph.input:
        for dim in given.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = sizes[dim.dim_param]
    compiled = tierup.load(proto, config=tierup.Config(force_tier=1))
    assert compiled.report().fallback_nodes == 0
    feeds = draw(1, 11, n, "float")
    wanted = expected(feeds).transpose(0, 2, 1, 3).reshape(1, 11, HEADS * WIDTH)
    np.testing.assert_allclose(compiled.run(feeds)["y"], wanted, atol=4e-6)


def no_keys(*, mask: bool) -> onnx.ModelProto:
    """softmax(q kᵀ) v, with a mask of one number for each query or without."""
    nodes = [node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]), node("MatMul", ["q", "kt"], ["scores"])]
    nodes += [node("Add", ["scores", "mask"], ["masked"])] * mask
    nodes.append(node("Softmax", ["masked" if mask else "scores"], ["weights"], axis=-1))
    nodes.append(node("MatMul", ["weights", "v"], ["y"]))
    inputs = [value(name, [2, length, WIDTH]) for name, length in (("q", "m"), ("k", "n"), ("v", "n"))]
    inputs += [value("mask", [2, "m", 1])] * mask
    return model(nodes, inputs, [value("y", [2, None, WIDTH])])


@pytest.mark.parametrize("mask", [False, True])
def test_without_keys_it_is_zero(mask: bool) -> None:
    """A sum of nothing, and not nothing over nothing."""
    compiled = tierup.load(no_keys(mask=mask), config=tierup.Config(force_tier=1))
    assert compiled.report().fallback_nodes == 0
    feeds = {name: np.ones((2, length, WIDTH), np.float32) for name, length in (("q", 5), ("k", 0), ("v", 0))}
    feeds |= {"mask": np.ones((2, 5, 1), np.float32)} if mask else {}
    np.testing.assert_array_equal(compiled.run(feeds)["y"], np.zeros((2, 5, WIDTH), np.float32))
    assert "attention" in kinds(no_keys(mask=mask))


TARGET = target_of(identify())


@pytest.mark.skipif(TARGET is None or "dot_bf16" not in TARGET.dots, reason="this machine multiplies no pairs of bf16")
@pytest.mark.parametrize("mask", ["", "float"])
def test_in_bf16(mask: str) -> None:
    """Sides of products are rounded, sums are not. A weight that lies between two of bf16 may go to either, and then a
    row of a head is off."""
    compiled = tierup.load(exported(mask=mask), config=tierup.Config(force_tier=1, precision="bf16"))
    assert compiled.report().fallback_nodes == 0
    for b, m, n in ((1, 1, 1), (2, 9, 9), (1, 33, 70), (3, 7, 101), (2, 15, 2), (0, 4, 4), (2, 0, 5), (1, 197, 197)):
        feeds = draw(b, m, n, mask)
        wanted = expected(feeds, rounded=True).transpose(0, 2, 1, 3).reshape(b, m, HEADS * WIDTH)
        off = np.abs(compiled.run(feeds)["y"] - wanted)
        assert off.max(initial=0) <= 2.0**-8 * np.abs(feeds["v"]).max(initial=0)
        assert (off > 4e-6).sum() <= WIDTH * (2 + 0.02 * off.size // WIDTH)


def test_a_row_without_a_key_is_what_softmax_makes_of_it() -> None:
    compiled = tierup.load(exported(), config=tierup.Config(force_tier=1))
    baseline = tierup.load(exported(), config=tierup.Config(force_tier=0))
    feeds = draw(1, 3, 5, "float")
    feeds["mask"][..., 1, :] = -np.inf
    np.testing.assert_allclose(compiled.run(feeds)["y"], baseline.run(feeds)["y"], atol=4e-6)
    assert np.isnan(compiled.run(feeds)["y"][0, 1]).all()


def test_rows_without_a_key_may_be_made_zero() -> None:
    """As torch exports it: where(isnan(weights), 0, weights)."""
    proto = exported(nan_is_zero=True)
    assert kinds(proto).count("attention") == 1
    compiled = tierup.load(proto, config=tierup.Config(force_tier=1))
    for sizes in ((1, 3, 5), (2, 20, 40)):
        feeds = draw(*sizes, "float")
        feeds["mask"][..., 1, :] = -np.inf
        got = compiled.run(feeds)["y"]
        with np.errstate(invalid="ignore"):
            wanted = np.nan_to_num(expected(feeds)).transpose(0, 2, 1, 3).reshape(got.shape)
        np.testing.assert_allclose(got, wanted, atol=4e-6)
        assert not got[:, 1].any()


def test_what_is_one_region() -> None:
    assert kinds(exported()).count("attention") == 1
    assert "matmul" not in kinds(exported())


def test_scores_that_are_looked_at_are_not_hidden() -> None:
    proto = exported()
    proto.graph.output.append(value("weights", ["b", HEADS, "m", "n"]))
    assert "attention" not in kinds(proto)
    compiled = tierup.load(proto, config=tierup.Config(force_tier=1))
    feeds = draw(1, 5, 6, "float")
    np.testing.assert_allclose(compiled.run(feeds)["weights"].sum(-1), 1, atol=1e-6)


def test_a_softmax_over_another_axis_is_no_attention() -> None:
    proto = exported()
    for item in proto.graph.node:
        if item.op_type == "Softmax":
            item.attribute[0].i = -2
    assert "attention" not in kinds(proto)


def test_the_operator() -> None:
    """The Attention op of opset 23."""
    nodes = [node("Attention", ["q", "k", "v"], ["y"], q_num_heads=HEADS, kv_num_heads=HEADS)]
    shape: list[Any] = ["b", "m", HEADS * WIDTH]
    inputs = [value("q", shape), value("k", ["b", "n", HEADS * WIDTH]), value("v", ["b", "n", HEADS * WIDTH])]
    proto = model(nodes, inputs, [value("y", shape)])
    proto.opset_import[0].version = 23
    assert "attention" in kinds(proto)
    compiled = tierup.load(proto, config=tierup.Config(force_tier=1))
    feeds = draw(2, 9, 12, "")
    wanted = expected(feeds).transpose(0, 2, 1, 3).reshape(2, 9, -1)
    np.testing.assert_allclose(compiled.run(feeds)["y"], wanted, atol=4e-6)


def test_the_operator_with_a_mask() -> None:
    """A query that may see no key is all zeros, also where its scores are not numbers."""
    nodes = [node("Attention", ["q", "k", "v", "mask"], ["y"], q_num_heads=HEADS, kv_num_heads=HEADS)]
    inputs = [value(name, ["b", length, HEADS * WIDTH]) for name, length in (("q", "m"), ("k", "n"), ("v", "n"))]
    inputs.append(value("mask", ["b", 1, "m", "n"], TensorProto.BOOL))
    proto = model(nodes, inputs, [value("y", ["b", "m", HEADS * WIDTH])])
    proto.opset_import[0].version = 23
    assert "attention" in kinds(proto)
    feeds = draw(2, 9, 12, "")
    feeds["mask"] = RANDOM.random((2, 1, 9, 12)) < 0.7
    feeds["mask"][0, 0, 3] = False
    feeds["q"][0, 3] = np.nan
    compiled, baseline = (tierup.load(proto, config=tierup.Config(force_tier=tier)) for tier in (1, 0))
    y = compiled.run(feeds)["y"]
    assert (y[0, 3] == 0).all()
    np.testing.assert_allclose(y, baseline.run(feeds)["y"], atol=4e-6)


@pytest.mark.parametrize("shared", ["kv", "k", "v", "q"])
def test_heads_may_share_a_side(shared: str) -> None:
    nodes = [
        node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "kt"], ["scores"]),
        node("Softmax", ["scores"], ["weights"], axis=-1),
        node("MatMul", ["weights", "v"], ["y"]),
    ]
    counts = {name: 1 if name in shared else 3 for name in "qkv"}
    inputs = [value(name, ["b", counts[name], "m" if name == "q" else "n", WIDTH]) for name in "qkv"]
    proto = model(nodes, inputs, [value("y", ["b", 3, "m", WIDTH])])
    assert "attention" in kinds(proto)
    compiled = tierup.load(proto, config=tierup.Config(force_tier=1))
    for b, m, n in ((2, 9, 12), (1, 1, 40)):
        lengths = {"q": m, "k": n, "v": n}
        q, k, v = (RANDOM.standard_normal((b, counts[name], lengths[name], WIDTH)) * 0.5 for name in "qkv")
        powers = np.exp(q @ k.transpose(0, 1, 3, 2))
        wanted = powers / powers.sum(-1, keepdims=True) @ v
        feeds = {name: array.astype(np.float32) for name, array in zip("qkv", (q, k, v), strict=True)}
        np.testing.assert_allclose(compiled.run(feeds)["y"], wanted, atol=4e-6)  # some ten roundings of numbers about 1


@pytest.mark.parametrize("width", [3, 7, 16, 33, 40, 48, 80])
def test_heads_of_any_width(width: int) -> None:
    """One, two or three vectors of columns at a time."""
    nodes = [
        node("MatMul", ["q", "kt"], ["scores"]),
        node("Softmax", ["scores"], ["weights"], axis=-1),
        node("MatMul", ["weights", "v"], ["y"]),
    ]
    inputs = [value("q", ["b", "m", 8]), value("kt", ["b", 8, "n"]), value("v", ["b", "n", width])]
    proto = model(nodes, inputs, [value("y", ["b", "m", width])])
    assert "attention" in kinds(proto)
    shapes = {"q": (2, 13, 8), "kt": (2, 8, 21), "v": (2, 21, width)}
    feeds = {name: RANDOM.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    q, kt, v = (array.astype(np.float64) for array in feeds.values())
    powers = np.exp(q @ kt)
    wanted = powers / powers.sum(-1, keepdims=True) @ v
    compiled = tierup.load(proto, config=tierup.Config(force_tier=1))
    np.testing.assert_allclose(compiled.run(feeds)["y"], wanted, atol=1e-5)  # scores up to 10, their last digit is 1e-6


def grouped(*, masked: bool, turned: bool) -> onnx.ModelProto:
    """Products over [batch · heads], a mask over [batch, heads], the softmax on either side of the way back. With
    `turned`, a bias is transposed and added, as positions of keys seen from queries are."""
    nodes = [
        node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["scores"]),
        node("Mul", ["scores", "scale"], ["scaled"]),
        node("Transpose", ["bias"], ["biases"], perm=[0, 2, 1]),
        node("Add", ["scaled", "biases" if turned else "bias"], ["biased"]),
        node("Shape", ["mask"], ["apart"]),
        node("Reshape", ["biased", "apart"], ["split"]),
        node("Add", ["split", "mask"], ["masked"]),
        node("Softmax", ["masked"], ["weights"], axis=-1),
        node("Shape", ["scores"], ["together"]),
        node("Reshape", ["weights" if masked else "masked", "together"], ["joined"]),
        node("Softmax", ["joined"], ["last"], axis=-1),
        node("MatMul", ["joined" if masked else "last", "v"], ["y"]),
    ]
    inputs = [value(name, ["all", length, WIDTH]) for name, length in (("q", "m"), ("k", "n"), ("v", "n"))]
    inputs += [value("mask", ["b", HEADS, "m", "n"]), value("bias", [1, "n", "m"] if turned else [1, "m", "n"])]
    return model(nodes, inputs, [value("y", ["all", "m", WIDTH])], [constant("scale", WIDTH**-0.5, np.float32)])


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("turned", [True, False])
def test_a_batch_that_is_grouped_anew_between_the_products(masked: bool, turned: bool) -> None:
    proto = grouped(masked=masked, turned=turned)
    assert "attention" in kinds(proto)
    compiled = tierup.load(proto, config=tierup.Config(force_tier=1))
    for b, m, n in ((2, 9, 12), (1, 1, 5), (3, 17, 17)):
        shapes = {"q": (b * HEADS, m, WIDTH), "k": (b * HEADS, n, WIDTH), "v": (b * HEADS, n, WIDTH)}
        shapes |= {"mask": (b, HEADS, m, n), "bias": (1, n, m) if turned else (1, m, n)}
        feeds = {name: RANDOM.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        q, k, v, mask, bias = (array.astype(np.float64) for array in feeds.values())
        scores = q @ k.transpose(0, 2, 1) * WIDTH**-0.5 + mask.reshape(-1, m, n)
        scores += bias.transpose(0, 2, 1) if turned else bias
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        wanted = powers / powers.sum(-1, keepdims=True) @ v
        np.testing.assert_allclose(compiled.run(feeds)["y"], wanted, atol=4e-6)  # some ten roundings of numbers about 1


@pytest.mark.parametrize("images", ["b", 1])
@pytest.mark.parametrize("computed", [True, False])
def test_windows_of_images_are_grouped_with_a_bias_that_all_share(images: str | int, computed: bool) -> None:
    """As in Swin: [images · windows, heads] for products and a bias of each head, which may be computed and has shapes
    of its own on the way, [images, windows, 1] for the mask of windows that were moved over the border."""
    windows, m = 4, 9
    nodes = [
        node("MatMul", ["q", "kt"], ["scores"]),
        node("Sigmoid", ["bias"], ["gates"]),
        node("Unsqueeze", ["gates" if computed else "bias", "zero"], ["biases"]),
        node("Add", ["scores", "biases"], ["biased"]),
        node("Reshape", ["biased", "apart"], ["split"]),
        node("Add", ["split", "mask"], ["masked"]),
        node("Reshape", ["masked", "together"], ["joined"]),
        node("Softmax", ["joined"], ["weights"], axis=-1),
        node("MatMul", ["weights", "v"], ["y"]),
    ]
    every = "all" if images == "b" else windows
    inputs = [value("q", [every, HEADS, m, WIDTH]), value("kt", [every, HEADS, WIDTH, m])]
    inputs += [value("v", [every, HEADS, m, WIDTH]), value("bias", [HEADS, m, m]), value("mask", [1, windows, 1, m, m])]
    weights = [
        constant("zero", [0]),
        constant("apart", [-1, windows, HEADS, m, m]),
        constant("together", [-1, HEADS, m, m]),
    ]
    proto = model(nodes, inputs, [value("y", [every, HEADS, m, WIDTH])], weights)
    assert "attention" in kinds(proto)
    compiled = tierup.load(proto, config=tierup.Config(force_tier=1))
    assert compiled.report().to_dict()["counters"]["fallback_nodes"] == 0
    for count in (1, 3) if images == "b" else (1,):
        shapes = {"q": (m, WIDTH), "kt": (WIDTH, m), "v": (m, WIDTH)}
        all_shapes = {name: (count * windows, HEADS, *shape) for name, shape in shapes.items()}
        all_shapes |= {"bias": (HEADS, m, m), "mask": (1, windows, 1, m, m)}
        feeds = {name: RANDOM.standard_normal(shape).astype(np.float32) for name, shape in all_shapes.items()}
        q, kt, v, bias, mask = (array.astype(np.float64) for array in feeds.values())
        scores = q @ kt + (1 / (1 + np.exp(-bias)) if computed else bias)
        scores = (scores.reshape(count, windows, HEADS, m, m) + mask).reshape(scores.shape)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        wanted = powers / powers.sum(-1, keepdims=True) @ v
        np.testing.assert_allclose(compiled.run(feeds)["y"], wanted, atol=1e-5)  # scores up to 10, of 1e-6 each


def test_rows_that_are_joined_between_the_products_are_no_grouping() -> None:
    """[batch, m, n] as [batch · m, n]: the last two axes do not stay."""
    nodes = [
        node("MatMul", ["q", "kt"], ["scores"]),
        node("Reshape", ["scores", "rows"], ["joined"]),
        node("Softmax", ["joined"], ["weights"], axis=-1),
        node("Shape", ["scores"], ["before"]),
        node("Reshape", ["weights", "before"], ["apart"]),
        node("MatMul", ["apart", "v"], ["y"]),
    ]
    inputs = [value("q", ["b", "m", WIDTH]), value("kt", ["b", WIDTH, 16]), value("v", ["b", 16, WIDTH])]
    proto = model(nodes, inputs, [value("y", ["b", "m", WIDTH])], [constant("rows", [-1, 16])])
    assert "attention" not in kinds(proto)
    feeds = {"q": RANDOM.standard_normal((2, 5, WIDTH)), "kt": RANDOM.standard_normal((2, WIDTH, 16))}
    feeds |= {"v": RANDOM.standard_normal((2, 16, WIDTH))}
    powers = np.exp(feeds["q"] @ feeds["kt"])
    wanted = powers / powers.sum(-1, keepdims=True) @ feeds["v"]
    compiled = tierup.load(proto, config=tierup.Config(force_tier=1))
    answer = compiled.run({name: array.astype(np.float32) for name, array in feeds.items()})["y"]
    np.testing.assert_allclose(answer, wanted, atol=1e-4)  # scores are up to 20, and their last digit is 2e-6
