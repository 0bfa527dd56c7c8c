"""Graph -> the baseline plan (tier 0): every node of the imported graph a call-out, control flow as jumps and calls.

Values live in registers of the same number. Weights are bound just before their first use, and every value is freed
after its last one, so that a call holds no more memory than it must.
"""

from __future__ import annotations

from collections.abc import Sequence

from tierup.ir.graph import Graph, Node
from tierup.ir.ops.control import item_types
from tierup.ir.types import DType, TensorType, Type
from tierup.plan.program import ABSENT, Assembler, Constant, DimCode, Function, Plan, StepCode

CONTROL = ("onnx.If", "onnx.Loop", "onnx.Scan", "onnx.SequenceMap")
_FOREVER = 2**63 - 1  # a loop without a trip count


def baseline(graph: Graph) -> Plan:
    """The tier 0 plan of an imported graph."""
    compiler = PlanCompiler()
    compiler.function(graph)
    return Plan(tuple(compiler.functions), tuple(compiler.callouts), tuple(compiler.constants))


class PlanCompiler:
    """Collects the functions, call-outs and constants of one plan."""

    def __init__(self) -> None:
        self.functions: list[Function] = []
        self.callouts: list[Node] = []
        self.constants: dict[Constant, int] = {}

    def function(self, graph: Graph) -> int:
        """Compile `graph` and return its number; the outermost graph is function 0."""
        index = len(self.functions)
        assembler = Assembler(graph.name, len(graph.values))
        self.functions.append(assembler.finish((), ()))  # keeps the number while bodies inside it take theirs
        FunctionCompiler(self, graph, assembler).compile()
        self.functions[index] = assembler.finish(graph.inputs, graph.outputs)
        return index

    def callout(self, node: Node) -> int:
        self.callouts.append(node)
        return len(self.callouts) - 1

    def constant(self, digest: str) -> int:
        return self.constants.setdefault(digest, len(self.constants))


class FunctionCompiler:
    """Writes the steps of one graph."""

    def __init__(self, compiler: PlanCompiler, graph: Graph, assembler: Assembler) -> None:
        self.compiler = compiler
        self.graph = graph
        self.out = assembler
        self.weights = dict(graph.weights)  # not bound to their registers yet

    def compile(self) -> None:
        last = self._last_uses()
        for value, digest in self.graph.defaults:
            self.out.emit(StepCode.DEFAULT, value, self.compiler.constant(digest))
        for index, node in enumerate(self.graph.nodes):
            for used in node.inputs:
                self.bind(used)
            self.node(node)
            for done in last.get(index, ()):
                self.out.emit(StepCode.FREE, done)
        for value in self.graph.outputs:
            self.bind(value)

    def bind(self, value: int | None) -> None:
        digest = self.weights.pop(value, None) if value is not None else None
        if digest is not None and value is not None:
            self.out.emit(StepCode.CONSTANT, value, self.compiler.constant(digest))

    def _last_uses(self) -> dict[int, list[int]]:
        """Node index -> values that nothing needs after it."""
        last: dict[int, int] = {}
        for index, node in enumerate(self.graph.nodes):
            for value in (*node.inputs, *node.outputs):
                if value is not None:
                    last[value] = index
        for value in self.graph.outputs:
            last.pop(value, None)
        by_node: dict[int, list[int]] = {}
        for value, index in last.items():
            by_node.setdefault(index, []).append(value)
        return by_node

    def node(self, node: Node) -> None:
        if self.why_not_jumps(node) is None:
            {"onnx.If": self._if, "onnx.Loop": self._loop, "onnx.Scan": self._scan}[node.op](node)
        elif node.op == "onnx.Identity":
            self.out.emit(StepCode.MOVE, _register(node.outputs[0]), _register(node.inputs[0]))
        else:
            self.call_out(node)

    def call_out(self, node: Node) -> None:
        """The node in the reference tier."""
        callout = self.compiler.callout(node)
        self.out.emit(StepCode.CALLOUT, callout, _registers(node.inputs), _registers(node.outputs))

    def passed_on(self, node: Node) -> Sequence[int | None]:
        """The inputs that may come out of a node as they are, in the memory that they lie in."""
        if node.op == "onnx.Loop":
            return node.inputs[2 : len(node.inputs) - node.attrs["captures"]]
        if node.op == "onnx.Scan":
            return node.inputs[: self._n_states(node)]
        return node.inputs if node.op == "onnx.Identity" else ()

    def why_not_jumps(self, node: Node) -> str | None:
        """Why a node is not written as jumps and calls; None if it is."""
        if node.op == "onnx.If":
            return None
        if node.op == "onnx.SequenceMap":
            return "steps do not look into sequences"
        if node.op not in CONTROL:
            return "it runs no bodies"
        if node.op == "onnx.Scan" and node.version <= 8:
            return "rows of a batch have lengths of their own, as opset 8 has it"
        body = node.graph("body")
        assert body is not None
        carried = len(node.inputs) - node.attrs["captures"] - 1 if node.op == "onnx.Loop" else self._n_states(node)
        if not all(_is_native(body.type(value)) for value in body.outputs[carried:]):
            return "what it collects are strings, which steps do not join"
        return None

    def _n_states(self, node: Node) -> int:
        return len(node.inputs) - int(node.attrs["captures"]) - int(node.attrs["num_scan_inputs"])

    def _if(self, node: Node) -> None:
        then, other = node.graph("then_branch"), node.graph("else_branch")
        assert then is not None
        assert other is not None
        captures, outputs = _registers(node.inputs[1:]), _registers(node.outputs)
        to_else = self.out.emit(StepCode.BRANCH, _register(node.inputs[0]), 0)
        self.out.emit(StepCode.CALL, self.compiler.function(then), captures, _padded(outputs, then))
        to_end = self.out.emit(StepCode.JUMP, 0)
        self.out.land(to_else)
        self.out.emit(StepCode.CALL, self.compiler.function(other), captures, _padded(outputs, other))
        self.out.land(to_end)

    def _loop(self, node: Node) -> None:
        """while i < limit and going: going, *carried, *items = body(i, going, *carried, *captures)"""
        out, body = self.out, node.graph("body")
        assert body is not None
        split = len(node.inputs) - node.attrs["captures"]
        initial, captures = node.inputs[2:split], _registers(node.inputs[split:])
        carried = [out.value() for _ in initial]
        for register, value in zip(carried, initial, strict=True):
            out.emit(StepCode.MOVE, register, _register(value))
        items = [out.value() for _ in body.outputs[1 + len(carried) :]]
        lists = [out.value() for _ in items]
        step, limit, more, one = out.dim(), out.dim(), out.dim(), out.dim()
        going, iteration = out.value(), out.value()
        bound = (DimCode.CONST, limit, _FOREVER)
        if node.inputs[0] is not None:
            bound = (DimCode.ELEM, limit, node.inputs[0])
        out.dims((DimCode.CONST, step, 0), (DimCode.CONST, one, 1), bound)
        if node.inputs[1] is not None:
            out.emit(StepCode.MOVE, going, node.inputs[1])
        else:
            out.emit(StepCode.SCALAR, going, DType.BOOL.code, one)
        top = len(out.steps)
        out.dims((DimCode.LT, more, step, limit))
        ends = [out.emit(StepCode.BRANCH_DIM, more, 0), out.emit(StepCode.BRANCH, going, 0)]
        out.emit(StepCode.SCALAR, iteration, DType.I64.code, step)
        function = self.compiler.function(body)
        out.emit(StepCode.CALL, function, [iteration, going, *carried, *captures], [going, *carried, *items])
        for item, collected in zip(items, lists, strict=True):
            out.emit(StepCode.PUSH, collected, item)
        out.dims((DimCode.ADD, step, step, one))
        out.emit(StepCode.JUMP, top)
        out.land(*ends)
        for register, value in zip(carried, node.outputs, strict=False):
            if value is not None:
                out.emit(StepCode.MOVE, value, register)
        types = item_types(node.attrs, body, 1 + len(carried))
        for collected, type, value in zip(lists, types, node.outputs[len(carried) :], strict=False):
            self._stack(collected, type, value, axis=0, reverse=False)
        self._drop([*carried, *items, *lists, going, iteration])

    def _scan(self, node: Node) -> None:
        """for i in range(length): *states, *items = body(*states, *slices(i), *captures)"""
        out, body = self.out, node.graph("body")
        assert body is not None
        n_states, n_scans = self._n_states(node), int(node.attrs["num_scan_inputs"])
        scanned = _registers(node.inputs[n_states : n_states + n_scans])
        captures = _registers(node.inputs[n_states + n_scans :])
        axes = _per(node, "scan_input_axes", n_scans)
        in_axes = [self._front(value, axis) for value, axis in zip(scanned, axes, strict=True)]
        backward = _per(node, "scan_input_directions", n_scans)
        states = [out.value() for _ in range(n_states)]
        for register, value in zip(states, node.inputs[:n_states], strict=True):
            out.emit(StepCode.MOVE, register, _register(value))
        slices = [out.value() for _ in scanned]
        items = [out.value() for _ in body.outputs[n_states:]]
        lists = [out.value() for _ in items]
        step, length, more, one, back = (out.dim() for _ in range(5))
        out.dims(
            (DimCode.CONST, step, 0),
            (DimCode.CONST, one, 1),
            (DimCode.OF, length, scanned[0], in_axes[0]),
        )
        for value, axis in zip(scanned[1:], in_axes[1:], strict=True):
            # lengths must be equal: two sizes above 1 that differ do not broadcast, and both are made so by adding 2
            out.dims(
                (DimCode.OF, more, value, axis),
                (DimCode.CONST, back, 2),
                (DimCode.ADD, more, more, back),
                (DimCode.ADD, back, length, back),
                (DimCode.BROADCAST, back, back, more),
            )
        top = len(out.steps)
        out.dims((DimCode.LT, more, step, length), (DimCode.SUB, back, length, step), (DimCode.SUB, back, back, one))
        end = out.emit(StepCode.BRANCH_DIM, more, 0)
        for slot, value, axis, reverse in zip(slices, scanned, in_axes, backward, strict=True):
            out.emit(StepCode.INDEX, slot, value, axis, back if reverse else step)
        function = self.compiler.function(body)
        out.emit(StepCode.CALL, function, [*states, *slices, *captures], [*states, *items])
        for item, collected in zip(items, lists, strict=True):
            out.emit(StepCode.PUSH, collected, item)
        out.dims((DimCode.ADD, step, step, one))
        out.emit(StepCode.JUMP, top)
        out.land(end)
        for register, value in zip(states, node.outputs, strict=False):
            if value is not None:
                out.emit(StepCode.MOVE, value, register)
        out_axes, reverses = (
            _per(node, "scan_output_axes", len(items)),
            _per(node, "scan_output_directions", len(items)),
        )
        types = item_types(node.attrs, body, n_states)
        for collected, type, value, axis, reverse in zip(
            lists, types, node.outputs[n_states:], out_axes, reverses, strict=False
        ):
            self._stack(collected, type, value, axis, bool(reverse))
        self._drop([*states, *slices, *items, *lists])

    def _front(self, value: int, axis: int) -> int:
        """`axis` counted from the front; the native step takes no other."""
        type = self.graph.type(value)
        assert isinstance(type, TensorType)
        return axis if axis >= 0 or type.shape is None else axis + len(type.shape)

    def _stack(self, collected: int, type: Type, value: int | None, axis: int, reverse: bool) -> None:
        if value is None:
            return
        assert isinstance(type, TensorType)
        dims = []
        for dim in type.shape or ():
            register = self.out.dim()
            self.out.dims((DimCode.CONST, register, dim if isinstance(dim, int) else 0))
            dims.append(register)
        self.out.emit(StepCode.STACK, value, collected, axis, int(reverse), type.dtype.code, dims)

    def _drop(self, registers: Sequence[int]) -> None:
        for register in registers:
            self.out.emit(StepCode.FREE, register)


def _is_native(type: Type) -> bool:
    return isinstance(type, TensorType) and type.dtype is not DType.STR


def _register(value: int | None) -> int:
    return ABSENT if value is None else value


def _registers(values: Sequence[int | None]) -> list[int]:
    return [_register(value) for value in values]


def _padded(outputs: list[int], body: Graph) -> list[int]:
    """A branch may return more than its node uses."""
    return outputs + [ABSENT] * (len(body.outputs) - len(outputs))


def _per(node: Node, name: str, count: int) -> tuple[int, ...]:
    """A per-input attribute of Scan; absent means all zeros."""
    return tuple(node.attrs.get(name) or (0,) * count)
