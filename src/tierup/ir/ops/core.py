"""The core ops: what `rewrite/decompose` lowers every tensor op to, and what `lower` must know.

An op is core when its tile program cannot be composed from other ops' without loss of speed or accuracy; each row
says why. They are strict: equal dtypes (no promotion), NumPy broadcasting for maps only, no optional inputs, axes and
indices counted from the front. Sizes are never attributes, because a size may be open: `shape`, `pads`, `starts`,
`ends`, `sizes`, `k` are 1-d i64 values, whose content the rules read as dims. A decomposition that holds a dim and
needs it as such a value computes it with `core.shape` and integer maps, whose contents are tracked.

Composed without loss, and so not here: sigmoid (e = exp(-|x|); select(0 <= x, 1, e) / (1 + e): one exp, right to the
last denormal), sign and relu (select, max), isnan (not eq(x, x)), isinf (eq(|x|, inf)), greater (lt with its sides
swapped), clip (min, max), mean and norms, softmax, attention, one-hot and triangles (iota, eq, lt, select), flip
(slice with step -1), tile (reshape, broadcast, reshape), fill (broadcast), quantise (div, round, add, max, min, cast:
exact up to 16 bits, since every integer that does not saturate is exact in f32), dequantise (sub in i32, cast, mul).
Ops for which nothing smaller exists (strings, sequences, trees, random numbers, control) stay whole under their own
names and have their reason in their own rows.
"""

from __future__ import annotations

import builtins
import keyword

from tierup.ir.dims import DimBuilder
from tierup.ir.infer import Rule
from tierup.ir.ops import core_products as products
from tierup.ir.ops import core_rules as rules
from tierup.ir.ops.core_rules import map_, reduce
from tierup.ir.ops.row import Kind, Op
from tierup.ir.types import DType


def _rows(reason: str, *rows: tuple[str, Rule, str], kind: Kind = Kind.OPERATOR) -> tuple[Op, ...]:
    return tuple(Op(f"core.{name}", doc, rule, _function(name), kind, core=reason) for name, rule, doc in rows)


def _function(name: str) -> str:
    """Where the reference is: names that Python has taken end in an underscore."""
    return f"core.{name}_" if keyword.iskeyword(name) or hasattr(builtins, name) else f"core.{name}"


# The maps that tile programs have, too; a test keeps the two lists equal.
ELEMENTWISE = frozenset({
    "abs", "acos", "acosh", "add", "and", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "div", "eq", "erf",
    "exp", "expm1", "floor", "fmod", "le", "log", "log1p", "lt", "max", "min", "mod", "mul", "neg", "not", "or", "pow",
    "round", "select", "shl", "shr", "sin", "sinh", "sqrt", "sub", "tan", "tanh", "xor",
})  # fmt: skip
_SERIES = map_("f", 1)  # floats in, floats out, element by element

OPS: tuple[Op, ...] = (
    *_rows(
        "one machine instruction, or very few, on registers",
        ("neg", map_("fi", 1, lambda d, a: d.sub(0, a)), "-x; the least integer stays as it is"),
        ("abs", map_("fi", 1, lambda d, a: d.emit("abs", a)), "|x|; the least integer stays as it is"),
        ("not", map_("ib", 1), "every bit, or the truth, inverted"),
        ("floor", map_("f", 1), "the largest integer not above x"),
        ("ceil", map_("f", 1), "the smallest integer not below x"),
        ("round", map_("f", 1), "the nearest integer, halves to even"),
        ("sqrt", map_("f", 1), "square root"),
        ("add", map_("fi", 2, DimBuilder.add), "a + b; integers wrap"),
        ("sub", map_("fi", 2, DimBuilder.sub), "a - b; integers wrap"),
        ("mul", map_("fi", 2, DimBuilder.mul), "a * b; integers wrap"),
        ("div", map_("fi", 2, DimBuilder.truncdiv), "a / b; integers truncate towards zero, and x / 0 is 0"),
        ("min", map_("fib", 2, DimBuilder.min), "the smaller one; NaN if either is"),
        ("max", map_("fib", 2, DimBuilder.max), "the larger one; NaN if either is"),
        ("and", map_("ib", 2), "bitwise, or logical on bool"),
        ("or", map_("ib", 2), "bitwise, or logical on bool"),
        ("xor", map_("ib", 2), "bitwise, or logical on bool"),
        ("shl", map_("i", 2), "a shifted left by b bits; 0 from the width on"),
        ("shr", map_("i", 2), "a shifted right by b bits, keeping its sign; nothing but sign from the width on"),
        ("eq", map_("fib", 2, lambda d, a, b: d.emit("eq", a, b), DType.BOOL), "a = b"),
        ("lt", map_("fib", 2, lambda d, a, b: d.emit("lt", a, b), DType.BOOL), "a < b"),
        ("le", map_("fib", 2, lambda d, a, b: d.sub(1, d.emit("lt", b, a)), DType.BOOL), "a <= b, false with NaN"),
        ("select", rules.select, "a where the condition holds, else b"),
        (
            "cast",
            rules.cast,
            "to dtype `to`: to floats the nearest, even of two, 8-bit ones by `saturate` and `round_mode`; to integers "
            "truncated, outside their range what reference/cast.py says; from f32 to bf16 with `flush` denormals are 0",
        ),
        ("bitcast", rules.bitcast, "the same bits as dtype `to` of the same size"),
    ),
    *_rows(
        "its own argument reduction and polynomial: composed of other functions it loses digits or overflows early",
        ("exp", _SERIES, "e to the x"),
        ("expm1", _SERIES, "e to the x, minus 1, right near 0"),
        ("log", _SERIES, "natural logarithm"),
        ("log1p", _SERIES, "log(1 + x), right near 0"),
        ("sin", _SERIES, "sine"),
        ("cos", _SERIES, "cosine"),
        ("tan", _SERIES, "tangent"),
        ("asin", _SERIES, "inverse sine"),
        ("acos", _SERIES, "inverse cosine"),
        ("atan", _SERIES, "inverse tangent"),
        ("sinh", _SERIES, "hyperbolic sine"),
        ("cosh", _SERIES, "hyperbolic cosine"),
        ("tanh", _SERIES, "hyperbolic tangent"),
        ("asinh", _SERIES, "inverse hyperbolic sine"),
        ("acosh", _SERIES, "inverse hyperbolic cosine"),
        ("atanh", _SERIES, "inverse hyperbolic tangent"),
        ("erf", _SERIES, "the error function"),
        ("pow", map_("fi", 2), "a to the power b; integer powers wrap, negative ones truncate, 0 to one of them is 0"),
    ),
    *_rows(
        "one division whose remainder is set right; composed, it would be two divisions, and for floats not exact",
        ("mod", map_("i", 2, DimBuilder.mod), "what flooring division leaves: the sign of b; x mod 0 is 0"),
        ("fmod", map_("fi", 2), "what truncating division leaves: the sign of a; for integers x fmod 0 is 0"),
    ),
    *_rows(
        "the order of the accumulation decides speed and accuracy; no chain of maps has one",
        ("reduce_sum", reduce("fi", DimBuilder.sum), "sum over `axes`; f16 and bf16 accumulate in f32; of nothing, 0"),
        ("reduce_prod", reduce("fi", DimBuilder.product), "product over `axes`; of nothing, 1"),
        ("reduce_max", reduce("fib"), "largest over `axes`; NaN if any is; of nothing, the dtype's least"),
        ("reduce_min", reduce("fib"), "smallest over `axes`; NaN if any is; of nothing, the dtype's largest"),
    ),
    *_rows(
        "value and index go through one reduction together",
        ("argmax", rules.arg_reduce, "index of the largest (or first NaN) on `axis`; with `last` the last of equals"),
        ("argmin", rules.arg_reduce, "index of the smallest (or first NaN) on `axis`; with `last` the last of equals"),
    ),
    *_rows(
        "every step needs the one before it: a serial loop whose state stays in registers or cache",
        ("cumsum", rules.along, "running sum on `axis`; `exclusive` of the own element, `reverse` from the end"),
        ("cumprod", rules.along, "running product on `axis`; `exclusive` of the own element, `reverse` from the end"),
        (
            "lstm",
            products.recurrent(4, 1, (3, 4)),
            "LSTM over gates[T, B, 4H] (order i o f c; inputs and biases already in), r[H, 4H], p[3H] (i o f; [0] for "
            "no peepholes), h[B, H], c[B, H], lengths[B] ([0]: all rows have T steps); gives y[T, B, H], h, c",
        ),
        (
            "gru",
            products.recurrent(3, 1, (3,)),
            "GRU over gates[T, B, 3H] (order z r h; inputs and biases already in, but for the recurrent bias of h), "
            "r[H, 3H], that bias[H], h[B, H], lengths[B] ([0]: all rows have T steps); gives y[T, B, H], h",
        ),
        (
            "rnn",
            products.recurrent(1, 1, (2,)),
            "the simple recurrence over gates[T, B, H] (inputs and biases already in), r[H, H], h[B, H], lengths[B] "
            "([0]: all rows have T steps); gives y[T, B, H], h",
        ),
    ),
    *_rows(
        "changes the index map of what reads it, and moves no data by itself",
        ("reshape", rules.reshape, "the same elements as the value `shape` says"),
        ("transpose", rules.transpose, "axes in the order `perm`"),
        ("broadcast", rules.broadcast, "repeated to the value `shape`, as NumPy does"),
        (
            "slice",
            rules.slice_,
            "start, start + step, ... before end on each of `axes`; both lie inside the tensor, and for a negative "
            "step -1 is the end before the front",
        ),
        kind=Kind.TRANSFER,
    ),
    *_rows(
        "each piece of the result has its own index map; selects over the whole would load every piece everywhere",
        (
            "pad",
            rules.pad,
            "x with `pads` (every begin, then every end) around it by mode: constant, edge, reflect, wrap",
        ),
        ("concat", rules.concat, "tensors one after another on `axis`"),
        kind=Kind.TRANSFER,
    ),
    *_rows(
        "addresses that come from data, with a range check: no affine map has those",
        ("gather", rules.gather, "slices picked on `axis`"),
        ("gather_elements", rules.gather_elements, "one element picked on `axis` for each index"),
        ("gather_nd", rules.gather_nd, "slices picked by index tuples, after `batch_dims` common axes"),
        (
            "scatter_elements",
            rules.scatter,
            "a copy of the data with elements put on `axis`; later ones win or combine",
        ),
        ("scatter_nd", rules.scatter, "a copy of the data with slices put at index tuples; later ones win or combine"),
    ),
    *_rows(
        "nothing else reads a loop counter or a size as a value",
        ("iota", rules.iota, "each element's own position on `axis` in a tensor of the value `shape`, as `dtype`"),
        ("shape", rules.shape_of, "the sizes of a tensor; reads no element"),
    ),
    *_rows("how many there are is known only when the data is", ("nonzero", rules.nonzero, "index tuples, as columns")),
    *_rows(
        "a partial sort: no chain of reductions finds k elements at once",
        ("topk", rules.topk, "the k `largest` or smallest on `axis`, best first, lower index first, and their indices"),
        (
            "top_places",
            rules.top_places,
            "the indices of the `k` `largest` or smallest on the last axis, as topk has them",
        ),
    ),
    *_rows(
        "register and cache blocking over three index sets; a map and a reduction would stream memory",
        (
            "matmul",
            products.matmul,
            "matrix product over broadcast batches; bytes give i32; f16, bf16 accumulate in f32, and bf16 "
            "answers in f32 where `to` says so",
        ),
        (
            "matmul_blocks",
            products.matmul_blocks,
            "matrix product of f32 by small integers, each `block` of their rows with a scale for each column",
        ),
        (
            "matmul_scaled",
            products.matmul_scaled,
            "matrix product of a by w, each of whose rows has a factor: a · diag(s) · w",
        ),
        (
            "conv",
            products.conv,
            "convolution of x[N, C, ...] by w[M, C / group, ...] with the value pads; bytes give i32, and around them "
            "lies `fill`",
        ),
        (
            "conv_last",
            products.conv_last,
            "convolution of x[N, ..., C] by w[kernel places * C / group, M], place by place of `kernel_shape`, with "
            "the value pads; channels last on both sides; bytes give i32, and around them lies `fill`; bf16 answers in "
            "f32 where `to` says so; `algorithm` is direct or winograd: what rounding the sums may have",
        ),
        (
            "conv_transpose",
            products.conv_transpose,
            "transposed convolution of x[N, C, ...] by w[C, M / group, ...]; the value pads are cut off, "
            "`output_padding` is added at the ends",
        ),
    ),
    *_rows(
        "overlapping windows share loads and partial results",
        ("pool_max", products.pool, "largest in each window and its flat index in x; padding never wins"),
        ("pool_sum", products.pool, "sum of each window; padding adds nothing"),
        (
            "resize",
            rules.resize,
            "interpolation of x to the value sizes[rank], with scales f64[rank] and roi f64[2 * rank] as values; "
            "attributes as in ONNX's Resize",
        ),
    ),
)
