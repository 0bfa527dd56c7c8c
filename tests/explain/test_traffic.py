"""What kernels read and write: elements that their addresses reach, each once, counted by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from tests.security.models import model, node, value

from tierup.adapt.planning import make_plan
from tierup.explain.traffic import traffic
from tierup.frontends.onnx import load_onnx
from tierup.ir.types import Dim


def integers(name: str, *numbers: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(numbers, np.int64), name)


def moved(
    nodes: Sequence[onnx.NodeProto], inputs: Sequence[onnx.ValueInfoProto], weights: Sequence[onnx.TensorProto] = ()
) -> list[tuple[dict[str, int], dict[str, int]]]:
    """Elements read and written by each kernel of a model with closed sizes, by name; single constants left out."""
    proto = model(nodes, inputs, [value("y")], weights)
    proto.graph.output[0].ClearField("type")
    function = make_plan(load_onnx(proto)).compiled.functions[0]

    def size(dim: Dim) -> int:
        assert isinstance(dim, int)
        return dim

    found = []
    for placed in function.kernels:
        read, written = traffic(function.graph, placed.region, placed.kernel, size)
        names = function.graph.value_name
        found.append(({names(v): n for v, n in read.items() if n > 1}, {names(v): n for v, n in written.items()}))
    return found


X = value("x", [6, 8])


def test_maps_read_and_write_everything() -> None:
    assert moved([node("Exp", ["x"], ["e"]), node("Add", ["e", "x"], ["y"])], [X]) == [({"x": 48}, {"y": 48})]


def test_what_repeats_is_read_once() -> None:
    assert moved([node("Add", ["x", "b"], ["y"])], [X, value("b", [8])]) == [({"x": 48, "b": 8}, {"y": 48})]


def test_reductions_write_what_is_left() -> None:
    nodes = [node("ReduceMax", ["x"], ["y"], axes=[-1], keepdims=0)]
    assert moved(nodes, [X]) == [({"x": 48}, {"y": 6})]


def test_a_slice_is_read_in_part() -> None:
    nodes = [node("Slice", ["x", "first", "last"], ["s"]), node("Exp", ["s"], ["y"])]
    assert moved(nodes, [X], [integers("first", 1, 0), integers("last", 3, 8)]) == [({"x": 16}, {"y": 16})]


def test_rows_of_a_table_are_read_as_often_as_they_are_looked_up() -> None:
    nodes = [node("Gather", ["table", "i"], ["g"]), node("Exp", ["g"], ["y"])]
    table, index = value("table", [100, 8]), value("i", [3], TensorProto.INT64)
    assert moved(nodes, [table, index]) == [({"table": 24, "i": 3}, {"y": 24})]


def test_a_table_is_not_read_more_often_than_it_has_rows() -> None:
    nodes = [node("Gather", ["table", "i"], ["g"]), node("Exp", ["g"], ["y"])]
    table, index = value("table", [2, 8]), value("i", [30], TensorProto.INT64)
    assert moved(nodes, [table, index]) == [({"table": 16, "i": 30}, {"y": 240})]


def test_pieces_are_written_in_part() -> None:
    nodes = [node("Concat", ["x", "z"], ["y"], axis=0)]
    found = moved(nodes, [X, value("z", [2, 8])])
    assert sum(read.get("x", 0) for read, _ in found) == 48
    assert sum(read.get("z", 0) for read, _ in found) == 16
    assert sum(written["y"] for _, written in found) == 64


def test_a_scatter_writes_its_updates() -> None:
    nodes = [node("ScatterElements", ["x", "i", "u"], ["y"], axis=1)]
    inputs = [X, value("i", [6, 2], TensorProto.INT64), value("u", [6, 2])]
    found = moved(nodes, inputs)  # negative indices are made positive first
    assert ({"x": 48}, {"y": 48}) in found
    read, written = found[-1]
    assert (list(read.values()), written) == ([12, 12], {"y": 12})


def test_a_scan_reads_and_writes_everything() -> None:
    axis = numpy_helper.from_array(np.array(1), "axis")
    assert moved([node("CumSum", ["x", "axis"], ["y"])], [X], [axis]) == [({"x": 48}, {"y": 48})]


@pytest.mark.parametrize(("side", "elements"), [([1, 8, 5], 40), ([4, 8, 5], 160)])
def test_a_product_reads_what_lies_behind_a_broadcast(side: list[int], elements: int) -> None:
    nodes = [node("Expand", ["w", "shape"], ["r"]), node("MatMul", ["x", "r"], ["y"])]
    found = moved(nodes, [value("x", [4, 3, 8]), value("w", side)], [integers("shape", 4, 8, 5)])
    ((read, written),) = found
    assert sorted(read.values()) == sorted([4 * 3 * 8, elements])
    assert written == {"y": 4 * 3 * 5}


def test_a_product_reads_the_slice_of_what_it_looks_into() -> None:
    nodes = [node("Slice", ["x", "first", "last", "axes"], ["s"]), node("MatMul", ["s", "w"], ["y"])]
    weights = [integers("first", 0), integers("last", 4), integers("axes", 1)]
    found = moved(nodes, [X, value("w", [4, 5])], weights)
    assert sum(found[-1][0].values()) == 6 * 4 + 4 * 5
