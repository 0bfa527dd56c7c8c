"""Weights as programs get them: packed, aligned, and told of as they are copied."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tierup.ir.types import DType
from tierup.plan.packing import WORDS
from tierup.runtime import constants
from tierup.runtime.constants import bind_constants, pack_panels


def packed_slowly(matrix: Any, width: int) -> Any:
    rows, columns = matrix.shape
    expected = np.zeros((-(-columns // width), rows, width), matrix.dtype)
    for column in range(columns):
        expected[column // width, :, column % width] = matrix[:, column]
    return expected


@pytest.mark.parametrize("part_bytes", [64, 4 << 20], ids=["in parts", "at once"])
@pytest.mark.parametrize("layout", ["rows", "columns", "strided"])
def test_panels(layout: str, part_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "_PART_BYTES", part_bytes)
    for rows in (0, 1, 3, 64):
        for columns in (0, 1, 5, 16, 33, 64):
            stored = np.random.default_rng(rows).standard_normal((2 * rows, 3 * columns)).astype(np.float32)
            matrix = {
                "rows": stored[:rows, :columns].copy(),
                "columns": np.asfortranarray(stored[:rows, :columns]),
                "strided": stored[::2, ::3],
            }[layout]
            for width in (1, 4, 16, 48):
                packed = pack_panels(matrix, width)
                np.testing.assert_array_equal(packed, packed_slowly(matrix, width))
                assert packed.size == 0 or packed.ctypes.data % 64 == 0


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", [DType.F16, DType.BF16])
def test_panels_of_widened_elements(kind: DType, order: Any) -> None:
    matrix = np.array(np.random.default_rng(2).standard_normal((7, 21)), kind.numpy, order=order)
    packed = pack_panels(matrix, 4, form="f32")
    assert packed.dtype == np.float32
    np.testing.assert_array_equal(packed, packed_slowly(matrix.astype(np.float32), 4))
    with pytest.raises(ValueError, match="elements of int8 are not widened"):
        pack_panels(np.zeros((4, 4), np.int8), 4, form="f32")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("width", [1, 4, 48])
def test_panels_of_transformed_kernels(width: int, order: Any) -> None:
    """G g Gᵀ for each channel and column, exactly rounded: of small numbers every step is exact."""
    turn = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
    for channels, columns in itertools.product((0, 1, 5), (0, 1, 4, 50)):
        numbers = np.random.default_rng(columns).integers(-99, 99, (9 * channels, columns))
        matrix, told = np.array(numbers, np.float32, order=order), list[Any]()
        packed = pack_panels(matrix, width, told.append, "winograd")
        both = np.einsum("ai,bj,ijcn->abcn", turn, turn, numbers.reshape(3, 3, channels, columns))
        np.testing.assert_array_equal(packed, packed_slowly(both.reshape(16 * channels, columns).astype("f4"), width))
        assert sum(part.size for part in told) == matrix.size
        if channels:
            behind = pack_panels(np.concatenate([matrix, 2 * matrix]), width, form="2 winograd")
            np.testing.assert_array_equal(behind, np.concatenate([packed, 2 * packed], axis=1))
    with pytest.raises(ValueError, match="8 rows of float32 are no 1 · 3×3 kernels"):
        pack_panels(np.zeros((8, 4), np.float32), 4, form="winograd")
    with pytest.raises(ValueError, match="9 rows of float32 are no 2 · 3×3 kernels"):
        pack_panels(np.zeros((9, 4), np.float32), 4, form="2 winograd")


@pytest.mark.parametrize("part_bytes", [64, 4 << 20], ids=["in parts", "at once"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("form", ["bf16", "bytes", "summed bytes"])
def test_panels_of_words(form: str, order: Any, part_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Word (k, j) holds rows g·k … g·k + g - 1 of column j, the first in the lowest bits."""
    monkeypatch.setattr(constants, "_PART_BYTES", part_bytes)
    random, group = np.random.default_rng(4), WORDS[form]
    kinds = (np.float32,) if form == "bf16" else (np.int8, np.uint8)
    for rows, columns, width, kind in itertools.product((0, 4, 12, 40), (0, 1, 5, 33), (1, 4, 16), kinds):
        matrix = np.array(random.integers(-200, 200, (rows, columns)).astype(np.int16).astype(kind), order=order)
        matrix = matrix * kind(1.01) if form == "bf16" else matrix
        packed = pack_panels(matrix, width, form=form)
        assert packed.dtype == np.int32
        summed = form == "summed bytes"
        assert packed.shape == (-(-columns // width), rows // group + summed, width)
        small = matrix.astype(DType.BF16.numpy).view(np.uint16) if form == "bf16" else matrix.view(np.uint8)
        expected = np.zeros(packed.shape, np.int64)
        for row, column in np.ndindex(rows, columns):
            place = column // width, summed + row // group, column % width
            expected[place] += int(small[row, column]) << row % group * 32 // group
        for column in range(columns if summed else 0):
            factor = 128 if kind is np.uint8 else -128
            expected[column // width, 0, column % width] = factor * int(matrix[:, column].astype(int).sum())
        np.testing.assert_array_equal(packed, expected.astype(np.int32))


@pytest.mark.parametrize(("form", "kind", "rows"), [("bf16", np.float32, 3), ("bytes", np.int8, 6), ("x", np.int8, 4),
                                                   ("bytes", np.int16, 4)])  # fmt: skip
def test_what_cannot_be_words_is_refused(form: str, kind: Any, rows: int) -> None:
    with pytest.raises(ValueError, match="cannot be packed"):
        pack_panels(np.zeros((rows, 4), kind), 4, form=form)


@pytest.mark.parametrize("layout", ["C", "F"])
@pytest.mark.parametrize("columns", [0, 5, 16, 33])
def test_panels_of_groups(columns: int, layout: Any) -> None:
    """The panels of each group, side by side."""
    matrix = np.array(np.random.default_rng(0).standard_normal((7, 3 * columns)), np.float32, order=layout)
    packed = pack_panels(matrix, 16, form="3 groups")
    groups = [packed_slowly(matrix[:, group * columns : (group + 1) * columns], 16) for group in range(3)]
    np.testing.assert_array_equal(packed, np.stack(groups, axis=2))
    (bound,) = bind_constants([("w", 16, "3 groups")], {"w": matrix}).values()
    np.testing.assert_array_equal(bound, packed)


def test_groups_are_equal_in_width() -> None:
    with pytest.raises(ValueError, match="7 columns cannot be divided into 3 groups"):
        pack_panels(np.zeros((4, 7), np.float32), 16, form="3 groups")


@pytest.mark.parametrize("layout", ["C", "F"])
def test_every_part_is_told_of_once_it_is_copied(layout: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "_PART_BYTES", 1000)
    matrix = np.array(np.random.default_rng(0).standard_normal((37, 50)), np.float32, order=layout)
    told = np.zeros(matrix.nbytes, int)

    def done(part: Any) -> None:
        start = part.ctypes.data - matrix.ctypes.data
        told[start : start + part.nbytes] += 1

    pack_panels(matrix, 16, done)
    assert (told == 1).all()
    if layout == "C":
        told[:] = 0
        bind_constants([("w",)], {"w": matrix}, done=done)
        assert (told == 1).all()


def test_what_need_not_last_is_read_where_it_lies() -> None:
    """As in a trial: a large table in a file may begin at any byte."""
    table = {"large": np.zeros((1 << 21) + 1, np.uint8)[1:].view(np.float32), "small": np.zeros(10, np.float32)}
    large, small = bind_constants([("large",), ("small",)], table, most_bytes=1).values()
    assert large is table["large"]
    assert small is not table["small"]


def test_a_trial_packs_some_weights_and_uses_them_in_turn() -> None:
    layers = {f"layer{i}": np.full((64, 64), i, np.float32) for i in range(6)}
    table = {**layers, "wide": np.zeros((64, 128), np.float32), "turned": np.zeros((64, 64), np.float32).T}
    wanted = [(name, 16) for name in table]
    some = list(bind_constants(wanted, table, most_bytes=3 * 64 * 64 * 4).values())
    assert [int(array[0, 0, 0]) for array in some[:6]] == [0, 1, 0, 1, 0, 1]
    assert some[0] is some[2] is some[4]
    assert len({array.ctypes.data for array in some}) == 4  # one of every kind at least
    every = bind_constants(wanted, table, most_bytes=1 << 20)
    assert [int(array[0, 0, 0]) for array in list(every.values())[:6]] == list(range(6))
    assert list(every) == wanted


def test_what_is_copied_and_what_is_not() -> None:
    large, small = np.zeros(1 << 19, np.float32), np.zeros(10, np.float32)
    unaligned = np.zeros((1 << 21) + 1, np.uint8)[1:].view(np.float32)
    text = np.array(["a"], object)
    table = {"large": large, "small": small, "unaligned": unaligned, "text": text, "turned": np.zeros((600, 600)).T}
    bound = {name: array for (name,), array in bind_constants([(name,) for name in table], table).items()}
    assert bound["large"] is large
    assert bound["text"] is text
    for name in ("small", "unaligned", "turned"):
        assert not np.may_share_memory(bound[name], table[name])
        assert bound[name].ctypes.data % 64 == 0
        assert bound[name].flags.c_contiguous


def test_several_threads_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "_THREADED_BYTES", 0)
    random = np.random.default_rng(0)
    table = {str(n): random.standard_normal((20 + n, 30)).astype(np.float32) for n in range(20)}
    wanted: list[tuple[str | int, ...]] = [(name, 16) if int(name) % 2 else (name,) for name in table]
    once, threaded = (bind_constants(wanted, table, threads) for threads in (1, 3))
    for one, several in zip(once.values(), threaded.values(), strict=True):
        np.testing.assert_array_equal(one, several)


def test_an_error_in_a_thread_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "_THREADED_BYTES", 0)
    with pytest.raises(ValueError, match="1 axes cannot be packed"):
        bind_constants([("w", width) for width in range(4, 9)], {"w": np.zeros(3, np.float32)}, 3)


def test_what_is_known_is_shared() -> None:
    table = {"w": np.ones((3, 4), np.float32), "v": np.zeros(2, np.float32)}
    first = bind_constants([("w", 2), ("v",)], table)
    second = bind_constants([("v",), ("w", 4), ("w", 2)], table, known=first)
    assert list(second) == [("v",), ("w", 4), ("w", 2)]
    assert second["v",] is first["v",]
    assert second["w", 2] is first["w", 2]


def test_a_constant_that_is_listed_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="listed twice"):
        bind_constants([("v",), ("v",)], {"v": np.zeros(2, np.float32)})
