"""The steps of a compiled function: kernels in order, sizes as dim code, values between kernels in one arena."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tierup.codegen.target import Target
from tierup.ir.dims import READS, DimBuilder, DimOp
from tierup.ir.facts import Signature
from tierup.ir.graph import Graph, Node, ValueId, Weights
from tierup.ir.types import Dim, TensorType
from tierup.lower.kernel import Kernel, Panels
from tierup.lower.region import lower_region
from tierup.lower.tile import TileProgram
from tierup.plan.baseline import CONTROL, FunctionCompiler, PlanCompiler
from tierup.plan.cut import cut
from tierup.plan.memory import Layout, Typical, plan_lanes, plan_memory
from tierup.plan.program import BASELINE, BODY, Assembler, DimCode, StepCode
from tierup.plan.regions import Cut, Region, shape_of, tensor
from tierup.rewrite.assume import Pair
from tierup.rewrite.walk import misfit
from tierup.runtime.guards import DIM_CODES, GuardCode
from tierup.runtime.standins import StandIn, Unit, results_of, with_stand_ins
from tierup.runtime.units import arena_requests, is_view, needed_units
from tierup.store.objects import program_digest

_HEAP, _ARENA = 0, 1


class Part(Struct, frozen=True):
    """One function's worth: the core graph, how it was cut, what was assumed of sizes, and what answers otherwise:
    another one in which less is assumed, or else the graph as imported."""

    graph: Graph
    cut: Cut
    assumed: tuple[Pair, ...]
    source: Graph
    otherwise: Part | None = None
    strays: tuple[Signature, ...] = ()
    """Calls that break what those before it assume: it is made for calls like them."""


class Alone(Struct, frozen=True):
    """A node that calls out, and why."""

    node: Node
    reason: str


class Placed(Struct, frozen=True):
    """A kernel in its place: the region it came from, and the slot that its code goes to."""

    region: Region
    kernel: Kernel
    slot: int


class KernelCompiler(PlanCompiler):
    """Collects functions with kernels. Bodies of control nodes are functions like any other.

    `refused` are tile programs, by digest, whose kernels may not serve, and why: the reference stands in for them.
    """

    def __init__(self, weights: Weights, target: Target, refused: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.weight_table = weights
        self.target = target
        self._refused = refused or {}
        self.stand_ins: list[StandIn] = []
        self.programs: list[TileProgram] = []
        self.written: list[KernelFunction] = []
        self._slots: dict[str, int] = {}
        self._distinct: dict[bytes, TileProgram] = {}

    def function(self, graph: Graph) -> int:
        """Compile the body of a control node, which is in core ops like the graph around it; its number."""
        wrong = misfit(graph, self.weight_table)
        if wrong is None:
            return self.compiled(Part(graph, cut(graph, self.weight_table), (), graph))
        # a branch that was written for other ranks: the reference says what is wrong, should it ever run
        reason = f"{wrong} in it cannot be right: calls that get here fail"
        node = Node(BODY, 1, graph.inputs, graph.outputs, graphs=(("graph", graph),), name=graph.name)
        whole = replace(graph, nodes=(node,), weights=())
        return self.compiled(Part(whole, Cut((0,), {0: reason}, graph.dims), (), graph))

    def compiled(self, part: Part) -> int:
        """Write a function, and those of its bodies after it; its number. `written` says what became of them."""
        index = len(self.functions)
        assembler = Assembler(part.graph.name, len(part.graph.values))
        self.functions.append(assembler.finish((), ()))  # keeps the number while bodies inside it take theirs
        function = KernelFunction(self, part, assembler, index)
        self.written.append(function)
        function.compile()
        self.functions[index] = assembler.finish(part.graph.inputs, part.graph.outputs)
        return index

    def lowered(self, graph: Graph, region: Region, dims: DimBuilder) -> Kernel:
        """A region's kernel for this machine; equal ones share their program, whose text is written once."""
        kernel = lower_region(graph, self.weight_table, region, dims, self.target.lanes, self.target.dots)
        program = self._distinct.setdefault(msgspec.msgpack.encode(kernel.program), kernel.program)
        return replace(kernel, program=program)

    def slot(self, program: TileProgram) -> int:
        """Equal programs share a slot."""
        text = program.text
        if text not in self._slots:
            self._slots[text] = len(self.programs)
            self.programs.append(program)
        return self._slots[text]

    def variant_program(self, program: TileProgram) -> int:
        """The number of a variant's program, behind those of the slots: no slots are made after this."""
        return self.slot(program)

    def why_refused(self, kernel: Kernel) -> str | None:
        """Why a kernel may not serve; None if nothing speaks against it."""
        return self._refused.get(program_digest(kernel.program.text)) if self._refused else None

    def panels(self, digest: str, panels: Panels) -> int:
        """The number of a packed constant."""
        constant = (digest, panels.width, panels.form) if panels.form else (digest, panels.width)
        return self.constants.setdefault(constant, len(self.constants))


class KernelFunction(FunctionCompiler):
    """Writes the steps of one compiled function."""

    compiler: KernelCompiler

    def __init__(self, compiler: KernelCompiler, part: Part, assembler: Assembler, number: int) -> None:
        graph = part.graph
        super().__init__(compiler, graph, assembler)
        self.part, self.number = part, number
        self._dims = DimBuilder(part.cut.dims)
        self._registers: dict[Dim, int] = {}
        self._dense: dict[ValueId, int] = {}
        self._allocated: set[ValueId] = set()
        self._refusals = {id(graph.nodes[index]): reason for index, reason in part.cut.refusals.items()}
        needed = needed_units(graph, self._dims, self._lowered())
        self._units, stand_ins = with_stand_ins(graph, needed, compiler.why_refused)
        compiler.stand_ins += stand_ins
        self._refusals.update((id(made.node), made.reason) for made in stand_ins)
        self._native = {v for _, kernel in self._units if kernel is not None for v in results_of(kernel)}
        self.placed: list[Placed] = []
        self.alone: list[Alone] = []
        self.arena = arena_requests(graph, self._dims, self._units, self.passed_on)
        self._layout = self._plan_memory()

    @property
    def dims(self) -> tuple[DimOp, ...]:
        """The instructions that the sizes of its kernels refer to."""
        return tuple(self._dims.ops)

    def compile(self) -> None:
        for value, digest in self.graph.defaults:
            self.out.emit(StepCode.DEFAULT, value, self.compiler.constant(digest))
        failing = self._check_guard()
        self._reserve()
        for unit, kernel in self._units:
            if kernel is not None and isinstance(unit, Region):
                self._kernel(unit, kernel)
            elif isinstance(unit, Node):
                self._single(unit)
        for value in self.graph.outputs:
            self.bind(value)
        if failing is not None:
            self._otherwise(failing)

    def _check_guard(self) -> int | None:
        """Jump away where an assumption does not hold; returns the jump, whose target is not known yet."""
        if not self.part.assumed:
            return None
        code = GuardCode(self.out, self._dims)
        holds = code.all_equal(self.part.assumed)
        self._registers.update(code.registers)
        return self.out.emit(StepCode.BRANCH_DIM, holds, 0)

    def _otherwise(self, failing: int) -> None:
        """Another function answers the whole call, or the baseline, whose node holds the graph as imported."""
        end = self.out.emit(StepCode.JUMP, 0)
        self.out.land(failing)
        graph, values = self.graph, (list(self.graph.inputs), list(self.graph.outputs))
        if self.part.otherwise is not None:
            self.out.emit(StepCode.CALL, self.compiler.compiled(self.part.otherwise), *values)
        else:
            node = Node(BASELINE, 1, graph.inputs, graph.outputs, graphs=(("graph", self.part.source),))
            self.out.emit(StepCode.CALLOUT, self.compiler.callout(node), *values)
        self.out.land(end)

    def _single(self, node: Node) -> None:
        """A node on its own: a reshape is the same memory under other sizes, everything else calls out."""
        if is_view(self.graph, node):
            self._view(node)
            return
        for used in node.inputs:
            self.bind(used)
        self.node(node)

    def call_out(self, node: Node) -> None:
        control = self.why_not_jumps(node) if node.op in CONTROL else None
        self.alone.append(Alone(node, control or self._refusals.get(id(node), "")))
        super().call_out(node)

    def _view(self, node: Node) -> None:
        source, result = node.inputs[0], node.outputs[0]
        assert source is not None
        assert result is not None
        self.bind(source)
        shape = self._type(result).shape
        assert shape is not None
        self.out.emit(StepCode.VIEW, result, source, self._registers_of(shape))
        if source in self._native:
            self._native.add(result)

    def _lowered(self) -> list[Unit]:
        """What the cut has, in order: regions with their kernels, and nodes on their own."""
        units: list[Unit] = []
        for unit in self.part.cut.order:
            units.append(
                (self.graph.nodes[unit], None)
                if isinstance(unit, int)
                else (unit, self.compiler.lowered(self.graph, unit, self._dims))
            )
        return units

    def _type(self, value: ValueId) -> TensorType:
        type = self.graph.type(value)
        assert isinstance(type, TensorType)
        return type

    def _plan_memory(self) -> Layout:
        packed = plan_memory(self.arena, self._dims, Typical(self._dims))
        return plan_lanes(self.arena, packed.total) or packed

    def _reserve(self) -> None:
        """Make the arena large enough."""
        if self._layout.offsets:
            self.out.emit(StepCode.ARENA, *self._registers_of([self._layout.total]))

    def _registers_of(self, dims: Sequence[Dim]) -> list[int]:
        """Dim registers that hold these sizes; what is not computed yet is computed now."""
        instructions: list[tuple[int, ...]] = []
        pending = list(reversed(dims))
        while pending:
            dim = pending[-1]
            if dim in self._registers:
                pending.pop()
            elif isinstance(dim, int):
                self._registers[dim] = self.out.dim()
                instructions.append((DimCode.CONST, self._registers[dim], dim))
            else:
                op = self._dims.ops[dim.id]
                missing = [] if op.op in READS else [arg for arg in op.args if arg not in self._registers]
                if missing:
                    pending.extend(missing)
                    continue
                self._registers[dim] = self.out.dim()
                arguments = op.args if op.op in READS else tuple(self._registers[arg] for arg in op.args)
                instructions.append((DIM_CODES[op.op], self._registers[dim], *arguments))  # type: ignore[arg-type]
        if instructions:
            self.out.dims(*instructions)
        return [self._registers[dim] for dim in dims]

    def _operand(self, buffer: ValueId | Panels) -> int:
        """A register with a dense tensor: what comes from outside or from a call-out may be strided."""
        if isinstance(buffer, Panels):
            register = self.out.value()
            self.out.emit(StepCode.CONSTANT, register, self.compiler.panels(self._digest(buffer.value), buffer))
            return register
        if buffer in self._native:
            return buffer
        if buffer not in self._dense:
            if buffer in self.graph.digests:
                self.bind(buffer)
                self._dense[buffer] = buffer
            else:
                shape = self._type(buffer).shape
                assert shape is not None
                sizes = self._registers_of(shape)
                self._dense[buffer] = self.out.value()
                self.out.emit(StepCode.VIEW, self._dense[buffer], buffer, sizes)
        return self._dense[buffer]

    def _digest(self, value: ValueId) -> str:
        return self.graph.digests[value]

    def _kernel(self, region: Region, kernel: Kernel) -> None:
        results = set(results_of(kernel))
        operands = [0 if b in results else self._operand(b) for b in kernel.buffers]
        for value in results - self._allocated:  # a value may be written part by part
            self._allocate(value)
        self._allocated |= results
        operands = [
            b if b in results and isinstance(b, int) else o for b, o in zip(kernel.buffers, operands, strict=True)
        ]
        counts = [self._dims.ceildiv(extent, step) for extent, step in kernel.steps]
        total = self._dims.product(counts)
        self._registers_of(list(self._checks(region)))
        registers = self._registers_of([*kernel.sizes, kernel.scratch_bytes, total, kernel.grain])
        *sizes, scratch, steps, grain = registers
        slot = self.compiler.slot(kernel.program)
        self.placed.append(Placed(region, kernel, slot))
        room = scratch if kernel.scratch_bytes != 0 else -1
        if kernel.rounds is None:
            self.out.emit(StepCode.KERNEL, slot, operands, sizes, room, steps, grain)
            return
        (rounds,) = self._registers_of([kernel.rounds])
        now, following, one, done = (self.out.dim() for _ in range(4))
        self.out.dims((DimCode.CONST, now, 0), (DimCode.CONST, following, 1), (DimCode.CONST, one, 1))
        top = self.out.emit(StepCode.KERNEL, slot, operands, [now, following, *sizes], room, steps, grain)
        ahead = [(DimCode.ADD, register, register, one) for register in (now, following)]
        self.out.dims(*ahead, (DimCode.EQ, done, now, rounds))
        self.out.emit(StepCode.BRANCH_DIM, done, top)

    def _checks(self, region: Region) -> Iterator[Dim]:
        """Dims without an answer where the two sides of a product do not fit."""
        for node in (self.graph.nodes[index] for index in region.nodes):
            if node.op == "core.matmul":
                left, right = (shape_of(tensor(self.graph, value)) for value in node.inputs)
                if left[-1] != right[-2]:
                    yield self._dims.record("floordiv", 1, self._dims.emit("eq", left[-1], right[-2]))

    def _allocate(self, value: ValueId) -> None:
        type = self._type(value)
        assert type.shape is not None
        sizes = self._registers_of(type.shape)
        offset = self._layout.offsets.get(value)
        if offset is None:
            self.out.emit(StepCode.ALLOC, value, type.dtype.code, _HEAP, -1, sizes)
        else:
            self.out.emit(StepCode.ALLOC, value, type.dtype.code, _ARENA, *self._registers_of([offset]), sizes)
