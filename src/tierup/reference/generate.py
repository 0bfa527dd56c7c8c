"""Tensors out of nothing but sizes: fills, ranges, windows, random numbers.

ONNX leaves the random stream open. Here it is NumPy's RandomState, so that a seed gives the same numbers everywhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tierup.ir.graph import Const, Node
from tierup.ir.ops.generate import range_count
from tierup.ir.types import Array, DType, dtype_from_code
from tierup.reference.cast import convert, dtype_of
from tierup.reference.precision import down, up

_MOST_ELEMENTS = 1 << 59  # of eight bytes, what an address can reach


def _dtype(node: Node, name: str, like: Array | None = None) -> DType:
    code = node.attrs.get(name)
    dtype = dtype_of(like) if code is None and like is not None else dtype_from_code(code)
    if dtype is None:
        raise ValueError(f"there is no dtype with number {code}")
    return dtype


def random_state(node: Node) -> np.random.RandomState:
    """A generator from the node's seed, any float or integer, or from the system's entropy."""
    seed = node.attrs.get("seed")
    if seed is None:
        return np.random.RandomState()
    return np.random.RandomState(seed % (1 << 32) if isinstance(seed, int) else int(np.float32(seed).view(np.uint32)))


def bernoulli(node: Node, x: Array) -> Array:
    drawn = random_state(node).random_sample(x.shape) < up(x)
    return convert(np.asarray(drawn), _dtype(node, "dtype", x))


def multinomial(node: Node, logits: Array) -> Array:
    """Draws by inverting each row's cumulative distribution."""
    scores = logits.astype(np.float64)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    totals = np.cumsum(weights, axis=1)
    drawn = random_state(node).random_sample((len(scores), node.attrs["sample_size"])) * totals[:, -1:]
    picked = [np.searchsorted(total, row, side="right") for total, row in zip(totals, drawn, strict=True)]
    return np.array(picked, _dtype(node, "dtype").numpy).reshape(drawn.shape)


def random_normal(node: Node, like: Array | None = None) -> Array:
    shape = node.attrs["shape"] if like is None else like.shape
    drawn = random_state(node).standard_normal(shape) * node.attrs["scale"] + node.attrs["mean"]
    return convert(np.asarray(drawn), _dtype(node, "dtype", like))


def random_uniform(node: Node, like: Array | None = None) -> Array:
    shape = node.attrs["shape"] if like is None else like.shape
    low, high = node.attrs["low"], node.attrs["high"]
    drawn = random_state(node).random_sample(shape) * (high - low) + low
    return convert(np.asarray(drawn), _dtype(node, "dtype", like))


def constant(node: Node) -> Array:
    (name, value), *_ = node.attrs.items()
    if isinstance(value, Const):
        return value.array
    kinds: dict[str, Any] = {"int": np.int64, "float": np.float32, "string": object}
    return np.array(value, kinds[name.removeprefix("value_").rstrip("s")])


def constant_of_shape(node: Node, shape: Array) -> Array:
    value = node.attrs.get("value")
    fill = np.zeros(1, np.float32) if value is None else value.array
    return np.full(tuple(int(size) for size in shape), fill.reshape(-1)[0], fill.dtype)


def eye_like(node: Node, x: Array) -> Array:
    rows, columns = x.shape
    return convert(np.eye(rows, columns, k=node.attrs["k"], dtype=bool), _dtype(node, "dtype", x))


def range_(node: Node, start: Array, limit: Array, delta: Array) -> Array:
    """start + i · delta: integers in their own type, floats in f64 and rounded once."""
    first, last, step = (up(x).item() for x in (start, limit, delta))
    count = range_count(first, last, step)
    if count > _MOST_ELEMENTS:  # near 2^63, NumPy's arange gives an empty array instead of an error
        raise ValueError(f"a range of {count} elements is too large for memory")
    work = np.int64 if start.dtype.kind == "i" else np.float64
    return down(first + np.arange(count, dtype=work) * step, start.dtype)


def _window(node: Node, size: Array, terms: tuple[float, ...]) -> Array:
    """The sum of terms[k] · cos(k · 2πn/N), N one less where the window is symmetric."""
    count = int(size.item())
    period = count if node.attrs["periodic"] else count - 1
    phase = np.arange(count) * (2.0 * np.pi / max(period, 1))
    values = np.sum([term * np.cos(k * phase) for k, term in enumerate(terms)], axis=0)
    if count == 1:
        values = np.ones(1)  # N = 0 has no formula; one sample keeps its weight
    return convert(values, _dtype(node, "output_datatype"))


def hann_window(node: Node, size: Array) -> Array:
    return _window(node, size, (0.5, -0.5))


def hamming_window(node: Node, size: Array) -> Array:
    return _window(node, size, (25.0 / 46.0, -21.0 / 46.0))


def blackman_window(node: Node, size: Array) -> Array:
    return _window(node, size, (0.42, -0.5, 0.08))


def mel_weight_matrix(node: Node, bins: Array, dft_length: Array, rate: Array, lower: Array, upper: Array) -> Array:
    """Triangles between neighbouring mel frequencies, rounded down to DFT bins."""
    count, length = int(bins.item()), int(dft_length.item())
    low, high = (_mel(edge.astype(np.float64).item()) for edge in (lower, upper))
    mels = np.arange(count + 2) * ((high - low) / (count + 2)) + low
    hertz = 700.0 * np.expm1(mels / 2595.0 * np.log(10.0))
    edges = np.floor_divide((length + 1) * hertz, rate.item())
    left, center, right = edges[:-2], edges[1:-1], edges[2:]
    row = np.arange(length // 2 + 1)[:, None]
    rising = np.where(center == left, 1.0, (row - left) / (center - left)) * ((row >= left) & (row <= center))
    falling = (right - row) / (right - center)
    return convert(
        np.asarray(np.where((row >= center) & (row < right), falling, np.where(rising > 0, rising, 0.0))),
        _dtype(node, "output_datatype"),
    )


def _mel(hertz: float) -> Any:
    return 2595.0 * np.log1p(hertz / 700.0) / np.log(10.0)
