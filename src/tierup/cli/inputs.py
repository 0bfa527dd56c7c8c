"""Inputs for a model from files, shapes and thin air."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tierup.errors import InputError
from tierup.frontends.onnx.limits import max_tensor_bytes
from tierup.ir.types import Array, DType, OptionalType, SequenceType, TensorType, Type
from tierup.runtime.feeds import Input

T = TypeVar("T")

# Sizes for dims that the model leaves open: one batch, a small picture, and for other dims a short sequence; models
# that cannot take that few (windows of sound, for example) are tried with the longer ones.
_OPEN_FIRST, _OPEN_PICTURE = 1, 64
_OPEN_SIZES = (16, 256, 4096, 65536)


def gather_inputs(
    specs: Sequence[Input], files: Sequence[str], shapes: Sequence[str], seed: int, open_size: int = _OPEN_SIZES[0]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Values by name, and where each came from. Defaults stay defaults unless a file or shape names them."""
    given = _from_files(specs, files)
    wanted = dict(_parse_shape(text) for text in shapes)
    known = {spec.name for spec in specs}
    for name in (*given, *wanted):
        if name not in known:
            raise InputError(f"there is no input '{name}'; the model's inputs are {', '.join(sorted(known)) or 'none'}")
    random = np.random.default_rng(seed)
    sizes = _named_sizes(specs, given, wanted)
    values, sources = dict(given), dict.fromkeys(given, "file")
    for spec in specs:
        if spec.name not in values and (spec.required or spec.name in wanted):
            values[spec.name] = _made_up(spec, wanted.get(spec.name), sizes, random, open_size)
            sources[spec.name] = "made up"
    return values, sources


def sound_inputs(
    specs: Sequence[Input], files: Sequence[str], shapes: Sequence[str], seed: int, call: Callable[[dict[str, Any]], T]
) -> tuple[dict[str, Any], dict[str, str], T]:
    """Inputs that `call` takes, where each came from, and what it returned: open sizes grow until it takes them."""
    for open_size in _OPEN_SIZES:
        values, sources = gather_inputs(specs, files, shapes, seed, open_size)
        try:
            return values, sources, call(values)
        except InputError as error:
            if "made up" not in sources.values():
                raise
            if open_size == _OPEN_SIZES[-1]:
                raise InputError(f"{error}. Its inputs were made up: give them with --input or --shape") from error
    raise AssertionError("the last size returns or raises")


def _from_files(specs: Sequence[Input], files: Sequence[str]) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for text in files:
        name, separator, path = text.partition("=")
        if not separator:
            name, path = "", text
        loaded = _read(Path(path))
        if isinstance(loaded, np.ndarray):
            if not name and len(specs) != 1:
                raise InputError(f"say which input '{path}' is for: --input NAME={path}")
            found[name or specs[0].name] = loaded
        elif name:
            raise InputError(f"'{path}' holds several arrays; give it without a name: --input {path}")
        else:
            found.update(loaded)
    return found


def _read(path: Path) -> Any:
    try:
        loaded = np.load(path, allow_pickle=False)
        return loaded if isinstance(loaded, np.ndarray) else dict(loaded)
    except (OSError, ValueError) as error:
        raise InputError(f"input file '{path}' cannot be read: {error}") from error


def _parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, sizes = text.rpartition("=")
    try:
        shape = tuple(int(size) for size in sizes.split(",") if size.strip())
    except ValueError:
        shape = (-1,)
    if not name or any(size < 0 for size in shape):
        raise InputError(f"'{text}' is no shape; write --shape NAME=1,3,224,224")
    return name, shape


def _named_sizes(specs: Sequence[Input], given: dict[str, Array], wanted: dict[str, tuple[int, ...]]) -> dict[str, int]:
    """Sizes of named dims that the given inputs fix."""
    sizes: dict[str, int] = {}
    for spec in specs:
        actual = given[spec.name].shape if spec.name in given else wanted.get(spec.name)
        if actual is not None and spec.shape is not None and len(actual) == len(spec.shape):
            sizes.update({dim: size for dim, size in zip(spec.shape, actual, strict=True) if isinstance(dim, str)})
    return sizes


def _made_up(
    spec: Input, shape: tuple[int, ...] | None, sizes: dict[str, int], random: np.random.Generator, open_size: int
) -> Any:
    if not isinstance(spec.type, TensorType):
        return _made_up_item(spec.name, spec.type)
    if shape is None:
        if spec.shape is None:
            raise InputError(f"input '{spec.name}' has no shape in the model; give one: --shape {spec.name}=1,2,3")
        picture = len(spec.shape) == 4
        dims = []
        for axis, dim in enumerate(spec.shape):
            guess = _OPEN_FIRST if axis == 0 else max(_OPEN_PICTURE, open_size) if picture and axis >= 2 else open_size
            dims.append(dim if isinstance(dim, int) else sizes.setdefault(dim, guess) if dim else guess)
        shape = tuple(dims)
    if math.prod(shape) * spec.type.dtype.numpy.itemsize > max_tensor_bytes() // 4:
        raise InputError(f"input '{spec.name}' of shape {list(shape)} is too large to make up on this machine")
    return _values(spec.type.dtype, shape, random)


def _values(dtype: DType, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    """Floats are normal; integers are 1, which is a valid index, id and mask nearly everywhere."""
    if dtype is DType.STR:
        return np.full(shape, "text", object)
    if dtype.is_float:
        return random.standard_normal(shape).astype(dtype.numpy)
    return np.ones(shape, dtype.numpy)


def _made_up_item(name: str, type: Type) -> Any:
    if isinstance(type, OptionalType):
        return None
    if isinstance(type, SequenceType):
        return []
    raise InputError(f"input '{name}' is a {type!r}, which cannot be made up")
