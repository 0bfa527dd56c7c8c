"""Three tile programs to look at and to run: row softmax, matmul with bias and relu, layer norm.

Each function takes the steps of its loops and gives the program; `Sample` joins it with a call of given sizes and the
result that is expected, computed in f64.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tierup.ir.types import Array, DType
from tierup.lower.tile import (
    Arg,
    Buffer,
    Dot,
    Fill,
    Grid,
    Index,
    Load,
    Loop,
    Map,
    Reduce,
    Store,
    Tile,
    TileProgram,
)

ROW, J, IJ, ONE = Tile(DType.F32, ("i",)), Tile(DType.F32, ("j",)), Tile(DType.F32, ("i", "j")), Tile(DType.F32)
ROWS, COLUMNS, DEPTH = Arg(0), Arg(1), Arg(2)
CELL = Index((("i", COLUMNS), ("j", 1)))


class Sample(Struct, frozen=True):
    """A call: `buffers` are ready to be passed, and afterwards the one named `out` should hold `expected`."""

    program: TileProgram
    buffers: dict[str, Array]
    sizes: tuple[int, ...]
    out: str
    expected: Array


def softmax_rows(rows: int = 1, columns: int = 64) -> TileProgram:
    """y[i, :] = softmax(x[i, :]); sizes are rows and columns. Three passes over a row."""
    top = Loop(
        "j",
        COLUMNS,
        columns,
        (Load("v", IJ, "x", CELL, -np.inf), Map("n", IJ, "max", ("m", "v"))),
        (("m", "least"),),
        ("n",),
        ("ms",),
    )
    total = Loop(
        "j",
        COLUMNS,
        columns,
        (
            Load("w", IJ, "x", CELL),
            Map("d", IJ, "sub", ("w", "top")),
            Map("e", IJ, "exp", ("d",)),
            Map("t", IJ, "add", ("s", "e")),
        ),
        (("s", "nought"),),
        ("t",),
        ("ss",),
    )
    write = Loop(
        "j",
        COLUMNS,
        columns,
        (
            Load("x2", IJ, "x", CELL),
            Map("d2", IJ, "sub", ("x2", "top")),
            Map("e2", IJ, "exp", ("d2",)),
            Map("q", IJ, "div", ("e2", "total")),
            Store("y", CELL, "q"),
        ),
    )
    body = (
        Fill("least", IJ, -np.inf),
        top,
        Reduce("top", ROW, "max", "ms", "j"),
        Fill("nought", IJ, 0.0),
        total,
        Reduce("total", ROW, "sum", "ss", "j"),
        write,
    )
    buffers = (Buffer("x", DType.F32), Buffer("y", DType.F32, "out"))
    return TileProgram("softmax_rows", buffers, 2, (Grid("i", ROWS, rows),), body, ("j",))


def matmul_bias_relu(rows: int = 4, columns: int = 32, depth: int = 1) -> TileProgram:
    """y = max(a · b + bias, 0); sizes are rows, columns and depth. The accumulators stay in registers over k."""
    product = Loop(
        "k",
        DEPTH,
        depth,
        (
            Load("av", Tile(DType.F32, ("i", "k")), "a", Index((("i", DEPTH), ("k", 1)))),
            Load("bv", Tile(DType.F32, ("k", "j")), "b", Index((("k", COLUMNS), ("j", 1)))),
            Dot("next", IJ, "av", "bv", "acc", "k"),
        ),
        (("acc", "nought"),),
        ("next",),
        ("product",),
    )
    body = (
        Fill("nought", IJ, 0.0),
        product,
        Load("biases", J, "bias", Index((("j", 1),))),
        Map("sum", IJ, "add", ("product", "biases")),
        Fill("zero", ONE, 0.0),
        Map("relu", IJ, "max", ("sum", "zero")),
        Store("y", CELL, "relu"),
    )
    buffers = (*(Buffer(name, DType.F32) for name in ("a", "b", "bias")), Buffer("y", DType.F32, "out"))
    grid = (Grid("i", ROWS, rows), Grid("j", COLUMNS, columns))
    return TileProgram("matmul_bias_relu", buffers, 3, grid, body, ("j",))


def layer_norm(rows: int = 1, columns: int = 32, epsilon: float = 1e-5) -> TileProgram:
    """y[i, :] = (x[i, :] - mean) / sqrt(variance + epsilon) * scale + shift; sizes are rows and columns."""
    column = Index((("j", 1),))
    mean = Loop(
        "j",
        COLUMNS,
        columns,
        (Load("v", IJ, "x", CELL), Map("t", IJ, "add", ("s", "v"))),
        (("s", "nought"),),
        ("t",),
        ("ss",),
    )
    variance = Loop(
        "j",
        COLUMNS,
        columns,
        (
            Load("w", IJ, "x", CELL),
            Map("d", IJ, "sub", ("w", "mean")),
            Map("p", IJ, "fma", ("d", "d", "r")),
        ),
        (("r", "nought"),),
        ("p",),
        ("rs",),
    )
    write = Loop(
        "j",
        COLUMNS,
        columns,
        (
            Load("x2", IJ, "x", CELL),
            Map("d2", IJ, "sub", ("x2", "mean")),
            Map("n2", IJ, "div", ("d2", "deviation")),
            Load("by", J, "scale", column),
            Load("to", J, "shift", column),
            Map("z", IJ, "fma", ("n2", "by", "to")),
            Store("y", CELL, "z"),
        ),
    )
    body = (
        Fill("n", ONE, COLUMNS),
        Fill("nought", IJ, 0.0),
        mean,
        Reduce("total", ROW, "sum", "ss", "j"),
        Map("mean", ROW, "div", ("total", "n")),
        variance,
        Reduce("squares", ROW, "sum", "rs", "j"),
        Map("variance", ROW, "div", ("squares", "n")),
        Fill("epsilon", ONE, epsilon),
        Map("safe", ROW, "add", ("variance", "epsilon")),
        Map("deviation", ROW, "sqrt", ("safe",)),
        write,
    )
    buffers = (*(Buffer(name, DType.F32) for name in ("x", "scale", "shift")), Buffer("y", DType.F32, "out"))
    return TileProgram("layer_norm", buffers, 2, (Grid("i", ROWS, rows),), body, ("j",))


def softmax_sample(sizes: tuple[int, int], rows: int = 1, columns: int = 64, seed: int = 0) -> Sample:
    x = _normal(seed, *sizes) * 4
    wide = x.astype(np.float64)
    powers = np.exp(wide - wide.max(1, keepdims=True, initial=-np.inf))
    expected = powers / powers.sum(1, keepdims=True)
    return Sample(softmax_rows(rows, columns), _flat(x=x, y=np.full_like(x, np.nan)), sizes, "y", expected)


def matmul_sample(
    sizes: tuple[int, int, int], rows: int = 4, columns: int = 32, depth: int = 1, seed: int = 0
) -> Sample:
    m, n, k = sizes
    a, b, bias = _normal(seed, m, k), _normal(seed + 1, k, n), _normal(seed + 2, n)
    expected = np.maximum(a.astype(np.float64) @ b.astype(np.float64) + bias, 0)
    buffers = _flat(a=a, b=b, bias=bias, y=np.full((m, n), np.nan, np.float32))
    return Sample(matmul_bias_relu(rows, columns, depth), buffers, sizes, "y", expected)


def layer_norm_sample(sizes: tuple[int, int], rows: int = 1, columns: int = 32, seed: int = 0) -> Sample:
    x, scale, shift = _normal(seed, *sizes) + 3, _normal(seed + 1, sizes[1]), _normal(seed + 2, sizes[1])
    wide = x.astype(np.float64)
    centred = wide - wide.mean(1, keepdims=True) if x.size else wide
    variance = (centred**2).mean(1, keepdims=True) if x.size else wide
    expected = centred / np.sqrt(variance + 1e-5) * scale + shift
    buffers = _flat(x=x, scale=scale, shift=shift, y=np.full_like(x, np.nan))
    return Sample(layer_norm(rows, columns), buffers, sizes, "y", expected)


def _normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def _flat(**arrays: Array) -> dict[str, Array]:
    return {name: np.ascontiguousarray(array).reshape(-1) for name, array in arrays.items()}
