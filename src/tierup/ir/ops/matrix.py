"""Products of matrices: MatMul, Gemm, Einsum, determinants, and the attention ops that are made of them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from tierup.ir.dims import DimBuilder
from tierup.ir.infer import Infer, InferError, Out, PartialShape
from tierup.ir.ops.row import Op
from tierup.ir.types import Dim, Shape

_LABELS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_MAX_TERM = 64  # NumPy's limit on the rank of an array; longer terms fit no tensor


def same_size(a: Dim, b: Dim, what: str) -> None:
    """Refuse two sizes that are known now and differ."""
    if isinstance(a, int) and isinstance(b, int) and a != b:
        raise InferError(f"{what} differ: {a} and {b}")


def ranked(ctx: Infer, index: int, *ranks: int) -> Shape | None:
    """The shape of input `index`, whose rank must be one of `ranks`; None where it is unknown."""
    shape = ctx.shape(index)
    if shape is not None and len(shape) not in ranks:
        raise InferError(f"input {index} must have rank {' or '.join(map(str, ranks))}, but has {len(shape)}")
    return shape


def positive(ctx: Infer, name: str) -> int:
    """An attribute that counts something, so it must be given and above zero."""
    value = ctx.attrs.get(name)
    if not isinstance(value, int) or value <= 0:
        raise InferError(f"attribute {name} must be a number above 0, but is {value}")
    return value


def matmul_shape(ctx: Infer, a: Shape | None, b: Shape | None) -> Shape | None:
    """The shape of `a @ b` as NumPy has it."""
    if a == () or b == ():
        raise InferError("a matrix product needs tensors of rank 1 or more")
    if a is None or b is None:
        return None
    left = (1, *a) if len(a) == 1 else a
    right = (*b, 1) if len(b) == 1 else b
    same_size(left[-1], right[-2], "the inner sizes of a matrix product")
    batch = ctx.broadcast(left[:-2], right[:-2])
    assert batch is not None
    rows = () if len(a) == 1 else (left[-2],)
    columns = () if len(b) == 1 else (right[-1],)
    return (*batch, *rows, *columns)


def matmul(ctx: Infer) -> list[Out]:
    return [Out(ctx.dtype(0), matmul_shape(ctx, ctx.shape(0), ctx.shape(1)))]


def gemm(ctx: Infer) -> list[Out]:
    """Sizes (M, N) of A'·B', each transposed where its attribute says so."""
    a, b = ranked(ctx, 0, 2), ranked(ctx, 1, 2)
    flip_a, flip_b = bool(ctx.attrs["transA"]), bool(ctx.attrs["transB"])
    if a is not None and b is not None:
        same_size(a[0 if flip_a else 1], b[1 if flip_b else 0], "the inner sizes of Gemm")
    shape = (None if a is None else a[1 if flip_a else 0], None if b is None else b[0 if flip_b else 1])
    addend = ctx.shape(2) if ctx.has(2) else None
    if addend is not None and len(addend) > 2:
        raise InferError(f"the addend of Gemm must have rank 2 or less, but has {len(addend)}")
    return [Out(ctx.dtype(0), shape)]


def det(ctx: Infer) -> list[Out]:
    shape = ctx.shape(0)
    if shape is not None:
        if len(shape) < 2:
            raise InferError(f"Det needs square matrices, but its input has rank {len(shape)}")
        same_size(shape[-2], shape[-1], "the sides of Det's matrices")
        shape = shape[:-2]
    return [Out(ctx.dtype(0), shape)]


class Einsum(Struct, frozen=True):
    """A parsed equation. A term is a tuple of labels, of which "..." stands for any number of dims."""

    inputs: tuple[tuple[str, ...], ...]
    output: tuple[str, ...]


def parse_einsum(equation: str) -> Einsum:
    """The terms of an equation; the output's are worked out where it has no arrow. Raises InferError."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    inputs = tuple(_term(text) for text in left.split(","))
    if arrow:
        output = _term(right)
    else:
        count: dict[str, int] = {}
        for term in inputs:
            for label in term:
                count[label] = count.get(label, 0) + 1
        once = sorted(label for label, times in count.items() if times == 1 and label != "...")
        output = ("...", *once) if "..." in count else tuple(once)
    if len(set(output)) != len(output):
        raise InferError(f"Einsum equation '{equation[:80]}' repeats a label in its output")
    known = {label for term in inputs for label in term}
    for label in output:
        if label not in known and label != "...":
            raise InferError(f"Einsum equation '{equation[:80]}' has label '{label}' only in its output")
    return Einsum(inputs, output)


def _term(text: str) -> tuple[str, ...]:
    before, dots, after = text.partition("...")
    labels = (*before, *(("...",) if dots else ()), *after)
    bad = [label for label in labels if label not in _LABELS and label != "..."]
    if bad:
        raise InferError(f"Einsum equation has '{bad[0]}' where a letter is expected")
    if len(labels) > _MAX_TERM:
        raise InferError(f"an Einsum term has {len(labels)} labels")
    return labels


def einsum(ctx: Infer) -> list[Out]:
    equation = parse_einsum(ctx.attrs["equation"])
    if len(equation.inputs) != len(ctx.inputs):
        raise InferError(f"Einsum has {len(ctx.inputs)} inputs, but {len(equation.inputs)} terms")
    sizes: dict[str, Dim] = {}
    spread: Shape | None = ()
    for index, term in enumerate(equation.inputs):
        shape = ctx.shape(index)
        if shape is None:
            if "..." in term:
                spread = None
            continue
        middle = _match(ctx.dims, term, shape, sizes)
        spread = ctx.broadcast(spread, middle)
    if spread is None and "..." in equation.output:
        return [Out(ctx.dtype(0), None)]
    result: list[Dim | None] = []
    for label in equation.output:
        result.extend(spread or () if label == "..." else (sizes.get(label),))
    return [Out(ctx.dtype(0), tuple(result))]


def _match(dims: DimBuilder, term: Sequence[str], shape: Shape, sizes: dict[str, Dim]) -> Shape:
    """Note the size of each label of one input and return the dims behind its ellipsis."""
    spare = len(shape) - (len(term) - 1 if "..." in term else len(term))
    if spare < 0 or (spare > 0 and "..." not in term):
        raise InferError(f"Einsum term '{''.join(term)}' does not fit an input of rank {len(shape)}")
    split = term.index("...") if "..." in term else len(term)
    tail = [label for label in term[split:] if label != "..."]
    named = [*zip(term[:split], shape, strict=False), *zip(tail, shape[len(shape) - len(tail) :], strict=True)]
    for label, size in named:
        sizes[label] = dims.broadcast(sizes[label], size) if label in sizes else size
    return shape[split : split + spare]


def attention(ctx: Infer) -> list[Out]:
    """Y, present key, present value and the scores; 3-D inputs are (batch, sequence, heads · head size)."""
    q, k, v = (ranked(ctx, index, 3, 4) for index in range(3))
    key_dtype, value_dtype = ctx.dtype(1), ctx.dtype(2)
    if q is None or k is None or v is None:
        rank4 = (None,) * 4
        unknown = None if q is None else (*q[:-1], None)
        return [Out(ctx.dtype(0), unknown), Out(key_dtype, rank4), Out(value_dtype, rank4), Out(ctx.dtype(0), rank4)]
    if not len(q) == len(k) == len(v):
        raise InferError(f"the ranks of query, key and value differ: {len(q)}, {len(k)}, {len(v)}")
    folded = len(q) == 3
    if folded:
        heads, groups = positive(ctx, "q_num_heads"), positive(ctx, "kv_num_heads")
        q, k, v = (_unfold(ctx, shape, n) for shape, n in ((q, heads), (k, groups), (v, groups)))
    _check_heads(q[1], k[1])
    same_size(q[3], k[3], "the head sizes of query and key")
    past = ctx.shape(4) if ctx.has(4) else None
    if past is not None and len(past) != 4:
        raise InferError(f"the past key must have rank 4, but has {len(past)}")
    total: Dim | None = None if ctx.has(4) and past is None else ctx.dims.add(past[2] if past else 0, k[2])
    result: PartialShape = (q[0], q[1], q[2], v[3])
    if folded:
        result = (q[0], q[2], ctx.dims.mul(q[1], v[3]))
    return [
        Out(ctx.dtype(0), result),
        Out(key_dtype, (k[0], k[1], total, k[3])),
        Out(value_dtype, (v[0], v[1], total, v[3])),
        Out(ctx.dtype(0), (q[0], q[1], q[2], total)),
    ]


def _unfold(ctx: Infer, shape: Shape, heads: int) -> Shape:
    batch, length, hidden = shape
    if isinstance(hidden, int) and hidden % heads:
        raise InferError(f"a hidden size of {hidden} does not divide into {heads} heads")
    return (batch, heads, length, ctx.dims.floordiv(hidden, heads))


def _check_heads(queries: Dim, groups: Dim) -> None:
    if isinstance(queries, int) and isinstance(groups, int) and (groups <= 0 or queries % groups):
        raise InferError(f"{queries} query heads cannot share {groups} key and value heads")


def flex_attention(ctx: Infer) -> list[Out]:
    q, k, v = (ranked(ctx, index, 4) for index in range(3))
    if q is not None and k is not None:
        _check_heads(q[1], k[1])
        same_size(q[3], k[3], "the head sizes of query and key")
    for name, body in ctx.graphs:
        if not body.inputs or len(body.outputs) != 1:
            raise InferError(f"{name} must take the scores and return one tensor")
    return [Out(ctx.dtype(0), (*(q[:3] if q else (None,) * 3), v[3] if v else None))]


_UPDATE_RULES = {"linear": (False, False), "gated": (True, False), "delta": (False, True), "gated_delta": (True, True)}


def linear_attention(ctx: Infer) -> list[Out]:
    """(B, T, Hq·Dv) and the state (B, Hkv, Dk, Dv)."""
    rule = ctx.attrs["update_rule"]
    if rule not in _UPDATE_RULES:
        raise InferError(f"update_rule must be one of {', '.join(_UPDATE_RULES)}, but is '{rule}'")
    for index, wanted, name in zip((4, 5), _UPDATE_RULES[rule], ("decay", "beta"), strict=True):
        if ctx.has(index) != wanted:
            raise InferError(f"update rule '{rule}' {'needs' if wanted else 'takes no'} {name} input")
    heads, groups = positive(ctx, "q_num_heads"), positive(ctx, "kv_num_heads")
    _check_heads(heads, groups)
    q, v = ranked(ctx, 0, 3), ranked(ctx, 2, 3)
    key_size = _unfold(ctx, q, heads)[3] if q else None
    value_size = _unfold(ctx, v, groups)[3] if v else None
    batch, steps = q[:2] if q else (None, None)
    width = None if value_size is None else ctx.dims.mul(heads, value_size)
    state = ctx.dtype(3) if ctx.has(3) else ctx.dtype(0)
    return [Out(ctx.dtype(0), (batch, steps, width)), Out(state, (batch, groups, key_size, value_size))]


def rotary_embedding(ctx: Infer) -> list[Out]:
    shape = ranked(ctx, 0, 3, 4)
    if shape is not None and len(shape) == 3:
        positive(ctx, "num_heads")
    ranked(ctx, 1, *((2,) if ctx.has(3) else (3,)))
    return [Out(ctx.dtype(0), shape)]


OPS = (
    Op("onnx.Attention", "scaled dot-product attention with masks, a key-value cache and shared heads",
       attention, "attention.attention"),
    Op("onnx.Det", "the determinants of square matrices", det, "matrix.det"),
    Op("onnx.Einsum", "a sum of products over labelled dims", einsum, "matrix.einsum"),
    Op("preview.FlexAttention", "attention whose scores and probabilities pass through bodies of the model",
       flex_attention, "attention.flex_attention"),
    Op("onnx.Gemm", "alpha · A' · B' + beta · C", gemm, "matrix.gemm"),
    Op("onnx.LinearAttention", "attention as a recurrence over a state of key size by value size",
       linear_attention, "attention.linear_attention"),
    Op("onnx.MatMul", "the matrix product, broadcast over leading dims", matmul, "matrix.matmul_op"),
    Op("onnx.RotaryEmbedding", "rotate pairs of channels by an angle for each position",
       rotary_embedding, "attention.rotary_embedding"),
)  # fmt: skip
