"""Weights -> the constants of a program: packed for kernels, aligned, and with nothing held twice."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from tierup.ir.types import Array, DType
from tierup.plan.packing import GROUPS, SUMMED, WIDENED, WINOGRAD, WORDS
from tierup.runtime.pages import HUGE_BYTES, large_room

_ALIGNMENT = 64
_COPIED_BYTES = 1 << 20  # below, a copy takes less memory than the pages that the kernel maps around a mapped array
_PART_BYTES = 4 << 20  # of a mapped weight that are in memory at once while it is packed
_THREADED_BYTES = 8 << 20  # of weights; below, starting a thread costs as much as it saves
_MAX_THREADS = 4

Done = Callable[[Array], None]
Constants = dict[tuple[str | int, ...], Array]  # by digest and packing


class WeightTable(Protocol):
    """Arrays by digest."""

    def __getitem__(self, digest: str, /) -> Array: ...


def bind_constants(
    constants: Sequence[Sequence[str | int]],
    weights: WeightTable,
    threads: int = 1,
    done: Done | None = None,
    known: Constants | None = None,
    most_bytes: int | None = None,
) -> Constants:
    """The arrays of constants, each given as a digest and its packing, in their order.

    `done` is told what was copied and when. What is `known` already is not made again. With `most_bytes`, they are for
    a program that is timed and gone: large ones that are not packed stay where the weights are, at any address, and of
    packed ones about so many bytes are made. Others get one that is alike, which takes as long to multiply with. New
    memory costs more than packing does, and a worker need not hold a large model once more.
    """
    known = known or {}
    wanted = [tuple(constant) for constant in constants]
    if len(set(wanted)) != len(wanted):
        raise ValueError("a constant is listed twice")
    missing = [constant for constant in wanted if constant not in known]
    made = dict(zip(missing, _bind_missing(missing, weights, threads, done, most_bytes), strict=True))
    return {constant: known[constant] if constant in known else made[constant] for constant in wanted}


def _bind_missing(
    constants: Sequence[Sequence[str | int]],
    weights: WeightTable,
    threads: int,
    done: Done | None,
    most_bytes: int | None,
) -> list[Array]:
    found = [weights[str(digest)] for digest, *_ in constants]  # checked before anything is copied
    arrays: list[Array | None] = [None] * len(constants)
    failed: list[BaseException] = []
    used = range(len(constants)) if most_bytes is None else _stand_ins(constants, found, most_bytes)
    largest_first = iter(sorted(set(used), key=lambda index: -found[index].nbytes))

    def work() -> None:
        try:
            for index in largest_first:  # shared: whoever is free takes the next
                arrays[index] = _bound(found[index], constants[index][1:], done or _nothing, most_bytes is None)
        except BaseException as error:
            failed.append(error)

    large = sum(array.nbytes for array in found) >= _THREADED_BYTES
    count = min(threads, _MAX_THREADS) if large else 1
    others = [threading.Thread(target=work, daemon=True) for _ in range(count - 1)]
    for thread in others:
        thread.start()
    work()
    for thread in others:
        thread.join()
    if failed:
        raise failed[0]
    return [array for index in used if (array := arrays[index]) is not None]


def _stand_ins(constants: Sequence[Sequence[str | int]], found: Sequence[Array], most_bytes: int) -> list[int]:
    """For each constant the one whose array it gets: itself, or of packed ones any that is alike, in turn, so that so
    many bytes are made, or few more."""
    packed = [index for index, (_, *packing) in enumerate(constants) if packing]
    share = most_bytes / max(sum(found[index].nbytes for index in packed), most_bytes)
    alike = dict[tuple[object, ...], list[int]]()
    for index in packed:
        array = found[index]
        alike.setdefault((array.shape, array.dtype, array.strides, *constants[index][1:]), []).append(index)
    used = list(range(len(constants)))
    for group in alike.values():
        made = math.ceil(share * len(group))
        for place, index in enumerate(group):
            used[index] = group[place % made]
    return used


def _nothing(_: Array) -> None:
    pass


def _bound(array: Array, packing: Sequence[str | int], done: Done, lasts: bool) -> Array:
    if packing:
        width, *form = packing
        return pack_panels(array, int(width), done, str(*form))
    if array.dtype.kind == "O":
        return array
    if (array.flags.aligned or not lasts) and array.flags.c_contiguous and array.nbytes > _COPIED_BYTES:
        return array
    copied = aligned_empty(array.shape, array.dtype)
    if not array.flags.c_contiguous:
        copied[...] = array
        return copied
    source, target, step = array.reshape(-1), copied.reshape(-1), _PART_BYTES // array.itemsize
    for start in range(0, array.size, step):
        part = source[start : start + step]
        target[start : start + step] = part
        done(part)
    return copied


def aligned_empty(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """Room for an array on a 64-byte border; for a large one where it can be in huge pages (`pages.py`)."""
    size = math.prod(shape) * dtype.itemsize
    room = large_room(size) if size >= HUGE_BYTES else None
    if room is None:
        raw = np.empty(size + _ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % _ALIGNMENT
        room = raw[start : start + size]
    return room.view(dtype).reshape(shape)


def pack_panels(matrix: Array, width: int, done: Done = _nothing, form: str = "") -> Array:
    """[K, N] as [panels, K, width], the last panel filled up with zeros, on a 64-byte border.

    With a form, as `plan/packing.py` describes it: words instead of elements, or columns of several groups.
    """
    if matrix.ndim != 2 or width < 1:
        raise ValueError(f"an array of {matrix.ndim} axes cannot be packed in panels of {width}")
    if form in GROUPS:
        return _pack_groups(matrix, width, GROUPS[form], done)
    if form in WINOGRAD:
        return _pack_transformed(matrix, width, WINOGRAD[form], done)
    if form and form != WIDENED:
        return _pack_words(matrix, width, form, done)
    if form and matrix.dtype not in (DType.F16.numpy, DType.BF16.numpy):
        raise ValueError(f"elements of {matrix.dtype} are not widened to f32")
    rows, columns = matrix.shape
    packed = aligned_empty((-(-columns // width), rows, width), DType.F32.numpy if form else matrix.dtype)
    if columns % width:
        packed[-1, :, columns % width :] = 0
    if matrix.size and matrix.T.flags.c_contiguous and not matrix.flags.c_contiguous:
        _pack_transposed(matrix, packed, done)
    elif matrix.size:
        _pack_rows(matrix, packed, done)
    return packed


def _pack_transformed(matrix: Array, width: int, kernels: int, done: Done) -> Array:
    """G g Gᵀ of every kernel, channel and column, a panel at a time: rounded once, as everything is computed in
    float64."""
    (rows, columns), stretches = matrix.shape, matrix.T.flags.c_contiguous
    if rows % (9 * kernels) or matrix.dtype != np.float32:
        raise ValueError(f"{rows} rows of {matrix.dtype} are no {kernels} · 3×3 kernels of f32")
    channels = rows // (9 * kernels)
    packed = aligned_empty((-(-columns // width), rows // 9 * 16, width), matrix.dtype)
    for panel, start in zip(packed, range(0, columns, width), strict=True):
        part = matrix[:, start : start + width]
        wide = part.astype(np.float64, order="C").reshape(kernels, 3, 3, channels, part.shape[1])
        for kernel, both in zip(wide, panel.reshape(kernels, 4, 4, channels, width), strict=True):
            once = _turned(kernel)
            both[..., : part.shape[1]] = _turned(once.swapaxes(0, 1)).swapaxes(0, 1)
            both[..., part.shape[1] :] = 0
        if stretches:
            done(part)
    if not stretches:
        done(matrix)
    return packed


def _turned(kernels: Array) -> Array:
    """G times the first axis."""
    first, middle, last = kernels
    turned = np.empty((4, *first.shape))
    turned[0], turned[3] = first, last
    half, between = 0.5 * (first + last), 0.5 * middle
    np.add(half, between, out=turned[1])
    np.subtract(half, between, out=turned[2])
    return turned


def _pack_groups(matrix: Array, width: int, groups: int, done: Done) -> Array:
    """The same columns of each group side by side: [K, groups · N] as [panels, K, groups, width]."""
    if matrix.shape[1] % groups:
        raise ValueError(f"{matrix.shape[1]} columns cannot be divided into {groups} groups")
    rows, columns = matrix.shape[0], matrix.shape[1] // groups
    packed = aligned_empty((-(-columns // width), rows, groups, width), matrix.dtype)
    for number, panel in enumerate(packed):
        part = matrix.reshape(rows, groups, columns)[:, :, number * width : (number + 1) * width]
        panel[:, :, : part.shape[2]] = part
        panel[:, :, part.shape[2] :] = 0
    done(matrix)
    return packed


def _pack_rows(matrix: Array, packed: Array, done: Done) -> None:
    """Some rows at a time, through all panels."""
    width, (rows, columns) = packed.shape[2], matrix.shape
    whole = columns // width
    step = max(1, _PART_BYTES // (columns * matrix.itemsize))
    for start in range(0, rows, step):
        part = matrix[start : start + step]
        panels = part[:, : whole * width].reshape(len(part), whole, width)
        packed[:whole, start : start + step] = panels.transpose(1, 0, 2)
        if columns % width:
            packed[whole, start : start + step, : columns % width] = part[:, whole * width :]
        done(part)


def _pack_transposed(matrix: Array, packed: Array, done: Done) -> None:
    """Panel by panel, since a panel is one stretch of the stored matrix. Through a copy whose rows are no power of two
    apart, or they would fall into the same cache set: 0.8 ns an element instead of 2.9 with 1024 rows."""
    stored, width = matrix.T, packed.shape[2]
    pad = _ALIGNMENT // matrix.itemsize
    staged = np.empty((width, stored.shape[1] + pad), matrix.dtype)[:, : stored.shape[1]]
    for panel, start in enumerate(range(0, len(stored), width)):
        part = stored[start : start + width]
        staged[: len(part)] = part
        packed[panel, :, : len(part)] = staged[: len(part)].T
        done(part)


def _pack_words(matrix: Array, width: int, form: str, done: Done) -> Array:
    """Some rows at a time: joined to rows of words, which are then packed as any others."""
    group, (rows, columns) = WORDS.get(form), matrix.shape
    if group is None or rows % group or (form != "bf16" and matrix.dtype not in (np.int8, np.uint8)):
        raise ValueError(f"{rows} rows of {matrix.dtype} cannot be packed as '{form[:40]}'")
    sums = form == SUMMED
    packed = aligned_empty((-(-columns // width), rows // group + sums, width), np.dtype(np.int32))
    packed[-1:, :, columns % width or width :] = 0
    step = group * max(1, _PART_BYTES // (max(columns, 1) * matrix.itemsize * group))
    for start in range(0, rows if columns else 0, step):
        part = matrix[start : start + step]
        first = sums + start // group
        _pack_rows(_words(part, group), packed[:, first : first + len(part) // group], _nothing)
        done(part)
    if sums and columns:
        factor = 128 if matrix.dtype == np.uint8 else -128
        total = factor * np.sum(matrix, axis=0, dtype=np.int32, keepdims=True)
        _pack_rows(np.asarray(total), packed[:, :1], _nothing)
    return packed


def _words(part: Array, group: int) -> Array:
    """Rows as rows of words, the first of each group in the lowest bits."""
    small = part.astype(DType.BF16.numpy).view(np.uint16) if group == 2 else part.view(np.uint8)
    words = np.ascontiguousarray(small[::group]).astype(np.uint32)
    for number in range(1, group):
        words |= small[number::group].astype(np.uint32) << np.uint32(number * 32 // group)
    return words.view(np.int32)
