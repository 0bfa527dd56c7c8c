"""Movement whose sizes and signs the call decides, and bodies that decompositions take in."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper
from tests.rewrite.lowered import assert_equal, check, f, lowered
from tests.security.models import model, node, value

import tierup
from tierup.config import Config
from tierup.errors import InputError
from tierup.ir.build import GraphBuilder
from tierup.ir.graph import Attrs, Weights
from tierup.ir.types import DType


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (-1, 2, 3, -2), (-2, -3, -2, -3), (-3, -3, -2, -4), (1, -7, 1, 0)])
def test_pads_whose_signs_the_call_decides(pads: tuple[int, ...], mode: str) -> None:
    """What a negative one cuts is cut before modes repeat anything; all of an axis may go."""
    x = f(5, 7)
    x[0, 0] = np.nan
    check("Pad", x, np.array(pads), mode=mode, fixed=[(1, 0)])


@pytest.mark.parametrize("pads", [(-3, 0, -3, 0), (-6, 0, 0, 0), (0, -8, 0, 3), (0, -800, 0, 803)])
@pytest.mark.parametrize("known", [False, True])
def test_pads_that_cut_more_than_there_is(pads: tuple[int, ...], known: bool) -> None:
    """The whole may have a size although what is kept has none: nothing is written outside."""
    given = [] if known else [value("pads", (4,), TensorProto.INT64)]
    weights = [numpy_helper.from_array(np.array(pads), "pads")] if known else []
    nodes = [node("Pad", ["x", "pads"], ["y"], mode="constant")]
    pad = model(nodes, [value("x", ("n", "m")), *given], [value("y", ("a", "b"))], weights)
    for tier in (0, 1):
        loaded = tierup.load(pad, config=Config(force_tier=tier))
        with pytest.raises(InputError):
            loaded.run({"x": f(5, 7)} | ({} if known else {"pads": np.array(pads)}))


@pytest.mark.parametrize("split", [(-3, 8), (8, -3), (-300, 305)])
def test_parts_of_a_split_that_do_not_fit(split: tuple[int, int]) -> None:
    nodes = [node("Split", ["x", "split"], ["a", "b"]), node("Concat", ["b", "a"], ["y"], axis=0)]
    parts = model(nodes, [value("x", ("n", 7)), value("split", (2,), TensorProto.INT64)], [value("y", ("n", 7))])
    loaded = tierup.load(parts, config=Config(force_tier=1))
    assert loaded(x=f(5, 7), split=np.array([2, 3]))["y"].shape == (5, 7)
    with pytest.raises(InputError):
        loaded(x=f(5, 7), split=np.array(split))


def test_bodies_of_flex_attention_are_lowered_where_their_ranks_are_known() -> None:
    weights = Weights()
    body = GraphBuilder(weights)
    scores, bias = body.open_input(DType.F32, None), body.open_input(DType.F32, None)
    changed = body.finish([body.op("onnx.Tanh", body.op("onnx.Mul", scores, bias, version=14), version=13)])
    builder = GraphBuilder(weights)
    ids = [builder.open_input(DType.F32, [None] * 4) for _ in range(3)]
    (y,) = builder.node(
        "preview.FlexAttention", [*ids, builder.weight(f(4, 3, 5))], Attrs({"captures": 1}),
        graphs=(("score_mod", changed),),
    )  # fmt: skip
    assert y is not None
    graph = builder.finish([y])
    assert_equal(graph, lowered(graph, weights), weights, [f(2, 4, 3, 8), f(2, 2, 5, 8), f(2, 2, 5, 6)])
