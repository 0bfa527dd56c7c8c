"""The text of tile programs: golden, exact both ways, and errors that name their line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.lower.samples import layer_norm, matmul_bias_relu, softmax_rows
from tests.lower.strategies import Case, programs

from tierup.ir.types import DType
from tierup.lower.text import parse_program, print_program
from tierup.lower.tile import (
    Arg,
    Buffer,
    Check,
    Convert,
    Dot,
    Fill,
    Grid,
    Index,
    Load,
    Loop,
    Map,
    Position,
    Reduce,
    Statement,
    Store,
    Tile,
    TileProgram,
)

SAMPLES = (softmax_rows(), matmul_bias_relu(), layer_norm())
F32 = Tile(DType.F32)


def holding(*statements: Statement) -> TileProgram:
    return TileProgram("p", (Buffer("x", DType.F32),), 2, (), statements)


def line_of(statement: Statement) -> str:
    return print_program(holding(statement)).split("\n")[1].strip()


@pytest.mark.parametrize("program", SAMPLES, ids=lambda program: program.name)
def test_samples_look_like_this(program: TileProgram, golden: Callable[[str, str], None]) -> None:
    golden(f"tile_{program.name}", print_program(program))


@pytest.mark.parametrize("program", SAMPLES, ids=lambda program: program.name)
def test_samples_read_back(program: TileProgram) -> None:
    assert parse_program(print_program(program)) == program
    assert repr(program) == print_program(program)


@settings(max_examples=150, deadline=None)
@given(programs())
def test_any_program_reads_back(case: Case) -> None:
    assert parse_program(print_program(case.program)) == case.program


@pytest.mark.parametrize(
    ("statement", "line"),
    [
        (Fill("a", F32, 1.0), "%a : f32[] = fill 1.0"),
        (Fill("a", F32, 1), "%a : f32[] = fill 1"),
        (Fill("a", F32, -0.0), "%a : f32[] = fill -0.0"),
        (Fill("a", F32, 1e-300), "%a : f32[] = fill 1e-300"),
        (Fill("a", F32, float("-inf")), "%a : f32[] = fill -inf"),
        (Fill("a", F32, True), "%a : f32[] = fill true"),
        (Fill("a", F32, Arg(1)), "%a : f32[] = fill s1"),
        (Load("a", F32, "x", Index()), "%a : f32[] = load x[0]"),
        (Load("a", F32, "x", Index((), Arg(0))), "%a : f32[] = load x[s0]"),
        (Load("a", F32, "x", Index((("i", 1), ("j", -2)), 5), 1.0), "%a : f32[] = load x[i + j * -2 + 5] else 1.0"),
        (Load("a", F32, "x", Index((("i", 0),), -1), 0), "%a : f32[] = load x[i * 0 + -1] else 0"),
        (Load("a", F32, "x", Index((("i", 1),), 0), -0.0), "%a : f32[] = load x[i] else -0.0"),
        (
            Load("a", F32, "x", Index((("i", 1), ("j", 8)), Arg(0), (("i", Arg(1)),))),
            "%a : f32[] = load x[i + j * 8 + s0 starts i * s1]",
        ),
        (Load("a", F32, "x", Index((("s7", 1), ("i", Arg(3))))), "%a : f32[] = load x[s7 * 1 + i * s3]"),
        (
            Load("a", F32, "x", Index((("i", 4),), 7), 2.0, (("r", Arg(1)), ("0", 1))),
            "%a : f32[] = load x[%r * s1 + %0 + i * 4 + 7] else 2.0",
        ),
        (Load("a", F32, "x", Index(), at=(("inf", -1),)), '%a : f32[] = load x[%"inf" * -1]'),
        (Store("y", Index((("j", 1),)), "v", (("r", 3),)), "store y[%r * 3 + j], %v"),
        (Check("a", Arg(1)), "check %a < s1"),
        (Check("1", 0), "check %1 < 0"),
        (Position("a", Tile(DType.I64, ("i",)), "i"), "%a : i64[i] = position i"),
        (Map("0", Tile(DType.F32, ("i", "j")), "fma", ("1", "2", "3")), "%0 : f32[i, j] = fma %1, %2, %3"),
        (Map("a", F32, "fill", ("b",)), '%a : f32[] = "fill" %b'),
        (Map("a", F32, "odd one", ()), '%a : f32[] = "odd one"'),
        (Convert("a", F32, "b"), "%a : f32[] = convert %b"),
        (Reduce("a", F32, "sum", "b", "j"), "%a : f32[] = reduce sum %b over j"),
        (Dot("a", F32, "b", "c", "d", "k"), "%a : f32[] = dot %b, %c, %d over k"),
        (Store("y", Index((("i", Arg(0)),)), "inf"), 'store y[i * s0], %"inf"'),
        (Store('a "b"\n', Index((("ä", 1),)), "-1"), 'store "a \\"b\\"\\n"["\\u00e4"], %"-1"'),
    ],
)
def test_each_statement_is_a_line_and_reads_back(statement: Statement, line: str) -> None:
    assert line_of(statement) == line
    (read,) = parse_program(print_program(holding(statement))).body
    assert read == statement
    assert line_of(read) == line  # 1, 1.0 and true are equal, but not the same


def test_terms_of_an_address_may_stand_in_any_order() -> None:
    text = "program p() {\nstore y[7 + i * 2 + %b + j + %a * s0 starts i * 1], %v\n}"
    index = Index((("i", 2), ("j", 1)), 7, (("i", 1),))
    assert parse_program(text).body == (Store("y", index, "v", (("b", 1), ("a", Arg(0)))),)


def test_nan_reads_back() -> None:
    text = print_program(holding(Fill("a", F32, float("nan")), Load("b", F32, "x", Index(), float("nan"))))
    assert "fill nan" in text
    assert "else nan" in text
    assert print_program(parse_program(text)) == text


@pytest.mark.parametrize(
    ("loop", "first", "last"),
    [
        (Loop("i", 4, 2, ()), "for i < 4 step 2 {", "}"),
        (Loop("i", Arg(0), 2, (), begin=Arg(1), exact=True), "for i < s0 step 2 from s1 exact {", "}"),
        (Loop("i", 3, 1, (), when="bad"), "for i < 3 step 1 when %bad {", "}"),
        (
            Loop("i", 4, 1, (), (("a", "b"), ("c", "d")), ("e", "f"), ("g", "h")),
            "for i < 4 step 1 carry %a = %b, %c = %d {",
            "} -> %g, %h",
        ),
        (
            Loop("i", 4, 1, (), (("a", "b"), ("c", "d")), ("e", "f"), ("g", "h"), sums=("a", "c"), block=3),
            "for i < 4 step 1 carry %a = %b, %c = %d sums %a, %c by 3 {",
            "} -> %g, %h",
        ),
        (Loop("i", 4, 1, (Loop("j", 1, 1, ()),), (), (), ("g",)), "for i < 4 step 1 {", "} -> %g"),
    ],
)
def test_each_loop_reads_back(loop: Loop, first: str, last: str) -> None:
    text = print_program(holding(loop))
    lines = [line.strip() for line in text.strip().split("\n")]
    assert (lines[1], lines[-2]) == (first, last)
    assert parse_program(text).body == (loop,)


def test_a_program_without_anything_reads_back() -> None:
    empty = TileProgram("nothing", (), 0, (), ())
    assert print_program(empty) == "program nothing() {\n}\n"
    full = replace(empty, name="odd name", n_sizes=3, grid=(Grid("i", 3, 1), Grid("j", Arg(2), 4)), vector=("i", "j"))
    assert parse_program(print_program(empty)) == empty
    assert parse_program(print_program(full)) == full


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "line 1: the text ends before its program does"),
        ("program p() {", "line 1: the text ends"),
        ("graph p() {\n}", "line 1: expected 'program', found 'graph'"),
        ("program p(x: f99 in) {\n}", "line 1: 'f99' is no dtype"),
        ("program p() sizes s1 {\n}", "line 1: expected a int"),
        ("program p() {\n}\n}", "line 3: there is more after the program"),
        ("program p() {\n}\n\n\n%", "line 5: there is more"),
        ("program p() {\n%a : f32[] = fill\n}", "line 2: expected a size, but the line ends"),
        ("program p() {\n%a : f32[] = fill 1.0 2.0\n}", "line 2: '2.0' is too much"),
        ("program p() {\n%a : f32[] = load x[3 + s1]\n}", "line 2: an address has one offset"),
        ("program p() {\n%a : f32[] = load x[i +]\n}", "line 2: expected a word or a text, found ']'"),
        ("program p() {\n%a : f32[] = load x[i] else s1\n}", "line 2: expected a number, not a size"),
        ("program p() {\n%a : f32[] = dot %b, %c over k\n}", "line 2: dot takes three values, not 2"),
        ("program p() {\nfor i < 4 step 1 {\nyield %a\nstore x[0], %a\n}\n}", "line 4: 'yield' is the last line"),
        ("program p() {\nyield %a\n}", "line 2: only loops yield"),
        ("program p() {\ncheck %a\n}", "line 2: expected '<', but the line ends"),
        ("program p() {\ncheck %a < b\n}", "line 2: expected a size, found 'b'"),
        ("program p() {\nstore x[% + 1], %a\n}", r"line 2: expected a word or a text, found '\+'"),
        ("program p() {\nstore x[i starts %a * 1], %a\n}", "line 2: expected a word or a text, found '%'"),
        ("program p() {\nstore x[0], %a\ngrid i < 4 step 1\n}", "line 3: the grid comes before the statements"),
        ("program p() {\nstore x[0], $a\n}", r"line 2: ' \$a' cannot be read"),
        (f"program p() sizes {'9' * 5000} {{\n}}", "line 1: '99999999999999999999' is no number"),
        (f"program p() {{\n%a : i64[] = fill s{'9' * 5000}\n}}", "line 2: 's9999999999999999999' is no size"),
        ("program p() {\n" + "for i < 4 step 1 {\n" * 101, "line 102: loops are nested more than 100 deep"),
        ('program "\\q"() {\n}', r"line 1: \"\\q\" is no JSON string"),
    ],
)
def test_errors_name_their_line(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        parse_program(text)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(SAMPLES), st.data())
def test_damaged_text_is_refused_or_read_but_nothing_else(program: TileProgram, data: st.DataObject) -> None:
    text = print_program(program)
    at = data.draw(st.integers(0, len(text)))
    damaged = text[:at] + data.draw(st.text(max_size=3)) + text[at + data.draw(st.integers(0, 4)) :]
    try:
        read = parse_program(damaged)
    except ValueError:
        return
    assert parse_program(print_program(read)) == read
