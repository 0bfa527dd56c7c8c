"""Classical machine learning (ai.onnx.ml): encoders, linear models, support vectors, trees."""

from __future__ import annotations

from collections.abc import Callable

from tierup.ir.graph import Attrs, Const
from tierup.ir.infer import Infer, InferError, Out, PartialShape
from tierup.ir.ops.row import Op
from tierup.ir.types import Dim, DType, MapType, SequenceType, TensorType, Type, dtype_from_numpy

_WIDTH_LIMIT = 1 << 28  # columns of a result whose number is an attribute


def _same(ctx: Infer) -> list[Out]:
    return [Out(ctx.dtype(0), ctx.shape(0))]


def _floats(ctx: Infer) -> list[Out]:
    return [Out(DType.F32, ctx.shape(0))]


def _extract(ctx: Infer) -> list[Out]:
    shape, picks = ctx.shape(0), ctx.shape(1)
    if shape is None:
        return [Out(ctx.dtype(0), None)]
    if not shape:
        raise InferError("features are picked from a scalar")
    count = None if picks is None else ctx.dims.product(picks)
    return [Out(ctx.dtype(0), (*(shape[:-1] or (1,)), count))]


_CASTS = {"TO_FLOAT": DType.F32, "TO_INT64": DType.I64, "TO_STRING": DType.STR}


def _cast_map(ctx: Infer) -> list[Out]:
    _map_input(ctx, DType.I64)
    dtype = _CASTS.get(ctx.attrs["cast_to"])
    if dtype is None or ctx.attrs["map_form"] not in ("DENSE", "SPARSE"):
        raise InferError(f"there is no cast_to '{ctx.attrs['cast_to']}' with map_form '{ctx.attrs['map_form']}'")
    sparse = ctx.attrs["map_form"] == "SPARSE"
    return [Out(dtype, (1, _width(ctx.attrs["max_map"]) if sparse else None))]


def _width(count: int) -> int:
    if not 0 < count <= _WIDTH_LIMIT:
        raise InferError(f"a result would have {count} columns; 1 to {_WIDTH_LIMIT} are possible")
    return count


def _map_input(ctx: Infer, *keys: DType) -> MapType:
    type = ctx.inputs[0] if ctx.inputs else None
    if not isinstance(type, MapType) or type.key not in keys:
        raise InferError(f"input 0 must be a map with keys of {keys}, but is {type!r}")
    return type


def _category(ctx: Infer) -> list[Out]:
    if len(ctx.attrs.get("cats_int64s") or ()) != len(ctx.attrs.get("cats_strings") or ()):
        raise InferError("cats_int64s and cats_strings must have the same length")
    return [Out(DType.I64 if ctx.dtype(0) is DType.STR else DType.STR, ctx.shape(0))]


def _dict(ctx: Infer) -> list[Out]:
    type = _map_input(ctx, DType.I64, DType.STR)
    words = ctx.attrs.get("string_vocabulary" if type.key is DType.STR else "int64_vocabulary") or ()
    if not isinstance(type.value, TensorType):
        raise InferError(f"the map's values must be numbers or strings, but are {type.value!r}")
    return [Out(type.value.dtype, (1, len(words)))]


def _features(ctx: Infer) -> list[Out]:
    sizes = ctx.attrs.get("inputdimensions") or ()
    if len(sizes) != len(ctx.inputs) or any(size < 0 for size in sizes):
        raise InferError(f"inputdimensions {list(sizes)} do not fit {len(ctx.inputs)} inputs")
    shape = ctx.shape(0)
    rows: Dim | None = None if shape is None else 1 if len(shape) < 2 else shape[0]
    return [Out(DType.F32, (rows, _width(max(1, sum(sizes))) if sum(sizes) else 0))]


def _imputer(ctx: Infer) -> list[Out]:
    name = "imputed_value_int64s" if ctx.dtype(0).is_integer else "imputed_value_floats"
    values, shape = ctx.attrs.get(name) or (), ctx.shape(0)
    features = shape[-1] if shape else 1
    if not values or (len(values) > 1 and isinstance(features, int) and len(values) != features):
        raise InferError(f"{name} has {len(values)} entries for {features} features")
    return [Out(ctx.dtype(0), shape)]


_LABEL_VALUES = {"values_int64s": DType.I64, "values_floats": DType.F32, "values_strings": DType.STR}


def _label(ctx: Infer) -> list[Out]:
    if ctx.version == 1:
        return [Out(DType.I64 if ctx.dtype(0) is DType.STR else DType.STR, ctx.shape(0))]
    keys = [name for name in ctx.attrs if name.startswith("keys_")]
    values = [name for name in ctx.attrs if name.startswith("values_")]
    if len(keys) != 1 or len(values) != 1 or _count(ctx.attrs[keys[0]]) != _count(ctx.attrs[values[0]]):
        raise InferError(f"one list of keys and one of values of the same length are needed, not {keys} and {values}")
    tensor = ctx.attrs[values[0]]
    dtype = dtype_from_numpy(tensor.array.dtype) if isinstance(tensor, Const) else _LABEL_VALUES[values[0]]
    if dtype is None:
        raise InferError("the values have no dtype that is known here")
    return [Out(dtype, ctx.shape(0))]


def _count(values: Const | tuple[object, ...]) -> int:
    return values.array.size if isinstance(values, Const) else len(values)


def _one_hot(ctx: Infer) -> list[Out]:
    shape = ctx.shape(0)
    cats = ctx.attrs.get("cats_strings" if ctx.dtype(0) is DType.STR else "cats_int64s") or ()
    return [Out(DType.F32, None if shape is None else (*shape, len(cats)))]


def _scaler(ctx: Infer) -> list[Out]:
    shape = ctx.shape(0)
    for name in ("offset", "scale"):
        count = len(ctx.attrs.get(name) or ())
        if count > 1 and shape and isinstance(shape[-1], int) and count != shape[-1]:
            raise InferError(f"{name} has {count} entries, but there are {shape[-1]} features")
    return [Out(DType.F32, shape)]


def _rows(ctx: Infer) -> Dim | None:
    shape = ctx.shape(0)
    if shape is not None and len(shape) not in (1, 2):
        raise InferError(f"the input must have the shape [C] or [N, C], but has {list(shape)}")
    return None if shape is None else shape[0] if len(shape) == 2 else 1


def labels_of(attrs: Attrs) -> tuple[DType, int]:
    """The dtype of a classifier's labels, and how many there are."""
    names = ("classlabels_strings", "classlabels_ints", "classlabels_int64s")
    given = [name for name in names if attrs.get(name)]
    if len(given) > 1:
        raise InferError(f"only one of {given} may be given")
    name = given[0] if given else names[1]
    return DType.STR if name == names[0] else DType.I64, len(attrs.get(name) or ())


def _classifier(width: Callable[[Attrs, int], int]) -> Callable[[Infer], list[Out]]:
    """Labels [N] and scores [N, E]; `width` gives E from the attributes and the number of labels."""

    def rule(ctx: Infer) -> list[Out]:
        _transform(ctx)
        (dtype, count), rows = labels_of(ctx.attrs), _rows(ctx)
        return [Out(dtype, (rows,)), Out(DType.F32, (rows, width(ctx.attrs, count)))]

    return rule


def _transform(ctx: Infer) -> None:
    known = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
    if ctx.attrs["post_transform"] not in known:
        raise InferError(f"post_transform is '{ctx.attrs['post_transform']}', expected one of {', '.join(known)}")


def _linear_width(attrs: Attrs, labels: int) -> int:
    scores = len(attrs.get("intercepts") or ()) or max(labels, 1)
    return 2 if scores == 1 and labels == 2 else scores


def _svm_width(attrs: Attrs, labels: int) -> int:
    if not attrs.get("vectors_per_class") or attrs.get("prob_a"):
        return max(labels, 1)
    pairs = labels * (labels - 1) // 2
    return 2 if pairs == 1 else pairs


def _tree_width(attrs: Attrs, labels: int) -> int:
    return max(labels, 1)


def _regressor(name: str) -> Callable[[Infer], list[Out]]:
    def rule(ctx: Infer) -> list[Out]:
        _transform(ctx)
        return [Out(DType.F32, (_rows(ctx), _width(ctx.attrs.get(name, 1))))]

    return rule


_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


def _tree_regressor(ctx: Infer) -> list[Out]:
    if ctx.attrs["aggregate_function"] not in _AGGREGATES:
        raise InferError(f"there is no aggregate_function '{ctx.attrs['aggregate_function']}'")
    return _regressor("n_targets")(ctx)


def _tree_ensemble(ctx: Infer) -> list[Out]:
    attrs = ctx.attrs
    if not 0 <= attrs["aggregate_function"] <= 3 or not 0 <= attrs["post_transform"] <= 4:
        raise InferError("there is no such aggregate_function or post_transform")
    return [Out(ctx.dtype(0), (_rows(ctx), _width(attrs.get("n_targets", 1))))]


def _zip_map(ctx: Infer) -> list[Type]:
    dtype, count = labels_of(ctx.attrs)
    _rows(ctx)
    shape: PartialShape | None = ctx.shape(0)
    if not count or (shape and isinstance(shape[-1], int) and shape[-1] != count):
        raise InferError(f"{count} labels do not fit the columns of {ctx.tensor(0)!r}")
    return [SequenceType(MapType(dtype, TensorType(ctx.dtype(0), ())))]


_TABLE = "a look-up of strings in a table from the model; nothing smaller says that"
_MAPS = "maps hold whole values, not elements: there is nothing to tile"

_ROWS = (
    ("ArrayFeatureExtractor", _extract, "ml.extract", "", "columns picked by index"),
    ("Binarizer", _same, "ml.binarize", "", "1 above a threshold, else 0"),
    ("CastMap", _cast_map, "ml.cast_map", _MAPS, "a map's values in the order of its keys, as a row"),
    ("CategoryMapper", _category, "ml.category", _TABLE, "strings to integers, or back"),
    ("DictVectorizer", _dict, "ml.dict_vectorize", _MAPS, "a map's values in the order of a vocabulary"),
    ("FeatureVectorizer", _features, "ml.features", "", "features side by side"),
    ("Imputer", _imputer, "ml.impute", "", "one value replaced by another in each column"),
    ("LabelEncoder", _label, "ml.label_encode", "", "each element looked up in a table"),
    ("LinearClassifier", _classifier(_linear_width), "linear_models.classify", "", "classes by a linear score"),
    ("LinearRegressor", _regressor("targets"), "linear_models.regress", "", "a linear score"),
    ("Normalizer", _floats, "ml.normalize", "", "each row divided by its norm"),
    ("OneHotEncoder", _one_hot, "ml.one_hot", "", "each element as a row with a one at its category"),
    ("SVMClassifier", _classifier(_svm_width), "linear_models.svm_classify", "", "classes by support vectors"),
    ("SVMRegressor", _regressor("n_targets"), "linear_models.svm_regress", "", "a score by support vectors"),
    ("Scaler", _scaler, "ml.scale", "", "each column less an offset, times a scale"),
    ("TreeEnsemble", _tree_ensemble, "trees.ensemble", "", "the joint vote of many trees"),
    ("TreeEnsembleClassifier", _classifier(_tree_width), "trees.classifier", "", "classes by many trees"),
    ("TreeEnsembleRegressor", _tree_regressor, "trees.regressor", "", "a score by many trees"),
    ("ZipMap", _zip_map, "ml.zip_map", _MAPS, "each row as a map from labels to its values"),
)
OPS: tuple[Op, ...] = tuple(
    Op(f"ml.{name}", doc, rule, reference, core=reason) for name, rule, reference, reason, doc in _ROWS
)
