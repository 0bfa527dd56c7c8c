"""Builds graphs: every node is typed as it is added, so a finished graph is typed by construction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from tierup.ir.dims import DimBuilder, DimError
from tierup.ir.graph import Attrs, Graph, Node, Value, ValueId, Weights, static_type
from tierup.ir.infer import CONTENT_LIMIT, Infer, InferError, Out, PartialShape
from tierup.ir.ops import lookup
from tierup.ir.types import Array, Dim, DType, Sym, TensorType, Type, without_dims

OpenShape = Sequence[int | str | Sym | None]


class GraphBuilder:
    """Collects inputs, weights and nodes of one graph; `weights` is shared with the graphs inside it.

    `lenient` is for branches that may never run: there a node whose sizes cannot be right has unknown ones instead.
    """

    def __init__(self, weights: Weights, name: str = "", *, lenient: bool = False) -> None:
        self.weights = weights
        self.dims = DimBuilder()
        self.name = name
        self.lenient = lenient
        self._values: list[Value] = []
        self._inputs: list[ValueId] = []
        self._nodes: list[Node] = []
        self._weights: dict[ValueId, str] = {}
        self._by_digest: dict[str, ValueId] = {}
        self._defaults: dict[ValueId, str] = {}
        self._contents: dict[ValueId, tuple[Dim, ...]] = {}
        self._open_dims: dict[str | Sym, Dim] = {}

    def type(self, value: ValueId) -> Type:
        return self._values[value].type

    def constant(self, value: ValueId) -> Array | None:
        """The array behind a weight."""
        digest = self._weights.get(value)
        return None if digest is None else self.weights[digest]

    def content(self, value: ValueId) -> tuple[Dim, ...] | None:
        """The integers that a value holds, where they are known as dims."""
        return self._contents.get(value)

    def input(self, type: Type, name: str = "", default: Array | None = None) -> ValueId:
        """A new input of a type whose dims are all known or already named."""
        value = self._value(type, name)
        self._inputs.append(value)
        if default is not None:
            self._defaults[value] = self.weights.add(default)
        return value

    def open_input(
        self, dtype: DType, shape: OpenShape | None, name: str = "", default: Array | None = None
    ) -> ValueId:
        """A new tensor input. Equal names, or syms of the graph around, are one dim; None is a dim of its own."""
        value = self.input(TensorType(dtype, None), name, default)
        if shape is not None:
            dims = tuple(self._open(dim, value, axis) for axis, dim in enumerate(shape))
            self._values[value] = Value(TensorType(dtype, dims), name)
        return value

    def _open(self, dim: int | str | Sym | None, value: ValueId, axis: int) -> Dim:
        if isinstance(dim, int):
            return dim
        if dim is None:
            return self.dims.of(value, axis)
        if dim not in self._open_dims:
            self._open_dims[dim] = self.dims.of(value, axis)
        return self._open_dims[dim]

    def weight(self, array: Array, name: str = "", digest: str | None = None) -> ValueId:
        """A constant; equal constants are one value."""
        digest = self.weights.add(array, digest)
        found = self._by_digest.get(digest)
        if found is None:
            found = self._value(static_type(array), name)
            self._weights[found] = digest
            self._by_digest[digest] = found
            if array.size <= CONTENT_LIMIT and array.ndim <= 1 and array.dtype.kind in "iub":
                self._contents[found] = tuple(int(v) for v in array.reshape(-1))
        return found

    def node(
        self,
        op: str,
        inputs: Sequence[ValueId | None],
        attrs: Attrs | None = None,
        *,
        version: int = 1,
        outputs: Sequence[bool] = (True,),
        graphs: tuple[tuple[str, Graph], ...] = (),
        name: str = "",
        output_names: Sequence[str] = (),
    ) -> tuple[ValueId | None, ...]:
        """Append a node and return its outputs; `outputs` says which of them are wanted.

        Raises InferError where the op's type rule refuses.
        """
        attrs = attrs or Attrs()
        results = self._infer(op, version, tuple(inputs), attrs, tuple(outputs), graphs)
        ids: list[ValueId | None] = []
        for index, wanted in enumerate(outputs):
            label = output_names[index] if index < len(output_names) else ""
            ids.append(self._result(results[index], label) if wanted else None)
        self._nodes.append(Node(op, version, tuple(inputs), tuple(ids), attrs, graphs, name))
        return tuple(ids)

    def op(self, op: str, *inputs: ValueId | None, version: int = 1, **attrs: object) -> ValueId:
        """Append a node with one output: the short form for rewrites and tests."""
        (output,) = self.node(op, inputs, Attrs(attrs), version=version)  # type: ignore[arg-type]  # attrs are checked by the rule
        assert output is not None
        return output

    def finish(self, outputs: Sequence[ValueId]) -> Graph:
        return Graph(
            inputs=tuple(self._inputs),
            outputs=tuple(outputs),
            nodes=tuple(self._nodes),
            values=tuple(self._values),
            dims=tuple(self.dims.ops),
            weights=tuple(self._weights.items()),
            defaults=tuple(self._defaults.items()),
            dim_names=tuple(self._dim_names()),
            name=self.name,
        )

    def _dim_names(self) -> Iterator[tuple[int, str]]:
        for key, dim in self._open_dims.items():
            if isinstance(key, str) and isinstance(dim, Sym):
                yield dim.id, key

    def _infer(
        self,
        op: str,
        version: int,
        inputs: tuple[ValueId | None, ...],
        attrs: Attrs,
        wanted: tuple[bool, ...],
        graphs: tuple[tuple[str, Graph], ...],
    ) -> Sequence[Out | Type]:
        row = lookup(op)
        if row is None:
            raise InferError(f"there is no op {op}")
        context = Infer(
            op=op,
            version=version,
            attrs=attrs,
            inputs=tuple(None if v is None else self._values[v].type for v in inputs),
            wanted=wanted,
            dims=self.dims,
            graphs=graphs,
            ids=inputs,
            contents=tuple(None if v is None else self._contents.get(v) for v in inputs),
            constants=self.constant,
        )
        try:
            results = row.infer(context)
            _check_sizes(results)
        except (InferError, DimError):
            if not self.lenient:
                raise
            results = row.infer(_shapeless(context))
        if len(results) < len(wanted):
            raise InferError(f"{op} has at most {len(results)} outputs here, but {len(wanted)} are asked for")
        return results

    def _value(self, type: Type, name: str) -> ValueId:
        self._values.append(Value(type, name))
        return len(self._values) - 1

    def _result(self, result: Out | Type, name: str) -> ValueId:
        if not isinstance(result, Out):
            return self._value(result, name)
        value = self._value(TensorType(result.dtype, None), name)
        if result.shape is not None:
            self._values[value] = Value(TensorType(result.dtype, self._sealed(result.shape, value)), name)
        if result.content is not None and len(result.content) <= CONTENT_LIMIT:
            self._contents[value] = result.content
        return value

    def _sealed(self, shape: PartialShape, value: ValueId) -> tuple[Dim, ...]:
        return tuple(self.dims.of(value, axis) if dim is None else dim for axis, dim in enumerate(shape))


def _check_sizes(results: Sequence[Out | Type]) -> None:
    for result in results:
        for dim in result.shape or () if isinstance(result, Out | TensorType) else ():
            if isinstance(dim, int) and dim < 0:
                raise InferError(f"a result would have the size {dim}")


def _shapeless(context: Infer) -> Infer:
    """The same node with everything about sizes forgotten."""
    return replace(
        context,
        inputs=tuple(None if type is None else without_dims(type) for type in context.inputs),
        contents=(None,) * len(context.contents),
        constants=lambda value: None,
    )
