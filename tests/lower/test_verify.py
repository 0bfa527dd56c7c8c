"""The verifier: what it lets through, and one program for each rule that it must not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from msgspec.structs import replace
from tests.lower.samples import layer_norm, matmul_bias_relu, softmax_rows
from tests.lower.strategies import Case, programs

from tierup.errors import TierupError
from tierup.ir.types import DType
from tierup.lower.text import parse_program
from tierup.lower.tile import Arg, Buffer, Fill, Grid, Index, Load, Loop, Position, Tile, TileProgram
from tierup.lower.verify import DEPTH_LIMIT, STATEMENT_LIMIT, TileError, verify

HEAD = "program p(x: f32 in, n: i32 in, h: f16 in, y: f32 out, t: f32 scratch) sizes 2 vector j {\n"
GRID = "grid i < s0 step 4\ngrid j < s1 step 8\n"


def program(lines: str, grid: str = GRID) -> TileProgram:
    return parse_program(f"{HEAD}{grid}{lines}\n}}")


@settings(max_examples=150, deadline=None)
@given(programs())
def test_what_the_strategy_makes_is_valid(case: Case) -> None:
    verify(case.program)


@pytest.mark.parametrize("sample", [softmax_rows(), matmul_bias_relu(8, 48, 4), layer_norm(3, 16)])
def test_samples_are_valid(sample: TileProgram) -> None:
    verify(sample)


@pytest.mark.parametrize(
    "lines",
    [
        "%a : f32[i, j] = load h[i * s1 + j] else nan",
        "%a : f64[j, i] = load n[i * s1 + j] else -1",
        "%a : bool[] = load n[i * s1 + j]\n%b : bool[] = not %a",
        "%a : i32[] = fill 2.0",
        "%a : f32[i] = fill s1",
        "%a : f32[] = fill 2\nstore y[i + j], %a\n%b : f32[] = load y[i]\nstore t[0], %b\n%c : f32[] = load t[0]",
        "%a : f32[i] = fill 0.0\n%b : f32[j] = fill 0.0\n%c : f32[j, i] = add %a, %b\n%d : bool[j, i] = lt %a, %c",
        "%a : i64[k] = fill 0\nfor k < 3 step 2 {\n%b : i64[k] = position k\n%c : i64[k] = mod %b, %a\n}",
        "for k < 3 step 2 {\n}\nfor k < s0 step 2 from 1 {\n}",
        "%a : bool[] = fill true\nfor k < s0 step 1 when %a {\n}",
        "%a : f32[i] = fill 0.0\nstore y[i + j * 4 starts i * s0], %a",
        "%a : i32[j] = load n[j]\ncheck %a < s0\n%b : f32[i, j] = load x[%a * s1 + i]\nstore y[%a * 4 + i], %b",
        "%a : i64[j, i] = load n[i + j * 4]\n%b : f32[i, j] = load x[%a]\nstore y[%a + j * 0], %b\ncheck %a < -1",
        "%a : i64[] = fill 1\n%b : f32[] = load x[%a * 0 + %a * s1 + 7]",
        "%a : i32[i] = fill 1\n%b : i32[j] = fill -1\n%c : f32[] = fill 0.0\n%d : f32[i, j] = dot_bf16 %a, %b, %c",
        "%a : i32[i] = fill 1\n%b : i32[j] = fill -1\n%d : i32[i, j] = dot_bytes %a, %b, %b",
        "%a : u8[i] = fill 1\n%b : i8[i, j] = fill -1\n%c : i32[j] = fill 0\n%d : i32[j] = dot %a, %b, %c over i",
    ],
)
def test_valid(lines: str) -> None:
    verify(program(lines))


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        # names
        ("%b : f32[] = neg %a", r"'%b : f32\[\] = neg %a': %a is not defined"),
        ("%a : f32[] = fill 0.0\n%a : f32[] = fill 0.0", "%a is defined already"),
        ("for k < 3 step 1 {\n%a : f32[] = fill 0.0\n}\n%b : f32[] = neg %a", "%a is not visible here"),
        ("for k < 3 step 1 {\n%a : f32[] = fill 0.0\n}\nfor l < 3 step 1 {\n%a : f32[] = fill 0.0\n}", "already"),
        ("%a : f32[] = fill 0.0\nfor k < 3 step 1 carry %a = %a {\nyield %a\n} -> %b", "%a is defined already"),
        ('%"a b" : f32[] = fill 0.0', "the name 'a b' is no word"),
        # tiles
        ("%a : f16[] = fill 0.0", "a tile cannot hold f16"),
        ("%a : str[] = fill 0.0", "a tile cannot hold str|0.0 is no str"),
        ("%a : f32[k] = fill 0.0", "there is no axis 'k'"),
        ("%a : f32[i, i] = fill 0.0", "has an axis twice"),
        ("%a : f32[k, l] = fill 0.0\nfor k < 9 step 1024 {\n}\nfor l < 9 step 65 {\n}", "has 66560 elements"),
        # literals
        ("%a : u8[] = fill 256", "256 is no u8"),
        ("%a : i32[] = fill 0.5", "0.5 is no i32"),
        ("%a : i32[] = fill inf", "inf is no i32"),
        ("%a : i32[] = fill nan", "nan is no i32"),
        ("%a : i32[] = fill true", "True is no i32"),
        ("%a : bool[] = fill 2", "2 is no bool"),
        ("%a : i64[] = fill 2\nfor k < 3 step 1 when %a {\n}", "%a is no bool without axes"),
        ("%a : bool[] = fill true\nfor k < s0 step 2 when %a {\n}", "its last step may be ragged"),
        ("%a : u8[] = load n[0] else -1", "-1 is no u8"),
        ("%a : i64[] = fill s2", "there is no size s2"),
        # addresses
        ("%a : f32[] = load z[0]", "there is no buffer 'z'"),
        ("%a : f32[] = load x[k]", "counts by 'k', but no such loop is around it"),
        ("%a : f32[k] = fill 0.0\nfor k < 3 step 1 {\n}\nstore y[k], %a", "counts by 'k', but no such loop"),
        ("%a : f32[i, j] = load x[i]", "gives elements along 'j' no place"),
        ("%a : f32[i, j] = fill 0.0\nstore y[j], %a", "gives elements along 'i' no place"),
        ("%a : f32[j] = fill 0.0\nstore y[j * 0], %a", "elements along 'j' are written to one place"),
        ("%a : f32[] = load x[i + i * 2]", "names an axis twice"),
        ("%a : f32[] = load x[i * s2]", "there is no size s2"),
        ("%a : f32[] = load x[s2]", "there is no size s2"),
        ("%a : f32[] = load x[9223372036854775808]", "is no 64-bit integer"),
        ("%a : f32[] = load x[i starts j * 2]", "starts 'j', which it does not count by"),
        ("%a : f32[] = load x[i starts i * 2, i * 3]", "starts an axis twice"),
        ("%a : f32[] = load x[i starts i * s5]", "there is no size s5"),
        ("%a : f32[] = fill 0.0\nstore x[0], %a", "'x' is an input, and not written"),
        ("store y[0], %a", "%a is not defined"),
        ("%a : f32[] = load x[%b]", "%b is not defined"),
        ("%a : f32[] = fill 0.0\n%b : f32[] = load x[%a]", "%a, which the address adds, is neither i32 nor i64"),
        ("%a : u32[] = fill 0\n%b : f32[] = load x[%a]", "%a, which the address adds, is neither i32 nor i64"),
        ("%a : i64[i] = fill 0\n%b : f32[j] = load x[%a + j]", r"%a is i64\[i\], and has axes that the access has not"),
        ("%a : i64[i] = fill 0\n%b : f32[i, j] = load x[%a]", "gives elements along 'j' no place"),
        ("%a : i64[i] = fill 0\n%b : f32[i] = load x[%a * s2]", "there is no size s2"),
        ("%a : i64[i] = fill 0\n%b : f32[i, j] = fill 0.0\nstore y[%a + j * 0], %b", "along 'j' are written to one"),
        ("%a : i64[k] = fill 0\nfor k < 3 step 1 {\n}\n%b : f32[k] = load x[%a]", "elements along 'k', but no such"),
        # checks
        ("check %a < 3", "%a is not defined"),
        ("%a : i64[i] = fill 0\ncheck %a < s2", "there is no size s2"),
        ("%a : f32[i] = fill 0\ncheck %a < 3", "%a is neither i32 nor i64"),
        ("%a : u8[i] = fill 0\ncheck %a < 3", "%a is neither i32 nor i64"),
        # positions
        ("%a : i64[k] = position k", "there is no loop over 'k' around it"),
        ("%a : i64[] = position i", "has this axis alone"),
        ("%a : f32[i] = position i", "a position is an i32 or an i64"),
        # maps
        ("%a : f32[] = fill 0.0\n%b : f32[] = relu %a", "there is no operation 'relu'"),
        ("%a : f32[] = fill 0.0\n%b : f32[] = add %a", "add takes 2 values, not 1"),
        ("%a : f32[i] = fill 0.0\n%b : f32[] = neg %a", r"the axes of the result are \[i\]"),
        ("%a : f32[i] = fill 0.0\n%b : f32[i, j] = neg %a", r"the axes of the result are \[i\]"),
        ("%a : f32[i, j] = fill 0.0\n%b : f32[j, i] = neg %a", r"has the axes \[i, j\] in another order"),
        ("%a : f32[] = fill 0.0\n%b : f64[] = neg %a", "the result is f32, not f64"),
        ("%a : f32[] = fill 0.0\n%b : f32[] = lt %a, %a", "the result is bool, not f32"),
        ("%a : f32[] = fill 0.0\n%b : i32[] = fill 0\n%c : f32[] = add %a, %b", "the dtypes differ: f32, i32"),
        ("%a : f32[] = fill 0.0\n%b : f32[] = select %a, %a, %a", "select takes a bool first"),
        ("%a : f32[] = fill 0.0\n%b : f32[] = and %a, %a", "and is not defined for f32"),
        ("%a : f32[] = fill 0.0\n%b : f32[] = mod %a, %a", "mod is not defined for f32"),
        ("%a : i32[] = fill 0\n%b : i32[] = exp %a", "exp is not defined for i32"),
        ("%a : bool[] = fill true\n%b : bool[] = add %a, %a", "add is not defined for bool"),
        ("%a : f32[i] = fill 0.0\n%b : i32[] = convert %a", r"%a is f32\[i\]"),
        # words
        ("%a : i32[] = fill 0\n%b : i32[] = dot_bf16 %a, %a, %a", "dot_bf16 adds to f32"),
        ("%a : f32[] = fill 0.0\nstore y[0], %a flush", "'y' is not of bf16"),
        ("%a : f32[] = fill 0.0\n%b : f32[] = dot_bf16 %a, %a, %a", "takes two words of i32 first"),
        ("%a : i32[] = fill 0\n%c : i64[] = fill 0\n%b : i64[] = dot_bytes %a, %a, %c", "dot_bytes adds to i32"),
        ("%a : i32[] = fill 0\n%c : f32[] = fill 0.0\n%b : i32[] = dot_bf16 %a, %a, %c", "the result is f32"),
        # reductions and dots
        ("%a : f32[i] = fill 0.0\n%b : f32[] = reduce sum %a over j", r"f32\[i\] has no axis 'j'"),
        ("%a : f32[i] = fill 0.0\n%b : f32[i] = reduce sum %a over i", r"the result is f32\[\]"),
        ("%a : f32[i] = fill 0.0\n%b : f64[] = reduce sum %a over i", r"the result is f32\[\]"),
        ("%a : f32[i] = fill 0.0\n%b : f32[] = reduce mean %a over i", "there is no reduction 'mean'"),
        ("%a : f32[i] = fill 0.0\n%b : f32[] = reduce and %a over i", "and is not defined for f32"),
        ("%a : f32[i] = fill 0.0\n%c : f32[j] = fill 0.0\n%d : f32[j] = dot %a, %c, %c over i", "has no axis 'i'"),
        ("%a : f32[i] = fill 0.0\n%c : f32[] = fill 0.0\n%d : f32[i] = dot %a, %a, %c over i", "what it adds to"),
        ("%a : f32[i] = fill 0.0\n%c : f32[j] = fill 0.0\n%d : f32[j] = dot %a, %a, %c over i", "the axes of the"),
        ("%a : f32[i] = fill 0.0\n%c : f64[] = fill 0.0\n%d : f64[] = dot %a, %a, %c over i", "the dtypes differ"),
        ("%a : u8[i] = fill 0\n%c : u8[] = fill 0\n%d : u8[] = dot %a, %a, %c over i", "bytes add up in i32"),
        ("%a : bool[i] = fill 0\n%c : bool[] = fill 0\n%d : bool[] = dot %a, %a, %c over i", "not defined for bool"),
        # loops
        ("for i < 3 step 4 {\n}", "there is a loop over 'i' around it already"),
        ("for k < 3 step 1 {\nfor k < 3 step 1 {\n}\n}", "there is a loop over 'k' around it already"),
        ("for k < 3 step 1 {\n}\nfor k < 3 step 2 {\n}", "'k' has the steps [12] and [12]"),
        ("for k < 3 step 0 {\n}", "the step of 'k' is 0"),
        ("for k < -3 step 1 {\n}", "'k' begins or ends at -3, below 0"),
        ("for k < 3 step 1 from -1 {\n}", "'k' begins or ends at -1, below 0"),
        ("for k < s2 step 1 {\n}", "there is no size s2"),
        ("for s0 < 3 step 1 {\n}", "the axis name 's0' reads like a size"),
        ("for k < 3 step 1 carry %b = %a {\nyield %b\n} -> %c", "%a is not defined"),
        (
            "%a : f32[] = fill 0.0\nfor k < 3 step 1 carry %b = %a {\nyield %b\n}",
            "1 values, yields 1 and has 0 results",
        ),
        ("%a : f32[] = fill 0.0\nfor k < 3 step 1 carry %b = %a {\n} -> %c", "1 values, yields 0 and has 1"),
        (
            "%a : f32[] = fill 0.0\nfor k < 3 step 1 carry %b = %a {\n%c : f32[i] = fill 0.0\nyield %c\n} -> %d",
            r"it carries f32\[\], but yields %c: f32\[i\]",
        ),
        ("%a : f32[] = fill 0.0\nfor k < 3 step 1 carry %b = %a {\nyield %e\n} -> %c", "%e is not defined"),
        (
            "%a : f32[] = fill 0.0\nfor k < 3 step 1 carry %b = %a sums %a by 2 {\nyield %b\n} -> %c",
            "%a is no value that it carries",
        ),
        (
            "%a : i32[] = fill 0\nfor k < 3 step 1 carry %b = %a sums %b by 2 {\nyield %b\n} -> %c",
            "%b is no float",
        ),
        (
            "%a : f32[] = fill 0.0\nfor k < 3 step 1 carry %b = %a sums %b by 0 {\nyield %b\n} -> %c",
            "its sums begin anew after 0 rounds",
        ),
    ],
)
def test_invalid(lines: str, error: str) -> None:
    with pytest.raises(TileError, match=error):
        verify(program(lines))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"name": "a-b"}, "its name is no word"),
        ({"n_sizes": -1}, "there can be 0 to 1024 sizes"),
        ({"vector": ("k",)}, "there is no axis 'k' to lay out as a vector"),
        ({"vector": ("i", "i")}, "named twice"),
        ({"grid": (Grid("i", 4, 0),)}, "the step of 'i' is 0"),
        ({"grid": (Grid("i", 4, 1), Grid("i", 4, 1))}, "a loop over 'i' around it already"),
        ({"grid": (Grid("i", Arg(3), 1),)}, "there is no size s3"),
        ({"buffers": (Buffer("x", DType.F32), Buffer("x", DType.F32))}, "'x' is declared twice"),
        ({"buffers": (Buffer("x", DType.F32, "inout"),)}, "'x' is none of in, out, scratch"),
        ({"buffers": (Buffer("x", DType.C64),)}, "'x' cannot hold c64"),
        ({"buffers": (Buffer("a b", DType.F32),)}, "name 'a b' is no word"),
        ({"body": (Fill("a", Tile(DType.F32), 0.0),) * (STATEMENT_LIMIT + 1)}, "more than 10000 statements"),
    ],
)
def test_invalid_frame(change: dict[str, object], error: str) -> None:
    valid = TileProgram("p", (), 1, (Grid("i", 4, 1),), ())
    verify(valid)
    with pytest.raises(TileError, match=error):
        verify(replace(valid, **change))  # type: ignore[arg-type]


def test_nesting_is_bounded_however_deep() -> None:
    loop = Loop("k0", 1, 1, ())
    for depth in range(1, DEPTH_LIMIT):
        loop = Loop(f"k{depth}", 1, 1, (loop,))
    verify(TileProgram("p", (), 0, (), (loop,)))
    for wrong in (TileProgram("p", (), 0, (Grid("i", 1, 1),), (loop,)), TileProgram("p", (), 0, (), (deep(5000),))):
        with pytest.raises(TileError, match="nest more than 16 deep"):
            verify(wrong)


def deep(count: int) -> Loop:
    loop = Loop("k", 1, 1, ())
    for _ in range(count):
        loop = Loop("k", 1, 1, (loop,))
    return loop


def test_the_error_is_one_of_ours_and_short() -> None:
    terms = tuple((f"axis{number}", number) for number in range(500))
    wrong = TileProgram("p", (Buffer("x", DType.F32),), 0, (), (Load("a", Tile(DType.F32), "x", Index(terms)),))
    with pytest.raises(TierupError) as caught:
        verify(wrong)
    assert isinstance(caught.value, ValueError)
    assert len(str(caught.value)) < 300


def test_positions_need_their_loop_around() -> None:
    inside = Loop("k", 3, 2, (Position("a", Tile(DType.I32, ("k",)), "k"),))
    verify(TileProgram("p", (), 0, (), (inside,)))
