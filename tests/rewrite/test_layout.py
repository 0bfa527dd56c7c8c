"""Channels last: where it applies, where it must not, that numbers stay, and that no transpose is left between."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.rewrite.graphs import Build, const, f32, ints, made, ops

from tierup.ir.build import GraphBuilder
from tierup.ir.graph import Attrs, Graph, Weights
from tierup.ir.verify import verify
from tierup.reference.evaluate import evaluate
from tierup.rewrite.rewrite import simplify
from tierup.rewrite.rules.layout import channels_last
from tierup.rewrite.walk import walk

RNG = np.random.default_rng(7)


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def conv(b: GraphBuilder, x: int, w: int, stride: int = 1, pad: int = 0, group: int = 1) -> int:
    n = 2
    attrs = {"group": group, "strides": (stride,) * n, "dilations": (1,) * n}
    return b.op("core.conv", x, w, ints(b, *((pad,) * 2 * n)), **attrs)


def turned(build: Build) -> tuple[Graph, Graph, Weights]:
    graph, weights = made(build)
    after = simplify(walk(graph, weights, (channels_last,)).graph, weights)
    verify(after, weights)
    return graph, after, weights


def compare(build: Build, *feeds: Any) -> list[str]:
    """The ops that are left; the answers are those of before, in float64, where sums in any order agree."""
    graph, after, weights = turned(build)
    wanted, got = (evaluate(g, weights, list(feeds), wide=True) for g in (graph, after))
    for a, b in zip(wanted, got, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-12)
    return ops(after)


def block(b: GraphBuilder, x: int) -> int:
    """A residual block with a scale and a bias for each channel."""
    y = conv(b, x, const(b, floats(4, 4, 3, 3)), pad=1)
    y = b.op("core.add", b.op("core.mul", y, const(b, floats(4, 1, 1))), const(b, floats(1, 4, 1, 1)))
    return b.op("core.max", b.op("core.add", y, x), const(b, 0.0))


def test_transposes_stand_at_the_ends_of_a_chain() -> None:
    left = compare(lambda b: block(b, block(b, f32(b, "n", 4, 6, "w"))), floats(2, 4, 6, 5))
    assert left.count("core.conv_last") == 2
    assert "core.conv" not in left
    assert left.count("core.transpose") <= 3  # in front for the product and the sum, which are one, and behind


def test_by_one_place_it_is_a_product() -> None:
    left = compare(lambda b: conv(b, f32(b, 1, 4, 3, 5), const(b, floats(9, 4, 1, 1))), floats(1, 4, 3, 5))
    assert left == ["core.transpose", "core.matmul", "core.transpose"]
    for unlike in ({"stride": 2}, {"pad": 1}):
        left = compare(
            lambda b, unlike=unlike: conv(b, f32(b, 1, 4, 3, 5), const(b, floats(9, 4, 1, 1)), **unlike),
            floats(1, 4, 3, 5),
        )
        assert "core.conv_last" in left
    few = compare(lambda b: conv(b, f32(b, 1, 4, 3, 5), const(b, floats(2, 4, 1, 1))), floats(1, 4, 3, 5))
    assert "core.conv_last" in few  # which has a kernel for few results


def test_weights_that_are_no_constants() -> None:
    left = compare(
        lambda b: conv(b, f32(b, 1, 4, 5, 5), f32(b, 6, 2, 3, 3), group=2), floats(1, 4, 5, 5), floats(6, 2, 3, 3)
    )
    assert "core.conv_last" in left


@pytest.mark.parametrize(("results", "groups"), [(8, 8), (12, 12), (4, 4), (36, 4)])
def test_several_results_of_one_channel_are_channels_of_their_own(results: int, groups: int) -> None:
    """Up to eight: the results of more fill vectors by themselves."""

    def build(b: GraphBuilder) -> int:
        return conv(b, f32(b, "n", 4, 6, 5), const(b, floats(results, 1, 3, 3)), stride=2, pad=1, group=4)

    compare(build, floats(2, 4, 6, 5))
    _, after, _ = turned(build)
    (found,) = (node for node in after.nodes if node.op == "core.conv_last")
    assert found.attrs["group"] == groups


@pytest.mark.parametrize(
    ("length", "channels", "dilation", "before", "written"),
    [
        (600, 16, 8, 8, True),
        ("n", 16, 8, 8, True),
        (600, 16, 2, 2, False),
        (600, 8, 8, 8, False),
        (100, 16, 8, 8, False),
        (600, 16, 598, 598, True),  # one end of the kernel lies beyond the data everywhere, and is gone
        (600, 16, 298, 598, False),  # zeros would take more than the data
        ("n", 16, 510, 510, False),
    ],
)
def test_zeros_are_written_where_windows_reach_far(
    length: Any, channels: int, dilation: int, before: int, written: bool
) -> None:
    def build(b: GraphBuilder) -> int:
        x, w = f32(b, 1, channels, length), const(b, floats(9, channels, 3))
        attrs = {"group": 1, "strides": (1,), "dilations": (dilation,)}
        return b.op("core.conv", x, w, ints(b, before, 3), **attrs)

    left = compare(build, floats(1, channels, 600 if length == "n" else length))
    assert ("core.concat" in left) == written
    assert "core.conv_last" in left


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("axes", [(2, 3), (1,), (0, 1), (3,), (1, 2, 3)])
def test_reductions_follow(axes: tuple[int, ...], keep: int) -> None:
    def build(b: GraphBuilder) -> int:
        y = conv(b, f32(b, 2, 4, 5, 3), const(b, floats(6, 4, 3, 3)), pad=1)
        return b.op("core.reduce_sum", y, axes=axes, keepdims=keep)

    compare(build, floats(2, 4, 5, 3))


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_positions_and_joins_follow(axis: int) -> None:
    def build(b: GraphBuilder) -> list[int]:
        y = conv(b, f32(b, 2, 4, 5, 3), const(b, floats(4, 4, 3, 3)), pad=1)
        other = b.op("core.abs", f32(b, 2, 4, 5, 3))
        picked = b.op("core.gather", y, ints(b, 1, 0), axis=axis)
        part = b.op("core.slice", y, ints(b, 1), ints(b, 2), axes=(axis,), steps=(1,))
        place = b.op("core.argmax", y, axis=axis, keepdims=0, last=0)
        return [b.op("core.concat", y, other, axis=axis), picked, part, place]

    compare(build, floats(2, 4, 5, 3), floats(2, 4, 5, 3))


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
def test_pads_follow(mode: str) -> None:
    def build(b: GraphBuilder) -> int:
        y = conv(b, f32(b, 1, 4, 5, 4), const(b, floats(4, 4, 1, 1)))
        return b.op("core.pad", y, ints(b, 0, 1, 2, 0, 0, 2, 1, 3), const(b, 0.5), mode=mode)

    left = compare(build, floats(1, 4, 5, 4))
    assert left.count("core.transpose") == 2


def pooled(b: GraphBuilder, op: str, kernel: tuple[int, int], pads: tuple[int, ...], dilation: int = 1) -> int:
    y = conv(b, f32(b, "n", 4, "h", 7), const(b, floats(4, 4, 1, 1)))
    attrs = Attrs({"kernel_shape": kernel, "strides": (2, 1), "dilations": (dilation,) * 2})
    wanted = [True] if op == "core.pool_sum" else [True, False]
    value = b.node(op, [y, ints(b, *pads)], attrs, outputs=wanted)[0]
    assert value is not None
    return value


@pytest.mark.parametrize("op", ["core.pool_sum", "core.pool_max"])
@pytest.mark.parametrize(
    ("pads", "dilation"), [((0, 0, 0, 0), 1), ((1, 1, 1, 0), 1), ((2, 1, 3, 1), 1), ((1, 1, 1, 1), 2)]
)
def test_pools_are_maps_over_slices(op: str, pads: tuple[int, ...], dilation: int) -> None:
    left = compare(lambda b: pooled(b, op, (3, 2), pads, dilation), floats(2, 4, 6, 7))
    assert op not in left
    assert left.count("core.max" if op == "core.pool_max" else "core.add") >= 5  # of six places


def test_largest_of_nothing_but_the_least_and_not_a_number() -> None:
    graph, after, weights = turned(lambda b: pooled(b, "core.pool_max", (3, 2), (1, 1, 1, 1)))
    x = floats(1, 4, 6, 7)
    x[0, :, :2], x[0, :, 4, 3] = -np.inf, np.nan
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(evaluate(after, weights, [x])[0], evaluate(graph, weights, [x])[0])


def test_large_windows_stay() -> None:
    _, after, _ = turned(lambda b: pooled(b, "core.pool_sum", (6, 6), (0, 0, 0, 0)))
    assert "core.pool_sum" in ops(after)


def test_shapes_that_keep_channels_keep_them_last() -> None:
    def flat(b: GraphBuilder) -> int:
        y = conv(b, f32(b, 2, 3, 8, 8), const(b, floats(6, 3, 4, 4)), stride=4)
        return b.op("core.transpose", b.op("core.reshape", y, ints(b, 2, 6, 4)), perm=(0, 2, 1))

    assert compare(flat, floats(2, 3, 8, 8)) == ["core.transpose", "core.conv_last", "core.reshape"]

    def single(b: GraphBuilder) -> int:
        y = conv(b, f32(b, 2, 3, 4, 4), const(b, floats(6, 3, 4, 4)))
        return b.op("core.reshape", y, ints(b, 2, 6))

    assert compare(single, floats(2, 3, 4, 4)) == ["core.transpose", "core.conv_last", "core.reshape"]

    def mixed(b: GraphBuilder) -> int:
        return b.op("core.reshape", conv(b, f32(b, 2, 3, 4, 4), const(b, floats(6, 3, 3, 3))), ints(b, 2, 24))

    assert compare(mixed, floats(2, 3, 4, 4))[-2:] == ["core.transpose", "core.reshape"]


def test_what_meets_no_convolution_stays() -> None:
    def build(b: GraphBuilder) -> int:
        return b.op("core.add", b.op("core.abs", f32(b, 1, 2, 3, 4)), const(b, floats(2, 1, 1)))

    _, after, _ = turned(build)
    assert ops(after) == ["core.abs", "core.add"]
