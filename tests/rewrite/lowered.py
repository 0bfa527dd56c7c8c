"""Decomposes one node and compares: the node as imported is the oracle, in f64 and as it runs.

In f64 both must agree to `WIDE`: attributes such as epsilon or alpha are numbers to the oracle and f32 constants in a
decomposed graph, so a few roundings of f32 remain. As it runs, the decomposed graph may take sums in another order:
`NARROW` roundings of the result's own dtype, measured at the largest number. Integers must be equal in f64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from onnx import defs, helper

from tierup.ir.build import GraphBuilder
from tierup.ir.graph import Attrs, Graph, Weights
from tierup.ir.ops import lookup
from tierup.ir.types import Array, dtype_from_numpy
from tierup.ir.verify import verify
from tierup.reference.evaluate import evaluate
from tierup.rewrite.decompose import decompose, reasons

WIDE = 1e-6
NARROW = 32
RNG = np.random.default_rng(17)
FORMS = ("static", "open")
NEWEST = defs.onnx_opset_version()


def f(*shape: int, scale: float = 1.0, dtype: Any = np.float32) -> Array:
    return np.asarray(RNG.standard_normal(shape) * scale).astype(dtype)


def u8(*shape: int) -> Array:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def i8(*shape: int) -> Array:
    return RNG.integers(-128, 128, shape).astype(np.int8)


def versions(op: str) -> list[int]:
    """Every version of an ONNX op that a model of opset 7 or later may use."""
    found = [s for s in defs.get_all_schemas_with_history() if (s.name, s.domain) == (op, "") and not s.deprecated]
    return sorted({defs.get_schema(op, max(7, s.since_version)).since_version for s in found})


def _filled(op: str, opset: int, attrs: dict[str, Any]) -> tuple[int, Attrs]:
    """The version in force, and the attributes with their defaults, as the front end hands them on."""
    row = lookup(op)
    assert row is not None
    if row.signature is not None:
        own = {"opset": opset} if "opset" in row.signature.required else {}  # QLinearSoftmax has it as an attribute
        return 1, Attrs({**row.signature.defaults, **own, **attrs})
    schema = defs.get_schema(op.removeprefix("onnx."), opset)
    values = {name: attribute.default_value for name, attribute in schema.attributes.items()}
    defaults = {name: _plain(helper.get_attribute_value(value)) for name, value in values.items() if value.name}
    return schema.since_version, Attrs(defaults | attrs)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_plain, value))
    return value.decode() if isinstance(value, bytes) else value


def single(
    op: str,
    inputs: Sequence[Array | None],
    form: str = "static",
    *,
    opset: int = NEWEST,
    outputs: int = 1,
    constants: Sequence[int] = (),
    fixed: Sequence[tuple[int, int]] = (),
    **attrs: Any,
) -> tuple[Graph, Weights, list[Array]]:
    """A graph of the one node, and what to feed; `constants` are weights, other inputs have plain or open sizes.

    `fixed` are axes, as (input, axis), that are not opened.
    """
    builder = GraphBuilder(Weights())
    ids: list[int | None] = []
    feeds: list[Array] = []
    for index, array in enumerate(inputs):
        if array is None:
            ids.append(None)
        elif index in constants:
            ids.append(builder.weight(array))
        else:
            dtype = dtype_from_numpy(array.dtype)
            assert dtype is not None
            sizes = [None if form == "open" and (index, i) not in fixed else size for i, size in enumerate(array.shape)]
            ids.append(builder.open_input(dtype, None if form == "unranked" else sizes))
            feeds.append(array)
    version, filled = _filled(op, opset, attrs)
    made = builder.node(op, ids, filled, version=version, outputs=[True] * outputs)
    return builder.finish([value for value in made if value is not None]), builder.weights, feeds


def lowered(graph: Graph, weights: Weights) -> Graph:
    """The graph in core ops and control flow alone, valid."""
    after = decompose(graph, weights)
    verify(after, weights)
    left = [node.op for _, node in after.walk() if not getattr(lookup(node.op), "core", "")]
    assert not left, reasons(graph, weights)
    return after


def assert_equal(graph: Graph, after: Graph, weights: Weights, feeds: Sequence[Array]) -> None:
    exact, wide = (evaluate(g, weights, feeds, wide=True) for g in (graph, after))
    before, results = (evaluate(g, weights, feeds) for g in (graph, after))
    for e, w, b, r in zip(exact, wide, before, results, strict=True):
        assert (r.dtype, r.shape) == (b.dtype, b.shape)
        assert (w.dtype, w.shape) == (e.dtype, e.shape)
        if not is_float(b):
            np.testing.assert_array_equal(w, e)
            continue
        largest = np.abs(e.astype(np.float64), where=np.isfinite(e.astype(np.float64)), out=np.zeros(e.shape)).max(
            initial=1e-30
        )
        np.testing.assert_allclose(w.astype(np.float64), e.astype(np.float64), rtol=WIDE, atol=WIDE * largest)
        eps = float(ml_dtypes.finfo(b.dtype).eps)  # type: ignore[no-untyped-call]  # ml_dtypes ships no types
        np.testing.assert_allclose(r.astype(np.float64), b.astype(np.float64), rtol=0, atol=NARROW * eps * largest)


def is_float(array: Array) -> bool:
    return array.dtype.kind == "f" or "float" in array.dtype.name


def check(op: str, *inputs: Array | None, forms: Sequence[str] = FORMS, **options: Any) -> None:
    """`onnx.<op>` is lowered in each form, and computes the same."""
    for form in forms:
        graph, weights, feeds = single(f"onnx.{op}", inputs, form, **options)
        assert_equal(graph, lowered(graph, weights), weights, feeds)


def reason(op: str, *inputs: Array | None, form: str = "static", **options: Any) -> str:
    """Why the node stays whole."""
    graph, weights, _ = single(f"onnx.{op}", inputs, form, **options)
    after = decompose(graph, weights)
    assert [node.op for node in after.nodes] == [f"onnx.{op}"]
    ((_, why),) = reasons(graph, weights)
    return why
