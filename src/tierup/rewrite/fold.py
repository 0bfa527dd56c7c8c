"""What can be computed now: nodes of constants, and small integer tensors that are known as numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from tierup.errors import TierupError
from tierup.ir.graph import Node, ValueId, static_type
from tierup.ir.infer import CONTENT_LIMIT, Out
from tierup.ir.types import Array, DType, TensorType, Type
from tierup.reference.bind import bind
from tierup.rewrite.walk import Rewriter, Values, is_pure

# A folded result is kept for as long as the model is, so it may not be larger than this or than what it came from.
BOUND_BYTES = 64 << 10
# The number of results depends on the data, but is bounded by the number of elements.
_DATA_SIZED = frozenset({"core.nonzero", "onnx.NonZero", "onnx.Compress", "onnx.Unique"})
# Work that grows faster than the tensors: folded only if all of it is small, or a product that is soon done.
_HEAVY = frozenset({
    "core.matmul", "core.matmul_blocks", "core.matmul_scaled", "core.conv", "core.conv_last", "core.conv_transpose",
    "core.resize",
    "onnx.MatMul", "onnx.Gemm", "onnx.Einsum", "onnx.Conv", "onnx.ConvTranspose", "onnx.Det", "onnx.Attention",
    "onnx.MatMulInteger", "onnx.ConvInteger",
})  # fmt: skip
_PRODUCTS = ("core.matmul", "onnx.MatMul")
_MOST_TERMS = 1 << 29  # that a folded product adds up: 30 ms of one core
# Folded once it is core ops: until then, products may want its bytes and its scales (rules/quantised.py).
_WHOLE = frozenset({"onnx.DequantizeLinear"})

_DEPTH = 4  # nodes that were too large to fold by themselves, in a chain that ends in something small
_WIDTH = 64  # values in such a chain
_TEMPORARY_BYTES = 256 << 20  # of each of them: a large embedding, cast to f32, and no more than a machine has


def fold(out: Rewriter, node: Node) -> Values | None:
    """f(constants) = a constant, where it is small enough to keep. A node that fails stays, to fail when it runs.

    What is computed from constants but too large to keep is looked through: the sum of a weight's rows is small, even
    if the weight has to be cast before.
    """
    given = [0 if value is None else constant_bytes(out, value) for value in node.inputs]
    if any(size is None for size in given) or not _foldable(node):
        return None
    results = out.types(node)
    if results is None or not _bounded(out, node, sum(size or 0 for size in given), results):
        return None
    try:
        computed = _computed(out, node)
    except TierupError:
        return None
    kept = [None if v is None else _kept(a, t) for v, a, t in zip(node.outputs, computed, results, strict=False)]
    if any(v is not None and a is None for v, a in zip(node.outputs, kept, strict=True)):
        return None
    return [None if array is None else out.weight(array) for array in kept]


def _foldable(node: Node) -> bool:
    return (
        not node.graphs
        and node.op not in _WHOLE
        and node.op.startswith(("core.", "onnx.", "ml.", "ms."))
        and is_pure(node)
    )


def constant_bytes(out: Rewriter, value: ValueId) -> int | None:
    """The bytes of the weights that a value is computed from; None where it is not computed from weights alone."""
    total, seen, level = 0, {value}, [value]
    for _ in range(_DEPTH + 1):
        above: list[ValueId] = []
        for item in level:
            array, producer = out.constant(item), out.producer(item)
            if array is not None:
                total += array.nbytes
            elif producer is None or producer.op in _HEAVY or not _foldable(producer) or not _is_temporary(out, item):
                return None
            else:
                above += [given for given in producer.inputs if given is not None]
        level = list(set(above) - seen)
        seen.update(level)
        if not level or len(seen) > _WIDTH:
            break
    return None if level else total


def computed_constant(out: Rewriter, value: ValueId) -> Array | None:
    """A value that is computed from weights alone, however large; None where it is not, or cannot be."""
    found, producer = out.constant(value), out.producer(value)
    if found is not None or producer is None or constant_bytes(out, value) is None:
        return found
    try:
        result = _computed(out, producer)[producer.outputs.index(value)]
    except TierupError:
        return None
    return result if isinstance(result, np.ndarray) else None


def _is_temporary(out: Rewriter, value: ValueId) -> bool:
    size = _bytes(out.type(value))
    return size is not None and size <= _TEMPORARY_BYTES


def _computed(out: Rewriter, node: Node) -> Sequence[object]:
    """The node's results, with what its inputs are computed from computed first, each once."""
    known: dict[ValueId, object] = {}

    def results(node: Node) -> Sequence[object]:
        numbered = replace(node, outputs=tuple(None if v is None else i for i, v in enumerate(node.outputs)))
        return bind(numbered)(*(None if value is None else array(value) for value in node.inputs))

    def array(value: ValueId) -> object:
        if value not in known:
            found, producer = out.constant(value), out.producer(value)
            known[value] = results(producer)[producer.outputs.index(value)] if found is None and producer else found
        return known[value]

    return results(node)


def _bounded(out: Rewriter, node: Node, given: int, results: Sequence[Out | Type]) -> bool:
    """Whether the results are known to be small, or not larger than the weights they come from."""
    arrays = [out.constant(value) for value in node.inputs if value is not None]
    direct = all(array is not None for array in arrays)
    if node.op in _HEAVY and not (direct and (given <= BOUND_BYTES or _is_soon_done(out, node, results))):
        return False
    if any(out.dtype(value) is DType.STR for value in node.inputs if value is not None):
        return False  # the bytes of strings are not counted, and concatenation doubles them
    sizes = [_bytes(result) for result, value in zip(results, node.outputs, strict=False) if value is not None]
    if node.op in _DATA_SIZED and direct:
        rank = max((array.ndim for array in arrays if array is not None), default=0)
        sizes = [sum(array.size for array in arrays if array is not None) * max(rank, 1) * 8]
    limit = max(BOUND_BYTES, given) if direct else BOUND_BYTES
    return all(size is not None and size <= limit for size in sizes)


def _is_soon_done(out: Rewriter, node: Node, results: Sequence[Out | Type]) -> bool:
    """Whether a product has few terms in all, as projections of tables of positions have."""
    left, size = out.shape(node.inputs[0]), _bytes(results[0])
    if node.op not in _PRODUCTS or size is None or not left:
        return False
    return isinstance(left[-1], int) and size // 4 * left[-1] <= _MOST_TERMS


def _bytes(result: Out | Type) -> int | None:
    """The size of a result, where it is a tensor of known size that can be kept as a weight."""
    if not isinstance(result, Out | TensorType) or result.shape is None:
        return None
    numbers = [dim for dim in result.shape if isinstance(dim, int)]
    return math.prod(numbers) * result.dtype.numpy.itemsize if len(numbers) == len(result.shape) else None


def _kept(array: object, result: Out | Type) -> Array | None:
    """A result as a weight: contiguous, its own memory, never written again; None where it is not of its type."""
    if not isinstance(array, np.ndarray | np.generic) or not isinstance(result, Out | TensorType):
        return None
    kept = np.array(array, order="C")
    kept.flags.writeable = False
    return kept if static_type(kept).dtype is result.dtype else None


def known_integers(out: Rewriter, node: Node) -> Values | None:
    """A small integer tensor whose every element is known as a number = that constant: Shape of closed dims, and
    what is computed from it. Sizes that are still open stay as they are: their dim programs know them."""
    if not is_pure(node) or not any(_small(out, value) for value in node.outputs):
        return None
    results = out.types(node)
    if results is None:
        return None
    weights: list[ValueId | None] = []
    for value, result in zip(node.outputs, results, strict=False):
        array = _numbers(result) if value is not None else None
        if value is not None and array is None:
            return None
        weights.append(None if array is None else out.weight(array))
    return weights


def _small(out: Rewriter, value: ValueId | None) -> bool:
    """Whether a value of the source graph is a small integer tensor, as far as that graph knew."""
    type = None if value is None else out.source.type(value)
    if not isinstance(type, TensorType) or not (type.dtype.is_integer or type.dtype is DType.BOOL):
        return False
    return type.shape is None or (
        len(type.shape) <= 1 and math.prod(d for d in type.shape if isinstance(d, int)) <= CONTENT_LIMIT
    )


def _numbers(result: Out | Type) -> Array | None:
    """The tensor that a result surely is."""
    if not isinstance(result, Out) or result.content is None or result.shape is None or len(result.shape) > 1:
        return None
    numbers = [dim for dim in result.content if isinstance(dim, int)]
    if len(numbers) != len(result.content) or result.shape not in ((), (len(numbers),)):
        return None
    return np.array(numbers, result.dtype.numpy).reshape([len(numbers)] if result.shape else [])
