"""The driver of all rewrites: walks a graph in order and builds a new one, asking rules about every node.

A rule is `rule(out, node) -> values | None`. It sees the node as it would be added to the new graph: its inputs are
values of `out`, its bodies are already rewritten. It answers with the values that replace the node's outputs, or None
to leave the node alone; what it needs it adds to `out`. Nodes and outputs that nothing uses are never added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from tierup.ir.build import GraphBuilder, OpenShape
from tierup.ir.dims import DimBuilder, DimError
from tierup.ir.graph import Attrs, Graph, Node, Value, ValueId, Weights
from tierup.ir.infer import InferError, Out
from tierup.ir.ops import Kind, lookup
from tierup.ir.types import Dim, DType, Shape, Sym, TensorType, Type
from tierup.rewrite.assume import Assumptions
from tierup.rewrite.flow import Flow, with_items

Values = Sequence[ValueId | None]
Bodies = tuple[tuple[str, Graph], ...]
_Key = tuple[str, int, tuple[ValueId | None, ...], Attrs, Bodies]


class Rewriter(GraphBuilder):
    """A builder that knows who produced what, and which computations it holds already.

    Types are inferred leniently: a node that cannot be right stays, and says so when it runs.
    """

    def __init__(self, weights: Weights, source: Graph, dims: DimBuilder | None = None) -> None:
        super().__init__(weights, source.name, lenient=True)
        self.dims = dims or self.dims
        self.source = source
        self.origin = ""  # the name for nodes that rules add
        self._producers: dict[ValueId, Node] = {}
        self._held: dict[_Key, tuple[ValueId | None, ...]] = {}
        self._homes: dict[Sym, tuple[ValueId, int]] = {}
        self._inferred: tuple[object, Sequence[Out | Type]] | None = None

    def node(
        self,
        op: str,
        inputs: Values,
        attrs: Attrs | None = None,
        *,
        version: int = 1,
        outputs: Sequence[bool] = (True,),
        graphs: Bodies = (),
        name: str = "",
        output_names: Sequence[str] = (),
    ) -> tuple[ValueId | None, ...]:
        results = super().node(
            op, inputs, attrs, version=version, outputs=outputs, graphs=graphs, name=name or self.origin,
            output_names=output_names,
        )  # fmt: skip
        added = self._nodes[-1]
        self._producers.update((value, added) for value in results if value is not None)
        if _is_small(added):
            self._held.setdefault(_key(added), results)
        return results

    def once(self, op: str, inputs: Values, attrs: Attrs, outputs: Sequence[bool] = (True,)) -> Values:
        """As `node`, but a computation that the graph holds already is not added again."""
        found = self.held(Node(op, 1, tuple(inputs), tuple(0 if wanted else None for wanted in outputs), attrs))
        return self.node(op, inputs, attrs, outputs=outputs) if found is None else found

    def held(self, node: Node) -> Values | None:
        """The outputs of an earlier node that computes the same, if it gives all that are wanted."""
        found = self._held.get(_key(node)) if _is_small(node) else None
        if found is None or len(found) != len(node.outputs):
            return None
        return None if any(a is None and b is not None for a, b in zip(found, node.outputs, strict=True)) else found

    def producer(self, value: ValueId | None) -> Node | None:
        """The node of the new graph that computes `value`; None for inputs and weights."""
        return None if value is None else self._producers.get(value)

    def digest_of(self, value: ValueId) -> str | None:
        """The digest of a value that is a weight."""
        return self._weights.get(value)

    def tensor(self, value: ValueId | None) -> TensorType | None:
        """The type of a value that is there and is a tensor."""
        type = None if value is None else self.type(value)
        return type if isinstance(type, TensorType) else None

    def shape(self, value: ValueId | None) -> Shape | None:
        type = self.tensor(value)
        return None if type is None else type.shape

    def dtype(self, value: ValueId | None) -> DType | None:
        type = self.tensor(value)
        return None if type is None else type.dtype

    def types(self, node: Node) -> Sequence[Out | Type] | None:
        """What the node's outputs would be, without adding it; None where it cannot be right."""
        wanted = tuple(value is not None for value in node.outputs)
        self.lenient = False
        try:
            return self._infer(node.op, node.version, node.inputs, node.attrs, wanted, node.graphs)
        except (InferError, DimError):
            return None
        finally:
            self.lenient = True

    def add(self, node: Node) -> Values:
        """Add a node of the source graph, whose inputs are already values of this one."""
        return self.node(
            node.op,
            node.inputs,
            node.attrs,
            version=node.version,
            outputs=[value is not None for value in node.outputs],
            graphs=node.graphs,
            name=node.name,
        )

    def home(self, sym: Sym) -> tuple[ValueId, int] | None:
        """The first value that has `sym` as a size, and on which axis."""
        return self._homes.get(sym)

    def know(self, value: ValueId, content: tuple[Dim, ...]) -> None:
        """Record what an integer value holds, where its type rule cannot tell."""
        self._contents[value] = content

    def named(self, graph: Graph, names: dict[ValueId, str]) -> Graph:
        """`graph` with `names` for values that have none."""
        values = list(graph.values)
        for value, name in names.items():
            if name and not values[value].name:
                values[value] = Value(values[value].type, name)
        return replace(graph, values=tuple(values))

    def open_input(self, *args: object, **kwargs: object) -> ValueId:
        value = super().open_input(*args, **kwargs)  # type: ignore[arg-type]  # passed on as they came
        self._settle(value)
        return value

    def _result(self, result: Out | Type, name: str) -> ValueId:
        value = super()._result(result, name)
        self._settle(value)
        return value

    def _settle(self, value: ValueId) -> None:
        for axis, dim in enumerate(self.shape(value) or ()):
            if isinstance(dim, Sym):
                self._homes.setdefault(dim, (value, axis))

    def _infer(
        self,
        op: str,
        version: int,
        inputs: tuple[ValueId | None, ...],
        attrs: Attrs,
        wanted: tuple[bool, ...],
        graphs: Bodies,
    ) -> Sequence[Out | Type]:
        key = (op, version, inputs, attrs, wanted, graphs)
        if self._inferred is None or self._inferred[0] != key:  # a rule has often just asked
            self._inferred = (key, super()._infer(op, version, inputs, attrs, wanted, graphs))
        return self._inferred[1]


_LONG_ATTR = 1024  # elements; to compare the tables of a tree ensemble costs more than it could save


def _is_small(node: Node) -> bool:
    return not any(isinstance(value, tuple) and len(value) > _LONG_ATTR for value in node.attrs.values())


def _key(node: Node) -> _Key:
    return node.op, node.version, node.inputs, node.attrs, node.graphs


Rule = Callable[[Rewriter, Node], Values | None]


class Walked(Struct, frozen=True):
    """The new graph, and how many nodes rules replaced in it and in its bodies."""

    graph: Graph
    changes: int


def walk(
    graph: Graph,
    weights: Weights,
    rules: Sequence[Rule],
    assume: Assumptions | None = None,
    shapes: Sequence[OpenShape | None] | None = None,
    *,
    tighten: int = 0,
) -> Walked:
    """A new graph in which each live node of `graph` has met `rules`: the first that answers replaces it.

    With `assume`, sizes of the outermost graph that look equal become one, and what was assumed is collected there.
    With `shapes`, inputs have these instead of their own. In so many levels of bodies as `tighten` says, sizes of
    carried values that loops leave as they are become known; such bodies are walked more than once.
    """
    out = Rewriter(weights, graph, assume.builder(len(graph.inputs)) if assume else None)
    values = _inputs(out, graph, shapes or [None] * len(graph.inputs))
    used = live(graph)
    digests = dict(graph.weights)
    changes = 0

    def new(value: ValueId | None) -> ValueId | None:
        if value is not None and value not in values:  # weights come along when they are first used
            digest = digests[value]
            values[value] = out.weight(weights[digest], graph.values[value].name, digest)
        return None if value is None else values[value]

    for node in graph.nodes:
        if not any(value in used for value in node.outputs):
            continue
        inputs, wanted = tuple(map(new, node.inputs)), _wanted(node, used)
        node = Node(node.op, node.version, inputs, wanted, node.attrs, node.graphs, node.name)
        if _runs_bodies(node):
            node = with_items(node)
            inner = [(name, _walk_body(out, node, body, rules, tighten)) for name, body in node.graphs]
            changes += sum(walked.changes for _, walked in inner)
            node = replace(node, graphs=tuple((name, walked.graph) for name, walked in inner))
        replaced = _ask(out, rules, node)
        changes += replaced is not None
        results = out.add(node) if replaced is None else replaced
        values.update(
            (before, after)
            for before, after in zip(node.outputs, results, strict=True)
            if before is not None and after is not None
        )
    outputs = [new(value) for value in graph.outputs]
    finished = out.finish([value for value in outputs if value is not None])
    names = {after: graph.values[before].name for before, after in values.items()}
    names.update(zip(finished.outputs, (graph.values[value].name for value in graph.outputs), strict=True))
    return Walked(out.named(finished, names), changes)


_TIGHTENED = 4  # tries; what still changes then is left as it was


def _walk_body(out: Rewriter, node: Node, body: Graph, rules: Sequence[Rule], tighten: int) -> Walked:
    """A body of a node whose inputs are already values of `out`."""
    flow = Flow(node, body, [out.shape(value) for value in node.inputs])
    hoped = flow.hoped()
    for _ in range(_TIGHTENED if tighten and hoped != flow.known() else 0):
        walked = walk(body, out.weights, rules, shapes=hoped, tighten=tighten - 1)
        kept = flow.kept(hoped, walked.graph)
        if kept == hoped:
            return walked
        hoped = kept
    return walk(body, out.weights, rules, shapes=flow.known(), tighten=max(tighten - 1, 0))


def _ask(out: Rewriter, rules: Sequence[Rule], node: Node) -> Values | None:
    out.origin = node.name
    try:
        for rule in rules:
            replaced = rule(out, node)
            if replaced is not None:
                return replaced
    finally:
        out.origin = ""
    return None


def _inputs(out: Rewriter, graph: Graph, shapes: Sequence[OpenShape | None]) -> dict[ValueId, ValueId]:
    """The same inputs in the new graph: names, dims that are one, defaults."""
    names, defaults = dict(graph.dim_names), dict(graph.defaults)
    values: dict[ValueId, ValueId] = {}
    for value, closed in zip(graph.inputs, shapes, strict=True):
        type, name = graph.type(value), graph.values[value].name
        default = out.weights[defaults[value]] if value in defaults else None
        if isinstance(type, TensorType):
            shape = type.shape and [names.get(dim.id, dim) if isinstance(dim, Sym) else dim for dim in type.shape]
            values[value] = out.open_input(type.dtype, shape if closed is None else closed, name, default)
        else:
            values[value] = out.input(type, name, default)
    return values


def live(graph: Graph) -> set[ValueId]:
    """The values that the outputs need, directly or not."""
    used = set(graph.outputs)
    for node in reversed(graph.nodes):
        if any(value in used for value in node.outputs):
            used.update(value for value in node.inputs if value is not None)
    return used


def misfit(graph: Graph, weights: Weights) -> str | None:
    """A node of the graph that cannot be right, by name; not one in its bodies. Such a graph fails whenever it runs."""
    found: list[str] = []

    def note(out: Rewriter, node: Node) -> Values | None:
        if out.source is graph and out.types(node) is None:
            found.append(node.label)
        return None

    if any(isinstance(value.type, TensorType) and value.type.shape is None for value in graph.values):
        walk(graph, weights, (note,))
    return found[0] if found else None


def _runs_bodies(node: Node) -> bool:
    """Whether bodies are code that runs as it is; Gradient's is differentiated, and stays as the model wrote it."""
    row = lookup(node.op)
    return row is not None and row.kind is Kind.CONTROL


def _wanted(node: Node, used: set[ValueId]) -> tuple[ValueId | None, ...]:
    """The node's outputs without those that nothing uses."""
    if node.op == "onnx.BatchNormalization" and node.version < 14:
        return node.outputs  # there, asking for statistics is what asks for training
    if node.op in ("core.lstm", "core.gru", "core.rnn"):
        return node.outputs  # every step reads what the one before it wrote there
    return tuple(value if value in used else None for value in node.outputs)


def splice(out: Rewriter, body: Graph, inputs: Values) -> list[ValueId]:
    """Add the nodes of a closed graph to `out`, with `inputs` in place of its inputs; its outputs there."""
    values: dict[ValueId, ValueId | None] = dict(zip(body.inputs, inputs, strict=True))
    for value, digest in body.weights:
        values[value] = out.weight(out.weights[digest], body.values[value].name, digest)
    for node in body.nodes:
        mapped = replace(node, inputs=tuple(None if value is None else values[value] for value in node.inputs))
        values.update(
            (before, after) for before, after in zip(node.outputs, out.add(mapped), strict=True) if before is not None
        )
    results = [values[value] for value in body.outputs]
    return [value for value in results if value is not None]


def is_pure(node: Node) -> bool:
    """Whether an equal node gives an equal answer, bodies included."""
    row = lookup(node.op)
    return row is not None and row.pure and all(is_pure(inner) for _, body in node.graphs for inner in body.nodes)
