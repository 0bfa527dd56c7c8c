"""Why two regions are two: every rule that parts them, on graphs as they are cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tests.security.models import model, node, value

from tierup.frontends.onnx import load_onnx
from tierup.ir.graph import Graph
from tierup.ir.types import Sym
from tierup.plan.borders import Border, borders
from tierup.plan.cut import cut
from tierup.plan.regions import Region
from tierup.rewrite.rewrite import lower_to_core


def floats(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32), name)


def integers(name: str, *numbers: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(numbers, np.int64), name)


def divided(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, list[Any]],
    outputs: Sequence[str],
    weights: Sequence[onnx.TensorProto] = (),
) -> tuple[Graph, list[Region], set[int]]:
    """The core graph of a model, its regions, and the nodes that run alone."""
    proto = model(
        nodes, [value(name, shape) for name, shape in inputs.items()], [value(name, []) for name in outputs], weights
    )
    for output in proto.graph.output:
        output.ClearField("type")
    imported = load_onnx(proto)
    graph = lower_to_core(imported.graph, imported.weights)
    division = cut(graph, imported.weights)
    regions = [unit for unit in division.order if isinstance(unit, Region)]
    alone = {unit for unit in division.order if isinstance(unit, int) and graph.nodes[unit].op != "core.reshape"}
    return graph, regions, alone


def parted(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, list[Any]],
    outputs: Sequence[str],
    weights: Sequence[onnx.TensorProto] = (),
) -> list[tuple[str, str, str]]:
    """(kind of the producer, kind of the consumer, reason) of each border."""
    graph, regions, alone = divided(nodes, inputs, outputs, weights)
    found = borders(graph, regions, alone)
    return [(regions[b.producer].kind, regions[b.consumer].kind, _told(b)) for b in found]


def _told(border: Border) -> str:
    return f"{border.reason} | {border.detail}" if border.detail else border.reason


def test_two_products() -> None:
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Relu", ["h"], ["r"]), node("MatMul", ["r", "v"], ["y"])]
    weights = [floats("w", 8, 16), floats("v", 16, 4)]
    assert parted(nodes, {"x": ["n", 8]}, ["y"], weights) == [
        ("matmul", "matmul", "two products are one region only in attention")
    ]


def test_a_reduction_behind_a_product() -> None:
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Softmax", ["h"], ["y"])]
    assert parted(nodes, {"x": ["n", 8]}, ["y"], [floats("w", 8, 16)]) == [
        ("matmul", "rows", "a reduction follows the product, which takes in maps only | reduce_max")
    ]


def test_an_operand_of_another_shape_behind_a_product() -> None:
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Add", ["h", "z"], ["y"])]
    (border,) = parted(nodes, {"x": [3, 6, 8], "z": [3, 1, 1]}, ["y"], [floats("w", 8, 16)])
    assert border[:2] == ("matmul", "rows")
    assert border[2].startswith("the map's other operand is neither whole, nor one for each row or column")
    assert border[2].endswith("add with [3, 1, 1]")


def test_a_rounding_cast_behind_a_product() -> None:
    """To 8 bits; to f16 and bf16 it is taken in."""
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Cast", ["h"], ["y"], to=onnx.TensorProto.FLOAT8E5M2)]
    assert parted(nodes, {"x": [6, 8]}, ["y"], [floats("w", 8, 16)]) == [
        ("matmul", "rows", "cast follows the product, which does not take it in")
    ]


def test_a_product_whose_result_is_used_twice() -> None:
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Relu", ["h"], ["y"])]
    (border,) = parted(nodes, {"x": ["n", 8]}, ["y", "h"], [floats("w", 8, 16)])
    assert border[:2] == ("matmul", "rows")
    assert border[2] == (
        "more than one value would leave the product's region | h is read once and is an output of the model"
    )


def test_what_a_product_reads_is_computed_before() -> None:
    nodes = [node("Softmax", ["x"], ["s"]), node("MatMul", ["s", "w"], ["h"]), node("Add", ["h", "e"], ["y"])]
    nodes.insert(1, node("Exp", ["z"], ["e"]))
    told = parted(nodes, {"x": [6, 8], "z": [6, 16]}, ["y"], [floats("w", 8, 16)])
    assert [reason for _, _, reason in told if "behind a product" in reason] == [
        "it is read by the maps behind a product, and has to be there before the product begins"
    ]
    (softmax,) = (reason for _, _, reason in told if "behind a product" not in reason)
    assert softmax.startswith("a softmax and the product with its weights are one region only in attention")
    assert "the scores are no product with maps behind it" in softmax


def test_maps_before_a_product() -> None:
    nodes = [node("Exp", ["x"], ["e"]), node("MatMul", ["e", "w"], ["y"])]
    assert parted(nodes, {"x": [6, 8]}, ["y"], [floats("w", 8, 16)]) == [
        ("rows", "matmul", "a product takes in what follows it, not what computes its sides")
    ]


ATTENTION = {"q": ["b", "n", 8], "k": ["b", 8, "m"], "v": ["b", "m", 8], "z": ["b", "n", "m"]}


@pytest.mark.parametrize(
    ("between", "outputs", "detail"),
    [
        ([node("Softmax", ["s"], ["p"])], ["y", "p"], "the weights are used elsewhere"),
        (
            [node("Softmax", ["s"], ["w"]), node("Mul", ["w", "z"], ["p"])],
            ["y"],
            "mul follows the softmax, where the product has to",
        ),
        ([node("Softmax", ["s"], ["p"])], ["y", "s"], "something between is used elsewhere"),
    ],
)
def test_attention_that_is_none(between: list[onnx.NodeProto], outputs: list[str], detail: str) -> None:
    nodes = [node("MatMul", ["q", "k"], ["s"]), *between, node("MatMul", ["p", "v"], ["y"])]
    told = parted(nodes, ATTENTION, outputs)
    (reason,) = (reason for before, after, reason in told if (before, after) == ("rows", "matmul"))
    assert reason.startswith("a softmax and the product with its weights are one region only in attention")
    assert detail in reason


def test_attention_over_batches_that_broadcast() -> None:
    nodes = [node("MatMul", ["q", "k"], ["s"]), node("Softmax", ["s"], ["p"]), node("MatMul", ["p", "v"], ["y"])]
    told = parted(nodes, {**ATTENTION, "v": ["m", 8]}, ["y"])
    (reason,) = (reason for before, after, reason in told if (before, after) == ("rows", "matmul"))
    assert "the batches of weights" in reason


def test_a_reshape_between_softmax_and_product() -> None:
    """The rows of all batches as one axis: that is no other grouping of the same matrices."""
    nodes = [
        node("MatMul", ["q", "k"], ["s"]),
        node("Reshape", ["s", "rows"], ["r"]),
        node("Softmax", ["r"], ["w"]),
        node("Shape", ["s"], ["before"]),
        node("Reshape", ["w", "before"], ["p"]),
        node("MatMul", ["p", "v"], ["y"]),
    ]
    inputs = {"q": ["b", "n", 8], "k": ["b", 8, 16], "v": ["b", 16, 8]}
    told = parted(nodes, inputs, ["y"], [integers("rows", -1, 16)])
    (reason,) = (reason for before, after, reason in told if (before, after) == ("rows", "matmul"))
    assert "a reshape stands between softmax and product" in reason


def test_attention_has_no_borders() -> None:
    nodes = [node("MatMul", ["q", "k"], ["s"]), node("Softmax", ["s"], ["p"]), node("MatMul", ["p", "v"], ["y"])]
    assert parted(nodes, ATTENTION, ["y"]) == []


def test_what_follows_attention() -> None:
    nodes = [node("MatMul", ["q", "k"], ["s"]), node("Softmax", ["s"], ["p"]), node("MatMul", ["p", "v"], ["a"])]
    assert parted([*nodes, node("Exp", ["a"], ["y"])], ATTENTION, ["y"]) == [
        ("attention", "rows", "attention takes in nothing behind it but a transpose that leaves rows whole")
    ]


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        (
            [node("Exp", ["w"], ["e"]), node("Add", ["e", "z"], ["y"])],
            "something would be computed or written more than once | [8] and [4, 8]",
        ),
        (
            [node("Softmax", ["x"], ["s"]), node("ReduceMax", ["s"], ["y"], axes=[0], keepdims=1)],
            "their reductions go over different axes | [4, 8] and [4, 8]",
        ),
        (
            [node("ReduceMax", ["x"], ["r"], axes=[-1], keepdims=1), node("Add", ["r", "v"], ["y"])],
            "what follows the reduction runs along other axes than it reduced | [4, 8] and [4, 5]",
        ),
    ],
)
def test_rows_that_do_not_fit(nodes: list[onnx.NodeProto], told: str) -> None:
    inputs = {"w": [1, 8], "x": [4, 8], "z": [4, 8], "v": [4, 5]}
    assert parted(nodes, inputs, ["y"]) == [("rows", "rows", told)]


def test_a_path_that_leads_out_and_back() -> None:
    nodes = [node("Exp", ["x"], ["e"]), node("RandomNormalLike", ["e"], ["c"]), node("Add", ["e", "c"], ["y"])]
    (border,) = parted(nodes, {"x": [4, 8]}, ["y"])
    assert border[2].startswith("a path leads out of them and back in")
    assert border[2].endswith("through onnx.RandomNormalLike")


def test_movement_that_is_read_through_parts_nothing() -> None:
    nodes = [node("Exp", ["x"], ["e"]), node("Transpose", ["e"], ["t"], perm=[1, 0]), node("Exp", ["t"], ["y"])]
    assert parted(nodes, {"x": [4, 8]}, ["y"]) == []


@pytest.mark.parametrize(
    ("moved", "weights"),
    [
        (node("Reshape", ["e", "shape"], ["m"]), [integers("shape", 32)]),
        (node("Slice", ["e", "first", "last"], ["m"]), [integers("first", 1, 0), integers("last", 3, 8)]),
        (node("Gather", ["e", "index"], ["m"]), [integers("index", 3, 0, 0)]),
    ],
)
def test_what_is_read_elsewhere_is_written_first(moved: onnx.NodeProto, weights: list[onnx.TensorProto]) -> None:
    nodes = [node("Exp", ["x"], ["e"]), moved, node("Exp", ["m"], ["y"])]
    *_, last = parted(nodes, {"x": [4, 8]}, ["y"], weights)
    assert last[:2] == ("rows", "rows")
    assert last[2].startswith("an element is needed at another point of the loops than where it is computed")


def test_what_is_written_in_parts_is_read_when_all_of_them_are_there() -> None:
    nodes = [node("Exp", ["x"], ["e"]), node("Concat", ["e", "x"], ["c"], axis=0), node("Exp", ["c"], ["y"])]
    told = parted(nodes, {"x": [4, 8]}, ["y"])
    assert told
    assert all((before, after) == ("rows", "rows") for before, after, _ in told)


def test_a_copy_for_products() -> None:
    """One product could look through the transpose; the other side's copy is there for one that cannot."""
    nodes = [node("Exp", ["x"], ["e"]), node("Transpose", ["e"], ["t"], perm=[1, 0]), node("MatMul", ["t", "w"], ["y"])]
    graph, regions, alone = divided(nodes, {"x": [4, 8]}, ["y"], [floats("w", 4, 8)])
    copies = [region for region in regions if [graph.nodes[index].op for index in region.nodes] == ["core.transpose"]]
    told = {border.reason for border in borders(graph, regions, alone) if regions[border.consumer] in copies}
    assert told == {"a copy for products is a region by itself: where they look through it, it is not needed"}


def test_scans_scatters_and_sizes_are_regions_by_themselves() -> None:
    axis = numpy_helper.from_array(np.array(1), "axis")
    scan = [node("Exp", ["x"], ["e"]), node("CumSum", ["e", "axis"], ["c"]), node("Exp", ["c"], ["y"])]
    told = "a running sum or product goes along its axis by itself"
    assert parted(scan, {"x": [4, 8]}, ["y"], [axis]) == [("rows", "scan", told), ("scan", "rows", told)]
    scatter = [
        node("Exp", ["x"], ["e"]),
        node("ScatterElements", ["x", "places", "e"], ["s"], axis=1),
        node("Exp", ["s"], ["y"]),
    ]
    places = numpy_helper.from_array(np.zeros((4, 8), np.int64), "places")
    found = parted(scatter, {"x": [4, 8]}, ["y"], [places])
    reasons = {(before, after): reason for before, after, reason in found}
    told = "a scatter writes where the data says, and into what is already there"
    assert reasons["rows", "scatter"] == reasons["scatter", "rows"] == told


def test_what_is_behind_a_call_out_is_no_neighbour() -> None:
    nodes = [node("Exp", ["x"], ["e"]), node("RandomNormalLike", ["e"], ["c"]), node("Exp", ["c"], ["y"])]
    assert parted(nodes, {"x": [4, 8]}, ["y"]) == []


def test_a_pair_stands_there_once_with_all_that_it_passes_on() -> None:
    nodes = [
        node("Exp", ["x"], ["e"]),
        node("Sin", ["e"], ["s"]),
        node("MatMul", ["e", "w"], ["p"]),
        node("Add", ["p", "s"], ["y"]),
    ]
    graph, regions, alone = divided(nodes, {"x": [8, 8]}, ["y"], [floats("w", 8, 8)])
    (border,) = borders(graph, regions, alone)
    assert [graph.value_name(v) for v in border.values] == ["e", "s"]


def test_sizes_are_shown_as_asked() -> None:
    nodes = [node("Exp", ["x"], ["e"]), node("Add", ["e", "z"], ["y"])]
    graph, regions, alone = divided(nodes, {"x": [1, 8], "z": ["n", 8]}, ["y"])
    (border,) = borders(graph, regions, alone, show=lambda dim: "open" if isinstance(dim, Sym) else dim)
    assert border.detail == "[8] and [open, 8]"
