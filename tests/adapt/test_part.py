"""Parts of regions: what they compute is what the whole has there, and kernels that are wrong somewhere are refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.adapt.networks import cases, constant, load, with_program
from tests.lower.core_graphs import CoreDraw
from tests.rewrite.graphs import Build, const, f32, ints, made
from tests.security.models import model, node, value

from tierup.adapt.case import Case
from tierup.adapt.draws import draw_inputs
from tierup.adapt.part import PART_ELEMS, draw_part, part_lengths, part_of
from tierup.adapt.part_rules import Box, Shapes
from tierup.adapt.prove import prove
from tierup.adapt.trial import Sized, Trial
from tierup.ir.build import GraphBuilder
from tierup.ir.graph import Graph, ValueId, Weights
from tierup.ir.types import Array, TensorType
from tierup.lower.parse import parse_program
from tierup.lower.text import print_program
from tierup.reference.evaluate import evaluate


def shapes_of(graph: Graph, weights: Weights, known: dict[ValueId, tuple[int, ...]] | None = None) -> Shapes:
    """Of all values; contents of the constants."""

    def shape(value: ValueId) -> tuple[int, ...]:
        type = graph.type(value)
        assert isinstance(type, TensorType)
        return (known or {}).get(value) or tuple(size for size in type.shape or () if isinstance(size, int))

    digests = dict(graph.weights)
    return Shapes(shape, lambda v: tuple(weights[digests[v]].reshape(-1).tolist()) if v in digests else None)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_parts_of_random_graphs(data: st.DataObject) -> None:
    draw = CoreDraw(data)
    graph, weights = draw.graph()
    feeds = draw.feeds(graph)
    whole = evaluate(graph, weights, feeds)
    boxes: list[Box] = []
    for result in whole:
        ends = [sorted((draw.draw(st.integers(0, n)), draw.draw(st.integers(0, n)))) for n in result.shape]
        boxes.append(tuple((begin, end) for begin, end in ends))
    constants = {value: weights[digest].shape for value, digest in graph.weights}
    shapes = Shapes(lambda value: {**draw.shapes, **constants}[value], shapes_of(graph, weights).content)
    part = part_of(graph, weights, shapes, boxes)
    got = evaluate(part.graph, part.weights, part.arguments(feeds))
    for there, wanted in zip(got, part.results(whole), strict=True):
        assert (there.shape, there.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_array_equal(there, wanted)


def floats(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def convolution(b: GraphBuilder) -> int:
    x, w, pads = f32(b, 2, 9, 11, 4), f32(b, 36, 8), ints(b, 1, 0, 1, 2)
    attrs = {"kernel_shape": (3, 3), "strides": (2, 1), "dilations": (1, 2), "group": 1, "algorithm": "direct"}
    return b.op("core.max", b.op("core.conv_last", x, w, pads, **attrs), const(b, 0.0))


def pooled(b: GraphBuilder) -> int:
    attrs = {"kernel_shape": (3, 2), "strides": (2, 1), "dilations": (1, 1)}
    return b.op("core.pool_sum", f32(b, 2, 3, 9, 8), ints(b, 1, 1, 1, 0), **attrs)


def product(b: GraphBuilder) -> int:
    flat = b.op("core.reshape", f32(b, 2, 3, 8, 6), ints(b, 48, 6))
    return b.op("core.reshape", b.op("core.matmul", flat, f32(b, 6, 10)), ints(b, 2, 3, 8, 10))


@pytest.mark.parametrize(
    ("build", "feeds", "box", "taken"),
    [
        (convolution, [floats(2, 9, 11, 4), floats(36, 8)], ((1, 2), (0, 2), (3, 9), (4, 8)), 4 * 11 * 4 + 36 * 4),
        (pooled, [floats(2, 3, 9, 8)], ((0, 1), (1, 3), (3, 5), (2, 8)), 2 * 4 * 7),
        (product, [floats(2, 3, 8, 6), floats(6, 10)], ((1, 2), (2, 3), (4, 8), (0, 10)), 4 * 6 + 60),
    ],
)
def test_parts_take_no_more_than_they_need(build: Build, feeds: list[Array], box: Box, taken: int) -> None:
    graph, weights = made(build)
    part = part_of(graph, weights, shapes_of(graph, weights), [box])
    arguments = part.arguments(feeds)
    assert sum(array.size for array in arguments) <= taken
    (got,), (whole,) = evaluate(part.graph, part.weights, arguments), evaluate(graph, weights, feeds)
    # the same terms in the same order, but for what BLAS makes of other sizes: 36 terms in f32
    np.testing.assert_allclose(got, part.results([whole])[0], rtol=0, atol=36 * 2**-23 * 16)


def large() -> Any:
    """relu(x w) of many rows, and closed."""
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Relu", ["m"], ["y"])]
    shape = [1, 120, 130, 32]
    return model(nodes, [value("x", shape)], [value("y", shape)], [constant("w", np.eye(32) / 2 + 0.1)])


def large_case() -> Case:
    (alone,) = cases(large())
    return alone.case


def test_large_cases_are_evaluated_in_parts() -> None:
    sized = Sized(large_case(), [])
    lengths = part_lengths(sized)
    assert lengths is not None
    for last in (True, False):
        part = draw_part(sized, lengths, np.random.default_rng(0), last=last)
        (box,) = part.outputs
        assert np.prod([end - begin for begin, end in box]) <= PART_ELEMS
        if last:
            assert [end for _, end in box] == list(sized.shape(sized.case.graph.outputs[0]))


def test_right_kernels_of_large_cases_pass() -> None:
    case = large_case()
    loaded = load(case)
    proof = prove(case, [address for address, _ in loaded])
    assert proof.passed, proof.reason
    assert proof.judged < 10 * 2 * PART_ELEMS  # or it was evaluated whole


def test_a_large_kernel_that_is_wrong_is_refused() -> None:
    case = large_case()
    text = print_program(case.kernels[0].program)
    wrong, count = re.subn(r"= max ", "= min ", text)
    assert count
    broken = with_program(case, parse_program(wrong))
    loaded = load(broken)
    assert "instead of" in prove(broken, [address for address, _ in loaded]).reason


def test_what_is_left_out_shows_wherever_it_is() -> None:
    """No part need lie there."""
    case, draw = large_case(), np.random.default_rng(0)
    loaded, sized = load(case), Sized(large_case(), [])
    trial = Trial(sized, [address for address, _ in loaded], draw_inputs(sized, draw, "normal", 0.0))
    trial.clear()
    assert trial.run() == 0
    assert not trial.unwritten_floats()
    (result,) = (trial._results[value] for value in case.graph.outputs)
    result.bytes[-400:-396] = 0xFF
    assert trial.unwritten_floats()
