"""Kernels of single ops and small chains, in the interpreter, against the reference in float64."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lower.cuts import LANES, CutRun
from tests.rewrite.graphs import Build, const, f32, ints, made

from tierup.ir.build import GraphBuilder
from tierup.ir.dims import DimError
from tierup.ir.graph import Attrs
from tierup.ir.types import Array, DType
from tierup.lower.axes import ROWS
from tierup.lower.interpret import CheckError
from tierup.lower.tile import Load
from tierup.plan.regions import legality
from tierup.reference.evaluate import evaluate

EPS = np.finfo(np.float32).eps


def run(build: Build, *feeds: Array) -> tuple[list[Array], CutRun]:
    graph, weights = made(build)
    call = CutRun(graph, weights, list(feeds))
    outputs = call.outputs()
    assert not any("same memory" not in reason for reason in call.cut.refusals.values())
    return outputs, call


def check(build: Build, *feeds: Array, terms: int = 0) -> CutRun:
    """Bits as the reference has them; of float sums of so many terms within their rounding of the float64 answer."""
    graph, weights = made(build)
    outputs, call = run(build, *feeds)
    exact = evaluate(graph, weights, list(feeds), wide=terms > 0)
    for got, wanted in zip(outputs, exact, strict=True):
        assert got.shape == wanted.shape
        if terms:
            size = float(np.abs(wanted).max(initial=1)) * terms  # of the largest partial sum
            np.testing.assert_allclose(got, wanted, rtol=0, atol=EPS * (4 + np.sqrt(terms)) * size)
        else:
            assert got.dtype == wanted.dtype
            np.testing.assert_array_equal(_numbers(got), _numbers(wanted))
    return call


def _numbers(x: Array) -> Array:
    """Small floats, of which NumPy does not know that a NaN is one, as f32."""
    small = x.dtype in [dtype.numpy for dtype in SMALL_FLOATS]
    return x.astype(np.float32) if small else x


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32)


SMALL_FLOATS = [DType.F8E4M3FN, DType.F8E4M3FNUZ, DType.F8E5M2, DType.F8E5M2FNUZ, DType.F4E2M1]
SHAPES = [(3, 5, 7), (1, 9, 1), (2, 0, 3), (0, 4, 4), (4, 1, 16), (5, 3, 33)]


@pytest.mark.parametrize("axes", [a for n in range(4) for a in combinations(range(3), n)])
@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("keep", [0, 1])
def test_reductions_over_any_axes(op: str, axes: tuple[int, ...], keep: int) -> None:
    def build(b: GraphBuilder) -> int:
        return b.op(f"core.reduce_{op}", f32(b, "a", "b", "c"), axes=axes, keepdims=keep)

    for shape in SHAPES:
        terms = max(int(np.prod([shape[axis] for axis in axes])), 1)
        x = floats(*shape)
        check(build, 1 + x / 64 if op == "prod" else x, terms=terms if op in ("sum", "prod") else 0)


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
def test_softmax_over_any_axes(axes: tuple[int, ...]) -> None:
    """Two reductions and what follows them: one region, whichever way the lanes lie."""

    def build(b: GraphBuilder) -> int:
        x = f32(b, "a", "b", "c")
        power = b.op("core.exp", b.op("core.sub", x, b.op("core.reduce_max", x, axes=axes, keepdims=1)))
        return b.op("core.div", power, b.op("core.reduce_sum", power, axes=axes, keepdims=1))

    for shape in SHAPES:
        call = check(build, floats(*shape), terms=max(int(np.prod([shape[axis] for axis in axes])), 1))
        assert len(call.kernels) == 1


@pytest.mark.parametrize("dtype", [DType.F32, DType.I8, DType.U64])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("op", ["argmax", "argmin"])
@pytest.mark.parametrize("last", [0, 1])
def test_places_of_the_largest(op: str, axis: int, last: int, dtype: DType) -> None:
    """Equals, infinities and NaN: the first of them, or the last."""

    def build(b: GraphBuilder) -> int:
        return b.op(f"core.{op}", b.open_input(dtype, ("a", "b", "c")), axis=axis, keepdims=0, last=last)

    random = np.random.default_rng(1)
    empty = tuple(0 if other == (axis + 1) % 3 else 3 for other in range(3))  # of none, but none of nothing
    for shape in [(3, 5, 7), (1, 1, 1), (6, 2, 19), empty]:
        x = random.integers(0, 3, shape).astype(dtype.numpy)
        check(build, x)
        if dtype is DType.F32 and x.size:
            for value in (np.nan, np.inf, -np.inf):
                y = np.full(shape, -np.inf, np.float32)
                y.reshape(-1)[random.integers(0, y.size, y.size // 2 + 1)] = value
                check(build, y)


def test_what_is_dear_is_computed_once() -> None:
    """exp of a row: kept beside the registers between two passes, or read back where it was stored."""

    def softmax(b: GraphBuilder, *, powers: bool) -> list[int]:
        power = b.op("core.exp", f32(b, "n", 9))
        share = b.op("core.div", power, b.op("core.reduce_sum", power, axes=(1,), keepdims=1))
        return [share, power] if powers else [share]

    for powers in (False, True):
        call = check(lambda b, powers=powers: softmax(b, powers=powers), floats(3, 9), terms=9)
        ((_, kernel),) = call.kernels
        text = repr(kernel.program)
        assert text.count("= exp ") == 1
        assert ("scratch" in text) is not powers


def test_what_is_written_part_by_part_is_read_by_others_only() -> None:
    """The middle of a concat, whose upper half this region could have written itself."""

    def build(b: GraphBuilder) -> int:
        e = b.op("core.exp", f32(b, 4, 8))
        whole = b.op("core.concat", e, f32(b, 4, 8), axis=0)
        return b.op("core.add", e, b.op("core.slice", whole, ints(b, 2), ints(b, 6), axes=(0,), steps=(1,)))

    call = check(build, floats(4, 8), floats(4, 8, seed=1))
    assert [region.nodes for region, _ in call.kernels] == [(0, 1), (1,), (3,)]


def test_a_size_from_a_value_is_read_after_it_is_computed() -> None:
    """A kernel that counts, and one that uses the count as a number: not the same one."""

    def build(b: GraphBuilder) -> int:
        count = b.op("core.add", b.open_input(DType.I64, (1,)), ints(b, 1))
        sizes = b.op("core.shape", b.op("core.broadcast", const(b, 2.0), count))
        return b.op("core.mul", count, sizes)

    call = check(build, np.array([6]))
    assert [region.nodes for region, _ in call.kernels if region.kind == "rows"] == [(0,), (3,)]


def test_there_is_no_largest_of_nothing() -> None:
    with pytest.raises(CheckError):
        run(lambda b: b.op("core.argmax", f32(b, "a", "b"), axis=1, keepdims=0, last=0), floats(3, 0))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_pads(data: st.DataObject) -> None:
    shape = [data.draw(st.integers(1, 5)) for _ in range(data.draw(st.integers(1, 3)))]
    pads = [data.draw(st.integers(0, 7)) for _ in range(2 * len(shape))]
    mode = data.draw(st.sampled_from(("constant", "edge", "reflect", "wrap")))
    opened = [f"n{axis}" for axis in range(len(shape))]

    def build(b: GraphBuilder) -> int:
        return b.op("core.pad", f32(b, *opened), ints(b, *pads), const(b, 0.5), mode=mode)

    check(build, floats(*shape))


def test_nothing_cannot_be_repeated() -> None:
    with pytest.raises(CheckError):
        run(lambda b: b.op("core.pad", f32(b, "n"), ints(b, 1, 0), const(b, 0.0), mode="edge"), floats(0))


@pytest.mark.parametrize("bad", [-1, 4, 2**40])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_an_index_outside_ends_the_call(bad: int, dtype: Any) -> None:
    if bad >= 2**31 and dtype is np.int32:
        return

    def gather(b: GraphBuilder) -> int:
        kind = DType.I32 if dtype is np.int32 else DType.I64
        return b.op("core.exp", b.op("core.gather", f32(b, 4, 3), b.open_input(kind, ("n",)), axis=0))

    def scatter(b: GraphBuilder) -> int:
        kind = DType.I32 if dtype is np.int32 else DType.I64
        index, updates = b.open_input(kind, ("n", 3)), f32(b, "n", 3)
        return b.op("core.scatter_elements", f32(b, 4, 3), index, updates, axis=0, reduction="none")

    good = np.array([0, 3, 3, 1, 2], dtype)
    check(gather, floats(4, 3), good)
    index = np.repeat(good[:, None], 3, axis=1)
    check(scatter, index, floats(5, 3), floats(4, 3))
    with pytest.raises(CheckError):
        run(gather, floats(4, 3), np.array([0, 3, bad, 1], dtype))
    with pytest.raises(CheckError):
        run(scatter, np.array([[0, 0, 0], [1, bad, 1]], dtype), floats(2, 3), floats(4, 3))


@pytest.mark.parametrize("how", ["none", "add", "mul", "min", "max"])
def test_updates_of_one_place_are_made_in_order(how: str) -> None:
    index = np.array([2, 0, 2, 2, 1, 0, 2])

    def slices(b: GraphBuilder) -> int:
        places = b.weight(index[:, None])
        return b.op("core.scatter_nd", f32(b, 3, "n"), places, f32(b, 7, "n"), reduction=how)

    def elements(b: GraphBuilder) -> int:
        return b.op("core.scatter_elements", f32(b, 3), b.weight(index), f32(b, 7), axis=0, reduction=how)

    for n in (0, 1, 6, 21):
        check(slices, floats(3, n), floats(7, n))
    check(elements, floats(3), floats(7))


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("op", ["cumsum", "cumprod"])
def test_running_sums(op: str, axis: int, exclusive: int, reverse: int) -> None:
    def build(b: GraphBuilder) -> int:
        return b.op(f"core.{op}", f32(b, "a", "b", "c"), axis=axis, exclusive=exclusive, reverse=reverse)

    for shape in SHAPES:
        check(build, floats(*shape))  # one after the other, as NumPy does


@pytest.mark.parametrize("sizes", [(1, 6), (6, 1), (6, 6), (1, 1), (0, 1), (1, 0)])
def test_sizes_that_broadcast_in_some_calls(sizes: tuple[int, int]) -> None:
    """One kernel for all of them: a stride is 0 where a size turns out to be 1."""
    n, m = sizes
    check(lambda b: b.op("core.add", f32(b, "n", 3), f32(b, "m", 3)), floats(n, 3), floats(m, 3, seed=1))
    check(lambda b: b.op("core.mul", f32(b, 3, "n"), f32(b, "m")), floats(3, n), floats(m, seed=1))


@pytest.mark.parametrize("other", ["m", 5])
def test_sizes_that_do_not_broadcast_end_the_call(other: str | int) -> None:
    with pytest.raises(DimError):
        run(lambda b: b.op("core.add", f32(b, "n"), f32(b, other)), floats(3), floats(5))


def test_pieces_that_do_not_fit_end_the_call() -> None:
    with pytest.raises(DimError):
        run(lambda b: b.op("core.concat", f32(b, "n", 2), f32(b, "m", 2), axis=1), floats(3, 2), floats(4, 2))


def test_a_slice_of_sizes_from_the_data_is_checked() -> None:
    def build(b: GraphBuilder) -> int:
        start, end = b.open_input(DType.I64, (1,)), b.open_input(DType.I64, (1,))
        return b.op("core.slice", f32(b, "n"), start, end, axes=(0,), steps=(1,))

    check(build, np.array([1]), np.array([4]), floats(5))
    for start, end in ((1, 6), (-1, 3)):
        with pytest.raises((DimError, ValueError)):
            run(build, np.array([start]), np.array([end]), floats(5))


@pytest.mark.parametrize("shape", [(4, 4), (9, 5), (16, 33), (1, 7), (7, 1), (0, 3)])
@pytest.mark.parametrize("maps", [0, 1, 7])
def test_what_lies_across_is_turned_over_in_registers(shape: tuple[int, int], maps: int) -> None:
    def build(b: GraphBuilder) -> int:
        y = b.op("core.transpose", f32(b, "n", "m"), perm=(1, 0))
        for _ in range(maps):
            y = b.op("core.add", y, f32(b, "n"))
        return y

    graph, _ = made(build)
    call = check(build, floats(*shape), *(floats(shape[0], seed=n) for n in range(len(graph.inputs) - 1)))
    ((_, kernel),) = call.kernels
    (rows,) = (grid for grid in kernel.program.grid if grid.axis == ROWS)
    assert rows.step == (LANES if maps <= 4 else LANES // 2)


def test_rows_that_are_short_are_loops_of_one_step() -> None:
    """[8, 12, 5, 6] with two axes exchanged: a step of the grid is worth more than one row of 6."""

    def build(b: GraphBuilder) -> int:
        return b.op("core.transpose", f32(b, 8, 5, 12, 6), perm=(0, 2, 1, 3))

    call = check(build, floats(8, 5, 12, 6))
    ((_, kernel),) = call.kernels
    assert len(kernel.program.grid) < 3


def test_an_index_of_a_row_is_looked_up_once() -> None:
    """Outside the loop over the row's elements, with its check."""

    def build(b: GraphBuilder) -> int:
        words = b.op("core.gather", f32(b, 9, 40), b.open_input(DType.I64, ("n",)), axis=0)
        return b.op("core.exp", words)

    call = check(build, floats(9, 40), np.array([8, 0, 3]))
    ((_, kernel),) = call.kernels
    outer = [s for s in kernel.program.body if isinstance(s, Load)]
    assert [load.type.dtype for load in outer] == [DType.I64]


def test_constant_indices_are_checked_beforehand() -> None:
    def build(b: GraphBuilder) -> int:
        return b.op("core.gather", f32(b, 9), b.weight(np.array([8, 0, 3, 3, 5])), axis=0)

    call = check(build, floats(9))
    assert "check" not in repr(call.kernels[0][1].program)


NARROW = [DType.F16, DType.BF16, DType.U4, DType.I4, DType.U2, DType.I2, *SMALL_FLOATS]


@pytest.mark.parametrize("dtype", NARROW, ids=repr)
def test_casts_to_narrow_types_and_back(dtype: DType) -> None:
    def build(b: GraphBuilder) -> list[int]:
        narrow = b.op("core.cast", f32(b, "n"), to=dtype.code, saturate=1)
        turned = b.op("core.slice", narrow, ints(b, 6), ints(b, -1), axes=(0,), steps=(-1,))
        return [narrow, b.op("core.cast", narrow, to=DType.F32.code, saturate=1), turned]

    check(build, np.array([0.1, -3.7, 1e5, 9.0, -1.0, 70000.0, 3e-7, 2.0], np.float32))


@pytest.mark.parametrize("count", [0, 1, 19, 40])
@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("dtype", SMALL_FLOATS, ids=repr)
def test_small_floats_are_written_as_the_cast_says(dtype: DType, saturate: int, count: int) -> None:
    def build(b: GraphBuilder) -> list[int]:
        small = b.op("core.cast", b.op("core.neg", f32(b, "n")), to=dtype.code, saturate=saturate)
        return [small, b.op("core.cast", small, to=DType.F16.code, saturate=1)]

    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e9, -1e9, 464.0, 465.0, 248.0, 61440.0, 5.0, 2.0**-9, 2.0**-10]
    check(build, np.resize(np.array([*special, *floats(5)], np.float32), count))


@pytest.mark.parametrize("source", [DType.I32, DType.U8, DType.BOOL, DType.F16, DType.F8E5M2], ids=repr)
def test_small_floats_are_made_of_every_type(source: DType) -> None:
    def build(b: GraphBuilder) -> int:
        return b.op("core.cast", b.open_input(source, ("n",)), to=DType.F8E4M3FN.code, saturate=1)

    check(build, np.array([0, 1, 2, 3, 17, 19, 100, 120], np.float32).astype(source.numpy))


def test_f64_is_not_rounded_twice_on_its_way_to_a_small_float() -> None:
    def build(b: GraphBuilder) -> int:
        return b.op("core.cast", b.open_input(DType.F64, ("n",)), to=DType.F8E4M3FN.code, saturate=1)

    graph, _ = made(build)
    assert "round f64 to f32 first" in (legality(graph, graph.nodes[0]) or "")


def test_maps_of_narrow_floats_round_at_the_end() -> None:
    def build(b: GraphBuilder) -> int:
        x, y = b.open_input(DType.F16, ("n",)), b.open_input(DType.F16, ("n",))
        return b.op("core.mul", b.op("core.add", x, y), b.op("core.exp", y))

    graph, weights = made(build)
    x, y = (floats(50, seed=seed).astype(np.float16) for seed in (0, 1))
    (got,), call = run(build, x, y)
    assert len(call.kernels) == 1
    (exact,) = evaluate(graph, weights, [x, y], wide=True)
    # rounded once: half a unit in the last place, and a few f32 roundings
    np.testing.assert_allclose(got.astype(np.float64), exact, rtol=2**-11 + 8 * EPS)


@pytest.mark.parametrize("count", [0, 1, 37])
@pytest.mark.parametrize(
    ("source", "to"),
    [
        (DType.F32, DType.I32), (DType.I32, DType.F32), (DType.F64, DType.U64), (DType.I64, DType.F64),
        (DType.F16, DType.I16), (DType.U16, DType.BF16), (DType.BF16, DType.F16), (DType.BOOL, DType.U8),
        (DType.U8, DType.F8E5M2), (DType.I8, DType.U8),
    ],
    ids=repr,
)  # fmt: skip
def test_bits_are_read_as_they_lie_in_memory(source: DType, to: DType, count: int) -> None:
    """Behind what was computed, rounded and moved: of f16 those of f16, though registers hold f32."""

    def build(b: GraphBuilder) -> list[int]:
        x = b.open_input(source, ("n", 2))
        turned = b.op("core.transpose", x if source is DType.BOOL else b.op("core.max", x, x), perm=(1, 0))
        read = b.op("core.bitcast", turned, to=to.code)
        return [read, b.op("core.bitcast", x, to=to.code)]

    pool = np.random.default_rng(count).integers(0, 256, (count, 2, source.numpy.itemsize)).astype(np.uint8)
    bits = pool % 2 if source is DType.BOOL else pool
    check(build, np.ascontiguousarray(bits).view(source.numpy).reshape(count, 2))


def test_bits_of_what_takes_no_memory_are_those_of_memory() -> None:
    def build(b: GraphBuilder) -> list[int]:
        count = b.op("core.iota", b.op("core.shape", f32(b, "n")), axis=0, dtype=DType.F32.code)
        wide = b.op("core.broadcast", const(b, 1.5), ints(b, 3))
        return [b.op("core.bitcast", value, to=DType.I32.code) for value in (count, wide)]

    check(build, floats(5))


@pytest.mark.parametrize("dtype", [DType.F8E4M3FN, DType.C64, DType.F4E2M1], ids=repr)
def test_what_is_only_moved_needs_no_arithmetic(dtype: DType) -> None:
    def build(b: GraphBuilder) -> int:
        x = b.op("core.transpose", b.open_input(dtype, ("n", 3)), perm=(1, 0))
        return b.op("core.concat", x, x, axis=0)

    check(build, (np.arange(15).reshape(5, 3) % 7).astype(dtype.numpy))


@pytest.mark.parametrize("strides", [(1, 1), (2, 3)])
@pytest.mark.parametrize("op", ["pool_sum", "pool_max"])
def test_pools(op: str, strides: tuple[int, int]) -> None:
    def build(b: GraphBuilder) -> int:
        wanted = [True] if op == "pool_sum" else [True, False]
        attrs = Attrs({"kernel_shape": (2, 3), "strides": strides, "dilations": (2, 1)})
        results = b.node(f"core.{op}", [f32(b, "n", 2, "h", "w"), ints(b, 0, 0, 0, 0)], attrs, outputs=wanted)
        assert results[0] is not None
        return results[0]

    for h, w in ((3, 3), (7, 11), (4, 20)):
        check(build, floats(2, 2, h, w), terms=6)
