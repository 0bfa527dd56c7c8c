"""Ops on strings, and on encoded pictures."""

from __future__ import annotations

from tierup.ir.infer import Infer, InferError, Out, PartialShape
from tierup.ir.ops.row import Op
from tierup.ir.types import DType

_INDEX_LIMIT = 1 << 31  # columns of a TfIdfVectorizer; its result is dense


def _regex(ctx: Infer) -> list[Out]:
    if not isinstance(ctx.attrs.get("pattern"), str):
        raise InferError("the pattern is missing")
    return [Out(DType.BOOL, ctx.shape(0))]


def _concat(ctx: Infer) -> list[Out]:
    return [Out(DType.STR, ctx.broadcast(ctx.shape(0), ctx.shape(1)))]


def _normalize(ctx: Infer) -> list[Out]:
    if ctx.attrs.get("case_change_action", "NONE") not in ("LOWER", "UPPER", "NONE"):
        raise InferError(f"there is no case_change_action '{ctx.attrs['case_change_action']}'")
    shape = ctx.shape(0)
    if shape is None:
        return [Out(DType.STR, None)]
    if len(shape) not in (1, 2) or (len(shape) == 2 and isinstance(shape[0], int) and shape[0] != 1):
        raise InferError(f"the input must have the shape [C] or [1, C], but has {list(shape)}")
    kept: PartialShape = (None,) if ctx.attrs.get("stopwords") else shape[-1:]
    if not ctx.attrs.get("stopwords") and not isinstance(shape[-1], int):
        kept = (ctx.dims.max(shape[-1], 1),)  # nothing becomes one empty string
    elif kept == (0,):
        kept = (1,)
    return [Out(DType.STR, kept if len(shape) == 1 else (1, *kept))]


def _split(ctx: Infer) -> list[Out]:
    shape = ctx.shape(0)
    return [Out(DType.STR, None if shape is None else (*shape, None)), Out(DType.I64, shape)]


def _tf_idf(ctx: Infer) -> list[Out]:
    attrs, shape = ctx.attrs, ctx.shape(0)
    columns = attrs["ngram_indexes"]
    if not columns or min(columns) < 0 or max(columns) >= _INDEX_LIMIT:
        raise InferError("ngram_indexes must be columns of the result, counted from 0")
    if attrs["mode"] not in ("TF", "IDF", "TFIDF"):
        raise InferError(f"there is no mode '{attrs['mode']}'")
    if ("pool_int64s" in attrs) == ("pool_strings" in attrs):
        raise InferError("one of pool_int64s and pool_strings must be given")
    if shape is not None and len(shape) not in (1, 2):
        raise InferError(f"the input must have the shape [C] or [N, C], but has {list(shape)}")
    return [Out(DType.F32, None if shape is None else (*shape[:-1], max(columns) + 1))]


def _image(ctx: Infer) -> list[Out]:
    channels = {"RGB": 3, "BGR": 3, "Grayscale": 1}.get(ctx.attrs["pixel_format"])
    if channels is None:
        raise InferError(f"there is no pixel_format '{ctx.attrs['pixel_format']}'")
    return [Out(DType.U8, (None, None, channels))]


_STRINGS = "strings have no fixed size; no tile program reads them"

OPS: tuple[Op, ...] = (
    Op("onnx.RegexFullMatch", "whether each string as a whole matches a pattern", _regex, "text.regex", core=_STRINGS),
    Op("onnx.StringConcat", "two strings, one after the other", _concat, "text.concat", core=_STRINGS),
    Op("onnx.StringNormalizer", "without stop words, in one case", _normalize, "text.normalize", core=_STRINGS),
    Op("onnx.StringSplit", "the pieces of each string, and how many", _split, "text.split", core=_STRINGS),
    Op("onnx.TfIdfVectorizer", "how often each n-gram of a pool occurs", _tf_idf, "text.tf_idf", core=_STRINGS),
    Op("onnx.ImageDecoder", "an encoded picture as pixels", _image, "image.decode", core="parses file formats"),
)
