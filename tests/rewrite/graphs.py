"""Small graphs for tests of rewrites, inputs for them, and the check that nothing changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tierup.ir.build import GraphBuilder
from tierup.ir.dims import evaluate as evaluate_dims
from tierup.ir.graph import Attrs, Graph, ValueId, Weights
from tierup.ir.types import DType, OptionalType, Sym, TensorType
from tierup.ir.verify import verify
from tierup.reference.evaluate import evaluate

Build = Callable[[GraphBuilder], ValueId | list[ValueId]]

# Zeros of both signs, infinities and NaN: a rule that is not exact shows on one of them.
_FLOATS = np.array([-0.0, 0.0, np.nan, np.inf, -np.inf, 1.0, -1.5, 1e-40, 3e38, 0.5, -7.25])


def made(build: Build) -> tuple[Graph, Weights]:
    """The graph that `build` makes; verified."""
    builder = GraphBuilder(Weights())
    result = build(builder)
    graph = builder.finish([result] if isinstance(result, int) else result)
    verify(graph, builder.weights)
    return graph, builder.weights


def f32(builder: GraphBuilder, *shape: int | str) -> ValueId:
    return builder.open_input(DType.F32, shape)


def const(builder: GraphBuilder, value: Any, dtype: Any = np.float32) -> ValueId:
    return builder.weight(np.array(value, dtype))


def ints(builder: GraphBuilder, *numbers: int) -> ValueId:
    return builder.weight(np.array(numbers, np.int64))


def feeds(graph: Graph, open_size: int = 3) -> list[Any]:
    """Inputs for a graph of tensors, every open dim `open_size`."""
    return [_feed(graph.type(value), index, open_size) for index, value in enumerate(graph.inputs)]


def _feed(type: Any, index: int, open_size: int) -> Any:
    if isinstance(type, OptionalType):
        return _feed(TensorType(DType.F32, (2,)), index, open_size)
    assert isinstance(type, TensorType)
    shape = [open_size if isinstance(dim, Sym) else dim for dim in type.shape or ()]
    count = int(np.prod(shape))
    if type.dtype is DType.BOOL:
        return (np.arange(index, index + count) % 2 == 0).reshape(shape)
    values = np.resize(np.roll(_FLOATS, index), count) if type.dtype.is_float else np.arange(index, index + count) - 2
    with np.errstate(all="ignore"):
        return values.astype(type.dtype.numpy).reshape(shape)


def assert_same(before: Graph, after: Graph, weights: Weights, inputs: list[Any] | None = None) -> None:
    """`after` is valid, has the same face, and gives the same bits."""
    verify(after, weights)
    assert len(after.inputs) == len(before.inputs)
    assert len(after.outputs) == len(before.outputs)
    assert [after.values[v].name for v in after.inputs] == [before.values[v].name for v in before.inputs]
    inputs = feeds(before) if inputs is None else inputs
    old, new = evaluate(before, weights, inputs), evaluate(after, weights, inputs)
    for value, a, b in zip(after.outputs, old, new, strict=True):
        if isinstance(a, np.ndarray):
            assert a.dtype == b.dtype
            assert a.shape == b.shape
            np.testing.assert_array_equal(a, b)
            assert np.array_equal(np.signbit(a), np.signbit(b)) or a.dtype.kind != "f"
            _assert_typed(after, value, inputs, b)
        else:
            assert repr(a) == repr(b)


def _assert_typed(graph: Graph, value: ValueId, inputs: list[Any], result: Any) -> None:
    """The new graph's dim program says what really comes out, as far as inputs alone decide."""
    type = graph.type(value)
    assert isinstance(type, TensorType)
    if type.shape is None:
        return
    arrays = dict(zip(graph.inputs, inputs, strict=True))
    if any(op.op in ("of", "elem") and op.args[0] not in arrays for op in graph.dims):
        return

    def read(op: str, source: int, index: int) -> int:
        return int(arrays[source].shape[index] if op == "of" else arrays[source].reshape(-1)[index])

    sizes = evaluate_dims(graph.dims, read)
    assert tuple(sizes[dim.id] if isinstance(dim, Sym) else dim for dim in type.shape) == result.shape


def node(
    builder: GraphBuilder, op: str, *inputs: ValueId | None, version: int = 21, outputs: int = 1, **attrs: Any
) -> Any:
    """One node; its output, or all of them where there are several."""
    results = builder.node(op, inputs, Attrs(attrs), version=version, outputs=[True] * outputs)
    return results[0] if outputs == 1 else list(results)


def ops(graph: Graph) -> list[str]:
    return [n.op for n in graph.nodes]
