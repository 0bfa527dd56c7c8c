"""The emitter's vector math: its error over the whole range, its special values, and the objects it becomes."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Iterator
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from msgspec import Struct

from tierup.codegen.llvm.math import BINARY, KINDS, ULPS, UNARY, emit
from tierup.codegen.llvm.writer import Writer
from tierup.ir.types import DType

Array = np.ndarray[Any, Any]
OPS = (*UNARY, *BINARY)
INF, NAN = math.inf, math.nan
SHAPES = [(DType.F32, 4), (DType.F32, 16), (DType.F64, 2), (DType.F64, 8)]
TARGETS = [("x86_64-unknown-linux-gnu", "haswell"), ("aarch64-unknown-linux-gnu", "generic")]


def function_text(op: str, dtype: DType, lanes: int, avx512: bool) -> tuple[str, set[str]]:
    """A function that maps arrays whose length is a multiple of `lanes`, and the declarations it needs."""
    kind = KINDS[dtype]
    names = ("x", "y")[: 2 if op in BINARY else 1]
    writer = Writer(label="loop", avx512=avx512)
    result = emit(writer, op, dtype, lanes, *(f"%{name}" for name in names))
    lines = [
        f"define void @{op}(ptr %px, ptr %py, ptr %po, i64 %n) {{",
        "entry:",
        "  br label %loop",
        "loop:",
        f"  %i = phi i64 [ 0, %entry ], [ %next, %{writer.label} ]",
    ]
    for name in names:
        lines.append(f"  %a{name} = getelementptr {kind}, ptr %p{name}, i64 %i")
        lines.append(f"  %{name} = load <{lanes} x {kind}>, ptr %a{name}, align 4")
    lines += [
        *writer.lines,
        f"  %ao = getelementptr {kind}, ptr %po, i64 %i",
        f"  store <{lanes} x {kind}> {result}, ptr %ao, align 4",
        f"  %next = add i64 %i, {lanes}",
        "  %more = icmp slt i64 %next, %n",
        "  br i1 %more, label %loop, label %done",
        "done:",
        "  ret void",
        "}",
    ]
    return "\n".join(lines), writer.declarations


def module_text(dtype: DType, lanes: int, avx512: bool = False) -> str:
    parts = [function_text(op, dtype, lanes, avx512) for op in OPS]
    declarations = set[str]().union(*(needed for _, needed in parts))
    return "\n".join([*sorted(declarations), *(text for text, _ in parts)])


class Compiled(Struct):
    """All ops for one type and width, compiled for this machine."""

    lanes: int
    engine: Any
    code: bytes

    def __call__(self, op: str, x: Array, y: Array | None = None) -> Array:
        size = -(-x.size // self.lanes) * self.lanes
        x_padded, y_padded = (np.concatenate([v, np.ones(size - x.size, v.dtype)]) for v in (x, x if y is None else y))
        out = np.empty_like(x_padded)
        pointer = ctypes.c_void_p
        function = ctypes.CFUNCTYPE(None, pointer, pointer, pointer, ctypes.c_int64)(
            self.engine.get_function_address(op)
        )
        function(x_padded.ctypes.data, y_padded.ctypes.data, out.ctypes.data, size)
        return out[: x.size]


def host_machine() -> Any:
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
    )


def compile_here(dtype: DType, lanes: int, avx512: bool = False) -> Compiled:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = host_machine()
    module = llvm.parse_assembly(module_text(dtype, lanes, avx512))
    module.verify()
    code = machine.emit_object(module)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return Compiled(lanes, engine, code)


@pytest.fixture(scope="module")
def compiled() -> dict[tuple[DType, int], Compiled]:
    return {(dtype, lanes): compile_here(dtype, lanes) for dtype, lanes in SHAPES}


def undefined_symbols(code: bytes) -> list[str]:
    """The names that a 64-bit little-endian ELF object expects others to define."""
    (sections_at,) = struct.unpack_from("<Q", code, 0x28)
    size, count = struct.unpack_from("<HH", code, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, sections_at + k * size) for k in range(count)]
    names = []
    for _, kind, _, _, start, length, link, _, _, entry in sections:
        if kind != 2:  # SHT_SYMTAB
            continue
        for at in range(start, start + length, entry):
            name, _, _, section = struct.unpack_from("<IBBH", code, at)
            text = sections[link][4] + name
            if name and section == 0:
                names.append(code[text : code.index(b"\0", text)].decode())
    return names


TWO_BY_SQRT_PI = 0x120DD750429B6D11AE3A914FED7FD8688281341D7587CEA2E7342B06199CC416180EB39F0B24E1E2281806C12D98F35D77A3E
POINT = 400  # bits after the point, here and in _erf_long


def _erf_long(x: float) -> np.longdouble:
    """2/√π · Σ (-1)ᵏ x²ᵏ⁺¹ / (k! (2k + 1)) in integers: NumPy has no erf of a long double."""
    if not abs(x) < 7:
        return np.longdouble(math.erf(x))
    if abs(x) < 1e-30:
        return np.longdouble(x) * np.ldexp(np.longdouble(TWO_BY_SQRT_PI >> 300), 300 - POINT)
    top, bottom = float(abs(x)).as_integer_ratio()
    term = (top << POINT) // bottom
    square = term * term >> POINT
    total, k = 0, 0
    while term:
        total += (-1) ** k * term // (2 * k + 1)
        k += 1
        term = (term * square >> POINT) // k
    value = total * TWO_BY_SQRT_PI >> POINT
    spare = max(value.bit_length() - 96, 0)
    return np.copysign(np.ldexp(np.longdouble(value >> spare), spare - POINT), np.longdouble(x))


def _erf(x: Array) -> Array:
    function = _erf_long if x.dtype == np.longdouble else math.erf
    return np.array([function(float(v)) for v in x], x.dtype)


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, e, 1) / (1 + e))


REFERENCE: dict[str, Callable[..., Array]] = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "log": np.log,
    "log1p": np.log1p, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "sin": np.sin, "cos": np.cos,
    "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "pow": np.power, "fmod": np.fmod,
    "rsqrt": lambda x: 1 / np.sqrt(x), "sigmoid": _sigmoid, "erf": _erf,
}  # fmt: skip


def worst(got: Array, want: Array, dtype: DType) -> tuple[float, int]:
    """The largest error in units in the last place, and where. `want` is wider than `got`.

    A NaN where there should be none counts as infinite, and so does a wrong sign; infinity counts as the number that
    follows the largest one.
    """
    digits, bias = (23, 127) if dtype is DType.F32 else (52, 1023)
    one = want.dtype.type(1)
    limit = np.ldexp(one, bias + 1)
    wide, clipped = np.clip(got.astype(want.dtype), -limit, limit), np.clip(want, -limit, limit)
    exponent = np.clip(np.frexp(clipped)[1] - 1, 1 - bias, bias)
    exponent = np.where(clipped == 0, 1 - bias, exponent)
    error = np.ldexp(np.abs(wide - clipped), digits - exponent)
    both_nan = np.isnan(got) & np.isnan(want)
    wrong = (np.isnan(got) != np.isnan(want)) | (np.signbit(got) != np.signbit(want)) & ~both_nan
    error = np.where(both_nan, 0, np.where(wrong, INF, error))
    at = int(np.argmax(error))
    return float(error[at]), at


def compare(run: Compiled, op: str, dtype: DType, *args: Array) -> None:
    wide = np.float64 if dtype is DType.F32 else np.longdouble
    bound = ULPS[op][0 if dtype is DType.F32 else 1]
    with np.errstate(all="ignore"):
        got = run(op, *args)
        want = REFERENCE[op](*(v.astype(wide) for v in args))
        error, at = worst(got, want, dtype)
    where = ", ".join(repr(v[at]) for v in args)
    assert error <= bound, f"{op}({where}) = {got[at]!r}, not {want[at]!r}: {error:.2f} ulp, above {bound}"


long_double = pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="long double is no wider than double here")


def patterns_f32(step: int) -> Array:
    """Every `step`-th bit pattern, and 64 neighbours on both sides of where something changes."""
    corners = np.array(
        [0, 2**-149, 2**-126, 2**-25, 2**-24, 0.34657, 0.4142, 0.5, 0.7071, 0.7853, 1, 1.4142, 2, 2.4142, 3.92, 9.2,
         17.3, 23, 87.33, 88.02, 88.72, 89.41, 103.97, 127, 128, 149, 150, 2**16, 2**30, 3.4028235e38, INF], np.float32
    )  # fmt: skip
    near = (corners.view(np.int32)[:, None] + np.arange(-64, 65, dtype=np.int32)).ravel().view(np.uint32)
    return np.concatenate([np.arange(0, 2**32, step).astype(np.uint32), near, near ^ 0x80000000]).view(np.float32)


@pytest.mark.parametrize("op", UNARY)
def test_f32_over_the_whole_range(compiled: dict[tuple[DType, int], Compiled], op: str) -> None:
    # Coprime to 2: the low bits of the significand vary. erf's reference is a Python loop, and its range is short.
    x = patterns_f32(16381 if op == "erf" else 1531)
    if op == "erf":
        x = np.concatenate([x, np.linspace(-4, 4, 200_001, dtype=np.float32)])
    compare(compiled[DType.F32, 16], op, DType.F32, x)


@pytest.mark.skipif(
    "+avx512f" not in llvm.get_host_cpu_features().flatten().split(","), reason="this machine has no AVX-512"
)
def test_what_avx512_does_its_own_way() -> None:
    run = compile_here(DType.F32, 16, avx512=True)
    for op in ("exp", "sigmoid"):
        compare(run, op, DType.F32, patterns_f32(1531))
    compare(run, "erf", DType.F32, patterns_f32(16381))
    compare(run, "erf", DType.F32, np.linspace(-4, 4, 200_001, dtype=np.float32))
    special = np.array([0.0, -0.0, INF, -INF, NAN, 3.92, -3.92], np.float32)
    assert same(run("erf", special), np.array([0.0, -0.0, 1, -1, NAN, 1, -1], np.float32))


def samples_f64(op: str) -> Array:
    rng = np.random.default_rng(7)
    n = 500 if op == "erf" else 4000
    parts = [
        rng.integers(0, 2**64, n, dtype=np.uint64).view(np.float64), rng.normal(0, 1, n), rng.normal(0, 20, n),
        rng.uniform(-1, 1, n), rng.uniform(-750, 750, n), rng.uniform(-1080, 1030, n), 1 + rng.normal(0, 1e-3, n),
        np.exp(rng.normal(0, 10, n)), np.ldexp(rng.normal(0, 1, n), -1060), np.arange(1, n) * (np.pi / 2),
        rng.normal(0, 2.0**28, n), rng.uniform(1, 6, n),
    ]  # fmt: skip
    return np.concatenate(parts)


@long_double
@pytest.mark.parametrize("op", UNARY)
def test_f64_on_samples(compiled: dict[tuple[DType, int], Compiled], op: str) -> None:
    compare(compiled[DType.F64, 8], op, DType.F64, samples_f64(op))


@pytest.mark.parametrize("op", ["sin", "cos", "tan"])
@pytest.mark.parametrize("dtype", [DType.F32, pytest.param(DType.F64, marks=long_double)])
def test_the_hardest_arguments_of_a_reduction(
    compiled: dict[tuple[DType, int], Compiled], op: str, dtype: DType
) -> None:
    """Those nearest to a multiple of π/2 (Muller, Elementary Functions), with their powers of two and neighbours."""
    if dtype is DType.F32:
        base, scale = 16367173.0, np.arange(-40, 104)
    else:
        base, scale = 6381956970095103.0, np.arange(-80, 970)
    numbers = np.ldexp(np.array([base, base + 1, base - 1]), scale[:, None]).ravel().astype(dtype.numpy)
    run = compiled[dtype, 16 if dtype is DType.F32 else 8]
    compare(run, op, dtype, np.concatenate([numbers, -numbers]))


def pairs(dtype: DType, n: int) -> Iterator[tuple[Array, Array]]:
    rng = np.random.default_rng(11)
    word = np.uint32 if dtype is DType.F32 else np.uint64
    span, range_e = (2**32, 85) if dtype is DType.F32 else (2**64, 700)
    yield tuple(rng.integers(0, span, n, dtype=word).view(dtype.numpy) for _ in range(2))  # type: ignore[misc]  # two
    x = np.exp(rng.normal(0, 0.3 * range_e, n).clip(-range_e, range_e))
    yield x.astype(dtype.numpy), (range_e * rng.normal(0, 1, n) / np.log(x)).astype(dtype.numpy)
    x = 1 + rng.normal(0, 0.01, n)
    yield x.astype(dtype.numpy), rng.normal(0, 50 * range_e, n).astype(dtype.numpy)
    yield rng.integers(-20, 20, n).astype(dtype.numpy), (rng.integers(-60, 60, n) / 2).astype(dtype.numpy)
    yield rng.normal(0, 1e6, n).astype(dtype.numpy), rng.normal(0, 1, n).astype(dtype.numpy)
    least = np.finfo(dtype.numpy).smallest_subnormal
    yield rng.normal(0, 1, n).astype(dtype.numpy), (rng.integers(1, 2**20, n) * least).astype(dtype.numpy)


@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize("dtype", [DType.F32, pytest.param(DType.F64, marks=long_double)])
def test_two_arguments(compiled: dict[tuple[DType, int], Compiled], op: str, dtype: DType) -> None:
    for x, y in pairs(dtype, 100_000 if dtype is DType.F32 else 20_000):
        compare(compiled[dtype, 16 if dtype is DType.F32 else 8], op, dtype, x, y)


@pytest.mark.parametrize(("dtype", "wide", "narrow"), [(DType.F32, 16, 4), (DType.F64, 8, 2)])
@pytest.mark.parametrize("op", OPS)
def test_the_width_does_not_change_a_bit(
    compiled: dict[tuple[DType, int], Compiled], op: str, dtype: DType, wide: int, narrow: int
) -> None:
    x = patterns_f32(2**18 + 1) if dtype is DType.F32 else samples_f64("erf")
    y = x[::-1].copy() if op in BINARY else None
    left, right = compiled[dtype, wide](op, x, y), compiled[dtype, narrow](op, x, y)
    np.testing.assert_array_equal(left, right)  # NaN equals NaN here
    number = ~np.isnan(left)
    np.testing.assert_array_equal(np.signbit(left)[number], np.signbit(right)[number])


SPECIAL: dict[str, dict[float, float]] = {
    "exp": {0.0: 1, INF: INF, -INF: 0, 1e30: INF, -1e30: 0}, "exp2": {0.0: 1, INF: INF, -INF: 0, 10: 1024, -3: 0.125},
    "expm1": {INF: INF, -INF: -1, 1e30: INF, -1e30: -1}, "sigmoid": {0.0: 0.5, INF: 1, -INF: 0, 1e30: 1, -1e30: 0},
    "sinh": {INF: INF, -INF: -INF, 1e30: INF, -1e30: -INF}, "cosh": {0.0: 1, INF: INF, -INF: INF},
    "tanh": {INF: 1, -INF: -1, 1e30: 1, -1e30: -1}, "log": {0.0: -INF, 1: 0, INF: INF, -1: NAN, -INF: NAN, -1e-44: NAN},
    "log1p": {-1: -INF, INF: INF, -2: NAN, -INF: NAN}, "asinh": {INF: INF, -INF: -INF},
    "acosh": {1: 0, INF: INF, 0.5: NAN, 0.0: NAN, -1: NAN, -3: NAN, -1e30: NAN, -INF: NAN},
    "atanh": {1: INF, -1: -INF, 2: NAN, -2: NAN, INF: NAN, -INF: NAN}, "erf": {INF: 1, -INF: -1, 7: 1, -7: -1},
    "rsqrt": {0.0: INF, 4: 0.5, INF: 0, -1: NAN, -INF: NAN}, "sin": {INF: NAN, -INF: NAN},
    "cos": {0.0: 1, INF: NAN, -INF: NAN}, "tan": {INF: NAN, -INF: NAN}, "asin": {2: NAN, -2: NAN, INF: NAN, -INF: NAN},
    "acos": {1: 0, 2: NAN, -2: NAN, INF: NAN, -INF: NAN}, "atan": {},
}  # fmt: skip
KEEPS_ZERO = ("expm1", "sinh", "tanh", "log1p", "asinh", "atanh", "erf", "sin", "tan", "asin", "atan")


def same(left: Array, right: Array) -> bool:
    return bool(np.all((left == right) & (np.signbit(left) == np.signbit(right)) | np.isnan(left) & np.isnan(right)))


@pytest.mark.parametrize(("dtype", "lanes"), SHAPES)
@pytest.mark.parametrize("op", UNARY)
def test_special_values(compiled: dict[tuple[DType, int], Compiled], op: str, dtype: DType, lanes: int) -> None:
    table = {**SPECIAL[op], NAN: NAN}
    x, want = (np.array(list(v), dtype.numpy) for v in (table.keys(), table.values()))
    got = compiled[dtype, lanes](op, x)
    assert same(got, want), f"{op}: {list(zip(x.tolist(), got.tolist(), want.tolist(), strict=True))}"
    if op in KEEPS_ZERO:
        zeros = np.array([0.0, -0.0], dtype.numpy)
        assert same(compiled[dtype, lanes](op, zeros), zeros)
        if op != "erf":  # f(x) = x to the last bit, down to the smallest denormal
            info = np.finfo(dtype.numpy)
            small = np.array([1, 2, 3, 5, 12345677], dtype.numpy) * info.smallest_subnormal
            small = np.concatenate([small, -small, [info.tiny, -info.tiny]]).astype(dtype.numpy)
            assert same(compiled[dtype, lanes](op, small), small)


@pytest.mark.parametrize(("dtype", "lanes"), SHAPES)
@pytest.mark.parametrize("op", BINARY)
def test_special_pairs(compiled: dict[tuple[DType, int], Compiled], op: str, dtype: DType, lanes: int) -> None:
    """Against C's own functions, for every pair of awkward numbers."""
    info = np.finfo(dtype.numpy)
    whole = 2.0 ** (info.nmant + 1)
    numbers = [0, 0.25, 0.5, 1, 2, 3, 4, whole - 1, whole, info.max, info.tiny, info.smallest_subnormal, INF]
    values = np.array([*numbers, *(-n for n in numbers), -0.0, NAN], dtype.numpy)
    x, y = (grid.ravel() for grid in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        want = REFERENCE[op](x, y)
        got = compiled[dtype, lanes](op, x, y)
        close = np.isfinite(want) & (want != 0) & (np.abs(got - want) <= np.spacing(np.abs(want)))
    for k in np.flatnonzero(~close):
        assert same(got[k], want[k]), f"{op}({x[k]}, {y[k]}) = {got[k]}, not {want[k]}"


def test_the_host_objects_need_nobody(compiled: dict[tuple[DType, int], Compiled]) -> None:
    for built in compiled.values():
        assert undefined_symbols(built.code) == []


@pytest.mark.parametrize(("dtype", "lanes"), [*SHAPES, (DType.F32, 1), (DType.F64, 1)])
@pytest.mark.parametrize(("triple", "cpu"), TARGETS)
@pytest.mark.usefixtures("compiled")
def test_other_targets_need_nobody(triple: str, cpu: str, dtype: DType, lanes: int) -> None:
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, opt=3)
    assert undefined_symbols(machine.emit_object(llvm.parse_assembly(module_text(dtype, lanes)))) == []


@pytest.mark.usefixtures("compiled")
def test_a_library_call_would_be_seen() -> None:
    text = "declare float @llvm.exp.f32(float)\ndefine float @f(float %x) {\n"
    text += "  %y = call float @llvm.exp.f32(float %x)\n  ret float %y\n}"
    machine = llvm.Target.from_triple(TARGETS[0][0]).create_target_machine(cpu=TARGETS[0][1], opt=3)
    assert undefined_symbols(machine.emit_object(llvm.parse_assembly(text))) == ["expf"]


def test_no_fast_math_and_no_bare_calls() -> None:
    for dtype, lanes in SHAPES:
        for line in module_text(dtype, lanes).splitlines():
            assert not any(flag in line for flag in (" fast ", " nnan ", " ninf ", " nsz ", " reassoc ", " contract "))
            assert " call " not in line or "@llvm." in line
