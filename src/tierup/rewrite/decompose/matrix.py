"""Products of matrices: MatMul, Gemm and Einsum as core matmuls over batches."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from tierup.ir.graph import Node, ValueId
from tierup.ir.ops.matrix import parse_einsum
from tierup.ir.types import Dim
from tierup.rewrite.decompose.core import Core, Declined, Decomposition


def matmul(b: Core, x: ValueId, y: ValueId) -> ValueId:
    """NumPy's product: a vector is a row on the left and a column on the right, and that axis goes again"""
    row, column = b.rank(x) == 1, b.rank(y) == 1
    product = b.matmul(b.unsqueeze(x, 0) if row else x, b.unsqueeze(y, 1) if column else y)
    shape = list(b.shape(product))
    if column:
        del shape[-1]
    if row:
        del shape[-1 if column else -2]
    return b.reshape(product, shape)


def _gemm(b: Core, n: Node) -> ValueId:
    """alpha · A' · B' + beta · C"""
    x, y, addend = b.input(n), b.input(n, 1), b.given(n, 2)
    dtype, alpha, beta = b.dtype(x), n.attrs["alpha"], n.attrs["beta"]
    if dtype.is_integer and not (float(alpha).is_integer() and float(beta).is_integer()):
        raise Declined("integers are scaled by a fraction")
    if addend is not None and b.rank(addend) > 2:
        raise Declined("the addend has more than two axes")
    if addend is not None or alpha != 1:  # a bare product rounds once by itself
        x, y = b.wide(x), b.wide(y)
    product = b.matmul(
        b.transpose(x, (1, 0)) if n.attrs["transA"] else x, b.transpose(y, (1, 0)) if n.attrs["transB"] else y
    )
    result = product if alpha == 1 else b.mul(product, b.like(alpha, product))
    if addend is not None:
        wide = b.wide(addend)
        result = b.add(result, wide if beta == 1 else b.mul(wide, b.like(beta, wide)))
    return b.cast(result, dtype)


class Term(Struct, frozen=True):
    """A tensor of an Einsum: one label for each axis."""

    value: ValueId
    labels: tuple[str, ...]


def _einsum(b: Core, n: Node) -> ValueId:
    """Two terms at a time: what no one else needs is summed, what both have is multiplied"""
    equation = parse_einsum(n.attrs["equation"])
    values = [b.input(n, i) for i in range(len(n.inputs))]
    dtype = b.dtype(values[0])
    ranks = [b.rank(v) - len(t) + 1 for v, t in zip(values, equation.inputs, strict=True) if "..." in t]
    spread = max(ranks, default=0)
    if len(values) > 1:
        values = [b.wide(value) for value in values] if len(values) > 2 else values
    terms = [
        _diagonal(b, Term(value, _labels(term, b.rank(value) - len(term) + 1, spread)))
        for value, term in zip(values, equation.inputs, strict=True)
    ]
    wanted = _labels(equation.output, spread, spread)
    result = terms.pop(0)
    for i, term in enumerate(terms):
        later = {label for other in terms[i + 1 :] for label in other.labels} | set(wanted)
        result = _contract(
            b, _summed(b, result, later | set(term.labels)), _summed(b, term, later | set(result.labels)), later
        )
    result = _aligned(b, _summed(b, result, set(wanted)), wanted)
    return b.cast(result.value, dtype)


def _labels(term: Sequence[str], own: int, spread: int) -> tuple[str, ...]:
    """The axes of a term by name; an ellipsis stands for its own last axes of those that all ellipses have."""
    labels: list[str] = []
    for label in term:
        labels += [f".{i}" for i in range(spread - own, spread)] if label == "..." else [label]
    return tuple(labels)


def _diagonal(b: Core, term: Term) -> Term:
    """x[i, i]: everything off the diagonal becomes 0, and one of the axes is summed"""
    value, labels = term.value, list(term.labels)
    for label in sorted({label for label in labels if labels.count(label) > 1}):
        while labels.count(label) > 1:
            first, second = [axis for axis, other in enumerate(labels) if other == label][:2]
            shape = b.shape(value)
            row = b.iota([dim if axis == first else 1 for axis, dim in enumerate(shape)], first)
            column = b.iota([dim if axis == second else 1 for axis, dim in enumerate(shape)], second)
            value = b.select(b.eq(row, column), value, b.like(0, value))
            value = b.reduce("sum", value, (second,), keepdims=False)
            del labels[second]
    return Term(value, tuple(labels))


def _summed(b: Core, term: Term, needed: set[str]) -> Term:
    """The term without the labels that nothing needs."""
    axes = [axis for axis, label in enumerate(term.labels) if label not in needed]
    if not axes:
        return term
    kept = tuple(label for label in term.labels if label in needed)
    return Term(b.cast(b.reduce("sum", term.value, axes, keepdims=False), b.dtype(term.value)), kept)


def _aligned(b: Core, term: Term, labels: Sequence[str]) -> Term:
    """The axes in the order of `labels`; those that the term does not have become 1."""
    order = [term.labels.index(label) for label in labels if label in term.labels]
    turned = b.transpose(term.value, order)
    missing = [axis for axis, label in enumerate(labels) if label not in term.labels]
    return Term(b.unsqueeze(turned, *missing) if missing else turned, tuple(labels))


def _contract(b: Core, x: Term, y: Term, later: set[str]) -> Term:
    shared = [label for label in x.labels if label in y.labels]
    inner = [label for label in shared if label not in later]
    batch = [label for label in shared if label in later]
    rows = [label for label in x.labels if label not in shared]
    columns = [label for label in y.labels if label not in shared]
    _check_sizes(b, x, y, inner)
    if not inner:
        labels = (*batch, *rows, *columns)
        return Term(b.mul(_aligned(b, x, labels).value, _aligned(b, y, labels).value), labels)
    if not rows and not columns:
        labels = (*batch, *inner)
        product = b.mul(b.wide(_aligned(b, x, labels).value), b.wide(_aligned(b, y, labels).value))
        axes = range(len(batch), len(labels))
        return Term(b.cast(b.reduce("sum", product, axes, keepdims=False), b.dtype(x.value)), tuple(batch))
    left = _aligned(b, x, (*batch, *rows, *inner))
    right = _aligned(b, y, (*batch, *inner, *columns))
    product = b.matmul(_as_matrix(b, left, batch, rows, inner), _as_matrix(b, right, batch, inner, columns))
    sizes = [*b.shape(product)[: len(batch)], *_sizes(b, left, rows), *_sizes(b, right, columns)]
    return Term(b.reshape(product, sizes), (*batch, *rows, *columns))


def _sizes(b: Core, term: Term, labels: Sequence[str]) -> list[Dim]:
    shape = b.shape(term.value)
    return [shape[term.labels.index(label)] for label in labels]


def _as_matrix(b: Core, term: Term, batch: Sequence[str], rows: Sequence[str], columns: Sequence[str]) -> ValueId:
    height, width = (b.dims.product(_sizes(b, term, labels)) for labels in (rows, columns))
    return b.reshape(term.value, [*_sizes(b, term, batch), height, width])


def _check_sizes(b: Core, x: Term, y: Term, inner: Sequence[str]) -> None:
    """A size of 1 stretches in an Einsum, but not in the inner axes of a matrix product."""
    for label, a, c in zip(inner, _sizes(b, x, inner), _sizes(b, y, inner), strict=True):
        if isinstance(a, int) and isinstance(c, int) and a != c:
            raise Declined(f"label '{label}' has sizes {a} and {c}")


MATRIX: dict[str, Decomposition] = {
    "onnx.Einsum": _einsum,
    "onnx.Gemm": _gemm,
    "onnx.MatMul": lambda b, n: matmul(b, b.input(n), b.input(n, 1)),
}
