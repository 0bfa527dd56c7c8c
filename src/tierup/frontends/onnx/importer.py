"""GraphProto -> Graph: names are resolved, nodes ordered and typed, functions inlined, bodies closed.

A body of control flow becomes a closed graph: what it uses from outside are inputs of its node (`captures` counts
them) and the last inputs of the body. Loop and scan bodies are typed by what really flows in: a body is imported with
the types of its initial values, and again with wider types if what it returns does not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from tierup.errors import ModelError, UnsupportedError
from tierup.frontends.onnx.attributes import attribute_value
from tierup.frontends.onnx.container import Container
from tierup.frontends.onnx.external import ExternalFiles
from tierup.frontends.onnx.flow import opened, present, scan_types, widened
from tierup.frontends.onnx.gradient import forward_body
from tierup.frontends.onnx.legacy import aligned
from tierup.frontends.onnx.limits import MAX_GRAPH_DEPTH, MAX_IMPORTED_NODES, MAX_NAME_CHARS
from tierup.frontends.onnx.order import free_names, in_order
from tierup.frontends.onnx.places import Places
from tierup.frontends.onnx.schema import DOMAINS, Schema, check_arity, check_types, find_schema, onnx_type
from tierup.frontends.onnx.tensors import sparse_array, tensor_array
from tierup.frontends.onnx.types import declared_shape, value_type
from tierup.ir.build import GraphBuilder
from tierup.ir.dims import DimError
from tierup.ir.graph import Attr, Attrs, Const, Graph, ValueId, Weights
from tierup.ir.infer import InferError
from tierup.ir.types import Array, DType, SequenceType, TensorType, Type


class Scope(Struct):
    """Where names are looked up while one graph, or one function inlined into it, is imported."""

    builder: GraphBuilder
    opsets: dict[str, int]
    names: dict[str, ValueId | None] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)  # of the function around: name -> AttributeProto
    functions: tuple[str, ...] = ()  # that are being inlined, outermost first
    nodes: Sequence[Any] = ()  # of this graph
    depth: int = 0
    prefix: str = ""

    def value(self, name: str) -> ValueId | None:
        return self.names[name] if name else None


class Importer:
    """Imports one model; counts what it does, so that a hostile model cannot make it work for ever."""

    def __init__(
        self, container: Container, weights: Weights, files: ExternalFiles, places: Places | None = None
    ) -> None:
        self._container = container
        self._weights = weights
        self._files, self._places = files, places
        self._functions = {(f.domain, f.name, f.overload): f for f in container.model.functions}
        for function in container.model.functions:
            if not all(isinstance(text, str) for text in (function.domain, function.name, *function.input)):
                raise ModelError(f"function {function.name!r} has a name that is not UTF-8")
        self._imported = 0

    def model(self, opsets: dict[str, int]) -> Graph:
        """The whole model as a graph."""
        proto = self._container.model.graph
        scope = Scope(GraphBuilder(self._weights, str(proto.name)), opsets)
        constants = self._initializers(proto)
        overridable = self._container.model.ir_version >= 4  # before, every initialiser also had to be an input
        for value in proto.input:
            default = constants.get(value.name)
            if default is None or overridable:
                self._define(scope, value.name, self._input(scope.builder, value, default))
                constants.pop(value.name, None)
        self._constants(scope, constants)
        self._nodes(scope, proto.node)
        outputs = [self._output(scope, value) for value in proto.output]
        _check_unique("output", [value.name for value in proto.output])
        return scope.builder.finish(outputs)

    def _input(self, builder: GraphBuilder, value: Any, default: Array | None) -> ValueId:
        where = f"input '{value.name}'"
        type = value_type(value.type, where)
        if not isinstance(type, TensorType):
            return builder.input(type, value.name)
        shape = declared_shape(value.type, where)
        if default is not None and (type.dtype.numpy != default.dtype or not _fits(default.shape, shape)):
            raise ModelError(
                f"{where} is declared as {type.dtype!r}{list(shape or ())}, but its initialiser is "
                f"{default.dtype}{list(default.shape)}"
            )
        return builder.open_input(type.dtype, shape, value.name, default)

    def _output(self, scope: Scope, value: Any) -> ValueId:
        found = scope.names.get(value.name)
        if found is None:
            raise ModelError(f"output '{value.name}' is produced by no node")
        if value.type.WhichOneof("value") is not None:
            declared, actual = value_type(value.type, f"output '{value.name}'"), scope.builder.type(found)
            if onnx_type(declared) != onnx_type(actual):
                raise ModelError(
                    f"output '{value.name}' is declared as {onnx_type(declared)}, but the graph computes "
                    f"{onnx_type(actual)}"
                )
        return found

    def _initializers(self, proto: Any) -> dict[str, Array]:
        """Weights by name; large ones are views of the mapped file."""
        found: dict[str, Array] = {}
        _check_unique(
            "initialiser", [t.name for t in proto.initializer] + [s.values.name for s in proto.sparse_initializer]
        )
        for tensor in proto.initializer:
            found[tensor.name] = tensor_array(tensor, self._files)
        for sparse in proto.sparse_initializer:
            found[sparse.values.name] = sparse_array(sparse, self._files)
        return found

    def _constants(self, scope: Scope, constants: dict[str, Array]) -> None:
        for name, array in constants.items():
            self._define(scope, name, self._weight(scope, array, name))

    def _weight(self, scope: Scope, array: Array, name: str) -> ValueId:
        digest = None if self._places is None else self._places.digest(array)
        return scope.builder.weight(array, name, digest)

    def _define(self, scope: Scope, name: str, value: ValueId | None) -> None:
        if not isinstance(name, str):
            raise ModelError(f"graph '{scope.builder.name}' has the name {name!r}, which is not UTF-8")
        if not name:
            raise ModelError(f"graph '{scope.builder.name}' has an input or initialiser without a name")
        if len(name) > MAX_NAME_CHARS:
            raise ModelError(
                f"the name '{name[:40]}…' has {len(name)} characters; at most {MAX_NAME_CHARS} are possible"
            )
        if name in scope.names:
            raise ModelError(f"value '{name}' of graph '{scope.builder.name}' is defined twice")
        scope.names[name] = value

    def _nodes(self, scope: Scope, nodes: Sequence[Any]) -> None:
        scope.nodes = nodes
        for node in in_order(nodes, scope.names, scope.builder.name):
            self._imported += 1
            if self._imported > MAX_IMPORTED_NODES:
                raise ModelError(
                    f"the model expands to more than {MAX_IMPORTED_NODES} nodes (functions and loop bodies included)"
                )
            try:
                self._node(scope, node)
            except (InferError, DimError) as error:
                raise ModelError(f"{_label(scope, node)}: {error}") from error
            except (OverflowError, TypeError, ValueError, LookupError, ArithmeticError) as error:
                if isinstance(error, ModelError):
                    raise type(error)(_located(scope, node, error)) from error
                raise ModelError(f"{_label(scope, node)} is malformed: {error}") from error

    def _node(self, scope: Scope, node: Any) -> None:
        function = self._functions.get((node.domain, node.op_type, node.overload))
        if function is not None:
            self._inline(scope, node, function)
            return
        opset = scope.opsets.get("" if node.domain == "ai.onnx" else node.domain)
        if opset is None:
            if DOMAINS.get(node.domain) is None:
                raise UnsupportedError(f"operator domain '{node.domain}' is not known to Tierup")
            opset = 1 if node.domain else 0
            if not node.domain:
                raise ModelError("the model does not say which opset of ai.onnx it uses")
        schema = find_schema(node.domain, node.op_type, opset)
        inputs = [scope.value(name) for name in node.input]
        check_arity(schema, inputs, len(node.output))
        attrs, bodies = self._attributes(scope, node, schema)
        if schema.op == "onnx.Constant":
            self._define(scope, node.output[0], self._weight(scope, _constant(attrs), node.output[0]))
            return
        if schema.op == "training.Gradient":
            bodies = {"forward": self._forward(scope, attrs)}
        check_types(schema, [None if v is None else scope.builder.type(v) for v in inputs])
        inputs = aligned(scope.builder, schema, inputs, attrs)
        graphs: tuple[tuple[str, Graph], ...] = ()
        if bodies:
            captures = free_names(bodies.values())
            missing = [name for name in captures if name not in scope.names]
            if missing:
                raise ModelError(f"a body uses '{missing[0]}', which is defined nowhere around it")
            captures = [name for name in captures if scope.names[name] is not None]
            graphs = self._bodies(scope, schema, attrs, inputs, bodies, captures)
            inputs += [scope.names[name] for name in captures]
            attrs = Attrs({**attrs, "captures": len(captures)})
        self._emit(scope, schema, inputs, attrs, graphs, node)

    def _forward(self, scope: Scope, attrs: Attrs) -> Any:
        """The computation that a Gradient node differentiates; its inputs are what the attributes name."""
        return forward_body(scope.nodes, attrs["xs"], attrs.get("zs") or (), attrs["y"])

    def _emit(
        self,
        scope: Scope,
        schema: Schema,
        inputs: list[ValueId | None],
        attrs: Attrs,
        graphs: tuple[tuple[str, Graph], ...],
        node: Any,
    ) -> None:
        results = scope.builder.node(
            schema.op,
            inputs,
            attrs,
            version=schema.version,
            outputs=[bool(name) for name in node.output],
            graphs=graphs,
            name=scope.prefix + node.name,
            output_names=[scope.prefix + name for name in node.output],
        )
        for name, value in zip(node.output, results, strict=True):
            if name:
                self._define(scope, name, value)

    def _attributes(self, scope: Scope, node: Any, schema: Schema) -> tuple[Attrs, dict[str, Any]]:
        """Plain attributes with defaults filled in, and the bodies by attribute name."""
        values: dict[str, Attr] = dict(schema.defaults)
        bodies: dict[str, Any] = {}
        seen: list[str] = []
        for proto in node.attribute:
            name = proto.name
            seen.append(name)
            if proto.ref_attr_name:
                bound = scope.attributes.get(proto.ref_attr_name)
                if bound is None:
                    continue  # the function's caller left it out: the default stands
                proto = bound
            known = schema.kinds if schema.kinds is not None else schema.required | schema.extra | set(schema.defaults)
            if name not in known:
                raise ModelError(f"has the attribute '{name}', which it does not take")
            if schema.kinds is not None and proto.type != schema.kinds[name]:
                raise ModelError(
                    f"has the attribute '{name}' of type {proto.type}, but {schema.kinds[name]} is expected"
                )
            if proto.type == proto.GRAPH:
                bodies[name] = proto.g
            else:
                values[name] = attribute_value(proto, self._files, node.op_type)
        _check_unique("attribute", seen)
        missing = sorted(schema.required - values.keys() - bodies.keys())
        if missing:
            raise ModelError(f"needs its attribute '{missing[0]}', which is left out")
        return Attrs(values), bodies

    def _inline(self, scope: Scope, node: Any, function: Any) -> None:
        """Import a function's nodes in place of the node that calls it."""
        key = f"{function.domain}.{function.name}"
        if key in scope.functions:
            raise ModelError(f"function {key} calls itself")
        if len(scope.functions) >= MAX_GRAPH_DEPTH:
            raise ModelError(f"functions call each other more than {MAX_GRAPH_DEPTH} deep")
        if len(node.input) > len(function.input) or len(node.output) > len(function.output):
            raise ModelError(f"gives function {key} more inputs or outputs than it has")
        given = {a.name: _resolved(a, scope) for a in node.attribute}
        attributes = {a.name: a for a in function.attribute_proto} | {k: v for k, v in given.items() if v is not None}
        opsets = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in function.opset_import}
        inner = Scope(
            builder=scope.builder,
            opsets=opsets,
            attributes=attributes,
            functions=(*scope.functions, key),
            depth=scope.depth,
            prefix=f"{scope.prefix}{node.name or function.name}/",
        )
        for index, name in enumerate(function.input):
            self._define(inner, name, scope.value(node.input[index]) if index < len(node.input) else None)
        self._nodes(inner, function.node)
        for actual, formal in zip(node.output, function.output, strict=False):
            if actual:
                if inner.names.get(formal) is None:
                    raise ModelError(f"function {key} does not produce its output '{formal}'")
                self._define(scope, actual, inner.names[formal])

    def _bodies(
        self,
        scope: Scope,
        schema: Schema,
        attrs: Attrs,
        inputs: list[ValueId | None],
        bodies: dict[str, Any],
        captures: list[str],
    ) -> tuple[tuple[str, Graph], ...]:
        types = [None if v is None else scope.builder.type(v) for v in inputs]
        if schema.op == "onnx.Loop":
            (name,) = bodies
            scalar = [TensorType(DType.I64, ()), TensorType(DType.BOOL, ())]
            return ((name, self._carried_body(scope, bodies[name], scalar, present(types[2:]), [], 1, captures)),)
        if schema.op == "onnx.Scan":
            (name,) = bodies
            states, slices = scan_types(schema.version, attrs, types)
            return ((name, self._carried_body(scope, bodies[name], [], states, slices, 0, captures)),)
        if schema.op == "training.Gradient":
            return (("forward", self._body(scope, bodies["forward"], present(types), captures)),)
        if schema.op == "onnx.SequenceMap":
            items = [t.elem if isinstance(t, SequenceType) else t for t in present(types)]
            return tuple((name, self._body(scope, body, items, captures)) for name, body in bodies.items())
        if schema.op == "onnx.If":  # exporters write branches for other ranks, which then cannot be typed
            return tuple((name, self._body(scope, body, [], captures, lenient=True)) for name, body in bodies.items())
        return tuple((name, self._body(scope, body, None, captures)) for name, body in sorted(bodies.items()))

    def _carried_body(
        self,
        scope: Scope,
        proto: Any,
        before: Sequence[Type],
        carried: list[Type],
        after: Sequence[Type],
        skip: int,
        captures: list[str],
    ) -> Graph:
        """A body whose outputs [skip:] come back as inputs: its types are widened until they hold for every round."""
        carried = [opened(type) for type in carried]
        while True:
            body = self._body(scope, proto, [*before, *carried, *after], captures)
            returned = [body.type(value) for value in body.outputs[skip : skip + len(carried)]]
            if len(returned) < len(carried):
                raise ModelError(f"carries {len(carried)} values, but its body returns only {len(returned)}")
            wider = [widened(inside, back) for inside, back in zip(carried, returned, strict=True)]
            if wider == carried:
                return body
            carried = wider

    def _body(
        self, scope: Scope, proto: Any, types: Sequence[Type] | None, captures: list[str], *, lenient: bool = False
    ) -> Graph:
        """A closed body. `types` are those of its own inputs; None: as it declares them."""
        if scope.depth >= MAX_GRAPH_DEPTH:
            raise ModelError(f"graphs are nested more than {MAX_GRAPH_DEPTH} deep")
        builder = GraphBuilder(self._weights, str(proto.name), lenient=lenient or scope.builder.lenient)
        inner = replace(scope, builder=builder, names={}, depth=scope.depth + 1)
        constants = self._initializers(proto)
        formals = [value for value in proto.input if value.name not in constants]
        if types is not None and len(types) != len(formals):
            raise ModelError(f"body '{proto.name}' has {len(formals)} inputs, but {len(types)} values flow in")
        for index, value in enumerate(formals):
            if types is None:
                self._define(inner, value.name, self._input(inner.builder, value, None))
            else:
                self._define(inner, value.name, _flow_in(inner.builder, types[index], value.name))
        outer: dict[str, ValueId | None] = {}
        for name in captures:
            value_id = scope.names[name]
            assert value_id is not None  # only present values are captured
            outer[name] = _flow_in(inner.builder, scope.builder.type(value_id), name)
        absent: dict[str, ValueId | None] = {name: None for name, value in scope.names.items() if value is None}
        own = {value.name for value in formals} | constants.keys()
        inner.names = {**absent, **{k: v for k, v in outer.items() if k not in own}, **inner.names}
        self._constants(inner, constants)
        self._shadowed(inner, proto, own)
        self._nodes(inner, proto.node)
        return inner.builder.finish([self._output(inner, value) for value in proto.output])

    def _shadowed(self, scope: Scope, proto: Any, own: Iterable[str]) -> None:
        """A body may define a name that also exists outside: then the outer one is not visible in it."""
        produced = {name for node in proto.node for name in node.output if name}
        for name in produced - set(own):
            scope.names.pop(name, None)


def _fits(actual: tuple[int, ...], declared: Sequence[int | str | None] | None) -> bool:
    if declared is None:
        return True
    return len(actual) == len(declared) and all(
        not isinstance(d, int) or a == d for a, d in zip(actual, declared, strict=True)
    )


def _flow_in(builder: GraphBuilder, type: Type, name: str) -> ValueId:
    """A body's input for a value from outside: numbers stay, syms of the outer graph become dims of their own."""
    if isinstance(type, TensorType):
        return builder.open_input(type.dtype, type.shape, name)
    return builder.input(type, name)


def _constant(attrs: Attrs) -> Array:
    """The array of a Constant node."""
    given = [(name, value) for name, value in attrs.items() if name.startswith(("value", "sparse_value"))]
    if len(given) != 1:
        raise ModelError(f"must have exactly one value, but has {len(given)}")
    name, value = given[0]
    if isinstance(value, Const):
        return value.array
    if name.startswith("value_string"):
        items = value if isinstance(value, tuple) else (value,)
        return np.array([*items, None], object)[:-1].reshape(-1 if isinstance(value, tuple) else ())
    return np.array(value, np.int64 if name.startswith("value_int") else np.float32)


def _resolved(attribute: Any, scope: Scope) -> Any:
    """An attribute given to a function; one that refers to the function around it is looked up there."""
    return scope.attributes.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute


def _check_unique(kind: str, names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        twice = next(name for index, name in enumerate(names) if name in names[:index])
        raise ModelError(f"{kind} '{twice}' is given twice")


def _label(scope: Scope, node: Any) -> str:
    name = scope.prefix + (node.name or (node.output[0] if node.output else ""))
    return f"node '{name}' ({node.op_type})"


def _located(scope: Scope, node: Any, error: Exception) -> str:
    """The message with the innermost node's place in front of it."""
    text = str(error)
    return text if text.startswith("node '") else f"{_label(scope, node)} {text}"
