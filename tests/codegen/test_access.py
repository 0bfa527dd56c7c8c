"""Compiled loads and stores: lookups, gathers, scatters, checks of indices, and tiles that are turned over."""

from __future__ import annotations

import ctypes
import mmap
import re

import numpy as np
import pytest
from msgspec.structs import replace
from tests.codegen.running import HOST, call, run

from tierup.codegen.elf import undefined
from tierup.codegen.llvm.emit import emit_llvm
from tierup.codegen.objects import assembly, compile_object
from tierup.codegen.target import AVX2, AVX512, NEON, Target
from tierup.ir.types import DType
from tierup.lower.text import parse_program
from tierup.lower.tile import TileProgram

TARGETS = (AVX2, AVX512, NEON)
PLAIN = replace(HOST, name="plain", features=HOST.features.replace(",+avx512bf16", ""))
ALL = (
    DType.F32, DType.F64, DType.BOOL, DType.I8, DType.U8, DType.I16, DType.U16, DType.I32, DType.U32, DType.I64,
    DType.U64,
)  # fmt: skip

# y[i, :] = x[r[i], :]
LOOKUP = """program lookup(x: f32 in, r: {index} in, y: f32 out) sizes 3 vector j {{
  grid i < s0 step {rows}
  %r : {index}[i] = load r[i] else {wild}
  check %r < s2
  for j < s1 step 32 {{
    %v : f32[i, j] = load x[%r * s1 + j]
    store y[i * s1 + j], %v
  }}
}}"""
# y[i, j] = x[r[i, j], j], then z[q[j], i] = that
GATHER = """program gather(x: {dtype} in, r: {index} in, q: i64 in, y: {dtype} out, z: {dtype} out) sizes 3 vector j {{
  grid i < s0 step {rows}
  grid j < s1 step {columns}
  %r : {index}[i, j] = load r[i * s1 + j] else {wild}
  check %r < s2
  %v : {dtype}[i, j] = load x[%r * s1 + j]
  store y[i * s1 + j], %v
  %q : i64[j] = load q[j] else -{wild}
  store z[%q * s0 + i], %v
}}"""
# y = x transposed
TURN = """program turn(x: {stored} in, y: {stored} out) sizes 3 vector n {{
  grid c < s0 step {rows}
  grid n < s1 step {columns}
  %v : {dtype}[c, n] = load x[n * {stride} + c] else 1
  store y[c * s1 + n], %v
}}"""
# y[n, :] = x[:, n], with gaps where rows are further apart than they are long
WEAVE = """program weave(x: {stored} in, y: {stored} out) sizes 1 vector n {{
  grid n < s0 step {columns}
  for c < {rows} step {rows} {{
    %v : {dtype}[c, n] = load x[c * s0 + n]
    store y[n * {apart} + c], %v
  }}
}}"""
# y[:, n] = x[n, :], of rows that may be further apart than they are long
UNWEAVE = """program unweave(x: {stored} in, y: {stored} out) sizes 2 vector n {{
  grid n < s0 step {columns}
  for c < {rows} step {rows} {{
    %v : {dtype}[c, n] = load x[n * {apart} + c] else 1
    store y[c * s0 + n], %v
  }}
}}"""
# y[r] = every third of row r of x, some rows at a time
EVERY_THIRD = """program third(x: f32 in, r: i64 in, y: f32 out) sizes 2 vector n {
  grid m < s1 step 4
  grid n < s0 step 16
  %r : i64[m] = load r[m] else 99999999
  %v : f32[m, n] = load x[%r * 1000 + n * 3] else 7
  store y[m * s0 + n], %v
}"""


# y = x rounded, denormals to zero
ROUND = """program round(x: f32 in, y: bf16 out) sizes 1 vector i {{
  grid i < s0 step {columns}
  %v : f32[i] = load x[i]
  store y[i], %v flush
}}"""


def lookup(index: DType, rows: int) -> TileProgram:
    return parse_program(LOOKUP.format(index=index.value, rows=rows, wild=2**40 if index is DType.I64 else 2**31 - 1))


def gather(dtype: DType, index: DType, rows: int, columns: int) -> TileProgram:
    wild = 2**40 if index is DType.I64 else 2**31 - 1
    return parse_program(GATHER.format(dtype=dtype.value, index=index.value, rows=rows, columns=columns, wild=wild))


def turn(dtype: DType, stored: DType, rows: int, columns: int, stride: int | str = "s0") -> TileProgram:
    return parse_program(TURN.format(dtype=dtype.value, stored=stored.value, rows=rows, columns=columns, stride=stride))


def numbers(dtype: DType, *shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 100, shape).astype(dtype.numpy)


@pytest.mark.parametrize("index", [DType.I32, DType.I64])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("sizes", [(5, 70, 11), (1, 1, 1), (4, 32, 2), (0, 8, 3), (3, 0, 3)])
def test_lookup(index: DType, rows: int, sizes: tuple[int, int, int]) -> None:
    count, width, entries = sizes
    x = np.random.default_rng(0).random((entries, width)).astype(np.float32)
    r = np.random.default_rng(1).integers(0, entries, count).astype(index.numpy)
    y = np.zeros((count, width), np.float32)
    run(lookup(index, rows), {"x": x, "r": r, "y": y}, sizes)
    np.testing.assert_array_equal(y, x[r])


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_lookup_is_a_plain_load(target: Target) -> None:
    assert "gather" not in emit_llvm(lookup(DType.I64, 3), target)


@pytest.mark.parametrize("index", [DType.I32, DType.I64])
@pytest.mark.parametrize("dtype", ALL, ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("steps", [(1, 32), (2, 16), (3, 1), (1, 5), (1, 17)])
def test_gather_and_scatter(index: DType, dtype: DType, steps: tuple[int, int]) -> None:
    rows, columns, entries = 5, 37, 6
    x, r = numbers(dtype, entries, columns), numbers(index, rows, columns) % entries
    q = np.random.default_rng(1).permutation(columns)
    y, z = np.zeros((rows, columns), dtype.numpy), np.zeros((columns, rows), dtype.numpy)
    run(gather(dtype, index, *steps), {"x": x, "r": r, "q": q, "y": y, "z": z}, (rows, columns, entries))
    expected = np.take_along_axis(x, r.astype(np.int64), 0)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(z[q], expected.T)


@pytest.mark.parametrize("index", [DType.I32, DType.I64])
@pytest.mark.parametrize("steps", [(1, 32), (2, 16), (3, 1), (1, 5), (1, 17)])
@pytest.mark.parametrize("bad", [-1, 6, 2**31 - 1, -(2**31)])
def test_any_index_out_of_range_ends_the_call(index: DType, steps: tuple[int, int], bad: int) -> None:
    rows, columns, entries = 3, 37, 6
    program = gather(DType.F32, index, *steps)
    for place in (0, 1, 36, 37, 110):
        r = numbers(index, rows, columns) % entries
        buffers = {
            "x": numbers(DType.F32, entries, columns), "r": r, "q": np.arange(columns),
            "y": np.zeros((rows, columns), np.float32), "z": np.zeros((columns, rows), np.float32),
        }  # fmt: skip
        assert call(program, buffers, (rows, columns, entries)) == 0
        r.reshape(-1)[place] = bad
        assert call(program, buffers, (rows, columns, entries)) == 1


@pytest.mark.parametrize("dtype", [DType.I32, DType.I64])
@pytest.mark.parametrize(
    ("extent", "value", "status"),
    [(0, 0, 1), (-1, 0, 1), (-1, -1, 1), (1, 0, 0), (1, 1, 1), (2**31 - 1, 2**31 - 2, 0), (2**31 - 1, 2**31 - 1, 1),
     (2**31, 2**31 - 1, 0), (2**31, -1, 1), (2**40, 2**31 - 1, 0), (2**40, -(2**31), 1), (2**63 - 1, 2**31 - 1, 0),
     (2**63 - 1, -1, 1), (-(2**63), 0, 1)],
)  # fmt: skip
@pytest.mark.parametrize("open_extent", [True, False])
def test_check(dtype: DType, extent: int, value: int, status: int, open_extent: bool) -> None:
    text = f"""program check(x: {dtype.value} in) sizes 1 {{
      %v : {dtype.value}[] = load x[0]
      check %v < {"s0" if open_extent else extent}
    }}"""
    assert call(parse_program(text), {"x": np.array([value], dtype.numpy)}, (extent,)) == status


def test_what_leaves_its_loop_is_checked_whole() -> None:
    """Inside the loop, what lies beyond the edge does not count; behind it there is no edge."""
    text = """program check(x: i64 in) sizes 1 vector j {
      %c : i64[j] = fill 9
      for j < s0 step 4 carry %o = %c {
        %v : i64[j] = load x[j] else 9
        check %v < 9
        yield %v
      } -> %r
      check %r < LIMIT
    }"""
    x = np.zeros(6, np.int64)
    assert call(parse_program(text.replace("LIMIT", "9")), {"x": x}, (3,)) == 1
    assert call(parse_program(text.replace("LIMIT", "9")), {"x": x}, (4,)) == 0
    assert call(parse_program(text.replace("LIMIT", "9")), {"x": x}, (6,)) == 0
    assert call(parse_program(text.replace("LIMIT", "10")), {"x": x}, (3,)) == 0


@pytest.mark.parametrize(
    "dtypes", [*((dtype, dtype) for dtype in ALL), (DType.F32, DType.F16), (DType.F64, DType.BF16)]
)
@pytest.mark.parametrize("steps", [(16, 16), (4, 16), (8, 32), (24, 16), (8, 8), (4, 4)])
def test_turned_tiles(dtypes: tuple[DType, DType], steps: tuple[int, int]) -> None:
    dtype, stored = dtypes
    program = turn(dtype, stored, *steps)
    assert "gather" not in emit_llvm(program, HOST)
    for sizes in ((32, 32), (33, 17), (5, 3), (1, 1), (0, 3), (3, 0)):
        x, y = numbers(stored, *reversed(sizes)), np.zeros(sizes, stored.numpy)
        run(program, {"x": x, "y": y}, (*sizes, 0))
        np.testing.assert_array_equal(y, x.T)


@pytest.mark.parametrize("stride", [40, -40, "s2"])
def test_turned_tiles_of_any_stride(stride: int | str) -> None:
    wide = numbers(DType.F32, 19, 40)
    y = np.zeros((21, 19), np.float32)
    source = wide if stride != -40 else wide[::-1]
    offset = "" if stride != -40 else f" + {18 * 40}"
    text = repr(turn(DType.F32, DType.F32, 16, 16, stride)).replace(" + c]", f" + c{offset}]")
    run(parse_program(text), {"x": wide, "y": y}, (21, 19, 40))
    np.testing.assert_array_equal(y, source[:, :21].T)


def test_turned_tiles_of_rows_from_data() -> None:
    """The address adds a number that is the same for the whole square."""
    text = """program turn(x: f32 in, r: i32 in, y: f32 out) sizes 2 vector n {
      grid b < 3 step 2
      grid c < s0 step 8
      grid n < s1 step 16
      %r : i32[b] = load r[b] else 99999999
      %v : f32[c, b, n] = load x[%r * 1000 + n * s0 + c]
      store y[b * 1000 + c * s1 + n], %v
    }"""
    program = parse_program(text)
    assert "gather" not in emit_llvm(program, HOST)
    x, r = numbers(DType.F32, 5, 1000), np.array([4, 0, 2], np.int32)
    y = np.zeros((3, 1000), np.float32)
    run(program, {"x": x, "r": r, "y": y}, (20, 50))
    np.testing.assert_array_equal(y.reshape(3, 20, 50), x[r].reshape(3, 50, 20).transpose(0, 2, 1))


@pytest.mark.parametrize(("target", "shuffles"), [(AVX512, 64), (AVX2, 24)], ids=["avx512", "avx2"])
def test_a_square_is_turned_by_few_shuffles(target: Target, shuffles: int) -> None:
    """log₂(lanes) for each register."""
    lanes = target.lanes
    text = repr(turn(DType.F32, DType.F32, lanes, lanes)).replace("c < s0", "c < 64").replace("n < s1", "n < 64")
    code = assembly(emit_llvm(parse_program(text), target), target)
    words = re.findall(r"^\t(v(?:unpck|shuf|perm|insert)\w*)", code, re.MULTILINE)
    assert len(words) == shuffles
    assert "gather" not in code
    assert "Spill" not in code


@pytest.mark.parametrize(
    "program",
    [
        turn(DType.F32, DType.F32, 16, 16, 1),
        turn(DType.F32, DType.F32, 16, 16, 0),
        turn(DType.F32, DType.F32, 2, 16),
        turn(DType.F32, DType.F32, 16, 6),
        parse_program(repr(turn(DType.F32, DType.F32, 16, 16)).replace(" + c]", " + c * s2]")),
    ],
)
def test_other_tiles_are_not_turned(program: TileProgram) -> None:
    joins_two_registers = r"shufflevector <\d+ x float> %\w+, <\d+ x float> %"
    assert not re.search(joins_two_registers, emit_llvm(program, AVX512))
    assert re.search(joins_two_registers, emit_llvm(turn(DType.F32, DType.F32, 16, 16), AVX512))


def weave(dtype: DType, stored: DType, rows: int, apart: int, columns: int) -> TileProgram:
    words = {"dtype": dtype.value, "stored": stored.value, "rows": rows, "apart": apart, "columns": columns}
    return parse_program(WEAVE.format(**words))


@pytest.mark.parametrize(
    "dtypes", [*((dtype, dtype) for dtype in ALL), (DType.F32, DType.F16), (DType.F64, DType.BF16)]
)
@pytest.mark.parametrize(("rows", "apart"), [(2, 2), (3, 3), (3, 4), (4, 4), (2, 5), (4, 8), (1, 2)])
def test_woven_rows(dtypes: tuple[DType, DType], rows: int, apart: int) -> None:
    dtype, stored = dtypes
    for columns in (16, 32, 4, 1):
        program = weave(dtype, stored, rows, apart, columns)
        assert "scatter" not in emit_llvm(program, AVX512)
        for size in (64, 33, 5, 1, 0):
            x, y = numbers(stored, rows, size), np.zeros((size, apart), stored.numpy)
            wanted = y.copy()
            wanted[:, :rows] = x.T
            run(program, {"x": x, "y": y}, (size,))
            np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize(
    "dtypes", [*((dtype, dtype) for dtype in ALL), (DType.F32, DType.F16), (DType.F64, DType.BF16)]
)
@pytest.mark.parametrize(("rows", "apart"), [(2, 2), (3, 3), (3, 4), (1, 2), (1, 4), (2, 8)])
def test_rows_that_lie_in_between_each_other(dtypes: tuple[DType, DType], rows: int, apart: int) -> None:
    """Nothing behind the last element is read: x ends there, at the end of a page that nobody may read beyond."""
    words = {"dtype": dtypes[0].value, "stored": dtypes[1].value, "rows": rows, "apart": apart}
    for columns in (16, 32, 4, 1):
        program = parse_program(UNWEAVE.format(**words, columns=columns))
        assert "gather" not in emit_llvm(program, AVX512)
        for size in (64, 33, 5, 1, 0):
            whole = numbers(dtypes[1], size, apart)
            x = at_the_end_of_a_page(whole.reshape(-1)[: max(0, size * apart - apart + rows)])
            y = np.zeros((rows, size), dtypes[1].numpy)
            run(program, {"x": x, "y": y}, (size, 0))
            np.testing.assert_array_equal(y, whole[:, :rows].T)


def test_every_third_of_rows_from_data() -> None:
    program = parse_program(EVERY_THIRD)
    assert "gather" not in emit_llvm(program, AVX512)
    x, r = numbers(DType.F32, 5, 1000), np.array([4, 0, 2, 2, 1], np.int64)
    for rows, size in ((5, 50), (4, 64), (1, 3)):
        y = np.zeros((rows, size), np.float32)
        run(program, {"x": x, "r": r[:rows], "y": y}, (size, rows))
        np.testing.assert_array_equal(y, x[r[:rows], : 3 * size : 3])


def at_the_end_of_a_page(array: np.ndarray) -> np.ndarray:
    """A copy, behind which lies memory that nobody may read."""
    size = -(-max(array.nbytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, size + mmap.PAGESIZE)
    raw = np.frombuffer(memory, np.uint8)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    assert protect(ctypes.c_void_p(raw.ctypes.data + size), mmap.PAGESIZE, 0) == 0
    copy = raw[size - array.nbytes : size].view(array.dtype)
    copy[...] = array
    return copy


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize(("rows", "apart"), [(3, 4), (4, 4)])
def test_woven_rows_compile_for_other_targets(target: Target, rows: int, apart: int) -> None:
    """Where a machine has no masks, what covers more than it writes is scattered."""
    text = emit_llvm(weave(DType.U8, DType.U8, rows, apart, 16), target)
    assert ("scatter" in text) == (target is not AVX512)
    assert not undefined(compile_object(text, target))


@pytest.mark.parametrize(
    "store", ["y[n * 9 + c]", "y[n * s0 + c]", "y[n * 4 + c * 2]", "y[n * 2 + c]", "y[n * -4 + c + 400]"]
)
def test_other_tiles_are_not_woven(store: str) -> None:
    text = repr(weave(DType.F32, DType.F32, 3, 4, 16)).replace("y[n * 4 + c]", store)
    assert store in text
    assert "scatter" in emit_llvm(parse_program(text), AVX512)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.I8, DType.BOOL], ids=lambda dtype: dtype.value)
def test_other_targets_compile(dtype: DType, target: Target) -> None:
    """Not run: the machine may lack the instructions."""
    for program in (gather(dtype, DType.I32, 2, 16), turn(dtype, dtype, 8, 16), lookup(DType.I64, 2)):
        code = compile_object(emit_llvm(program, target), target)
        assert not [name for name in undefined(code) if name != "_GLOBAL_OFFSET_TABLE_"]


@pytest.mark.parametrize("columns", [1, 8, 16, 24, 48])
@pytest.mark.parametrize("target", [HOST, PLAIN], ids=["at once", "part by part"])
def test_denormals_become_zero_where_they_are_rounded(columns: int, target: Target) -> None:
    """To bf16: ties, numbers around the least normal one, what is not finite, and ordinary ones; zeros keep signs."""
    bits = [0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x00800000, 0x007FFFFF, 0x00000001]
    ties = np.array(bits, np.uint32).view(np.float32)
    x = np.concatenate([ties, -ties, [0.0, -0.0, np.inf, -np.inf, np.nan]]).astype(np.float32)
    x = np.concatenate([x, np.random.default_rng(0).standard_normal(60).astype(np.float32)])
    y = np.zeros(len(x), DType.BF16.numpy)
    run(parse_program(ROUND.format(columns=columns)), {"x": x, "y": y}, [len(x)], target)
    with np.errstate(over="ignore"):
        wanted = np.where(np.abs(x) < 2.0**-126, np.copysign(np.float32(0), x), x).astype(DType.BF16.numpy)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(wanted))
    there = ~np.isnan(wanted)
    np.testing.assert_array_equal(y[there].view(np.uint16), wanted[there].view(np.uint16))


def test_rows_beyond_the_edge_are_passed_over_and_not_only_masked() -> None:
    """A masked access far behind a buffer may find no memory there, and then takes hundreds of cycles."""
    program = parse_program(TURN.format(stored="f32", dtype="f32", rows=16, columns=16, stride="s0"))
    text = emit_llvm(program, AVX512)
    stores = [line for line in text.splitlines() if "llvm.masked.store" in line and "call" in line]
    assert stores
    blocks = [block for block in re.split(r"\n(?=[\w.]+:\n)", text) if "call void @llvm.masked.store" in block]
    assert all(block.count("call void @llvm.masked.store") == 1 for block in blocks if block.startswith("inside"))
    assert sum(block.startswith("inside") for block in blocks) >= 15  # of every row but the first
