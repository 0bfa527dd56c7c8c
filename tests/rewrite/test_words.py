"""Products of bytes with whole words: what is widened, what gets zeros, what stays, and that the numbers stay."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.rewrite.graphs import Build, const, ints, made, ops

from tierup.ir.build import GraphBuilder
from tierup.ir.graph import Graph, ValueId
from tierup.ir.types import DType, TensorType
from tierup.ir.verify import verify
from tierup.reference.evaluate import evaluate
from tierup.rewrite.rewrite import simplify
from tierup.rewrite.rules.words import whole_words
from tierup.rewrite.walk import walk

RANDOM = np.random.default_rng(9)
CONV = {"kernel_shape": (3, 3), "strides": (1, 1), "dilations": (1, 1), "group": 1, "algorithm": "direct"}


def weight(b: GraphBuilder, *shape: int) -> ValueId:
    return const(b, RANDOM.integers(-128, 128, shape), np.int8)


def as_bytes(b: GraphBuilder, total: ValueId, columns: int) -> ValueId:
    """Sums, with a factor for each column, as bytes."""
    real = b.op("core.mul", b.op("core.cast", total, to=DType.F32.code, saturate=1), const(b, np.full(columns, 0.001)))
    low = const(b, 0.0)
    kept = b.op("core.select", b.op("core.lt", low, real), real, low)
    return b.op("core.cast", b.op("core.min", kept, const(b, 255.0)), to=DType.U8.code, saturate=1)


def compare(build: Build, *feeds: Any) -> Graph:
    graph, weights = made(build)
    rule = whole_words(graph)
    after = simplify(walk(graph, weights, () if rule is None else (rule,)).graph, weights)
    verify(after, weights)
    for wanted, got in zip(evaluate(graph, weights, list(feeds)), evaluate(after, weights, list(feeds)), strict=True):
        np.testing.assert_array_equal(got, wanted)
    return after


def widths(graph: Graph) -> list[Any]:
    """The columns that products give."""
    found = []
    for node in graph.nodes:
        if node.op in ("core.matmul", "core.conv_last"):
            type = graph.type(node.outputs[0] or 0)
            assert isinstance(type, TensorType)
            assert type.shape is not None
            found.append(type.shape[-1])
    return found


def chain(b: GraphBuilder) -> ValueId:
    x = b.open_input(DType.U8, (1, 4, 5, 8))
    first = as_bytes(b, b.op("core.matmul", x, weight(b, 8, 6)), 6)
    second = as_bytes(b, b.op("core.conv_last", first, weight(b, 54, 5), ints(b, 1, 1, 1, 1), **CONV), 5)
    return b.op("core.matmul", second, weight(b, 5, 9))


def data(*shape: int) -> Any:
    return RANDOM.integers(0, 256, shape).astype(np.uint8)


def test_what_products_read_alone_is_widened() -> None:
    after = compare(chain, data(1, 4, 5, 8))
    assert widths(after) == [8, 8, 9]
    assert not {"core.slice", "core.pad"}.intersection(ops(after))


def test_other_data_gets_zeros() -> None:
    after = compare(lambda b: b.op("core.matmul", b.open_input(DType.U8, ("n", 6)), weight(b, 6, 4)), data(3, 6))
    assert ops(after) == ["core.pad", "core.matmul"]


def test_what_others_read_keeps_its_width() -> None:
    def build(b: GraphBuilder) -> list[ValueId]:
        middle = as_bytes(b, b.op("core.matmul", b.open_input(DType.U8, (3, 8)), weight(b, 8, 6)), 6)
        return [middle, b.op("core.matmul", middle, weight(b, 6, 4))]

    assert widths(compare(build, data(3, 8))) == [6, 4]


def test_few_channels_and_floats_stay() -> None:
    def build(b: GraphBuilder) -> list[ValueId]:
        few = b.op("core.matmul", b.open_input(DType.U8, (3, 2)), weight(b, 2, 4))
        return [few, b.op("core.matmul", b.open_input(DType.F32, (3, 6)), const(b, RANDOM.standard_normal((6, 4))))]

    after = compare(build, data(3, 2), RANDOM.standard_normal((3, 6)).astype(np.float32))
    assert ops(after) == ["core.matmul", "core.matmul"]


def grouped(channels: int, columns: int, group: int) -> Build:
    def build(b: GraphBuilder) -> ValueId:
        x = b.open_input(DType.U8, (1, 4, 5, channels))
        w = weight(b, 9 * channels // group, columns)
        return b.op("core.conv_last", x, w, ints(b, 1, 1, 1, 1), **{**CONV, "group": group})

    return build


def test_groups_with_few_results_are_joined() -> None:
    for channels, columns, group, left in (
        (32, 32, 8, 2),
        (6, 48, 3, 3),
        (24, 24, 12, 0),
        (8, 16, 8, 1),
        (4, 32, 2, 1),
    ):
        after = compare(grouped(channels, columns, group), data(1, 4, 5, channels))
        (node,) = (node for node in after.nodes if node.op == "core.conv_last")
        assert node.attrs["group"] == (left or group), (channels, columns, group)


def test_channels_by_themselves_stay_so() -> None:
    after = compare(grouped(32, 32, 32), data(1, 4, 5, 32))
    assert [node.attrs["group"] for node in after.nodes if node.op == "core.conv_last"] == [32]
