"""What a product takes in beside the maps behind it: maps that lead from bytes to what those read."""

from __future__ import annotations

import numpy as np
from tests.rewrite.graphs import const, f32, made

from tierup.ir.build import GraphBuilder
from tierup.ir.graph import Graph, ValueId
from tierup.ir.types import DType
from tierup.plan.products import products


def scaled(b: GraphBuilder, x: ValueId) -> ValueId:
    """(x - 3) · 0.5, as DequantizeLinear becomes."""
    wide = b.op("core.cast", x, to=DType.I32.code, saturate=1)
    less = b.op("core.sub", wide, const(b, 3, np.int32))
    return b.op("core.mul", b.op("core.cast", less, to=DType.F32.code, saturate=1), const(b, 0.5))


def product(b: GraphBuilder) -> ValueId:
    return b.op("core.matmul", f32(b, "n", 4), const(b, np.ones((4, 6))))


def taken(graph: Graph) -> list[str]:
    (region,) = products(graph)
    made = {value for index in region.nodes for value in graph.nodes[index].outputs}
    seen: set[ValueId | None] = set()
    for index in region.nodes:  # in an order in which they can run
        assert seen.issuperset(made.intersection(graph.nodes[index].inputs))
        seen.update(graph.nodes[index].outputs)
    return [graph.nodes[index].op.removeprefix("core.") for index in region.nodes]


def test_bytes_that_one_sum_reads_are_scaled_in_its_region() -> None:
    def build(b: GraphBuilder) -> ValueId:
        beside = scaled(b, b.open_input(DType.U8, ("n", 6)))  # stands before the product
        return b.op("core.max", b.op("core.add", product(b), beside), const(b, 0.0))

    assert taken(made(build)[0]) == ["matmul", "cast", "sub", "cast", "mul", "add", "max"]


def test_what_others_need_is_scaled_once() -> None:
    def build(b: GraphBuilder) -> list[ValueId]:
        beside = scaled(b, b.open_input(DType.U8, ("n", 6)))
        return [b.op("core.add", product(b), beside), beside]

    assert taken(made(build)[0]) == ["matmul", "add"]


def test_floats_are_read_as_they_are() -> None:
    def build(b: GraphBuilder) -> ValueId:
        return b.op("core.add", product(b), b.op("core.exp", f32(b, "n", 6)))

    assert taken(made(build)[0]) == ["matmul", "add"]
