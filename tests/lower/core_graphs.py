"""Random core graphs: maps, reductions, movement, lookups and scatters in any order, over open and closed sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tierup.ir.build import GraphBuilder
from tierup.ir.graph import Attrs, Graph, ValueId, Weights
from tierup.ir.types import Array, Dim, DType, Sym, TensorType

_MAPS = ("neg", "abs")
_PAIRS = ("add", "sub", "min", "max")
_STEPS = (
    "map", "map", "pair", "pair", "pair", "compare", "select", "cast", "reduce", "reduce", "reduce", "arg",
    "transpose", "broadcast", "reshape", "slice", "gather", "gather_elements", "gather_nd", "iota", "concat", "pad",
    "cumsum", "scatter_elements", "scatter_nd", "pool", "shape",
)  # fmt: skip
_DTYPES = (DType.F32, DType.I64, DType.I32)


class CoreDraw:
    """Adds random nodes. All numbers are small integers, whatever the dtype, so that every order of a sum is exact."""

    def __init__(self, data: st.DataObject, dtypes: tuple[DType, ...] = _DTYPES) -> None:
        self.data = data
        self.dtypes = dtypes
        self.builder = GraphBuilder(Weights())
        sizes = st.integers(0, 6)
        self.sizes = {name: self.draw(sizes) for name in "nm"}
        self.values: list[ValueId] = []
        self.shapes: dict[ValueId, tuple[int, ...]] = {}  # as they are in the call
        for number in range(self.draw(st.integers(1, 3))):
            shape = [self.pick(("n", "m", 1, 2, 3, 5)) for _ in range(self.draw(st.integers(0, 4)))]
            value = self.builder.open_input(self.pick(dtypes), shape, f"x{number}")
            self.note(value, tuple(self.sizes.get(s, s) if isinstance(s, str) else s for s in shape))
            self.values.append(value)

    def draw(self, strategy: st.SearchStrategy[Any]) -> Any:
        return self.data.draw(strategy)

    def pick(self, options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def note(self, value: ValueId, shape: tuple[int, ...]) -> ValueId:
        self.shapes[value] = shape
        return value

    def type(self, value: ValueId) -> TensorType:
        type = self.builder.type(value)
        assert isinstance(type, TensorType)
        return type

    def rank(self, value: ValueId) -> int:
        return len(self.shapes[value])

    def op(self, op: str, *inputs: ValueId, shape: tuple[int, ...], **attrs: Any) -> ValueId:
        (result,) = self.builder.node(f"core.{op}", inputs, Attrs(attrs))
        assert result is not None
        return self.note(result, shape)

    def ints(self, *numbers: int) -> ValueId:
        return self.builder.weight(np.array(numbers, np.int64))

    def like(self, x: ValueId) -> ValueId:
        """Another value of the same dtype that broadcasts against x, or x itself."""
        fits = [v for v in self.values if self.type(v).dtype is self.type(x).dtype and self._fits(v, x)]
        return self.pick(fits)

    def _fits(self, a: ValueId, b: ValueId) -> bool:
        try:
            np.broadcast_shapes(self.shapes[a], self.shapes[b])
        except ValueError:
            return False
        pairs = zip(reversed(self.dims(a)), reversed(self.dims(b)), strict=False)
        return all(p == q or 1 in (p, q) or isinstance(p, Sym) or isinstance(q, Sym) for p, q in pairs)

    def dims(self, value: ValueId) -> tuple[Dim, ...]:
        return self.type(value).shape or ()

    def numbers(self, dtype: DType, shape: tuple[int, ...]) -> ValueId:
        count = int(np.prod(shape))
        return self.note(self.builder.weight((np.arange(count) % 7 - 3).astype(dtype.numpy).reshape(shape)), shape)

    def size_vector(self, dims: tuple[Dim, ...], shape: tuple[int, ...]) -> ValueId:
        """Sizes as a value: constants where they are numbers, else gathered from the shapes of inputs."""
        parts = []
        for dim, size in zip(dims, shape, strict=True):
            if isinstance(dim, int):
                parts.append(self.ints(dim))
                continue
            source, axis = next(
                (v, a) for v in self.values for a, d in enumerate(self.dims(v)) if d == dim or self.shapes[v][a] == size
            )
            whole = self.op("shape", source, shape=(self.rank(source),))
            parts.append(
                self.op("slice", whole, self.ints(axis), self.ints(axis + 1), axes=(0,), steps=(1,), shape=(1,))
            )
        return self.op("concat", *parts, axis=0, shape=(len(parts),)) if parts else self.ints()

    def indices(self, shape: tuple[int, ...], size: int) -> ValueId:
        """Indices below `size`, which is not 0: a constant, or computed in the graph."""
        count = int(np.prod(shape))
        drawn = np.array([self.draw(st.integers(0, size - 1)) for _ in range(count)], np.int64).reshape(shape)
        table = self.note(self.builder.weight(drawn), shape)
        if not self.draw(st.booleans()):
            return table
        return self.op("abs", self.op("neg", table, shape=shape), shape=shape)

    def step(self) -> ValueId | None:
        x = self.pick(self.values[-2:] if self.draw(st.booleans()) else self.values)  # chains are what is fused
        shape, dtype = self.shapes[x], self.type(x).dtype
        match self.pick(_STEPS):
            case "map":
                return self.op(self.pick(_MAPS), x, shape=shape)
            case "pair":
                y = self.like(x)
                return self.op(self.pick(_PAIRS), x, y, shape=np.broadcast_shapes(shape, self.shapes[y]))
            case "compare":
                y = self.like(x)
                joint = np.broadcast_shapes(shape, self.shapes[y])
                flag = self.op(self.pick(("lt", "eq", "le")), x, y, shape=joint)
                return self.op("cast", flag, to=dtype.code, saturate=1, round_mode="up", shape=joint)
            case "select":
                y = self.like(x)
                joint = np.broadcast_shapes(shape, self.shapes[y])
                flag = self.op("lt", x, y, shape=joint)
                return self.op("select", flag, y, x, shape=joint)
            case "cast":
                return self.op("cast", x, to=self.pick(self.dtypes).code, saturate=1, round_mode="up", shape=shape)
            case "reduce":
                axes = tuple(sorted(self.draw(st.sets(st.integers(0, len(shape) - 1))))) if shape else ()
                keep = self.draw(st.booleans())
                kept = tuple(1 if a in axes else s for a, s in enumerate(shape) if keep or a not in axes)
                if any(shape[a] == 0 for a in axes):
                    op = "reduce_sum"  # of nothing, the least float is no small integer
                else:
                    op = self.pick(("reduce_sum", "reduce_max", "reduce_min"))
                return self.op(op, x, axes=axes, keepdims=int(keep), shape=kept)
            case "arg":
                if not shape or 0 in shape:
                    return None
                axis, keep = self.draw(st.integers(0, len(shape) - 1)), self.draw(st.booleans())
                kept = tuple(1 if a == axis else s for a, s in enumerate(shape) if keep or a != axis)
                op, last = self.pick(("argmax", "argmin")), self.draw(st.booleans())
                return self.op(op, x, axis=axis, keepdims=int(keep), last=int(last), shape=kept)
            case "transpose":
                perm = tuple(self.draw(st.permutations(range(len(shape)))))
                return self.op("transpose", x, perm=perm, shape=tuple(shape[a] for a in perm))
            case "broadcast":
                y = self.pick(self.values)
                if not self._fits(x, y) or np.broadcast_shapes(shape, self.shapes[y]) != self.shapes[y]:
                    return None
                if len(self.dims(x)) > len(self.dims(y)):
                    return None
                target = self.op("shape", y, shape=(self.rank(y),))
                return self.op("broadcast", x, target, shape=self.shapes[y])
            case "reshape":
                return self.reshape(x)
            case "slice":
                return self.slice(x)
            case "gather":
                axes = [a for a, s in enumerate(shape) if s]
                if not axes:
                    return None
                axis = self.pick(axes)
                own = tuple(self.draw(st.lists(st.integers(0, 3), max_size=2)))
                index = self.indices(own, shape[axis])
                return self.op("gather", x, index, axis=axis, shape=(*shape[:axis], *own, *shape[axis + 1 :]))
            case "gather_elements":
                axes = [a for a, s in enumerate(shape) if s]
                if not axes:
                    return None
                axis = self.pick(axes)
                own = tuple(self.draw(st.integers(0, 3 if a == axis else s)) for a, s in enumerate(shape))
                return self.op("gather_elements", x, self.indices(own, shape[axis]), axis=axis, shape=own)
            case "gather_nd":
                return self.gather_nd(x)
            case "iota":
                if not shape:
                    return None
                sizes = self.op("shape", x, shape=(len(shape),))
                axis = self.draw(st.integers(0, len(shape) - 1))
                return self.op("iota", sizes, axis=axis, dtype=self.pick(self.dtypes).code, shape=shape)
            case "concat":
                return self.concat(x)
            case "pad":
                return self.pad(x)
            case "cumsum":
                if not shape:
                    return None
                flags = {name: int(self.draw(st.booleans())) for name in ("exclusive", "reverse")}
                return self.op("cumsum", x, axis=self.draw(st.integers(0, len(shape) - 1)), shape=shape, **flags)
            case "scatter_elements":
                axes = [a for a, s in enumerate(shape) if s]
                if not axes:
                    return None
                axis = self.pick(axes)
                own = tuple(self.draw(st.integers(0, 3 if a == axis else s)) for a, s in enumerate(shape))
                updates, how = self.numbers(dtype, own), self.pick(("none", "add", "min", "max"))
                index = self.indices(own, shape[axis])
                return self.op("scatter_elements", x, index, updates, axis=axis, reduction=how, shape=shape)
            case "scatter_nd":
                if not shape or 0 in shape:
                    return None
                depth, count = self.draw(st.integers(1, len(shape))), self.draw(st.integers(0, 3))
                index = self.indices((count, depth), min(shape[:depth]))
                updates, how = self.numbers(dtype, (count, *shape[depth:])), self.pick(("none", "add", "max"))
                return self.op("scatter_nd", x, index, updates, reduction=how, shape=shape)
            case "pool":
                return self.pool(x)
            case _:
                return self.op("shape", x, shape=(len(shape),)) if DType.I64 in self.dtypes else None

    def reshape(self, x: ValueId) -> ValueId:
        """Axes of one element come or go, two neighbours are joined, one is divided."""
        dims, shape = list(self.dims(x)), list(self.shapes[x])
        what = self.pick(("one", "join", "divide", "flat"))
        if what == "one":
            at = self.draw(st.integers(0, len(dims)))
            if at < len(dims) and dims[at] == 1:
                del dims[at], shape[at]
            else:
                dims.insert(at, 1)
                shape.insert(at, 1)
        elif what == "divide" and any(isinstance(d, int) and d in (2, 6, 10, 15) for d in dims):
            at = next(a for a, d in enumerate(dims) if isinstance(d, int) and d in (2, 6, 10, 15))
            number = shape[at]
            least = next(f for f in (2, 3) if number % f == 0)
            dims[at : at + 1] = shape[at : at + 1] = [least, number // least]
        elif all(isinstance(d, int) for d in dims):
            at = self.draw(st.integers(0, max(len(dims) - 2, 0)))
            joined = slice(at, at + 2) if what == "join" else slice(None)
            whole = int(np.prod(shape[joined])) if shape else 1
            dims[joined] = shape[joined] = [whole]
        sizes = self.size_vector(tuple(dims), tuple(shape))
        return self.op("reshape", x, sizes, shape=tuple(shape))

    def slice(self, x: ValueId) -> ValueId | None:
        shape = self.shapes[x]
        axes = [a for a, d in enumerate(self.dims(x)) if isinstance(d, int) and d]
        if not axes:
            return None
        axis, step = self.pick(axes), self.pick((1, 2, -1, -2))
        size = shape[axis]
        low, high = sorted((self.draw(st.integers(0, size)), self.draw(st.integers(0, size))))
        start, end = (low, high) if step > 0 else (high - 1, low - 1)
        if start < 0:
            return None
        count = -(-(high - low) // abs(step))
        new = (*shape[:axis], count, *shape[axis + 1 :])
        return self.op("slice", x, self.ints(start), self.ints(end), axes=(axis,), steps=(step,), shape=new)

    def gather_nd(self, x: ValueId) -> ValueId | None:
        shape = self.shapes[x]
        if not shape or 0 in shape:
            return None
        batch = self.draw(st.integers(0, len(shape) - 1))
        depth = self.draw(st.integers(1, len(shape) - batch))
        own = (*shape[:batch], *self.draw(st.lists(st.integers(0, 3), max_size=1)), depth)
        index = self.indices(own, min(shape[batch : batch + depth]))
        return self.op("gather_nd", x, index, batch_dims=batch, shape=(*own[:-1], *shape[batch + depth :]))

    def concat(self, x: ValueId) -> ValueId | None:
        shape = self.shapes[x]
        if not shape:
            return None
        axis = self.draw(st.integers(0, len(shape) - 1))

        def fits(v: ValueId) -> bool:
            same = self.type(v).dtype is self.type(x).dtype and self.rank(v) == len(shape)
            pairs = zip(self.dims(v), self.dims(x), strict=False)
            closed = all(
                p == q or isinstance(p, Sym) or isinstance(q, Sym) for a, (p, q) in enumerate(pairs) if a != axis
            )
            return same and closed and all(self.shapes[v][a] == s for a, s in enumerate(shape) if a != axis)

        others = self.draw(st.lists(st.sampled_from([v for v in self.values if fits(v)]), min_size=1, max_size=3))
        parts = [x, *others]
        whole = sum(self.shapes[v][axis] for v in parts)
        return self.op("concat", *parts, axis=axis, shape=(*shape[:axis], whole, *shape[axis + 1 :]))

    def pad(self, x: ValueId) -> ValueId | None:
        shape = self.shapes[x]
        mode = self.pick(("constant", "edge", "reflect", "wrap"))
        if not shape or (mode != "constant" and 0 in shape):
            return None
        pads = [self.draw(st.integers(0, 3)) for _ in range(2 * len(shape))]
        fill = self.builder.weight(np.array(-2).astype(self.type(x).dtype.numpy))
        new = tuple(s + pads[a] + pads[len(shape) + a] for a, s in enumerate(shape))
        return self.op("pad", x, self.ints(*pads), fill, mode=mode, shape=new)

    def pool(self, x: ValueId) -> ValueId | None:
        shape = self.shapes[x]
        if len(shape) != 4 or min(shape[2:]) < 2:
            return None
        strides, kernel = tuple(self.draw(st.integers(1, 2)) for _ in range(2)), (2, self.draw(st.integers(1, 2)))
        counts = tuple((s - k) // by + 1 for s, k, by in zip(shape[2:], kernel, strides, strict=True))
        attrs = {"kernel_shape": kernel, "strides": strides, "dilations": (1, 1)}
        return self.op("pool_sum", x, self.ints(0, 0, 0, 0), shape=(*shape[:2], *counts), **attrs)

    def graph(self, most: int = 10) -> tuple[Graph, Weights]:
        for _ in range(self.draw(st.integers(1, most))):
            made = self.step()
            if made is not None:
                self.values.append(made)
        late = self.values[-5:]
        outputs = self.draw(st.lists(st.sampled_from(late), min_size=1, max_size=3, unique=True))
        return self.builder.finish(outputs), self.builder.weights

    def feeds(self, graph: Graph) -> list[Array]:
        arrays = []
        for number, value in enumerate(graph.inputs):
            count = int(np.prod(self.shapes[value]))
            numbers = (np.arange(count) * (number + 3)) % 11 - 5
            arrays.append(numbers.astype(self.type(value).dtype.numpy).reshape(self.shapes[value]))
        return arrays
