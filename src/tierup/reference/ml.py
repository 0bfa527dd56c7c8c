"""Encoders, scalers and maps of ai.onnx.ml. Look-ups in tables go through sorted keys, strings through dicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tierup.ir.graph import Attrs, Const, Node
from tierup.ir.types import Array
from tierup.reference.scores import class_labels

_COLUMN_LIMIT = 1 << 28  # elements of a row whose length an attribute gives


def extract(node: Node, x: Array, picks: Array) -> Array:
    if picks.size and not 0 <= picks.min() <= picks.max() < x.shape[-1]:
        raise IndexError(f"feature {picks.max()} is picked, but there are {x.shape[-1]}")
    result = np.take(x, picks.reshape(-1), axis=-1)
    return result.reshape(1, -1) if x.ndim == 1 else result


def binarize(node: Node, x: Array) -> Array:
    return np.asarray(x > node.attrs["threshold"]).astype(x.dtype)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:f}" if isinstance(value, float) else str(value)


_CASTS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "TO_FLOAT": (np.float32, float),
    "TO_INT64": (np.int64, lambda value: int(float(value))),
    "TO_STRING": (object, _text),
}


def cast_map(node: Node, x: dict[Any, Any]) -> Array:
    kind, convert = _CASTS[node.attrs["cast_to"]]
    items = sorted((int(key), convert(_scalar(value))) for key, value in x.items())
    if node.attrs["map_form"] == "DENSE":
        result = np.empty((1, len(items)), kind)
        result[0, :] = [value for _, value in items]
        return result
    if items and not 0 <= items[0][0] <= items[-1][0] < node.attrs["max_map"]:
        raise IndexError(f"key {items[-1][0]} is outside a row of {node.attrs['max_map']}")
    result = np.full((1, node.attrs["max_map"]), "" if kind is object else 0, kind)
    for key, value in items:
        result[0, key] = value
    return result


def _scalar(value: Any) -> Any:
    return value.item() if isinstance(value, np.ndarray | np.generic) else value


def lookup(x: Array, keys: Sequence[Any] | Array, values: Array, default: Any) -> Array:
    """`values` at the place where each element of `x` stands in `keys` (the last one of equals), else `default`."""
    if x.dtype.kind not in "iufb":
        table = {str(key): i for i, key in enumerate(keys)}
        place = np.array([table.get(str(item), -1) for item in x.reshape(-1)], np.int64).reshape(x.shape)
    else:
        place = _places(x, np.asarray(keys))
    extended = np.empty(len(values) + 1, values.dtype)
    extended[:-1], extended[-1] = values, default
    return extended[place]


def _places(x: Array, keys: Array) -> Array:
    """The last place of each element in `keys`, NaN equal to NaN; -1 where it has none."""
    if not keys.size:
        return np.full(x.shape, -1)
    order = np.argsort(keys, kind="stable")  # NaN last
    ordered = keys[order]
    at = np.searchsorted(ordered, x, side="right") - 1
    found = ordered[at]
    same = (found == x) | ((found != found) & (x != x))
    return np.where((at >= 0) & same, order[at], -1)


def category(node: Node, x: Array) -> Array:
    numbers, words = node.attrs.get("cats_int64s") or (), node.attrs.get("cats_strings") or ()
    if x.dtype.kind in "iu":
        return lookup(x, np.array(numbers, np.int64), np.array(words, object), node.attrs["default_string"])
    return lookup(x, words, np.array(numbers, np.int64), node.attrs["default_int64"])


def dict_vectorize(node: Node, x: dict[Any, Any]) -> Array:
    words = node.attrs.get("string_vocabulary") or node.attrs.get("int64_vocabulary") or ()
    given = {key: _scalar(value) for key, value in x.items()}
    unknown = given.keys() - set(words)
    if unknown:
        raise ValueError(f"the map has {sorted(map(str, unknown))[0]}, which the vocabulary lacks")
    first = next(iter(x.values()), np.float32(0))
    dtype = first.dtype if isinstance(first, np.ndarray | np.generic) else np.array(first).dtype
    if dtype.kind in "OU":
        return np.array([[given.get(word, "") for word in words]], object)
    if isinstance(first, float):
        dtype = np.dtype(np.float32)
    return np.array([[given.get(word, 0) for word in words]], dtype)


def features(node: Node, *inputs: Array) -> Array:
    rows = []
    for x, width in zip(inputs, node.attrs["inputdimensions"], strict=True):
        flat = x.reshape(1, -1) if x.ndim < 2 else x.reshape(len(x), -1)
        if width > _COLUMN_LIMIT:
            raise ValueError(f"inputdimensions asks for {width} columns")
        kept = np.zeros((len(flat), width), np.float64 if x.dtype == np.float64 else np.float32)
        kept[:, : flat.shape[1]] = flat[:, :width]
        rows.append(kept)
    return np.concatenate(rows, axis=1).astype(np.float32)


def impute(node: Node, x: Array) -> Array:
    kind = "int64" if x.dtype.kind == "i" else "float"
    values = np.array(node.attrs[f"imputed_value_{kind}s"], x.dtype)
    old = node.attrs[f"replaced_value_{kind}"]
    return np.where(np.isnan(x) if old != old else x == x.dtype.type(old), values, x)


_KEYS = ("keys_strings", "keys_int64s", "keys_floats", "keys_tensor")
_VALUES = ("values_strings", "values_int64s", "values_floats", "values_tensor")
_DTYPES: dict[str, Any] = {"strings": object, "int64s": np.int64, "floats": np.float32}


def _table(attrs: Attrs, names: Sequence[str]) -> tuple[str, Array]:
    for name in names:
        if name in attrs:
            kind = name.partition("_")[2]
            value = attrs[name]
            return kind, value.array.reshape(-1) if isinstance(value, Const) else np.array(value, _DTYPES[kind])
    raise ValueError(f"one of {', '.join(names)} is needed")


def label_encode(node: Node, x: Array) -> Array:
    attrs = node.attrs
    if node.version == 1:
        words = np.array(attrs.get("classes_strings") or (), object)
        if x.dtype.kind in "iu":
            return lookup(x, np.arange(len(words)), words, attrs["default_string"])
        return lookup(x, words, np.arange(len(words)), attrs["default_int64"])
    return lookup(x, *label_table(node))


def label_table(node: Node) -> tuple[Array, Array, Any]:
    """The keys and values of a LabelEncoder from version 2 on, and what stands for all other keys."""
    (_, keys), (kind, values) = _table(node.attrs, _KEYS), _table(node.attrs, _VALUES)
    return keys, values, _default(node.attrs, kind, values)


def _default(attrs: Attrs, kind: str, values: Array) -> Any:
    tensor = attrs.get("default_tensor")
    if kind == "tensor" and isinstance(tensor, Const):
        return tensor.array.reshape(-1)[0]
    if kind == "tensor":
        kind = {"O": "strings", "f": "floats"}.get(values.dtype.kind, "int64s")
    return attrs[f"default_{kind[:-1]}"]


def normalize(node: Node, x: Array) -> Array:
    """Each row over its norm; rows of norm 0 stay as they are."""
    values = x if x.dtype.kind == "f" else x.astype(np.float32)
    rows = values if values.ndim > 1 else values.reshape(1, -1)
    axis = 1
    if node.attrs["norm"] == "MAX":
        size = rows.max(axis=axis, keepdims=True, initial=-np.inf)
    elif node.attrs["norm"] == "L1":
        size = np.abs(rows).sum(axis=axis, keepdims=True)
    else:
        size = np.sqrt((rows**2).sum(axis=axis, keepdims=True))
    return np.where(size == 0, rows, rows / np.where(size == 0, 1, size)).reshape(x.shape).astype(np.float32)


def one_hot(node: Node, x: Array) -> Array:
    if x.dtype.kind in "iuf":
        names: Any = np.array(node.attrs.get("cats_int64s") or (), np.int64)
        x = x.astype(np.int64)
    else:
        names = node.attrs.get("cats_strings") or ()
    rows = np.eye(len(names), dtype=np.float32)
    place = lookup(x, names, np.arange(len(names)), -1)
    if not node.attrs["zeros"] and (place < 0).any():
        raise ValueError(f"{x[place < 0].reshape(-1)[0]} is none of the categories")
    return np.concatenate([rows, np.zeros((1, len(names)), np.float32)])[place]


def scale(node: Node, x: Array) -> Array:
    dtype = np.float64 if x.dtype == np.float64 else np.float32
    offset: Array = np.array(node.attrs.get("offset") or 0, dtype)
    factor: Array = np.array(node.attrs.get("scale") or 1, dtype)
    return np.asarray((x.astype(dtype) - offset) * factor, np.float32)


def zip_map(node: Node, x: Array) -> tuple[list[dict[Any, Any]]]:
    labels = class_labels(node.attrs)
    rows = x if x.ndim == 2 else x.reshape(1, -1)
    return ([dict(zip(labels, row, strict=True)) for row in rows],)
