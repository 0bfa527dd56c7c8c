"""One node of any domain: built in several styles, evaluated, and compared with its types and with other engines.

An op without a prefix is ONNX's; its version is that of the model's opset. Inputs are arrays, lists (sequences), dicts
(maps) or None. Whatever is known of them when types are inferred, the results must be the same, in the inferred types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import defs, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tierup.errors import InputError
from tierup.ir import dims
from tierup.ir.build import GraphBuilder
from tierup.ir.graph import Attrs, Const, Graph, Weights
from tierup.ir.infer import Infer, InferError
from tierup.ir.ops import Op, lookup
from tierup.ir.types import Array, DType, MapType, OptionalType, SequenceType, Sym, TensorType, Type, dtype_from_numpy
from tierup.reference.evaluate import evaluate

NEWEST = defs.onnx_opset_version()
DOMAINS = {"onnx": "", "ml": "ai.onnx.ml", "ms": "com.microsoft", "training": "ai.onnx.preview.training",
           "preview": "ai.onnx.preview"}  # fmt: skip
STYLES = {  # what is known of the first input, and of the others
    "static": ("sizes", "sizes"),
    "constant": ("content", "content"),
    "closed": ("sizes", "content"),
    "open": ("rank", "content"),
    "runtime": ("rank", "sizes"),
    "opaque": ("rank", "rank"),
}
# the ranks of their results hang on sizes, on the branch taken, or on an item
UNRANKED = {"Squeeze", "GatherND", "If", "SequenceAt", "ConcatFromSequence"}


class Built(NamedTuple):
    builder: GraphBuilder
    graph: Graph
    feeds: list[Any]


def build(
    style: str, op: str, /, *inputs: Any, version: int = NEWEST, outputs: int = 1, store: Weights | None = None,
    graphs: tuple[tuple[str, Graph], ...] = (), **attrs: Any,
) -> Built:  # fmt: skip
    """The node in a graph of its own; `store` has the weights of the `graphs` inside it."""
    builder = GraphBuilder(Weights() if store is None else store)
    row, since, filled = _node(op, version, attrs)
    ids = [_add(builder, value, STYLES[style][min(i, 1)], row) for i, value in enumerate(inputs)]
    made = builder.node(row.name, ids, filled, version=since, outputs=(True,) * outputs, graphs=graphs)
    graph = builder.finish([value for value in made if value is not None])
    return Built(builder, graph, [value for value, id in zip(inputs, ids, strict=True) if id in graph.inputs])


def _add(builder: GraphBuilder, value: Any, known: str, row: Op) -> int | None:
    if not isinstance(value, np.ndarray | np.generic):
        return None if value is None else builder.input(_type(value))
    if known == "content":
        return builder.weight(value)
    # the rules of core ops want to know how many sizes they are given
    sized = known == "sizes" or (row.name.startswith("core.") and value.dtype == np.int64)
    return builder.open_input(dtype_from_numpy(value.dtype), value.shape if sized else [None] * value.ndim)


def _type(value: Any) -> Type:
    if isinstance(value, list):
        return SequenceType(_type(value[0]) if value else TensorType(DType.F32, None))
    if isinstance(value, dict):
        key, item = next(iter(value.items()))
        return MapType(DType.STR if isinstance(key, str) else DType.I64, _type(item))
    if isinstance(value, str):
        return TensorType(DType.STR, ())
    return TensorType(dtype_from_numpy(value.dtype), None if value.ndim else ())


def schema(op: str, version: int = NEWEST) -> Any:
    prefix, _, name = op.rpartition(".")
    return defs.get_schema(name, version, DOMAINS[prefix or "onnx"])


def versions(op: str) -> list[int]:
    """Every version of an ONNX op that a model of opset 7 or later may use."""
    found = [s for s in defs.get_all_schemas_with_history() if s.name == op and s.domain == "" and not s.deprecated]
    return sorted({schema(op, max(7, s.since_version)).since_version for s in found})


def _node(op: str, version: int, attrs: dict[str, Any]) -> tuple[Op, int, Attrs]:
    """The op's row, the version in force, and the attributes with their defaults, as the front end hands them on."""
    row = lookup(op if "." in op else f"onnx.{op}")
    assert row is not None
    since, defaults = 1, dict(row.signature.defaults) if row.signature else {}
    if row.signature is None and not op.startswith("core."):
        definition = schema(op, version)
        since, given = definition.since_version, {k: a.default_value for k, a in definition.attributes.items()}
        defaults = {key: helper.get_attribute_value(value) for key, value in given.items() if value.name}
    return row, since, Attrs({key: _plain(value) for key, value in (defaults | attrs).items()})


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    return value.decode() if isinstance(value, bytes) else value


def run(op: str, /, *inputs: Any, styles: Sequence[str] = tuple(STYLES), wide: bool = True, **node: Any) -> list[Any]:
    """What the node gives: in each style as `checked` has it, and the same in all of them, to the bit."""
    vectors = [i for i, x in enumerate(inputs) if getattr(x, "ndim", 0) == 1 and x.dtype == np.int64]  # sizes or axes
    answers = []
    for style in styles:
        counted = all(STYLES[style][min(i, 1)] != "rank" for i in vectors)
        ranked = counted and op.rpartition(".")[2] not in UNRANKED
        answers.append(checked(*build(style, op, *inputs, **node), wide, ranked))
    for mine, *others in zip(*answers, strict=True):
        if isinstance(mine, np.ndarray):
            form = np.ndarray.tolist if mine.dtype == object else np.ndarray.tobytes
            assert all(form(mine) == form(other) for other in others)
    return answers[0]


def one(op: str, /, *inputs: Any, **node: Any) -> Any:
    (result,) = run(op, *inputs, **node)
    return result


def checked(
    builder: GraphBuilder, graph: Graph, feeds: Sequence[Any], wide: bool = True, ranked: bool = False
) -> list[Any]:
    """The results, in the inferred types, with the inferred contents; with `wide` the f64 form has the same sizes."""
    results = evaluate(graph, builder.weights, feeds)
    doubles = evaluate(graph, builder.weights, feeds, wide=True) if wide else results
    values = dict(zip((*graph.inputs, *graph.outputs), (*feeds, *results), strict=True))
    values |= {value: builder.weights[digest] for value, digest in graph.weights}

    def read(kind: str, value: int, index: int) -> int:
        return values[value].shape[index] if kind == "of" else int(values[value].reshape(-1)[index])

    sizes = dims.evaluate(graph.dims, read)
    for value, result, double in zip(graph.outputs, results, doubles, strict=True):
        type, content = graph.type(value), builder.content(value)
        if isinstance(type, TensorType):
            assert type.dtype is dtype_from_numpy(result.dtype)
            assert type.shape is not None or not ranked
            assert type.shape is None or numbers(type.shape, sizes) == list(result.shape)
            assert content is None or numbers(content, sizes) == [int(v) for v in result.reshape(-1)]
            assert double.shape == result.shape
            assert not wide or double.dtype != np.float32
        else:
            assert isinstance(type, OptionalType) or (isinstance(type, SequenceType) and isinstance(result, list))
    return results


def numbers(shape: Sequence[Any], sizes: Sequence[int]) -> list[int]:
    """Dims as numbers, given the values of their dim program."""
    return [sizes[d.id] if isinstance(d, Sym) else d for d in shape]


def widened(op: str, /, *inputs: Any, **node: Any) -> list[Any]:
    """What the oracle's f64 form gives."""
    builder, graph, feeds = build("static", op, *inputs, **node)
    return evaluate(graph, builder.weights, feeds, wide=True)


def unknown_dims(graph: Graph) -> int:
    """How many dims of the results are only known once the results exist."""
    syms = [d for v in graph.outputs for d in graph.type(v).shape if isinstance(d, Sym)]
    return sum(graph.dims[d.id].op == "of" and graph.dims[d.id].args[0] in graph.outputs for d in syms)


def refuses(op: str, /, *inputs: Any, **node: Any) -> None:
    """With a sentence in every style: when the graph is built, or when only the data shows it."""
    for style in STYLES:
        with pytest.raises((InferError, dims.DimError, InputError)) as caught:
            checked(*build(style, op, *inputs, **node))
        assert str(caught.value)


def infer(
    op: str, /, *inputs: Any, contents: Sequence[Any] = (), version: int = NEWEST, outputs: int = 1,
    builder: dims.DimBuilder | None = None, **attrs: Any,
) -> Sequence[Any]:  # fmt: skip
    """What the type rule answers for inputs that are types, or dtypes with shapes."""
    row, since, filled = _node(op, version, attrs)
    types = tuple(TensorType(*i) if isinstance(i, tuple) else i for i in inputs)
    padded = (*contents, *[None] * (len(inputs) - len(contents)))
    ids, wanted = tuple(range(len(inputs))), (True,) * outputs
    known = Infer(
        row.name, since, filled, types, wanted, builder or dims.DimBuilder(), (), ids, padded, lambda value: None
    )
    return row.infer(known)


def _model(op: str, inputs: Sequence[Any], version: int, outputs: int, like: Sequence[Any], attrs: Any) -> Any:
    prefix, _, name = op.rpartition(".")
    domain = DOMAINS[prefix or "onnx"]
    feeds = {f"x{i}": value for i, value in enumerate(inputs) if value is not None}
    given = [helper.make_tensor_value_info(key, dtype_from_numpy(x.dtype).code, x.shape) for key, x in feeds.items()]
    made = [helper.make_tensor_value_info(f"y{i}", dtype_from_numpy(y.dtype).code, None) for i, y in enumerate(like)]
    made = made or [onnx.ValueInfoProto(name=f"y{i}") for i in range(outputs)]
    plain = {k: numpy_helper.from_array(v.array) if isinstance(v, Const) else v for k, v in attrs.items()}
    names = [f"x{i}" if f"x{i}" in feeds else "" for i in range(len(inputs))]
    node = helper.make_node(name, names, [value.name for value in made], domain=domain, **plain)
    opsets = [helper.make_opsetid(*pair) for pair in {"": 20, domain: version}.items()]
    graph = helper.make_graph([node], "one", given, made)
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), feeds


def from_onnxruntime(
    op: str, /, *inputs: Any, version: int = 20, outputs: int = 1, like: Sequence[Any] = (), **attrs: Any
) -> list[Any]:
    """What ONNX Runtime answers; `like` has the results' dtypes, which it cannot always infer."""
    model, feeds = _model(op, inputs, version, outputs, like, attrs)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def from_onnx(op: str, /, *inputs: Any, version: int = NEWEST, outputs: int = 1, **attrs: Any) -> list[Any]:
    """What the reference evaluator of the onnx package answers."""
    model, feeds = _model(op, inputs, version, outputs, (), attrs)
    return ReferenceEvaluator(model).run(None, feeds)


def agree(op: str, /, *inputs: Any, version: int = 20, rtol: float = 1e-4, atol: float = 1e-5, **node: Any) -> None:
    """We and ONNX Runtime give the same; the tolerance is for sums of some hundred f32 products of order 1."""
    expected = from_onnxruntime(op, *inputs, version=version, **node)
    assert_close(run(op, *inputs, version=version, **node), expected, rtol, atol)


def check(case: Any, style: str) -> None:
    """`case` is an op, its opset, inputs, attributes, and the answers, or how many of ONNX Runtime's there are."""
    op, version, inputs, attrs, expected = case
    if isinstance(expected, int):
        expected = from_onnxruntime(op, *inputs, version=version, outputs=expected, **attrs)
    results = run(op, *inputs, version=version, outputs=len(expected), styles=(style,), **attrs)
    assert_close(results, expected, rtol=0, atol=0)


def case_id(case: Any) -> str:
    return f"{case[0]}-{case[1]}-{','.join(f'{key}={value}' for key, value in case[3].items())}"


def assert_close(actual: Sequence[Array], expected: Sequence[Array], rtol: float = 1e-4, atol: float = 1e-5) -> None:
    for mine, wanted in zip(actual, expected, strict=True):
        assert (mine.dtype, mine.shape) == (wanted.dtype, wanted.shape)
        if mine.dtype == object or rtol == atol == 0:
            np.testing.assert_array_equal(mine, wanted)
        else:
            np.testing.assert_allclose(mine.astype(np.float64), wanted.astype(np.float64), rtol=rtol, atol=atol)


def close(actual: Array, expected: Any, ulps: float = 8, scale: float = 1.0) -> None:
    """`actual` within `ulps` units in the last place of its own dtype, measured at |expected| + `scale`."""
    wide, got = np.asarray(expected, np.float64), actual.astype(np.float64)
    assert got.shape == wide.shape
    with np.errstate(all="ignore"):
        near = np.abs(got - wide) <= ulps * float(ml_dtypes.finfo(actual.dtype).eps) * (np.abs(wide) + scale)
    fits = near | (got == wide) | (np.isnan(got) & np.isnan(wide))
    assert fits.all(), f"{got[~fits]} is not {wide[~fits]}"


def random(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)
