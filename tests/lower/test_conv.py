"""Convolutions on words of bytes and of bf16: the interpreter of tile programs against the reference."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from tests.lower.cuts import CutRun
from tests.rewrite.graphs import Build, const, ints, made

from tierup.ir.build import GraphBuilder
from tierup.ir.types import DType
from tierup.lower.text import print_program
from tierup.reference.evaluate import evaluate

DOTS = frozenset(("dot_bytes", "dot_bf16"))
RANDOM = np.random.default_rng(3)
KINDS = {"u8": (DType.U8, np.uint8, 0, 256), "i8": (DType.I8, np.int8, -128, 128)}


def numbers(kind: str, *shape: int) -> Any:
    _, made, low, high = KINDS[kind]
    return RANDOM.integers(low, high, shape).astype(made)


def conv(data: str, weight: str, sizes: tuple[Any, ...], columns: int, **attrs: Any) -> Build:
    kernel = attrs["kernel_shape"]
    around = attrs.pop("pads", (0,) * 2 * len(kernel))
    step = {"strides": (1,) * len(kernel), "dilations": (1,) * len(kernel), "group": 1, "algorithm": "direct"}

    def build(b: GraphBuilder) -> int:
        x = b.open_input(KINDS[data][0], sizes)
        channels = sizes[-1] // attrs.get("group", 1)
        w = const(b, numbers(weight, int(np.prod(kernel)) * channels, columns), KINDS[weight][1])
        return b.op("core.conv_last", x, w, ints(b, *around), **{**step, **attrs})

    return build


def run(build: Build, *feeds: Any, dots: frozenset[str] = DOTS) -> str:
    """The program; what it computes is what the reference does."""
    graph, weights = made(build)
    done = CutRun(graph, weights, list(feeds), dots)
    (got,), (wanted,) = done.outputs(), evaluate(graph, weights, list(feeds))
    np.testing.assert_array_equal(got, wanted)
    assert got.dtype == wanted.dtype
    ((_, kernel),) = done.kernels
    return print_program(kernel.program)


GEOMETRIES: list[tuple[tuple[Any, ...], int, dict[str, Any]]] = [
    ((2, 5, 7, 8), 9, {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}),
    ((1, 6, 9, 4), 6, {"kernel_shape": (3, 2), "strides": (2, 2), "pads": (1, 0, 2, 1)}),
    ((1, 6, 9, 4), 17, {"kernel_shape": (3, 3), "dilations": (2, 2)}),
    ((1, 5, 6, 12), 5, {"kernel_shape": (1, 1), "strides": (2, 2)}),
    ((2, 11, 8), 5, {"kernel_shape": (4,), "pads": (2, 3)}),
    ((2, "h", "w", 8), 7, {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}),
]


@pytest.mark.parametrize("fill", [0, 5])
@pytest.mark.parametrize("weight", ["i8", "u8"])
@pytest.mark.parametrize("data", ["u8", "i8"])
@pytest.mark.parametrize(("sizes", "columns", "attrs"), GEOMETRIES)
def test_words_of_bytes(
    sizes: tuple[Any, ...], columns: int, attrs: dict[str, Any], data: str, weight: str, fill: int
) -> None:
    shape = [{"h": 5, "w": 6}.get(size, size) for size in sizes]
    text = run(conv(data, weight, sizes, columns, **attrs, **({"fill": fill} if fill else {})), numbers(data, *shape))
    assert "dot_bytes" in text
    assert ("xor" in text) == (data == weight)


DEPTHWISE: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((2, 5, 7, 8), {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}),
    ((1, 6, 9, 5), {"kernel_shape": (3, 2), "strides": (2, 2), "pads": (1, 0, 2, 1)}),  # ragged vectors
    ((1, 9, 19, 20), {"kernel_shape": (5, 3), "dilations": (2, 2)}),  # more rows than a word has
    ((2, 11, 8), {"kernel_shape": (4,), "pads": (2, 3)}),
    ((1, 4, 5, 6, 3), {"kernel_shape": (2, 3, 3), "pads": (1, 1, 1, 0, 1, 1)}),
    ((1, 2, 2, 4), {"kernel_shape": (5, 5), "pads": (4, 4, 4, 4)}),  # windows that lie outside altogether
    ((1, 1, 0, 4), {"kernel_shape": (1, 1), "strides": (1, 3), "pads": (0, 3, 0, 2)}),
    ((2, "h", "w", 12), {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}),
]


@pytest.mark.parametrize("dots", [DOTS, frozenset()])
@pytest.mark.parametrize("fill", [0, 5])
@pytest.mark.parametrize("weight", ["i8", "u8"])
@pytest.mark.parametrize("data", ["u8", "i8"])
@pytest.mark.parametrize(("sizes", "attrs"), DEPTHWISE)
def test_every_channel_of_bytes_by_itself(
    sizes: tuple[Any, ...], attrs: dict[str, Any], data: str, weight: str, fill: int, dots: frozenset[str]
) -> None:
    shape = [{"h": 5, "w": 13}.get(size, size) for size in sizes]
    more = {**attrs, "group": sizes[-1], **({"fill": fill} if fill else {})}
    text = run(conv(data, weight, sizes, sizes[-1], **more), numbers(data, *shape), dots=dots)
    assert ("dot_bytes" in text) == bool(dots)
    assert ("xor" in text) == (bool(dots) and data == weight)


@pytest.mark.parametrize("size", [(0, 5), (4, 0)])
def test_bytes_without_elements_are_padding(size: tuple[int, int]) -> None:
    build = conv("u8", "i8", (1, "h", "w", 8), 8, kernel_shape=(3, 3), pads=(2, 2, 2, 2), group=8, fill=7)
    run(build, numbers("u8", 1, *size, 8))


@pytest.mark.parametrize("fill", [0, 5])
@pytest.mark.parametrize("weight", ["i8", "u8"])
@pytest.mark.parametrize(
    ("sizes", "columns", "attrs"),
    [
        ((2, 5, 7, 8), 16, {"group": 2, "kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}),
        ((1, 6, 9, 24), 24, {"group": 3, "kernel_shape": (3, 2), "strides": (2, 2)}),
        ((1, 17, 16), 32, {"group": 4, "kernel_shape": (3,), "pads": (1, 1)}),
    ],
)
def test_groups_of_bytes(sizes: tuple[Any, ...], columns: int, attrs: dict[str, Any], weight: str, fill: int) -> None:
    text = run(conv("u8", weight, sizes, columns, **attrs, **({"fill": fill} if fill else {})), numbers("u8", *sizes))
    assert "dot_bytes" in text


def test_groups_with_few_results_are_multiplied_one_by_one() -> None:
    build = conv("u8", "i8", (1, 4, 5, 8), 6, kernel_shape=(3, 3), pads=(1, 1, 1, 1), group=2, fill=9)
    assert "dot_bytes" not in run(build, numbers("u8", 1, 4, 5, 8))


@pytest.mark.parametrize(
    ("sizes", "kernel", "padded"),
    [
        ((1, 4, 5, 6), (3, 3), 1),
        ((1, 2, 4, 5, 6), (3, 3, 3), 2),
        ((1, 1, 4, 5, 3), (3, 3, 3), 2),
        ((1, 4, 5, 6), (3, 3), 0),
    ],
)
def test_rows_of_the_kernel_beyond_the_data_are_passed_over(
    sizes: tuple[int, ...], kernel: tuple[int, ...], padded: int
) -> None:
    """Whole numbers, so that no sum is rounded."""
    terms = int(np.prod(kernel)) * sizes[-1]
    w, x = RANDOM.integers(-9, 10, (terms, 20)), RANDOM.integers(-9, 10, sizes).astype(np.float32)

    def build(b: GraphBuilder) -> int:
        around = ints(b, *((1,) if padded else (0,)) * 2 * len(kernel))
        attrs = {"strides": (1,) * len(kernel), "dilations": (1,) * len(kernel), "group": 1, "algorithm": "direct"}
        given = b.open_input(DType.F32, sizes)
        return b.op("core.conv_last", given, const(b, w), around, kernel_shape=kernel, **attrs)

    assert run(build, x).count(" when ") == padded * len(re.findall("store out", run(build, x)))


def test_a_negative_fill() -> None:
    build = conv("i8", "i8", (1, 4, 5, 4), 6, kernel_shape=(3, 3), pads=(1, 1, 1, 1), fill=-128)
    run(build, numbers("i8", 1, 4, 5, 4))


def test_channels_that_fill_no_words_are_multiplied_one_by_one() -> None:
    build = conv("u8", "i8", (1, 4, 5, 6), 6, kernel_shape=(3, 3), pads=(1, 1, 1, 1), fill=9)
    assert "dot_bytes" not in run(build, numbers("u8", 1, 4, 5, 6))


def test_channels_that_lie_apart_are_read_where_they_were_put_side_by_side() -> None:

    def build(b: GraphBuilder) -> int:
        x = b.open_input(DType.U8, (1, 8, 4, 5))
        w = const(b, numbers("i8", 72, 6), np.int8)
        attrs = {"strides": (1, 1), "dilations": (1, 1), "group": 1, "algorithm": "direct", "kernel_shape": (3, 3)}
        return b.op("core.conv_last", b.op("core.transpose", x, perm=(0, 2, 3, 1)), w, ints(b, 1, 1, 1, 1), **attrs)

    graph, weights = made(build)
    x = numbers("u8", 1, 8, 4, 5)
    done = CutRun(graph, weights, [x], DOTS)
    np.testing.assert_array_equal(done.outputs()[0], evaluate(graph, weights, [x])[0])
    assert any("dot_bytes" in print_program(kernel.program) for _, kernel in done.kernels)


@pytest.mark.parametrize(("sizes", "columns", "attrs"), GEOMETRIES)
def test_pairs_of_bf16(sizes: tuple[Any, ...], columns: int, attrs: dict[str, Any]) -> None:
    """Small whole numbers, so that no sum is rounded. The weights are packed from what they are cast from."""
    around = attrs.get("pads", (0,) * 2 * len(attrs["kernel_shape"]))
    step = {"strides": (1, 1), "dilations": (1, 1)} if len(sizes) == 4 else {"strides": (1,), "dilations": (1,)}
    more = {**step, **attrs, "group": 1, "algorithm": "direct", "to": DType.F32.code}
    more.pop("pads", None)

    def build(b: GraphBuilder) -> int:
        w = const(b, RANDOM.integers(-9, 10, (int(np.prod(attrs["kernel_shape"])) * sizes[-1], columns)))
        rounded = b.op("core.cast", w, to=DType.BF16.code, saturate=1)
        return b.op("core.conv_last", b.open_input(DType.BF16, sizes), rounded, ints(b, *around), **more)

    graph, weights = made(build)
    x = RANDOM.integers(-9, 10, [{"h": 5, "w": 6}.get(size, size) for size in sizes]).astype(DType.BF16.numpy)
    done = CutRun(graph, weights, [x], DOTS)
    (got,), (wanted,) = done.outputs(), evaluate(graph, weights, [x])
    np.testing.assert_array_equal(got, wanted)
    assert got.dtype == np.float32
    assert any("dot_bf16" in print_program(kernel.program) for _, kernel in done.kernels)
