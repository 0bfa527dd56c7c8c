"""ONNX Runtime's own ops (domain com.microsoft), as far as its CPU kernels have them and exported models hold them.

The `onnx` package ships no schemas for them, so every row states its signature.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from tierup.ir.graph import Attr
from tierup.ir.infer import Infer, InferError, Out, PartialShape
from tierup.ir.ops.matrix import gemm, matmul_shape, positive, ranked, same_size
from tierup.ir.ops.quant import dequantize, matmul_integer, qlinear_conv, quantize, shape_as, with_inputs
from tierup.ir.ops.recurrent import DIRECTIONS, activations
from tierup.ir.ops.row import Op, Signature
from tierup.ir.types import Dim, DType, Shape, TensorType

_ACTIVATIONS = frozenset(
    (
        "", "Affine", "Clip", "Elu", "HardSigmoid", "HardSwish", "LeakyRelu", "Relu", "ScaledTanh", "Sigmoid",
        "Softplus", "Softsign", "Tanh", "ThresholdedRelu",
    )
)  # fmt: skip


def _same(index: int = 0) -> Callable[[Infer], list[Out]]:
    """The result is like input `index`."""
    return lambda ctx: [Out(ctx.dtype(index), ctx.shape(index))]


def _broadcast(*indices: int) -> Callable[[Infer], list[Out]]:
    """The result has the dtype of the last of these inputs and the shape that they have together."""
    return lambda ctx: [Out(ctx.dtype(indices[-1]), ctx.broadcast(*(ctx.shape(index) for index in indices)))]


def _shaped(op: str, version: int, *indices: int) -> Callable[[Infer], list[Out]]:
    """The result is what `op` of ONNX has on these inputs."""
    return lambda ctx: [Out(ctx.dtype(indices[0]), shape_as(ctx, op, *indices, version=version))]


def _refuse(ctx: Infer, *, attrs: tuple[str, ...] = (), inputs: tuple[int, ...] = ()) -> None:
    """Refuse what ONNX Runtime's CPU kernels do not compute either, or only for its own decoding loops."""
    for name in attrs:
        if ctx.attrs.get(name, 0) not in (0, "NONE"):
            raise InferError(f"attribute {name} = {ctx.attrs[name]} is not supported")
    for index in inputs:
        if ctx.has(index):
            raise InferError(f"input {index} is not supported")


def _check_activation(ctx: Infer) -> None:
    name = ctx.attrs.get("activation", "")
    if name not in _ACTIVATIONS:
        raise InferError(f"activation '{name}' is not known")
    if len(ctx.attrs.get("activation_params", ())) > 2:
        raise InferError("an activation takes at most two parameters")


def _channels_first(ctx: Infer) -> Infer:
    """The same node with the channels of its first input moved to the front, if they stand last."""
    type = ctx.tensor(0)
    if not ctx.attrs.get("channels_last", 1) or type.shape is None or len(type.shape) < 3:
        return ctx
    shape = (type.shape[0], type.shape[-1], *type.shape[1:-1])
    return replace(ctx, inputs=(TensorType(type.dtype, shape), *ctx.inputs[1:]))


def _channels_back(ctx: Infer, shape: PartialShape | None) -> PartialShape | None:
    if shape is None or not ctx.attrs.get("channels_last", 1):
        return shape
    return (shape[0], *shape[2:], shape[1])


def _nhwc(op: str, version: int) -> Callable[[Infer], list[Out]]:
    def rule(ctx: Infer) -> list[Out]:
        return [Out(ctx.dtype(0), _channels_back(ctx, shape_as(_channels_first(ctx), op, 0, version=version)))]

    return rule


def _nhwc_qlinear_conv(ctx: Infer) -> list[Out]:
    (result,) = qlinear_conv(_channels_first(ctx))
    return [Out(result.dtype, _channels_back(ctx, result.shape))]


def _qlinear_concat(ctx: Infer) -> list[Out]:
    if len(ctx.inputs) < 5 or len(ctx.inputs) % 3 != 2:
        raise InferError(f"QLinearConcat takes a scale, a zero point and threes, not {len(ctx.inputs)} inputs")
    shapes = [ctx.shape(index) for index in range(2, len(ctx.inputs), 3)]
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return [Out(ctx.dtype(1), (None,) * len(known[0]) if known else None)]
    rank = len(known[0])
    if any(len(shape) != rank for shape in known):
        raise InferError("the tensors to join differ in rank")
    axis = ctx.axis(ctx.attrs["axis"], rank)
    joined = ctx.dims.sum([shape[axis] for shape in known])
    return [Out(ctx.dtype(1), (*known[0][:axis], joined, *known[0][axis + 1 :]))]


def _dynamic_quantize_lstm(ctx: Infer) -> list[Out]:
    """As LSTM, but with the weights (directions, inputs, 4 · hidden)."""
    direction = ctx.attrs["direction"]
    if direction not in DIRECTIONS:
        raise InferError(f"direction is '{direction}', expected one of {', '.join(DIRECTIONS)}")
    activations("onnx.LSTM", ctx.attrs)
    x, w, r = (ranked(ctx, index, 3) for index in range(3))
    count = DIRECTIONS[direction]
    for shape in (w, r):
        if shape is not None:
            same_size(shape[0], count, "the directions of a weight and of the node")
    hidden = ctx.attrs.get("hidden_size") if r is None else r[1]
    if w is not None and hidden is not None:
        same_size(w[2], ctx.dims.mul(4, hidden), "the columns of the weight and four times the hidden size")
    steps, batch = x[:2] if x else (None, None)
    state = Out(ctx.dtype(0), (count, batch, hidden))
    return [Out(ctx.dtype(0), (steps, count, batch, hidden)), state, state]


def _fused_conv(ctx: Infer) -> list[Out]:
    _check_activation(ctx)
    return [Out(ctx.dtype(0), shape_as(ctx, "onnx.Conv", 0, 1, 2, version=11))]


def _fused_gemm(ctx: Infer) -> list[Out]:
    _check_activation(ctx)
    return gemm(ctx)


def _fused_matmul(ctx: Infer) -> list[Out]:
    left = _turned(ctx.shape(0), ctx.attrs.get("transBatchA", 0), ctx.attrs["transA"])
    right = _turned(ctx.shape(1), ctx.attrs.get("transBatchB", 0), ctx.attrs["transB"])
    return [Out(ctx.dtype(0), matmul_shape(ctx, left, right))]


def _turned(shape: Shape | None, batch: int, last: int) -> Shape | None:
    if shape is None or len(shape) < 2:
        return shape
    if batch:
        shape = (*shape[1:-1], shape[0], shape[-1])
    return (*shape[:-2], shape[-1], shape[-2]) if last else shape


def _skip_norm(ctx: Infer) -> list[Out]:
    """Result, mean, 1 / deviation, and the sum that was normalised."""
    shape = ranked(ctx, 0, 2, 3)
    result = Out(ctx.dtype(0), shape)
    statistics = Out(DType.F32, None if shape is None else (*shape[:-1], 1))
    return [result, statistics, statistics, result]


def _simplified_norm(ctx: Infer) -> list[Out]:
    shape = ctx.shape(0)
    if shape is None:
        return [Out(ctx.dtype(1), None), Out(DType.F32, None)]
    axis = ctx.axis(ctx.attrs["axis"], len(shape))
    return [Out(ctx.dtype(1), shape), Out(DType.F32, (*shape[:axis], *(1,) * (len(shape) - axis)))]


def _embed_norm(words: int) -> Callable[[Infer], list[Out]]:
    """(batch, sequence, hidden), the mask's count for each row, and the sum that was normalised."""

    def rule(ctx: Infer) -> list[Out]:
        ids, table = ranked(ctx, 0, 2), ranked(ctx, words, 2)
        batch, steps = ids if ids else (None, None)
        dtype = ctx.dtype(words) if ctx.op == "ms.EmbedLayerNormalization" else ctx.dtype(8)
        result = Out(dtype, (batch, steps, table[1] if table else None))
        return [result, Out(ctx.dtype(0), (batch,)), result]

    return rule


def _matmul_as(dtype: int) -> Callable[[Infer], list[Out]]:
    """A matrix product whose result has the dtype of input `dtype`."""
    return lambda ctx: [Out(ctx.dtype(dtype), matmul_shape(ctx, ctx.shape(0), ctx.shape(1)))]


def _qgemm(ctx: Infer) -> list[Out]:
    dtype = ctx.dtype(1)
    if ctx.has(7):
        dtype = ctx.dtype(8) if ctx.has(8) else DType.U8
    return [Out(dtype, gemm(with_inputs(ctx, 0, 3))[0].shape)]


def _matmul_packed(ctx: Infer) -> list[Out]:
    """(…, K) times a packed weight of K by N."""
    k, n = positive(ctx, "K"), positive(ctx, "N")
    positive(ctx, "block_size")
    if ctx.attrs.get("bits", 4) not in (2, 4, 8):
        raise InferError(f"bits must be 2, 4 or 8, but is {ctx.attrs['bits']}")
    if ctx.attrs.get("quant_type", 0) not in (0, 1):
        raise InferError(f"quant_type must be 0 (FP4) or 1 (NF4), but is {ctx.attrs['quant_type']}")
    _refuse(ctx, attrs=("weight_prepacked",))
    shape = ctx.shape(0)
    if shape is None:
        return [Out(ctx.dtype(0), None)]
    if not shape:
        raise InferError("a matrix product needs a tensor of rank 1 or more")
    inner, outer = (k, n) if ctx.attrs.get("transB", 1) else (n, k)
    same_size(shape[-1], inner, "the last size of the input and the weight's columns")
    return [Out(ctx.dtype(0), (*shape[:-1], outer))]


def _gather_block_quantized(ctx: Infer) -> list[Out]:
    data, indices = ctx.shape(0), ctx.shape(1)
    block, bits = positive(ctx, "block_size"), ctx.attrs["bits"]
    if bits not in (2, 4, 8) or block & (block - 1):
        raise InferError(f"{bits} bits in blocks of {block} are not supported")
    if data is None or indices is None:
        return [Out(ctx.dtype(2), None)]
    gather, axis = (ctx.axis(ctx.attrs[name], len(data)) for name in ("gather_axis", "quantize_axis"))
    if ctx.dtype(0) is DType.U8 and bits < 8:
        if axis != len(data) - 1 or gather == axis:
            raise InferError("packed data must be quantised along its last axis and gathered along another")
        data = (*data[:-1], ctx.dims.mul(data[-1], 8 // bits))
    if gather == axis:
        raise InferError("the axis to gather along cannot be the quantised one")
    return [Out(ctx.dtype(2), (*data[:gather], *indices, *data[gather + 1 :]))]


def _attention(present: int, past: int, dtype: int) -> Callable[[Infer], list[Out]]:
    """Self-attention with its projection inside: (batch, sequence, value width), and the joined cache."""

    def rule(ctx: Infer) -> list[Out]:
        _refuse(ctx, attrs=("do_rotary", "past_present_share_buffer"), inputs=(6,) if past == 4 else ())
        heads = positive(ctx, "num_heads")
        x, w = ranked(ctx, 0, 3), ranked(ctx, 1, 2)
        sizes = ctx.attrs.get("qkv_hidden_sizes") or ()
        if sizes and (len(sizes) != 3 or min(sizes) <= 0):
            raise InferError(f"qkv_hidden_sizes must be three numbers above 0, but is {list(sizes)}")
        width: Dim | None = sizes[2] if sizes else None if w is None else ctx.dims.floordiv(w[1], 3)
        batch, steps = x[:2] if x else (None, None)
        total = steps
        if ctx.has(past):
            before = ranked(ctx, past, 5)
            total = None if before is None or steps is None else ctx.dims.add(before[3], steps)
        size = None if width is None else ctx.dims.floordiv(width, heads)
        shape = (2, batch, heads, total, size)
        return [Out(ctx.dtype(dtype), (batch, steps, width)), Out(ctx.dtype(dtype), shape)][: 1 + present]

    return rule


def _multi_head_attention(ctx: Infer) -> list[Out]:
    """Result, present key, present value, scores."""
    _refuse(ctx, inputs=(8, 9))
    heads = positive(ctx, "num_heads")
    q = ranked(ctx, 0, 3, 5)
    k = ranked(ctx, 1, 3, 4, 5) if ctx.has(1) else None
    v = ranked(ctx, 2, 3, 4) if ctx.has(2) else None
    dims = ctx.dims
    if q is None or (ctx.has(1) and k is None) or (ctx.has(2) and v is None):
        rank4 = Out(ctx.dtype(0), (None,) * 4)
        return [Out(ctx.dtype(0), (None,) * 3), rank4, rank4, rank4]
    size: Dim
    value_size: Dim
    if len(q) == 5 or (k is not None and len(k) == 5):
        size = value_size = q[4] if len(q) == 5 else k[4] if k else 0
        length = q[1] if len(q) == 5 else k[1] if k else 0
    elif k is None or v is None or len(k) != len(v):
        raise InferError("keys and values must be given, both in the same form")
    elif len(k) == 4:
        length, size, value_size = k[2], k[3], v[3]
    else:
        length, size, value_size = k[1], dims.floordiv(q[2], heads), dims.floordiv(v[2], heads)
    past = ranked(ctx, 6, 4) if ctx.has(6) else None
    total = None if ctx.has(6) and past is None else dims.add(past[2] if past else 0, length)
    dtype, batch = ctx.dtype(0), q[0]
    return [
        Out(dtype, (batch, q[1], dims.mul(heads, value_size))),
        Out(dtype, (batch, heads, total, size)),
        Out(dtype, (batch, heads, total, value_size)),
        Out(dtype, (batch, heads, q[1], total)),
    ]


def _group_query_attention(ctx: Infer) -> list[Out]:
    """Result, present key, present value, scores; the cache holds the longest sequence or what it held before."""
    refused = ("k_quant_type", "v_quant_type", "kv_cache_bit_width", "sliding_window_cache")
    _refuse(ctx, attrs=refused, inputs=(12, 13, 14, 15))
    heads, groups = positive(ctx, "num_heads"), positive(ctx, "kv_num_heads")
    if heads % groups:
        raise InferError(f"{heads} query heads cannot share {groups} key and value heads")
    q, dims = ranked(ctx, 0, 3), ctx.dims
    batch, steps = q[:2] if q else (None, None)
    parts = heads if ctx.has(1) else heads + 2 * groups
    size = dims.floordiv(q[2], parts) if q else None
    given = ctx.elems(6)
    total = given[0] if given is not None and len(given) == 1 else None
    rows = total
    if ctx.has(3):
        past = ranked(ctx, 3, 4)
        rows = None if past is None or total is None else dims.max(total, past[2])
    width = None if size is None else dims.mul(heads, size)
    cache = Out(ctx.dtype(0), (batch, groups, rows, size))
    return [Out(ctx.dtype(0), (batch, steps, width)), cache, cache, Out(ctx.dtype(0), (batch, heads, steps, total))]


def _rotary(ctx: Infer) -> list[Out]:
    shape = ranked(ctx, 0, 3, 4)
    ranked(ctx, 2, 2)
    ranked(ctx, 3, 2)
    return [Out(ctx.dtype(0), shape)]


def _cdist(ctx: Infer) -> list[Out]:
    if ctx.attrs["metric"] not in ("euclidean", "sqeuclidean"):
        raise InferError(f"metric '{ctx.attrs['metric']}' is not known")
    a, b = ranked(ctx, 0, 2), ranked(ctx, 1, 2)
    return [Out(ctx.dtype(0), (a[0] if a else None, b[0] if b else None))]


def _expand_dims(ctx: Infer) -> list[Out]:
    shape, axis = ctx.shape(0), ctx.ints(1)
    if shape is None or axis is None or len(axis) != 1:
        return [Out(ctx.dtype(0), None if shape is None else (None,) * (len(shape) + 1))]
    place = ctx.axis(axis[0], len(shape) + 1)
    return [Out(ctx.dtype(0), (*shape[:place], 1, *shape[place:]))]


def _unique(ctx: Infer) -> list[Out]:
    shape = ranked(ctx, 0, 1)
    return [Out(ctx.dtype(0), (None,)), Out(DType.I64, shape or (None,)), Out(DType.I64, (None,))]


def _range(ctx: Infer) -> list[Out]:
    return [Out(ctx.dtype(0), (None,))]


def _ngram(ctx: Infer) -> list[Out]:
    positive(ctx, "ngram_size")
    ranked(ctx, 0, 2)
    return [Out(ctx.dtype(1), ranked(ctx, 1, 2))]


def _signature(
    inputs: tuple[int, int],
    outputs: tuple[int, int] = (1, 1),
    optional: tuple[str, ...] = (),
    required: tuple[str, ...] = (),
    **defaults: Attr,
) -> Signature:
    return Signature(inputs, outputs, defaults, optional, required)


_WINDOW = ("dilations", "kernel_shape", "pads", "strides")
_ATTENTION = ("do_rotary", "mask_filter_value", "past_present_share_buffer", "scale")
_MANY = 2**31 - 1
_TINY = 9.999999960041972e-13  # the default epsilon, 1e-12 as f32

OPS = (
    Op("ms.DynamicQuantizeLSTM", "LSTM on 8-bit weights, with inputs and hidden state rounded to 8 bits as they come",
       _dynamic_quantize_lstm, "ms_quant.dynamic_quantize_lstm",
       signature=_signature((12, 12), (0, 3), ("activation_alpha", "activation_beta", "activations", "clip",
                                              "hidden_size"), direction="forward", input_forget=0)),
    Op("ms.QLinearAdd", "the sum of quantised tensors, quantised again", _broadcast(0, 3), "ms_quant.qlinear_binary",
       signature=_signature((7, 8))),
    Op("ms.QLinearMul", "the product of quantised tensors, quantised again", _broadcast(0, 3),
       "ms_quant.qlinear_binary", signature=_signature((7, 8))),
    Op("ms.QLinearConcat", "quantised tensors joined along an axis under one scale", _qlinear_concat,
       "ms_quant.qlinear_concat", signature=_signature((3, _MANY), required=("axis",))),
    Op("ms.QLinearAveragePool", "the mean of each window of a quantised tensor", _nhwc("onnx.AveragePool", 11),
       "ms_quant.qlinear_average_pool",
       signature=_signature((4, 5), optional=("pads", "strides"), required=("kernel_shape",), auto_pad="NOTSET",
                            ceil_mode=0, channels_last=0, count_include_pad=0)),
    Op("ms.QLinearGlobalAveragePool", "the mean of each channel of a quantised tensor",
       _nhwc("onnx.GlobalAveragePool", 1), "ms_quant.qlinear_global_average_pool",
       signature=_signature((5, 5), channels_last=0)),
    Op("ms.QLinearLeakyRelu", "LeakyRelu of a quantised tensor", _same(), "ms_quant.qlinear_leaky_relu",
       signature=_signature((4, 5), alpha=0.009999999776482582)),
    Op("ms.QLinearSigmoid", "Sigmoid of a quantised tensor", _same(), "ms_quant.qlinear_sigmoid",
       signature=_signature((4, 5))),
    Op("ms.QLinearSoftmax", "Softmax of a quantised tensor", _same(), "ms_quant.qlinear_softmax",
       signature=_signature((5, 5), required=("opset",), axis=-1)),
    Op("ms.QLinearWhere", "picks between quantised tensors and puts them under one scale", _broadcast(0, 4, 1),
       "ms_quant.qlinear_where", signature=_signature((9, 9))),
    Op("ms.QLinearConv", "the convolution of quantised tensors, with the channels first or last", _nhwc_qlinear_conv,
       "ms_quant.nhwc_qlinear_conv",
       signature=_signature((8, 9), optional=_WINDOW, auto_pad="NOTSET", channels_last=0, group=1)),
    Op("ms.FusedConv", "convolution, addition and activation in one", _fused_conv, "microsoft.fused_conv",
       signature=_signature((2, 4), optional=("activation", "activation_params", *_WINDOW), auto_pad="NOTSET",
                            group=1)),
    Op("ms.FusedMatMul", "alpha times the product of matrices that may be transposed", _fused_matmul,
       "microsoft.fused_matmul",
       signature=_signature((2, 2), alpha=1.0, transA=0, transB=0, transBatchA=0, transBatchB=0)),
    Op("ms.TransposeMatMul", "alpha times the product of matrices that may be transposed", _fused_matmul,
       "microsoft.fused_matmul", signature=_signature((2, 2), alpha=1.0, transA=0, transB=0)),
    Op("ms.FusedGemm", "Gemm with an activation behind it", _fused_gemm, "microsoft.fused_gemm",
       signature=_signature((2, 3), optional=("activation", "activation_alpha", "activation_beta",
                                              "activation_gamma"), alpha=1.0, beta=1.0, transA=0, transB=0)),
    Op("ms.Gelu", "x · Φ(x)", _same(), "microsoft.gelu", signature=_signature((1, 1))),
    Op("ms.BiasGelu", "Gelu of x + bias", _broadcast(1, 0), "microsoft.bias_gelu", signature=_signature((2, 2))),
    Op("ms.FastGelu", "Gelu of x + bias by its tanh approximation", _same(), "microsoft.fast_gelu",
       signature=_signature((1, 2))),
    Op("ms.QuickGelu", "x · sigmoid(alpha · x)", _same(), "microsoft.quick_gelu",
       signature=_signature((1, 1), alpha=1.7020000219345093)),
    Op("ms.SkipLayerNormalization", "layer normalisation of x + skip + bias", _skip_norm,
       "microsoft.skip_layer_norm", signature=_signature((3, 5), (1, 4), epsilon=_TINY)),
    Op("ms.SkipSimplifiedLayerNormalization", "root-mean-square normalisation of x + skip + bias", _skip_norm,
       "microsoft.skip_simplified_layer_norm", signature=_signature((3, 4), (1, 4), epsilon=_TINY)),
    Op("onnx.SimplifiedLayerNormalization", "root-mean-square normalisation; ONNX Runtime keeps it in ONNX's domain",
       _simplified_norm, "microsoft.simplified_layer_norm",
       signature=_signature((2, 2), (1, 2), axis=-1, epsilon=9.999999747378752e-06, stash_type=1)),
    Op("ms.EmbedLayerNormalization", "word, position and segment vectors, added and normalised", _embed_norm(2),
       "microsoft.embed_layer_norm", signature=_signature((7, 9), (1, 3), ("mask_index_type",), epsilon=_TINY)),
    Op("ms.QEmbedLayerNormalization", "EmbedLayerNormalization on quantised tables", _embed_norm(2),
       "ms_quant.qembed_layer_norm", signature=_signature((18, 18), (2, 2), epsilon=_TINY)),
    Op("ms.Attention", "projection to queries, keys and values, and attention among them", _attention(1, 4, 0),
       "ms_attention.attention",
       signature=_signature((2, 7), (1, 2), (*_ATTENTION, "qkv_hidden_sizes", "rotary_embedding_dim"),
                            ("num_heads",), unidirectional=0)),
    Op("ms.QAttention", "Attention whose projection multiplies 8-bit matrices", _attention(1, 8, 3),
       "ms_attention.quantised_attention",
       signature=_signature((5, 9), (1, 2), _ATTENTION, ("num_heads",), unidirectional=0)),
    Op("ms.MultiHeadAttention", "attention between projected queries, keys and values", _multi_head_attention,
       "ms_attention.multi_head_attention",
       signature=_signature((1, 10), (1, 4), ("mask_filter_value", "scale"), ("num_heads",), unidirectional=0)),
    Op("ms.GroupQueryAttention", "causal attention with a cache, shared key heads and rotary positions",
       _group_query_attention, "ms_attention.group_query_attention",
       signature=_signature((7, 16), (1, 4), ("do_rotary", "kv_cache_bit_width", "rotary_interleaved", "scale",
                                              "softcap"), ("kv_num_heads", "num_heads"), causal=1,
                            k_quant_type="NONE", local_window_size=-1, qk_norm_epsilon=9.999999974752427e-07,
                            qk_output=0, sliding_window_cache=0, smooth_softmax=-1, v_quant_type="NONE")),
    Op("ms.RotaryEmbedding", "rotate pairs of channels by an angle for each position", _rotary,
       "ms_attention.rotary_embedding",
       signature=_signature((4, 4), optional=("interleaved", "is_packed_batching", "num_heads",
                                              "rotary_embedding_dim", "scale"))),
    Op("ms.MatMulNBits", "the product with a weight of 2, 4 or 8 bits in blocks", _matmul_packed,
       "ms_quant.matmul_nbits",
       signature=_signature((3, 6), required=("K", "N", "block_size"), accuracy_level=0, bits=4,
                            weight_prepacked=0)),
    Op("ms.MatMulBnb4", "the product with a weight in bitsandbytes' 4-bit types", _matmul_packed,
       "ms_quant.matmul_bnb4",
       signature=_signature((3, 3), required=("K", "N", "block_size", "quant_type"), training_mode=0, transB=1)),
    Op("ms.MatMulIntegerToFloat", "the product of 8-bit matrices, scaled, plus a bias", _matmul_as(2),
       "ms_quant.matmul_integer_to_float", signature=_signature((4, 7))),
    Op("ms.DynamicQuantizeMatMul", "the product of a matrix, rounded to 8 bits, with an 8-bit one", _matmul_as(0),
       "ms_quant.dynamic_quantize_matmul", signature=_signature((3, 5))),
    Op("ms.QuantizeLinear", "saturate(round(x / scale) + zero point)", quantize, "ms_quant.quantize_linear",
       signature=_signature((2, 3), optional=("axis",))),
    Op("ms.DequantizeLinear", "(x - zero point) · scale", dequantize, "ms_quant.dequantize_linear",
       signature=_signature((2, 3), optional=("axis",))),
    Op("ms.QGemm", "alpha · A' · B' + C of quantised matrices, quantised again or real", _qgemm, "ms_quant.qgemm",
       signature=_signature((6, 9), alpha=1.0, transA=0, transB=0)),
    Op("ms.GatherBlockQuantized", "rows of a table that is quantised in blocks, made real", _gather_block_quantized,
       "ms_quant.gather_block_quantized",
       signature=_signature((3, 4), bits=4, block_size=128, gather_axis=0, quantize_axis=1)),
    Op("ms.NhwcMaxPool", "the maximum of each window, with the channels last", _nhwc("onnx.MaxPool", 12),
       "microsoft.nhwc_max_pool",
       signature=_signature((1, 1), optional=("dilations", "pads", "strides"), required=("kernel_shape",),
                            auto_pad="NOTSET", ceil_mode=0)),
    Op("ms.MatMulInteger16", "the product of 16-bit matrices in 32 bits", matmul_integer,
       "microsoft.matmul_integer16", signature=_signature((2, 2))),
    Op("ms.CDist", "the distances between the rows of two matrices", _cdist, "microsoft.cdist",
       signature=_signature((2, 2), metric="sqeuclidean")),
    Op("ms.ExpandDims", "a new axis of size 1", _expand_dims, "microsoft.expand_dims", signature=_signature((2, 2))),
    Op("ms.GatherND", "slices at the places that the indices name", _shaped("onnx.GatherND", 11, 0, 1),
       "microsoft.gather_nd", signature=_signature((2, 2))),
    Op("ms.GridSample", "samples an image at the points of a grid", _shaped("onnx.GridSample", 16, 0, 1),
       "microsoft.grid_sample",
       signature=_signature((2, 2), align_corners=0, mode="bilinear", padding_mode="zeros")),
    Op("ms.Inverse", "the inverses of square matrices", _same(), "microsoft.inverse", signature=_signature((1, 1))),
    Op("ms.NGramRepeatBlock", "-inf for tokens that would repeat an n-gram", _ngram, "microsoft.ngram_repeat_block",
       signature=_signature((2, 2), required=("ngram_size",))),
    Op("ms.Pad", "more elements at the ends of axes", _shaped("onnx.Pad", 11, 0, 1, 2), "microsoft.pad",
       signature=_signature((2, 3), mode="constant")),
    Op("ms.Range", "numbers from start to limit", _range, "microsoft.range_", signature=_signature((2, 3))),
    Op("ms.Trilu", "the upper or lower triangle of matrices", _same(), "microsoft.trilu",
       signature=_signature((1, 2), upper=1)),
    Op("ms.Unique", "distinct values in the order of their first occurrence", _unique, "microsoft.unique",
       signature=_signature((1, 1), (3, 3))),
)  # fmt: skip
