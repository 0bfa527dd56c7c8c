"""Products in the interpreter: on words, bytes exactly as the reference has them, floats within the rounding of sums;
which side threads divide."""

from __future__ import annotations

import numpy as np
import pytest
from tests.lower.cuts import CutRun
from tests.rewrite.graphs import Build, const, f32, made

from tierup.ir.build import GraphBuilder
from tierup.ir.types import Array, DType
from tierup.lower.kernel import Panels
from tierup.lower.tile import WORD_DOTS
from tierup.reference.evaluate import evaluate

RANDOM = np.random.default_rng(6)
EPS = 2.0**-23
DOTS = frozenset(WORD_DOTS)


def run(build: Build, *feeds: Array) -> tuple[Array, Array, CutRun]:
    """What the kernels answer, what is right in f64, and the run."""
    graph, weights = made(build)
    call = CutRun(graph, weights, list(feeds), DOTS)
    (got,) = call.outputs()
    (wanted,) = evaluate(graph, weights, list(feeds), wide=got.dtype.kind == "f" or got.dtype == DType.BF16.numpy)
    return got, wanted, call


def form(call: CutRun) -> str:
    """How the right side of the one product was packed."""
    ((_, kernel),) = [entry for entry in call.kernels if entry[0].kind == "matmul"]
    panels = [buffer for buffer in kernel.buffers if isinstance(buffer, Panels)]
    return panels[0].form if panels else "not packed"


def integers(dtype: DType, *shape: int) -> Array:
    ends = np.iinfo(dtype.numpy)
    return RANDOM.integers(ends.min, ends.max, shape, dtype.numpy, endpoint=True)


@pytest.mark.parametrize("left", [DType.U8, DType.I8])
@pytest.mark.parametrize("right", [DType.U8, DType.I8])
@pytest.mark.parametrize("columns", [1, 5, 24])
def test_bytes_of_either_sign(left: DType, right: DType, columns: int) -> None:
    w = integers(right, 12, columns)

    def build(b: GraphBuilder) -> int:
        return b.op("core.matmul", b.open_input(left, ("n", 12)), const(b, w, right.numpy))

    for rows in (0, 1, 3, 11):
        got, wanted, call = run(build, integers(left, rows, 12))
        np.testing.assert_array_equal(got, wanted)
        assert form(call) == ("summed bytes" if left is right else "bytes")


@pytest.mark.parametrize("inner", [2, 10, 0])
def test_bytes_that_are_no_words(inner: int) -> None:
    w = integers(DType.I8, inner, 7)

    def build(b: GraphBuilder) -> int:
        return b.op("core.matmul", b.open_input(DType.U8, ("n", inner)), const(b, w, np.int8))

    got, wanted, call = run(build, integers(DType.U8, 3, inner))
    np.testing.assert_array_equal(got, wanted)
    assert form(call) == ("" if inner else "bytes")


def test_scales_and_biases_behind_bytes_never_see_memory() -> None:
    """cast, scale for each column, a factor for each row, bias: one kernel from bytes to f32."""
    w, scale, bias = integers(DType.I8, 8, 20), *RANDOM.standard_normal((2, 20)).astype(np.float32)

    def build(b: GraphBuilder) -> int:
        total = b.op("core.matmul", b.open_input(DType.U8, ("n", "m", 8)), const(b, w, np.int8))
        real = b.op("core.cast", total, to=DType.F32.code, saturate=1)
        scaled = b.op("core.mul", real, const(b, scale.reshape(1, 20)))
        return b.op("core.add", b.op("core.mul", scaled, f32(b, "n", "m", 1)), const(b, bias))

    factors = RANDOM.standard_normal((3, 5, 1)).astype(np.float32)
    got, wanted, call = run(build, integers(DType.U8, 3, 5, 8), factors)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=8 * EPS * np.abs(wanted).max())  # four roundings
    assert len(call.kernels) == 1


def test_what_is_one_for_some_rows_alone_stays_outside() -> None:
    w = integers(DType.I8, 8, 4)

    def build(b: GraphBuilder) -> int:
        total = b.op("core.matmul", b.open_input(DType.U8, ("n", "m", 8)), const(b, w, np.int8))
        return b.op("core.add", total, b.open_input(DType.I32, ("n", 1, 1)))

    got, wanted, call = run(build, integers(DType.U8, 3, 5, 8), integers(DType.I32, 3, 1, 1))
    np.testing.assert_array_equal(got, wanted)
    assert [region.kind for region, _ in call.kernels] == ["matmul", "rows"]


@pytest.mark.parametrize("inner", [2, 6, 40, 2050])
def test_pairs(inner: int) -> None:
    """Sides in bf16, sums in f32, the weight rounded where it is packed; the result may be rounded once more."""
    w = RANDOM.standard_normal((inner, 9)).astype(np.float32)

    def build(b: GraphBuilder) -> int:
        right = b.op("core.cast", const(b, w), to=DType.BF16.code, saturate=1)
        return b.op("core.matmul", b.open_input(DType.BF16, ("n", inner)), right, to=DType.F32.code)

    x = RANDOM.standard_normal((5, inner)).astype(DType.BF16.numpy)
    got, _, call = run(build, x)
    rounded = w.astype(DType.BF16.numpy).astype(np.float64)
    exact, size = x.astype(np.float64) @ rounded, np.abs(x.astype(np.float64)) @ np.abs(rounded)
    assert (np.abs(got - exact) <= EPS * (4 + np.sqrt(inner)) * size).all()
    assert form(call) == "bf16"


def test_a_result_that_is_rounded_for_the_next_product() -> None:
    w = RANDOM.standard_normal((4, 6)).astype(np.float32)

    def build(b: GraphBuilder) -> int:
        product = b.op("core.matmul", f32(b, "n", 4), const(b, w))
        return b.op("core.cast", b.op("core.max", product, const(b, 0.0)), to=DType.BF16.code, saturate=1)

    x = RANDOM.standard_normal((3, 4)).astype(np.float32)
    got, _, call = run(build, x)
    exact = np.maximum(x.astype(np.float64) @ w, 0)
    assert got.dtype == DType.BF16.numpy
    np.testing.assert_allclose(got.astype(np.float64), exact, rtol=2.0**-8 + 2.0**-20, atol=2.0**-20)
    assert len(call.kernels) == 1


@pytest.mark.parametrize("kind", [DType.F16, DType.BF16])
@pytest.mark.parametrize(("rows", "packed"), [(1, ""), (16, ""), (17, "f32"), (40, "f32"), ("n", "")])
def test_narrow_weights_are_widened_when_they_are_packed_for_many_rows(
    kind: DType, rows: int | str, packed: str
) -> None:
    w = RANDOM.standard_normal((10, 21)).astype(kind.numpy)

    def build(b: GraphBuilder) -> int:
        right = b.op("core.cast", const(b, w, kind.numpy), to=DType.F32.code, saturate=1)
        product = b.op("core.matmul", f32(b, rows, 10), right)
        return b.op("core.cast", product, to=kind.code, saturate=1)

    count = rows if isinstance(rows, int) else 5
    got, wanted, call = run(build, RANDOM.standard_normal((count, 10)).astype(np.float32))
    assert got.dtype == kind.numpy
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=2.0**-8, atol=1e-6)
    assert form(call) == packed
    assert call.kernels[-1][0].kind == "matmul"  # no kernel behind it rounds


@pytest.mark.parametrize("kind", [DType.I8, DType.U8, DType.I16])
@pytest.mark.parametrize("rows", [1, 3, 13])
def test_weights_of_small_integers_are_widened_as_they_are_read(kind: DType, rows: int) -> None:
    w = integers(kind, 10, 21)

    def build(b: GraphBuilder) -> int:
        right = b.op("core.cast", const(b, w, kind.numpy), to=DType.F32.code, saturate=1)
        return b.op("core.matmul", f32(b, "n", 10), right)

    x = RANDOM.standard_normal((rows, 10)).astype(np.float32)
    got, wanted, call = run(build, x)
    size = np.abs(x.astype(np.float64)) @ np.abs(w.astype(np.float64))
    assert (np.abs(got - wanted) <= EPS * (4 + np.sqrt(10)) * size).all()
    (kernel,) = [kernel for region, kernel in call.kernels if region.kind == "matmul"]
    assert {b.name: b.dtype for b in kernel.program.buffers}["w"] is kind


@pytest.mark.parametrize("rows", [0, 1, 5, 9])
@pytest.mark.parametrize("blocks", [1, 3])
def test_scales_of_blocks(blocks: int, rows: int) -> None:
    """Each block of 6 rows of the right side has a scale for each column."""
    w, scales = integers(DType.I8, 6 * blocks, 7), RANDOM.standard_normal((blocks, 7)).astype(np.float32)

    def build(b: GraphBuilder) -> int:
        sides = (const(b, w, np.int8), const(b, scales))
        return b.op("core.add", b.op("core.matmul_blocks", f32(b, "n", 6 * blocks), *sides, block=6), f32(b, 7))

    x, bias = (
        RANDOM.standard_normal((rows, 6 * blocks)).astype(np.float32),
        RANDOM.standard_normal(7).astype(np.float32),
    )
    got, wanted, call = run(build, x, bias)
    size = np.abs(x.astype(np.float64)) @ np.abs(w * np.repeat(scales, 6, 0)) + np.abs(bias)
    assert (np.abs(got - wanted) <= EPS * (4 + np.sqrt(6 * blocks)) * size).all()
    kernels = [kernel for region, kernel in call.kernels if region.kind == "matmul"]
    assert [buffer.name for buffer in kernels[0].program.buffers] == ["a", "w", "scales", "e0", "out"]


@pytest.mark.parametrize("rows", [0, 1, 5, 40])
@pytest.mark.parametrize(("inner", "columns"), [(0, 3), (6, 7), (20, 24), (1100, 40)])  # the last in blocks
def test_a_factor_for_each_row_of_the_weights(rows: int, inner: int, columns: int) -> None:
    w = RANDOM.standard_normal((inner, columns)).astype(np.float32)

    def build(b: GraphBuilder) -> int:
        factors = b.op("core.exp", f32(b, inner))
        return b.op("core.add", b.op("core.matmul_scaled", f32(b, "n", inner), const(b, w), factors), f32(b, columns))

    s, x, bias = (RANDOM.standard_normal(shape).astype(np.float32) for shape in ((inner,), (rows, inner), (columns,)))
    got, wanted, call = run(build, s, x, bias)
    size = np.abs(x.astype(np.float64)) @ np.abs(w * np.exp(s)[:, None]) + np.abs(bias)
    assert (np.abs(got - wanted) <= EPS * (6 + np.sqrt(inner)) * size).all()
    kernels = [kernel for region, kernel in call.kernels if region.kind == "matmul"]
    assert [buffer.name for buffer in kernels[0].program.buffers] == ["a", "w", "factors", "e0", "out"]


def test_rows_that_do_not_begin_with_a_word_are_copied() -> None:
    w = integers(DType.I8, 4, 5)

    def build(b: GraphBuilder) -> int:
        x = b.open_input(DType.U8, ("n", 6))
        part = b.op("core.slice", x, const(b, [1], np.int64), const(b, [5], np.int64), axes=(1,), steps=(1,))
        return b.op("core.matmul", part, const(b, w, np.int8))

    got, wanted, call = run(build, integers(DType.U8, 7, 6))
    np.testing.assert_array_equal(got, wanted)
    assert form(call) == "bytes"


def _product(rows: int | str, inner: int, columns: int, count: int) -> CutRun:
    """A product of so many rows, a bias and a residual behind it, compared with float64."""
    w, bias = (RANDOM.standard_normal(shape).astype(np.float32) for shape in ((inner, columns), (columns,)))

    def build(b: GraphBuilder) -> int:
        product = b.op("core.matmul", f32(b, rows, inner), const(b, w))
        return b.op("core.add", b.op("core.add", product, const(b, bias)), f32(b, rows, columns))

    x, other = (RANDOM.standard_normal((count, size)).astype(np.float32) for size in (inner, columns))
    got, wanted, call = run(build, x, other)
    size = np.abs(x.astype(np.float64)) @ np.abs(w.astype(np.float64)) + np.abs(bias) + np.abs(other)
    assert (np.abs(got - wanted) <= EPS * (4 + np.sqrt(inner)) * size).all()
    return call


def _divided(call: CutRun) -> str:
    ((_, kernel),) = call.kernels
    return "rows" if kernel.program.grid[0].axis != "j" else "columns"


@pytest.mark.parametrize("columns", [1, 5, 6, 12, 18, 23, 64])
@pytest.mark.parametrize("rows", [64, 69])
def test_threads_divide_many_rows(rows: int, columns: int) -> None:
    assert _divided(_product(rows, 3, columns, rows)) == "rows"


def test_threads_divide_the_rows_of_images() -> None:
    """Where these have many places, also if there are more columns."""
    w = RANDOM.standard_normal((3, 90)).astype(np.float32)
    for places, divided in ((8, "rows"), (7, "columns")):
        x = RANDOM.standard_normal((1, 8, places, 3)).astype(np.float32)
        got, wanted, call = run(lambda b, x=x: b.op("core.matmul", f32(b, *x.shape), const(b, w)), x)
        size = np.abs(x.astype(np.float64)) @ np.abs(w.astype(np.float64))
        assert (np.abs(got - wanted) <= EPS * (4 + np.sqrt(3)) * size).all()
        assert _divided(call) == divided


@pytest.mark.parametrize("columns", [1, 6, 23])
@pytest.mark.parametrize("rows", [64, 69])
def test_threads_divide_many_rows_of_words(rows: int, columns: int) -> None:
    """Pairs within the rounding of their sums, bytes exactly."""
    w = RANDOM.standard_normal((6, columns)).astype(DType.BF16.numpy)

    def pairs(b: GraphBuilder) -> int:
        return b.op("core.matmul", b.open_input(DType.BF16, (rows, 6)), const(b, w, w.dtype), to=DType.F32.code)

    x = RANDOM.standard_normal((rows, 6)).astype(DType.BF16.numpy)
    got, wanted, call = run(pairs, x)
    size = np.abs(x.astype(np.float64)) @ np.abs(w.astype(np.float64))
    assert (np.abs(got - wanted) <= EPS * (4 + np.sqrt(6)) * size).all()
    assert (_divided(call), form(call)) == ("rows", "bf16")
    small = integers(DType.I8, 8, columns)

    def bytes_(b: GraphBuilder) -> int:
        return b.op("core.matmul", b.open_input(DType.I8, (rows, 8)), const(b, small, np.int8))

    got, wanted, call = run(bytes_, integers(DType.I8, rows, 8))
    np.testing.assert_array_equal(got, wanted)
    assert (_divided(call), form(call)) == ("rows", "summed bytes")


def test_panels_waste_no_columns_where_rows_are_divided() -> None:
    """A vector has four lanes here: six columns are three halves of one."""
    widths = {}
    for columns in (4, 6, 8, 12, 18, 24):
        ((_, kernel),) = _product(64, 3, columns, 64).kernels
        widths[columns] = next(buffer.width for buffer in kernel.buffers if isinstance(buffer, Panels))
    assert widths == {4: 4, 6: 6, 8: 8, 12: 12, 18: 6, 24: 12}


@pytest.mark.parametrize(
    ("rows", "inner", "columns"),
    [
        (63, 3, 5),  # few rows
        (81, 3, 82),  # more columns, and rows that are no two blocks
        (64, 600, 500),  # a right side that is too large for each thread to read it
        ("n", 3, 5),  # rows that may be few
    ],
)
def test_threads_divide_columns(rows: int | str, inner: int, columns: int) -> None:
    count = 9 if isinstance(rows, str) else rows
    assert _divided(_product(rows, inner, columns, count)) == "columns"


@pytest.mark.parametrize("columns", [5, 12, 16, 23])  # panels of two vectors, three, four, and a ragged one
def test_any_number_of_open_rows(columns: int) -> None:
    """Tiles of 8, 4, 3, 2 and 1 rows meet without a gap, five rows among them."""
    for count in range(18):
        _product("n", 7, columns, count)


@pytest.mark.parametrize(("rows", "inner", "columns"), [(80, 3, 81), (64, 7, 131), (130, 1100, 140)])
def test_threads_divide_blocks_of_rows(rows: int, inner: int, columns: int) -> None:
    """Tiles of a block meet without a gap; what is read behind the sum is of the same row."""
    call = _product(rows, inner, columns, rows)
    ((_, kernel),) = call.kernels
    assert [grid.axis for grid in kernel.program.grid] == ["r", "j"]
    assert kernel.steps[0] == (rows, rows // 2)


def test_blocks_of_rows_have_the_panels_of_open_rows() -> None:
    """A kernel with closed sizes hangs in the slot of the open one and reads the same packed weights."""
    panels = []
    for rows in (96, "n"):
        ((_, kernel),) = _product(rows, 5, 200, 96).kernels
        panels.append([buffer for buffer in kernel.buffers if isinstance(buffer, Panels)])
    assert panels[0] == panels[1]
    assert panels[0]


@pytest.mark.parametrize("right", [DType.U8, DType.I8])
def test_blocks_of_rows_on_words(right: DType) -> None:
    w = integers(right, 12, 90)

    def build(b: GraphBuilder) -> int:
        return b.op("core.matmul", b.open_input(DType.U8, (72, 12)), const(b, w, right.numpy))

    got, wanted, call = run(build, integers(DType.U8, 72, 12))
    np.testing.assert_array_equal(got, wanted)
    ((_, kernel),) = call.kernels
    assert [grid.axis for grid in kernel.program.grid] == ["r", "j"]
