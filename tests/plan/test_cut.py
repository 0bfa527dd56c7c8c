"""What becomes one region, what is looked through, and why the rest stands alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from tests.rewrite.graphs import Build, const, f32, ints, made

from tierup.ir.build import GraphBuilder
from tierup.ir.graph import Graph
from tierup.ir.types import DType
from tierup.plan.cut import cut
from tierup.plan.regions import SAME_MEMORY, Cut, Region


def divided(build: Build) -> tuple[Graph, Cut, list[Region]]:
    graph, weights = made(build)
    division = cut(graph, weights)
    return graph, division, [unit for unit in division.order if isinstance(unit, Region)]


def kinds(build: Build) -> Counter[str]:
    return Counter(region.kind for region in divided(build)[2])


def layer_norm(b: GraphBuilder, x: int) -> int:
    mean = b.op("core.reduce_sum", x, axes=(2,), keepdims=1)
    centred = b.op("core.sub", x, b.op("core.div", mean, const(b, 16.0)))
    square = b.op("core.reduce_sum", b.op("core.mul", centred, centred), axes=(2,), keepdims=1)
    return b.op("core.div", centred, b.op("core.sqrt", square))


def test_embeddings_and_what_follows_are_one_region() -> None:
    def build(b: GraphBuilder) -> int:
        ids = b.open_input(DType.I64, ("b", "t"))
        negative = b.op("core.lt", ids, const(b, 0, np.int64))
        places = b.op("core.select", negative, b.op("core.add", ids, const(b, 9, np.int64)), ids)
        words = b.op("core.gather", const(b, np.ones((9, 16))), places, axis=0)
        return layer_norm(b, b.op("core.add", words, const(b, np.ones(16))))

    _, _, regions = divided(build)
    assert [region.kind for region in regions] == ["rows"]
    assert regions[0].reduced == (2,)


def test_movement_is_part_of_several_regions() -> None:
    """A transpose that a reduction and a map read: neither needs it in memory."""

    def build(b: GraphBuilder) -> list[int]:
        turned = b.op("core.transpose", f32(b, 4, 6), perm=(1, 0))
        return [b.op("core.reduce_max", turned, axes=(0,), keepdims=0), b.op("core.exp", turned)]

    graph, division, regions = divided(build)
    assert [region.reads for region in regions] == [(0,), (0,)]
    assert 0 not in [unit for unit in division.order if isinstance(unit, int)]
    assert all(0 not in region.nodes for region in regions)
    assert graph.nodes[0].op == "core.transpose"


def test_a_transposed_output_is_written_where_it_is_computed() -> None:
    def build(b: GraphBuilder) -> int:
        return b.op("core.transpose", b.op("core.exp", f32(b, 4, 6)), perm=(1, 0))

    _, _, regions = divided(build)
    (region,) = regions
    assert region.nodes == (0, 1)
    assert len(region.stores) == 1


def test_rows_that_are_reduced_are_turned_over_by_a_region_of_its_own() -> None:
    def build(b: GraphBuilder) -> int:
        normed = b.op("core.exp", layer_norm(b, f32(b, 2, 9, 16)))
        return b.op("core.neg", b.op("core.transpose", normed, perm=(0, 2, 1)))

    graph, _, regions = divided(build)
    first, second = regions
    assert first.reduced
    assert [graph.nodes[index].op for index in (*second.reads, *second.nodes)] == ["core.transpose", "core.neg"]
    assert "far apart from each other" in dict(second.refused)[first.stores[0]]


def test_other_rows_are_written_where_they_are_computed() -> None:
    """A few elements, which have rows along the lanes; and a sum over what does not lie side by side."""

    def few(b: GraphBuilder) -> int:
        x = f32(b, 900, 4)
        total = b.op("core.reduce_sum", x, axes=(1,), keepdims=1)
        return b.op("core.transpose", b.op("core.div", x, total), perm=(1, 0))

    def apart(b: GraphBuilder) -> int:
        x = f32(b, 64, 90)
        return b.op("core.div", x, b.op("core.reduce_sum", x, axes=(0,), keepdims=1))

    assert [len(divided(build)[2]) for build in (few, apart)] == [1, 1]


def test_what_is_read_at_another_point_lies_in_memory() -> None:
    def build(b: GraphBuilder) -> int:
        y = b.op("core.exp", f32(b, 4, 4))
        return b.op("core.add", y, b.op("core.transpose", y, perm=(1, 0)))

    _, _, regions = divided(build)
    first, second = regions
    assert [first.nodes, second.nodes] == [(0,), (2,)]
    assert "another point" in dict(second.refused)[first.stores[0]]


def test_a_reduction_without_its_axis_and_a_reshape_that_gives_it_back() -> None:
    def build(b: GraphBuilder) -> int:
        x = f32(b, "n", 8)
        top = b.op("core.reduce_max", x, axes=(1,), keepdims=0)
        sizes = b.op("core.concat", b.op("core.shape", top), ints(b, 1), axis=0)
        return b.op("core.sub", x, b.op("core.reshape", top, sizes))

    _, _, regions = divided(build)
    assert [region.kind for region in regions if region.kind == "rows"] == ["rows"]


def test_pieces_of_a_concat_are_written_by_what_computes_them() -> None:
    def build(b: GraphBuilder) -> int:
        x = f32(b, "n", 8)
        return b.op("core.concat", b.op("core.exp", x), b.op("core.neg", x), f32(b, "n", 3), axis=1)

    graph, _, regions = divided(build)
    joined = len(graph.nodes) - 1
    assert [region.nodes for region in regions] == [(0, joined), (1, joined), (joined,)]
    assert [region.steps[-1].part for region in regions] == [0, 1, 2]
    assert all(not region.stores for region in regions)


def test_a_pad_is_filled_before_its_inside_is_written() -> None:
    def build(b: GraphBuilder) -> int:
        return b.op("core.pad", b.op("core.exp", f32(b, 3, 4)), ints(b, 1, 0, 0, 2), const(b, 0.5), mode="constant")

    _, _, regions = divided(build)
    assert [[step.part for step in region.steps if step.made is None] for region in regions] == [[0], [1]]


def test_what_repeats_is_not_computed_again() -> None:
    """exp of one row, added to all rows: a region of its own."""

    def build(b: GraphBuilder) -> int:
        return b.op("core.add", b.op("core.exp", f32(b, 1, 8)), f32(b, 4, 8))

    _, _, regions = divided(build)
    assert len(regions) == 2
    assert "more than once" in dict(regions[1].refused)[regions[0].stores[0]]


def test_different_reductions_stay_apart() -> None:
    def build(b: GraphBuilder) -> int:
        rows = b.op("core.reduce_max", f32(b, 4, 8), axes=(1,), keepdims=0)
        return b.op("core.reduce_max", rows, axes=(0,), keepdims=0)

    _, _, regions = divided(build)
    assert [region.reduced for region in regions] == [(1,), (0,)]
    assert "different axes" in dict(regions[1].refused)[regions[0].stores[0]]


def test_a_path_through_a_call_out_parts_a_region() -> None:
    def build(b: GraphBuilder) -> int:
        y = b.op("core.exp", f32(b, 4))
        (count,) = b.node("core.nonzero", [y])
        assert count is not None
        rows = b.op("core.cast", b.op("core.reduce_max", count, axes=(1,), keepdims=0), to=DType.F32.code, saturate=1)
        return b.op("core.add", y, rows)

    graph, division, regions = divided(build)
    alone = [unit for unit in division.order if isinstance(unit, int)]
    assert [graph.nodes[unit].op for unit in alone] == ["core.nonzero"]
    assert "no lowering" in division.refusals[alone[0]]
    assert all(not {0, len(graph.nodes) - 1} <= set(region.nodes) for region in regions)


def test_sizes_are_written_down_only_where_someone_reads_them() -> None:
    def build(b: GraphBuilder) -> list[int]:
        x = f32(b, "n", 3)
        sizes = b.op("core.shape", x)
        return [b.op("core.mul", sizes, ints(b, 2, 2)), b.op("core.broadcast", f32(b, 3), sizes)]

    _, _, regions = divided(build)
    known = [region for region in regions if region.kind == "known"]
    assert len(known) == 2
    assert all(len(region.sizes) == 2 for region in known)


def test_sizes_read_from_a_value_come_before_what_needs_them() -> None:
    """A size that a kernel computes, and a kernel that runs over as many elements."""

    def build(b: GraphBuilder) -> int:
        count = b.op("core.add", b.open_input(DType.I64, (1,)), ints(b, 1))
        return b.op("core.exp", b.op("core.broadcast", const(b, 2.0), count))

    graph, division, regions = divided(build)
    assert [region.nodes for region in regions] == [(0,), (2,)]
    assert graph.outputs[0] in regions[1].stores
    assert division.dims[: len(graph.dims)] == graph.dims


def test_a_reshape_of_memory_is_no_kernel() -> None:
    def build(b: GraphBuilder) -> int:
        turned = b.op("core.transpose", f32(b, 3, 4), perm=(1, 0))
        return b.op("core.reshape", turned, ints(b, 12))

    graph, division, regions = divided(build)
    assert [region.nodes for region in regions] == [(0,)]
    assert division.refusals == {1: SAME_MEMORY}
    assert division.order[-1] == 1
    assert graph.nodes[1].op == "core.reshape"


def test_a_cast_to_a_narrow_float_is_rounded_in_memory() -> None:
    def build(b: GraphBuilder) -> int:
        narrow = b.op("core.cast", f32(b, 8), to=DType.F16.code, saturate=1)
        return b.op("core.cast", narrow, to=DType.F32.code, saturate=1)

    _, _, regions = divided(build)
    assert [region.nodes for region in regions] == [(0,), (1,)]


def test_products_read_what_is_behind_movement() -> None:
    """A transposed side may turn out not to be needed: it is a region by itself, and not part of what computes it."""

    def build(b: GraphBuilder) -> int:
        x = b.op("core.exp", f32(b, 5, 4))
        return b.op("core.matmul", b.op("core.transpose", x, perm=(1, 0)), f32(b, 5, 3))

    _, _, regions = divided(build)
    assert [(region.kind, region.nodes) for region in regions] == [("rows", (0,)), ("rows", (1,)), ("matmul", (2,))]


def test_regions_are_bounded() -> None:
    def build(b: GraphBuilder) -> int:
        x: Any = f32(b, 8)
        for _ in range(400):
            x = b.op("core.add", x, x)
        return int(x)

    _, _, regions = divided(build)
    assert 3 <= len(regions) <= 5
    assert "more than" in regions[-1].refused[0][1]


def test_what_nobody_needs_is_in_no_unit() -> None:
    def build(b: GraphBuilder) -> int:
        x = f32(b, 8)
        b.op("core.exp", x)
        return b.op("core.neg", x)

    _, _, regions = divided(build)
    assert [region.nodes for region in regions] == [(1,)]


def test_kinds_of_regions() -> None:
    def build(b: GraphBuilder) -> list[int]:
        x = f32(b, 4, 6)
        index = b.weight(np.array([[0, 1]]))
        return [
            b.op("core.cumsum", x, axis=1, exclusive=0, reverse=0),
            b.op("core.scatter_nd", x, index, const(b, [1.0]), reduction="add"),
            b.op("core.argmax", x, axis=0, keepdims=0, last=0),
        ]

    assert kinds(build) == Counter({"rows": 2, "scan": 1, "scatter": 1})
