"""Every map, conversion and reduction in every dtype, compiled, against the reference functions of the core ops."""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np
import pytest
from tests.codegen.running import run

from tierup.codegen.elf import undefined
from tierup.codegen.llvm.emit import emit_llvm
from tierup.codegen.llvm.math import UNARY
from tierup.codegen.objects import compile_object
from tierup.codegen.target import AVX2, AVX512, NEON, Target
from tierup.ir.graph import Node
from tierup.ir.types import Array, DType
from tierup.lower.text import parse_program
from tierup.lower.tile import COMPARISONS, MAPS, WORD_DOTS, TileProgram
from tierup.lower.verify import MAP_KINDS, REDUCE_KINDS
from tierup.reference import core
from tierup.reference.cast import convert

REGISTERS = (
    DType.F32, DType.F64, DType.BOOL, DType.I8, DType.U8, DType.I16, DType.U16, DType.I32, DType.U32, DType.I64,
    DType.U64,
)  # fmt: skip
SMALL = (DType.F8E4M3FN, DType.F8E4M3FNUZ, DType.F8E5M2, DType.F8E5M2FNUZ, DType.F4E2M1)
MEMORY = (*REGISTERS, DType.F16, DType.BF16)
TARGETS = (AVX2, AVX512, NEON)
STEPS = (16, 1, 3)
# Here is only what has one right result: test_math.py measures the series functions, test_interpret.py fma.
LEFT_OUT = frozenset((*UNARY, "fma", "select"))


def is_one_of(kinds: str, dtype: DType) -> bool:
    return ("f" if dtype.is_float else "b" if dtype is DType.BOOL else "i") in kinds


def specials(dtype: DType) -> Array:
    """Numbers at and around everything that is special, and some random ones."""
    random = np.random.default_rng(0)
    if dtype is DType.BOOL:
        return np.array([False, True])
    if dtype.is_float:
        form = ml_dtypes.finfo(dtype.numpy)
        ends = [0.0, 0.5, 1.0, 1.5, 2.5, 3.0, 100.25, np.inf, form.max, form.tiny, form.smallest_subnormal, form.eps]
        edges = [2.0**bits + add for bits in (7, 8, 15, 16, 31, 32, 63, 64) for add in (-1.0, -0.5, 0.0, 0.5)]
        values = np.array([*ends, *edges], np.float64)
        with np.errstate(over="ignore"):
            return np.concatenate([values, -values, [np.nan], random.standard_normal(9)]).astype(dtype.numpy)
    bounds = np.iinfo(dtype.numpy)
    near = [0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100]
    both = near if bounds.min == 0 else [*near, *(-number for number in near)]
    edges = [bounds.max - number for number in (0, 1, 2)] + [bounds.min + number for number in (0, 1, 2)]
    spread = random.integers(bounds.min, bounds.max, 9, dtype.numpy, endpoint=True)
    inside = [number for number in both if bounds.min <= number <= bounds.max]
    return np.concatenate([np.array([*inside, *edges], dtype.numpy), spread])


def pairs(dtype: DType) -> tuple[Array, Array]:
    values = specials(dtype)
    a, b = np.meshgrid(values, values)
    return a.reshape(-1), b.reshape(-1)


def maps_of(dtype: DType) -> list[str]:
    left_out = LEFT_OUT | {"pow"} if dtype.is_float else LEFT_OUT
    return [op for op in MAPS if is_one_of(MAP_KINDS[op], dtype) and op not in (*left_out, *WORD_DOTS)]


def maps_program(dtype: DType, step: int) -> TileProgram:
    """Every map that has one right result, each to an output of its own."""
    name, ops = dtype.value, maps_of(dtype)
    types = {op: "bool" if op in COMPARISONS else name for op in ops}
    outputs = "".join(f", {op}_out: {types[op]} out" for op in ops)
    lines = [
        f"%{op}_v : {types[op]}[i] = {op} {', '.join(('%a', '%b', '%a')[: MAPS[op]])}\nstore {op}_out[i], %{op}_v"
        for op in ops
    ]
    return parse_program(
        f"program maps(a: {name} in, b: {name} in, c: bool in, chosen: {name} out{outputs}) sizes 1 vector i {{\n"
        f"grid i < s0 step {step}\n%a : {name}[i] = load a[i]\n%b : {name}[i] = load b[i]\n%c : bool[i] = load c[i]\n"
        f"%d : {name}[i] = select %c, %a, %b\nstore chosen[i], %d\n" + "\n".join(lines) + "\n}"
    )


def reference(op: str, *args: Array) -> Array:
    with np.errstate(all="ignore"):
        function = getattr(core, op, None) or getattr(core, f"{op}_")
        return np.asarray(function(Node("core.map", 1, (), ()), *args))


@pytest.mark.parametrize("dtype", REGISTERS, ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("step", STEPS)
def test_maps(dtype: DType, step: int) -> None:
    a, b = pairs(dtype)
    c = np.arange(len(a)) % 3 == 0
    program = maps_program(dtype, step)
    results: dict[str, Array] = {
        buffer.name: np.zeros(len(a), buffer.dtype.numpy) for buffer in program.buffers if buffer.mode == "out"
    }
    run(program, {"a": a, "b": b, "c": c, **results}, (len(a),))
    np.testing.assert_array_equal(results["chosen"], np.where(c, a, b))
    for op in maps_of(dtype):
        expected = reference(op, *(a, b, a)[: MAPS[op]])
        np.testing.assert_array_equal(results[f"{op}_out"], expected, err_msg=op)


def conversions_program(source: DType, step: int) -> TileProgram:
    """From `source` in memory to every register dtype, by a load and by a conversion, and to every dtype in memory."""
    first = source if source in REGISTERS else DType.F32
    names = [(by, dtype) for by in ("load", "convert") for dtype in REGISTERS] + [("store", dtype) for dtype in MEMORY]
    outputs = "".join(f", {by}_{dtype.value}: {dtype.value} out" for by, dtype in names)
    lines = [f"%x : {first.value}[i] = load x[i]"]
    for by, dtype in names:
        name, operation = f"{by}_{dtype.value}", "load x[i]" if by == "load" else "convert %x"
        if by != "store":
            lines.append(f"%{name} : {dtype.value}[i] = {operation}")
        lines.append(f"store {name}[i], %{'x' if by == 'store' else name}")
    head = f"program conversions(x: {source.value} in{outputs}) sizes 1 vector i {{\ngrid i < s0 step {step}\n"
    return parse_program(head + "\n".join(lines) + "\n}")


def converted(x: Array, to: DType) -> Array:
    """As tile programs define it: f16 and bf16 are read as f32 and written from f32."""
    narrow = (DType.F16.numpy, DType.BF16.numpy)
    with np.errstate(all="ignore"):
        return convert(convert(x, DType.F32) if x.dtype in narrow or to.numpy in narrow else x, to)


@pytest.mark.parametrize("source", MEMORY, ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("step", STEPS)
def test_conversions(source: DType, step: int) -> None:
    x, program = specials(source), conversions_program(source, step)
    results = {b.name: np.zeros(len(x), b.dtype.numpy) for b in program.buffers if b.mode == "out"}
    run(program, {"x": x, **results}, (len(x),))
    for buffer in program.buffers[1:]:
        got, want = results[buffer.name], converted(x, buffer.dtype)
        np.testing.assert_array_equal(_wide(got), _wide(want), err_msg=buffer.name)


def _wide(x: Array) -> Array:
    return x.astype(np.float32) if x.dtype in (DType.F16.numpy, DType.BF16.numpy) else x


def moved(x: Array, source: DType, to: DType, step: int) -> Array:
    y = np.zeros(len(x), to.numpy)
    text = f"""program moved(x: {source.value} in, y: {to.value} out) sizes 1 vector i {{
      grid i < s0 step {step}
      %v : f32[i] = load x[i]
      store y[i], %v
    }}"""
    run(parse_program(text), {"x": x, "y": y}, (len(x),))
    return y


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16], ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("step", [16, 1])
def test_every_sixteen_bit_float_is_read(dtype: DType, step: int) -> None:
    x = np.arange(2**16, dtype=np.uint16).view(dtype.numpy)
    y = moved(x, dtype, DType.F32, step)
    numbers = ~np.isnan(y)
    np.testing.assert_array_equal(y, x.astype(np.float32))
    np.testing.assert_array_equal(y[numbers].view(np.uint32), x[numbers].astype(np.float32).view(np.uint32))


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16], ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("step", [16, 1])
def test_sixteen_bit_floats_are_written_rounded(dtype: DType, step: int) -> None:
    """Every one of them, the middles between neighbours, what lies just beside those, and any f32."""
    exact = np.arange(2**16, dtype=np.uint16).view(dtype.numpy).astype(np.float32)
    with np.errstate(all="ignore"):
        following = np.nextafter(exact.astype(dtype.numpy), np.array(np.inf, dtype.numpy)).astype(np.float32)
        middles = exact / 2 + following / 2
        beside = [np.nextafter(middles, np.float32(end)) for end in (np.inf, -np.inf)]
        any_bits = np.random.default_rng(0).integers(0, 2**32, 2**16, np.uint32).view(np.float32)
        x = np.concatenate([exact, middles, *beside, any_bits])
        want = x.astype(dtype.numpy)
    y = moved(x, DType.F32, dtype, step)
    numbers = ~np.isnan(x)
    np.testing.assert_array_equal(np.isnan(y.astype(np.float32)), ~numbers)
    np.testing.assert_array_equal(y[numbers].view(np.uint16), want[numbers].view(np.uint16))


@pytest.mark.parametrize("dtype", SMALL, ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("step", [16, 1])
def test_every_small_float_is_read(dtype: DType, step: int) -> None:
    x = np.arange(1 << dtype.bits, dtype=np.uint8).view(dtype.numpy)
    y, want = moved(x, dtype, DType.F32, step), x.astype(np.float32)
    np.testing.assert_array_equal(y, want)
    np.testing.assert_array_equal(np.signbit(y[want == 0]), np.signbit(want[want == 0]))


@pytest.mark.parametrize("dtype", SMALL, ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("step", [16, 1])
def test_small_floats_are_written_rounded(dtype: DType, step: int) -> None:
    """Every one of them, the middles between neighbours, what lies just beside those, and any f32."""
    exact = np.unique(np.arange(1 << dtype.bits, dtype=np.uint8).view(dtype.numpy).astype(np.float32))
    exact = np.concatenate([exact[np.isfinite(exact)], [1e9, -1e9]]).astype(np.float32)
    with np.errstate(all="ignore"):
        middles = np.concatenate([exact[1:] / 2 + exact[:-1] / 2, [464, -464, 61440, -61440, 248, -248]])
        middles = middles.astype(np.float32)
        beside = [np.nextafter(middles, np.float32(end)) for end in (np.inf, -np.inf)]
        any_bits = np.random.default_rng(0).integers(0, 2**32, 2**16, np.uint32).view(np.float32)
        x = np.concatenate(
            [exact, middles, *beside, any_bits, np.array([0, -0.0, np.inf, -np.inf, np.nan], np.float32)]
        )
        want = x.astype(dtype.numpy)
    y = moved(x, DType.F32, dtype, step)
    np.testing.assert_array_equal(y.astype(np.float32), want.astype(np.float32))
    numbers = ~np.isnan(x)
    np.testing.assert_array_equal(y[numbers].view(np.uint8), want[numbers].view(np.uint8))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("dtype", SMALL, ids=lambda dtype: dtype.value)
def test_small_floats_compile_for_other_targets(dtype: DType, target: Target) -> None:
    text = f"""program moved(x: {dtype.value} in, y: {dtype.value} out) sizes 1 vector i {{
      grid i < {target.lanes} step {target.lanes}
      %v : f32[i] = load x[i]
      store y[i], %v
    }}"""
    code = compile_object(emit_llvm(parse_program(text), target), target)
    assert not [name for name in undefined(code) if name != "_GLOBAL_OFFSET_TABLE_"]


def reductions_of(dtype: DType) -> list[str]:
    return [op for op, kinds in REDUCE_KINDS.items() if is_one_of(kinds, dtype)]


def reductions_program(dtype: DType, rows: int, columns: int, vector: str = "j") -> TileProgram:
    """All reductions of a matrix: over its rows, over its lanes, and over both."""
    name, ops = dtype.value, reductions_of(dtype)
    outputs = "".join(f", {op}_i: {name} out, {op}_j: {name} out, {op}_ij: {name} out" for op in ops)
    lines = [f"%v : {name}[i, j] = load x[i * s1 + j] else 1"]
    for op in ops:
        lines += [f"%{op}i : {name}[j] = reduce {op} %v over i", f"store {op}_i[j starts j * 1], %{op}i"]
        lines += [f"%{op}j : {name}[i] = reduce {op} %v over j", f"store {op}_j[i], %{op}j"]
        lines += [f"%{op}ij : {name}[] = reduce {op} %{op}j over i", f"store {op}_ij[0], %{op}ij"]
    head = f"program sums(x: {name} in{outputs}) sizes 2 vector {vector} {{\n"
    grid = f"grid i < s0 step {rows}\ngrid j < s1 step {columns}\n"
    return parse_program(head + grid + "\n".join(lines) + "\n}")


FUNCTIONS: Mapping[str, np.ufunc] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum, "and": np.bitwise_and,
    "or": np.bitwise_or,
}  # fmt: skip


@pytest.mark.parametrize("dtype", REGISTERS, ids=lambda dtype: dtype.value)
@pytest.mark.parametrize(
    ("steps", "vector"),
    [
        *(((4, 32), "j"), ((3, 16), "j"), ((5, 7), "j"), ((4, 1), "j")),
        # sums over lanes become lanes: as many as vectors have, fewer, more, and no power of two
        *((steps, "i, j") for steps in ((16, 16), (2, 16), (4, 32), (32, 16), (3, 16), (8, 7), (1, 16))),
    ],
)
@pytest.mark.parametrize("missing", [0, 1])
def test_reductions(dtype: DType, steps: tuple[int, int], vector: str, missing: int) -> None:
    """One step of the grid holds all, or all but one row and one column."""
    rows, columns = (max(1, step - missing) for step in steps)
    values = specials(dtype)
    if dtype.is_float:
        values = np.array([0.5, 1.0, -1.0, 2.0, -0.0, 0.25]).astype(dtype.numpy)  # sums and products are exact
    x = np.random.default_rng(0).choice(values, (rows, columns))
    program = reductions_program(dtype, *steps, vector)
    lengths = {"i": columns, "j": rows, "ij": 1}
    results = {f"{op}_{over}": np.zeros(n, dtype.numpy) for op in reductions_of(dtype) for over, n in lengths.items()}
    run(program, {"x": x, **results}, (rows, columns))
    for op in reductions_of(dtype):
        with np.errstate(all="ignore"):
            for over, axes in (("i", 0), ("j", 1), ("ij", (0, 1))):
                expected = FUNCTIONS[op].reduce(x, axis=axes, dtype=dtype.numpy)
                np.testing.assert_array_equal(results[f"{op}_{over}"], np.reshape(expected, -1), err_msg=f"{op} {over}")


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64], ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("place", [(0, 0), (3, 30), (2, 17)])
def test_one_nan_is_the_result(dtype: DType, place: tuple[int, int]) -> None:
    x = np.full((4, 31), np.inf, dtype.numpy)
    x[place] = np.nan
    lengths = {"i": 31, "j": 4, "ij": 1}
    results = {f"{op}_{over}": np.zeros(n, dtype.numpy) for op in reductions_of(dtype) for over, n in lengths.items()}
    run(reductions_program(dtype, 4, 32), {"x": x, **results}, (4, 31))
    for op in reductions_of(dtype):
        assert np.isnan(results[f"{op}_ij"]).all(), op
        np.testing.assert_array_equal(np.isnan(results[f"{op}_j"]), np.isnan(x).any(1))
        np.testing.assert_array_equal(np.isnan(results[f"{op}_i"]), np.isnan(x).any(0))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("dtype", MEMORY, ids=lambda dtype: dtype.value)
def test_other_targets_compile(dtype: DType, target: Target) -> None:
    """Not run: the machine may lack the instructions."""
    lanes = target.lanes
    programs = [conversions_program(dtype, lanes), conversions_program(dtype, 1)]
    if dtype in REGISTERS:
        programs += [maps_program(dtype, lanes), maps_program(dtype, 1), reductions_program(dtype, 2, lanes)]
    for program in programs:
        whole = parse_program(repr(program).replace("< s0", f"< {lanes}"))
        code = compile_object(emit_llvm(whole, target), target)
        assert not [name for name in undefined(code) if name != "_GLOBAL_OFFSET_TABLE_"]
