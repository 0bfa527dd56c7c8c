"""The interpreter: samples against f64, edges one by one, and properties of random programs."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import product

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lower.samples import Sample, layer_norm_sample, matmul_sample, softmax_sample
from tests.lower.strategies import Case, programs

from tierup.ir.types import Array, DType
from tierup.lower.interpret import fma, grid_steps, interpret
from tierup.lower.text import parse_program
from tierup.lower.verify import TileError


def run(text: str, sizes: tuple[int, ...] = (), **buffers: Array) -> None:
    interpret(parse_program(text), buffers, sizes)


def check(sample: Sample, rtol: float) -> None:
    interpret(sample.program, sample.buffers, sample.sizes)
    np.testing.assert_allclose(sample.buffers[sample.out], sample.expected.reshape(-1), rtol=rtol, atol=rtol)


# A few roundings of f32 on sums of up to 70 elements: 2e-6 is 17 eps.
@pytest.mark.parametrize("sizes", [(0, 5), (3, 0), (1, 1), (5, 70), (4, 64), (2, 63)])
@pytest.mark.parametrize("steps", [(1, 64), (3, 16), (2, 1)])
@pytest.mark.parametrize("sample", [softmax_sample, layer_norm_sample])
def test_rows(sample: Callable[..., Sample], sizes: tuple[int, int], steps: tuple[int, int]) -> None:
    check(sample(sizes, *steps), 2e-6)


@pytest.mark.parametrize("sizes", [(0, 3, 2), (3, 0, 2), (4, 32, 0), (1, 1, 1), (5, 40, 7), (9, 33, 5)])
@pytest.mark.parametrize("steps", [(4, 32, 1), (3, 16, 4)])
def test_matmul(sizes: tuple[int, int, int], steps: tuple[int, int, int]) -> None:
    check(matmul_sample(sizes, *steps), 2e-6)


@settings(max_examples=150, deadline=None)
@given(programs(), st.data())
def test_the_grid_may_be_split_anywhere(case: Case, data: st.DataObject) -> None:
    whole, split = case.arrays(), case.arrays()
    steps = grid_steps(case.program, case.sizes)
    at = data.draw(st.integers(0, steps))
    interpret(case.program, whole, case.sizes)
    interpret(case.program, split, case.sizes, at, steps)
    interpret(case.program, split, case.sizes, None, at)
    case.assert_same(split, whole)


def test_grid_steps_run_row_major() -> None:
    text = """program p(y: i64 out) {
      grid i < 3 step 2
      grid j < 5 step 2
      %i : i64[i] = position i
      %j : i64[j] = position j
      %ten : i64[] = fill 10
      %t : i64[i] = mul %i, %ten
      %s : i64[i, j] = add %t, %j
      store y[i * 5 + j], %s
    }"""
    p = parse_program(text)
    assert grid_steps(p, ()) == 6
    expected = 10 * np.arange(3)[:, None] + np.arange(5)
    for step in range(6):
        y = np.full(15, -1)
        interpret(p, {"y": y}, (), step, step + 1)
        rows, columns = slice(step // 3 * 2, step // 3 * 2 + 2), slice(step % 3 * 2, step % 3 * 2 + 2)
        want = np.full((3, 5), -1)
        want[rows, columns] = expected[rows, columns]
        np.testing.assert_array_equal(y.reshape(3, 5), want)


def test_beyond_the_edge_loads_give_other_and_stores_write_nothing() -> None:
    y, z = np.zeros(8, np.float32), np.zeros(1, np.float32)
    text = """program p(x: f32 in, y: f32 out, z: f32 out) sizes 1 {
      %o : f32[i] = fill 0.0
      for i < s0 step 4 carry %c = %o {
        %v : f32[i] = load x[i] else 9.0
        store y[i], %v
        %n : f32[i] = add %c, %v
        yield %v
      } -> %r
      %s : f32[] = reduce sum %r over i
      store z[0], %s
    }"""
    run(text, (6,), x=np.arange(1, 9, dtype=np.float32), y=y, z=z)
    np.testing.assert_array_equal(y, [1, 2, 3, 4, 5, 6, 0, 0])
    assert z[0] == 5 + 6 + 3 + 4  # beyond the edge, what the round before yielded


@pytest.mark.parametrize(("size", "expected"), [(0, 40.0), (1, 31.0), (3, 13.0), (4, 4.0)])
def test_carried_elements_beyond_the_edge_keep_what_they_were(size: int, expected: float) -> None:
    z = np.zeros(1, np.float32)
    text = """program p(z: f32 out) sizes 1 {
      %ten : f32[i] = fill 10.0
      %one : f32[i] = fill 1.0
      for i < s0 step 4 carry %c = %ten {
        yield %one
      } -> %r
      %s : f32[] = reduce sum %r over i
      store z[0], %s
    }"""
    run(text, (size,), z=z)
    assert z[0] == expected


def test_reductions_and_dots_inside_their_loop_leave_out_what_lies_beyond_the_edge() -> None:
    z = np.zeros(2, np.float32)
    text = """program p(z: f32 out) sizes 1 {
      grid i < s0 step 4
      %one : f32[i] = fill 1.0
      %none : f32[] = fill 0.0
      %s : f32[] = reduce sum %one over i
      store z[0], %s
      %d : f32[] = dot %one, %one, %none over i
      store z[1], %d
    }"""
    run(text, (3,), z=z)
    np.testing.assert_array_equal(z, [3, 3])


def test_a_loop_that_is_not_entered_gives_its_initial_values() -> None:
    z = np.zeros(2, np.int32)
    text = """program p(z: i32 out) sizes 2 {
      %a : i32[] = fill 5
      for i < s0 step 4 from s1 carry %c = %a {
        %b : i32[] = fill 6
        yield %b
      } -> %r
      store z[0], %r
    }"""
    run(text, (0, 0), z=z)
    run(text.replace("z[0]", "z[1]"), (3, 3), z=z)
    np.testing.assert_array_equal(z, [5, 5])


def test_loops_begin_where_they_say() -> None:
    z = np.zeros(9, np.int32)
    text = """program p(z: i32 out) sizes 2 {
      for i < s1 step 3 from s0 exact {
        %p : i32[i] = position i
        store z[i], %p
      }
    }"""
    run(text, (2, 8), z=z)
    np.testing.assert_array_equal(z, [0, 0, 2, 3, 4, 5, 6, 7, 0])
    with pytest.raises(TileError, match="is not exact from 2 to 9"):
        run(text, (2, 9), z=z)


def test_loops_depend_on_what_they_say() -> None:
    text = """program p(n: i32 in, z: i32 out) {
      %n : i32[] = load n[0]
      %o : i32[] = fill 0
      %b : bool[] = lt %o, %n
      for i < 3 step 1 when %b carry %old = %n {
        %new : i32[] = add %old, %old
        yield %new
      } -> %r
      store z[0], %r
    }"""
    for number, wanted in ((2, 16), (-1, -1)):
        z = np.zeros(1, np.int32)
        run(text, (), n=np.array([number], np.int32), z=z)
        assert z[0] == wanted


def test_an_empty_grid_does_nothing() -> None:
    y = np.zeros(1, np.float32)
    text = """program p(y: f32 out) sizes 2 {
      grid i < s0 step 4
      grid j < s1 step 4
      %a : f32[] = fill 1.0
      store y[0], %a
    }"""
    run(text, (0, 9), y=y)
    run(text, (9, 0), y=y)
    assert y[0] == 0


@pytest.mark.parametrize(
    ("buffers", "sizes", "limits", "error"),
    [
        ({"y": np.zeros(1, np.float32)}, (), (None, None), "takes 1 sizes, but 0 were given"),
        ({}, (4,), (None, None), "must be a flat array of f32, but nothing was given"),
        ({"y": np.zeros(1)}, (4,), (None, None), "but 1-d float64 was given"),
        ({"y": np.zeros((1, 1), np.float32)}, (4,), (None, None), "but 2-d float32 was given"),
        ({"y": np.zeros(1, np.float32)}, (4,), (0, 3), "steps 0 to 3 are not within the grid's 2 steps"),
        ({"y": np.zeros(1, np.float32)}, (4,), (2, 1), "steps 2 to 1 are not within"),
        ({"y": np.zeros(1, np.float32)}, (4,), (-1, 1), "steps -1 to 1 are not within"),
    ],
)
def test_calls_that_do_not_fit(
    buffers: dict[str, Array], sizes: tuple[int, ...], limits: tuple[int | None, int | None], error: str
) -> None:
    program = parse_program("program p(y: f32 out) sizes 1 {\ngrid i < s0 step 2\n}")
    with pytest.raises(TileError, match=error):
        interpret(program, buffers, sizes, *limits)


def test_programs_are_verified() -> None:
    with pytest.raises(TileError, match="not defined"):
        run("program p() {\n%a : f32[] = neg %b\n}")


def values(op: str, dtype: DType, *args: list[object], out: DType | None = None) -> list[object]:
    """What a map gives on these elements."""
    out = out or dtype
    dtypes = [DType.BOOL, dtype, dtype] if op == "select" else [dtype] * len(args)
    buffers = {
        f"x{i}": np.array(arg).astype(kind.numpy) for i, (arg, kind) in enumerate(zip(args, dtypes, strict=True))
    }
    names = ", ".join(f"{name}: {kind.value} in" for name, kind in zip(buffers, dtypes, strict=True))
    loads = "\n".join(f"%{x} : {k.value}[i] = load {x}[i]" for x, k in zip(buffers, dtypes, strict=True))
    arguments = ", ".join(f"%{name}" for name in buffers)
    y = np.zeros(len(args[0]), out.numpy)
    text = f"""program p({names}, y: {out.value} out) {{
      grid i < {len(y)} step 4
      {loads}
      %r : {out.value}[i] = {op} {arguments}
      store y[i], %r
    }}"""
    run(text, y=y, **buffers)
    return y.tolist()


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("op", "dtype", "args", "expected"),
    [
        ("max", DType.F32, ([NAN, 1, -INF], [1, NAN, 2]), [NAN, NAN, 2]),
        ("min", DType.F64, ([NAN, 1, -INF], [1, NAN, 2]), [NAN, NAN, -INF]),
        ("add", DType.I32, ([2**31 - 1, 1], [1, 1]), [-(2**31), 2]),
        ("mul", DType.U8, ([16, 255], [16, 255]), [0, 1]),
        ("neg", DType.I64, ([-(2**63)],), [-(2**63)]),
        ("div", DType.I32, ([7, -7, 5, -(2**31)], [-2, 2, 0, -1]), [-3, -3, 0, -(2**31)]),
        ("mod", DType.I32, ([7, -7, 5], [-2, 2, 0]), [-1, 1, 0]),
        ("fmod", DType.I32, ([7, -7, 5], [-2, 2, 0]), [1, -1, 0]),
        ("shl", DType.I32, ([1, 1, 1], [31, 32, -1]), [-(2**31), 0, 0]),
        ("shr", DType.I32, ([-8, -8, 8], [1, 99, 99]), [-4, -1, 0]),
        ("round", DType.F32, ([0.5, 1.5, -2.5],), [0, 2, -2]),
        ("select", DType.I64, ([True, False], [1, 2], [3, 4]), [1, 4]),
        ("not", DType.BOOL, ([True, False],), [False, True]),
        ("xor", DType.BOOL, ([True, True], [True, False]), [False, True]),
    ],
)
def test_maps_are_the_reference(op: str, dtype: DType, args: tuple[list[object], ...], expected: list[object]) -> None:
    np.testing.assert_array_equal(values(op, dtype, *args), expected)


def test_comparisons_give_bool() -> None:
    assert values("lt", DType.F32, [1, 2, NAN], [2, 1, 1], out=DType.BOOL) == [True, False, False]
    assert values("le", DType.BOOL, [True, False], [False, False], out=DType.BOOL) == [False, True]


def moved(source: DType, through: DType, to: DType, numbers: list[float]) -> Array:
    """Numbers that are loaded as `through` and stored as `to`."""
    y = np.zeros(len(numbers), to.numpy)
    text = f"""program p(x: {source.value} in, y: {to.value} out) {{
      grid i < {len(numbers)} step 4
      %v : {through.value}[i] = load x[i]
      store y[i], %v
    }}"""
    run(text, x=np.array(numbers).astype(source.numpy), y=y)
    return y


def test_loads_and_stores_convert() -> None:
    np.testing.assert_array_equal(moved(DType.F16, DType.F32, DType.F16, [1.5, 65504, -INF]), [1.5, 65504, -INF])
    np.testing.assert_array_equal(moved(DType.F32, DType.F32, DType.F16, [1e6, 1 + 2.0**-11]), [INF, 1])
    np.testing.assert_array_equal(
        moved(DType.F32, DType.F32, DType.BF16, [1 + 2.0**-8]), np.ones(1, ml_dtypes.bfloat16)
    )
    np.testing.assert_array_equal(moved(DType.F32, DType.I32, DType.I64, [2.9, -2.9, 1e20]), [2, -2, -(2**31)])
    np.testing.assert_array_equal(moved(DType.I32, DType.U8, DType.F64, [-1, 300]), [255, 44])
    np.testing.assert_array_equal(moved(DType.F64, DType.BOOL, DType.I8, [0.5, 0, NAN]), [1, 0, 1])


def test_sixteen_bits_go_through_f32() -> None:
    """1 + 2^-11 + 2^-40 lies above the middle of two f16 numbers; as f32 it is the middle, and even wins."""
    np.testing.assert_array_equal(moved(DType.F64, DType.F64, DType.F16, [1 + 2.0**-11 + 2.0**-40]), [1.0])


@pytest.mark.parametrize(
    ("op", "dtype", "numbers", "expected"),
    [
        ("sum", DType.I32, [2**31 - 1, 1, 0, 0], -(2**31)),
        ("prod", DType.I64, [2, 3, 4, 5], 120),
        ("max", DType.F32, [1, NAN, 3, 2], NAN),
        ("min", DType.F32, [1, -INF, 3, 2], -INF),
        ("max", DType.BOOL, [False, True, False, False], True),
        ("and", DType.U8, [7, 6, 14, 255], 6),
        ("or", DType.BOOL, [False, False, False, False], False),
        ("sum", DType.F64, [1e16, 1, -1e16, 0], None),
    ],
)
def test_reductions(op: str, dtype: DType, numbers: list[float], expected: float | None) -> None:
    y = np.zeros(1, dtype.numpy)
    text = f"""program p(x: {dtype.value} in, y: {dtype.value} out) {{
      grid i < 4 step 4
      %v : {dtype.value}[i] = load x[i]
      %r : {dtype.value}[] = reduce {op} %v over i
      store y[0], %r
    }}"""
    run(text, x=np.array(numbers).astype(dtype.numpy), y=y)
    if expected is None:
        assert y[0] in (0, 1, 2)  # the order is open
    else:
        np.testing.assert_array_equal(y, [expected])


def test_dot_rounds_once_an_element_in_ascending_order() -> None:
    random = np.random.default_rng(0)
    a, b = random.standard_normal((2, 9)).astype(np.float32)
    y = np.zeros(1, np.float32)
    text = """program p(a: f32 in, b: f32 in, y: f32 out) {
      %o : f32[] = fill 0.0
      for k < 9 step 4 carry %s = %o {
        %a : f32[k] = load a[k]
        %b : f32[k] = load b[k]
        %n : f32[] = dot %a, %b, %s over k
        yield %n
      } -> %r
      store y[0], %r
    }"""
    run(text, a=a, b=b, y=y)
    total = np.float32(0)
    for left, right in zip(a, b, strict=True):
        total = nearest(Fraction(float(left)) * Fraction(float(right)) + Fraction(float(total)))
    assert y[0] == total


def nearest(exact: Fraction) -> np.float32:
    """The f32 nearest to an exact number, even of two."""
    guess = np.float32(float(exact))
    near = [guess, np.nextafter(guess, np.float32(np.inf)), np.nextafter(guess, np.float32(-np.inf))]
    return min(near, key=lambda x: (abs(Fraction(float(x)) - exact), int(x.view(np.int32)) & 1))


def test_dot_of_bytes_adds_up_in_i32() -> None:
    y = np.zeros(1, np.int32)
    text = """program p(a: u8 in, b: i8 in, y: i32 out) {
      grid k < 2 step 2
      %a : u8[k] = load a[k]
      %b : i8[k] = load b[k]
      %o : i32[] = fill 1
      %n : i32[] = dot %a, %b, %o over k
      store y[0], %n
    }"""
    run(text, a=np.array([255, 255], np.uint8), b=np.array([-128, 127], np.int8), y=y)
    assert y[0] == 255 * -128 + 255 * 127 + 1


# Pairs whose product ends just beside the middle of two f32 numbers: rounded to f64 first, they would fall on it.
_HARD = (1 + 2.0**-12, 1 - 2.0**-12, 1 + 2.0**-23, 2.0**-24, -(2.0**-24), 2.0**-60, -(2.0**-60), 2.0**24, 0.0, 3.0)


def test_fma_of_f32_rounds_once() -> None:
    a, b, c = (np.array(column, np.float32) for column in zip(*product(_HARD, _HARD, _HARD), strict=True))
    got = fma(a, b, c)
    for x, y, z, result in zip(a.tolist(), b.tolist(), c.tolist(), got, strict=True):
        assert result == nearest(Fraction(x) * Fraction(y) + Fraction(z)), (x, y, z)


_MODERATE = st.floats(-1e100, 1e100).filter(lambda x: x == 0 or abs(x) > 1e-100)


@given(_MODERATE, _MODERATE, _MODERATE)
def test_fma_of_f64_rounds_once(a: float, b: float, c: float) -> None:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    assert fma(np.array(a), np.array(b), np.array(c)) == float(exact)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fma_of_what_is_not_finite(dtype: type[np.floating]) -> None:
    special = [0.0, -0.0, 1.0, INF, -INF, NAN, float(np.finfo(dtype).max)]
    a, b, c = (np.array(column, dtype) for column in zip(*product(special, special, special), strict=True))
    with np.errstate(all="ignore"):
        want, got = (a.astype(np.longdouble) * b + c).astype(dtype), fma(a, b, c)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(want[want == 0]))
