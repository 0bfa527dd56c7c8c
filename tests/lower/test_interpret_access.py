"""The interpreter's loads and stores: strides, panels, tiles that addresses add, checks, and what lies outside."""

from __future__ import annotations

import numpy as np
import pytest

from tierup.ir.types import Array
from tierup.lower.interpret import CheckError, interpret
from tierup.lower.text import parse_program


def run(text: str, sizes: tuple[int, ...] = (), **buffers: Array) -> None:
    interpret(parse_program(text), buffers, sizes)


@pytest.mark.parametrize(
    ("strides", "offset", "expected"),
    [
        ((3, 1), 0, [[0, 1, 2], [3, 4, 5]]),
        ((1, 2), 0, [[0, 2, 4], [1, 3, 5]]),
        ((0, 1), 2, [[2, 3, 4], [2, 3, 4]]),
        ((-3, 1), 3, [[3, 4, 5], [0, 1, 2]]),
        ((3, -1), 2, [[2, 1, 0], [5, 4, 3]]),
        ((0, 0), 5, [[5, 5, 5], [5, 5, 5]]),
    ],
)
@pytest.mark.parametrize("steps", [(1, 1), (4, 2)])
def test_strides_and_offsets(
    strides: tuple[int, int], offset: int, expected: list[list[int]], steps: tuple[int, int]
) -> None:
    y = np.full(6, -1, np.int64)
    text = f"""program p(x: i64 in, y: i64 out) sizes 3 {{
      grid i < 2 step {steps[0]}
      grid j < 3 step {steps[1]}
      %v : i64[i, j] = load x[i * s0 + j * s1 + s2]
      store y[i * 3 + j], %v
    }}"""
    run(text, (*strides, offset), x=np.arange(6), y=y)
    np.testing.assert_array_equal(y.reshape(2, 3), expected)


def test_panels_count_positions_and_elements_apart() -> None:
    """Columns of a 3 x 5 matrix in panels of 2: panel p holds rows of columns 2p and 2p + 1."""
    matrix = np.arange(15).reshape(3, 5)
    panels = np.pad(matrix, ((0, 0), (0, 1))).reshape(3, 3, 2).transpose(1, 0, 2)
    y = np.zeros(15, np.int64)
    text = """program p(x: i64 in, y: i64 out) sizes 1 {
      grid j < 5 step 2
      for k < s0 step 1 {
        %v : i64[k, j] = load x[j + k * 2 starts j * s0]
        store y[k * 5 + j], %v
      }
    }"""
    run(text, (3,), x=np.ascontiguousarray(panels).reshape(-1), y=y)
    np.testing.assert_array_equal(y.reshape(3, 5), matrix)


def test_addresses_add_tiles() -> None:
    """y[i, j] = x[r[j], s[i, j]]: one stride is 4, and the axes of s come in another order."""
    x, r = np.arange(12), np.array([2, 0, 1], np.int32)
    s = np.array([[3, 0, 1], [2, 2, 0]])
    y = np.zeros(6, np.int64)
    text = """program p(x: i64 in, r: i32 in, s: i64 in, y: i64 out) {
      grid i < 2 step 4
      grid j < 3 step 2
      %r : i32[j] = load r[j] else -7
      %s : i64[j, i] = load s[i * 3 + j] else 99
      %v : i64[i, j] = load x[%r * 4 + %s]
      store y[i * 3 + j], %v
    }"""
    run(text, x=x, r=r, s=s.reshape(-1), y=y)
    np.testing.assert_array_equal(y.reshape(2, 3), x.reshape(3, 4)[r, s])


def test_scatter() -> None:
    y, r = np.zeros(12, np.int64), np.array([2, 0, 1])
    text = """program p(r: i64 in, y: i64 out) {
      grid i < 4 step 4
      grid j < 3 step 2
      %r : i64[j] = load r[j] else -7
      %i : i64[i] = position i
      %j : i64[j] = position j
      %v : i64[i, j] = add %i, %j
      store y[%r * 4 + i], %v
    }"""
    run(text, r=r, y=y)
    np.testing.assert_array_equal(y.reshape(3, 4)[r], np.arange(4) + np.arange(3)[:, None])


@pytest.mark.parametrize(
    ("numbers", "extent", "error"),
    [
        ([0, 4, 2, 1, 3], 5, None),
        ([0, 4, 2, 1, 5], 5, r"'check %v < s0' at i = 4: 5 is not within \[0, 5\)"),
        ([0, -1, 2, 1, 3], 5, r"at i = 0: -1 is not within \[0, 5\)"),
        ([0, 0, 0, 0, 0], 0, r"0 is not within \[0, 0\)"),
        ([0, 0, 0, 0, 0], -2, r"0 is not within \[0, -2\)"),
    ],
)
def test_checks(numbers: list[int], extent: int, error: str | None) -> None:
    text = """program p(x: i64 in) sizes 1 {
      grid i < 5 step 4
      %v : i64[i] = load x[i] else -1
      check %v < s0
    }"""
    if error is None:
        run(text, (extent,), x=np.array(numbers))
    else:
        with pytest.raises(CheckError, match=error):
            run(text, (extent,), x=np.array(numbers))


def test_a_check_behind_a_loop_looks_at_the_whole_tile() -> None:
    text = """program p() sizes 1 {
      %c : i64[j] = fill 9
      %n : i64[j] = fill 0
      for j < s0 step 4 carry %o = %c {
        check %n < 1
        yield %n
      } -> %r
      check %r < 9
    }"""
    run(text, (4,))
    with pytest.raises(CheckError, match="9 is not within"):
        run(text, (3,))


@pytest.mark.parametrize(
    ("access", "size", "error"),
    [
        ("%v : f32[i] = load x[i + 1]", 8, r"'%v : f32\[i\] = load x\[i \+ 1\]' at i = 4: addresses 5 to 8 are not"),
        ("%v : f32[i] = load x[i]", 9, "at i = 8: addresses 8 to 8"),
        ("%v : f32[i] = load x[i * -1 + 6]", 8, "at i = 4: addresses -1 to 2"),
        ("%v : f32[] = load x[i * 2 + 1]", 8, "at i = 4: addresses 9 to 9"),
        ("%v : f32[] = load x[-1]", 1, "addresses -1 to -1"),
        ("%v : f32[i] = load x[i * 9223372036854775807]", 2, "addresses 0 to 9223372036854775807"),
        ("%n : i64[i] = fill 9223372036854775807\n%v : f32[i] = load x[%n * 2 + i]", 2, "18446744073709551614 to"),
        ("%n : i64[i] = fill -1\n%v : f32[i] = load x[%n + i]", 2, r"'.* = load x\[%n \+ i\]' at i = 0: addresses -1"),
        ("%v : f32[i] = fill 0.0\nstore y[i], %v", 8, "'store y.*addresses 4 to 7 are not all within 'y'"),
    ],
)
def test_addresses_outside_are_found(access: str, size: int, error: str) -> None:
    buffers = {"x": np.zeros(8, np.float32), "y": np.ones(7, np.float32)}
    text = f"program p(x: f32 in, y: f32 out) sizes 1 {{\ngrid i < s0 step 4\n{access}\n}}"
    with pytest.raises(IndexError, match=error):
        run(text, (size,), **buffers)
    assert buffers["y"][4:].all()
