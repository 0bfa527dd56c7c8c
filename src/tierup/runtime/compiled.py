"""Graph -> the compiled plan: regions as kernels, what is left as call-outs.

In: the graph as imported, and signatures that are worth functions of their own. Out: a plan, the kernels of its slots,
and why nodes stand alone. The first function has open sizes (tier 1). With signatures, function 0 compares the sizes of
a call with each and calls the function whose sizes are closed to them (tier 2), or the open one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tierup.codegen.target import Target
from tierup.ir.dims import DimOp
from tierup.ir.graph import Graph, Weights
from tierup.ir.types import Sym, TensorType
from tierup.lower.tile import TileProgram
from tierup.plan.cut import cut
from tierup.plan.memory import Request
from tierup.plan.program import Assembler, DimCode, Plan, StepCode
from tierup.plan.regions import Cut
from tierup.rewrite.assume import Assumptions, Pair
from tierup.rewrite.rewrite import close_sizes, lower_to_core, narrow_products
from tierup.runtime.progress import Signature
from tierup.runtime.standins import StandIn
from tierup.runtime.steps import Alone, KernelCompiler, KernelFunction, Part, Placed


@dataclass(frozen=True)
class Function:
    """A compiled function: for which signature (None: any), its core graph, its cut, its kernels, its arena.

    `dims` are the graph's, and after them what kernels compute of those. `assumed` are sizes that are equal in every
    call that reaches a kernel. `alone` are the nodes that call out, `number` is the function's in the plan, and
    `bodies` are those of all control nodes inside it.
    """

    signature: Signature | None
    graph: Graph
    cut: Cut
    kernels: tuple[Placed, ...]
    arena: tuple[Request, ...]
    dims: tuple[DimOp, ...]
    assumed: tuple[Pair, ...]
    alone: tuple[Alone, ...]
    number: int
    bodies: tuple[Function, ...] = ()


@dataclass(frozen=True)
class Compiled:
    """A plan with kernels: the programs of its slots, and its functions, the one with open sizes first. `stand_ins`
    are regions that the reference computes because their kernels were refused."""

    plan: Plan
    programs: tuple[TileProgram, ...]
    functions: tuple[Function, ...]
    stand_ins: tuple[StandIn, ...] = ()

    @property
    def all_functions(self) -> tuple[Function, ...]:
        """With the bodies of control nodes."""
        return tuple(found for function in self.functions for found in (function, *function.bodies))

    @property
    def graph(self) -> Graph:
        return self.functions[0].graph

    @property
    def cut(self) -> Cut:
        return self.functions[0].cut


def compile_plan(
    imported: Graph,
    weights: Weights,
    target: Target,
    signatures: Sequence[Signature] = (),
    precision: str = "f32",
    refused: Mapping[str, str] | None = None,
) -> Compiled:
    """Lower to core ops, cut into regions, lower the regions, and write the steps of a call.

    With the precision "bf16", products are computed on bf16 where the machine has instructions for that. `refused` are
    tile programs, by digest, that may not serve, and why: in the open function the reference stands in for them, and
    functions with closed sizes that would need one are left out.
    """
    compiler = KernelCompiler(weights, target, refused)
    if refused:
        signatures = [
            s for s in signatures if _is_allowed(imported, s, KernelCompiler(weights, target, refused), precision)
        ]
    chooser = Assembler("choose", len(imported.values))
    if signatures:
        compiler.functions.append(chooser.finish((), ()))
    functions, numbers = [], []
    for signature in (None, *signatures):
        graph = imported if signature is None else close_sizes(imported, weights, signature)
        compiler.written.clear()
        numbers.append(compiler.compiled(_prepare(graph, weights, target, precision)))
        outermost, *inner = compiler.written
        bodies = tuple(_described(body, None) for body in inner)
        functions.append(replace(_described(outermost, signature), bodies=bodies))
    if signatures:
        _choose(chooser, compiler, imported, signatures, numbers)
        compiler.functions[0] = chooser.finish(imported.inputs, imported.outputs)
    plan = Plan(tuple(compiler.functions), tuple(compiler.callouts), tuple(compiler.constants), len(compiler.programs))
    return Compiled(plan, tuple(compiler.programs), tuple(functions), tuple(compiler.stand_ins))


def _is_allowed(imported: Graph, signature: Signature, compiler: KernelCompiler, precision: str) -> bool:
    """Whether the function of a signature gets along without kernels that were refused."""
    weights = compiler.weight_table
    compiler.compiled(_prepare(close_sizes(imported, weights, signature), weights, compiler.target, precision))
    return not compiler.stand_ins


def _described(written: KernelFunction, signature: Signature | None) -> Function:
    part, kernels, alone = written.part, tuple(written.placed), tuple(written.alone)
    return Function(
        signature, part.graph, part.cut, kernels, written.arena, written.dims, part.assumed, alone, written.number
    )


def _prepare(graph: Graph, weights: Weights, target: Target, precision: str) -> Part:
    assume = Assumptions(graph)
    core = lower_to_core(graph, weights, assume, on_words="dot_bytes" in target.dots)
    if precision == "bf16" and "dot_bf16" in target.dots:
        core = narrow_products(core, weights, assume)
    return Part(core, cut(core, weights), tuple(assume.pairs), graph)


def _choose(
    out: Assembler, compiler: KernelCompiler, imported: Graph, signatures: Sequence[Signature], numbers: list[int]
) -> None:
    """Compare the open sizes of the inputs with each signature in turn; the open function answers the rest."""
    for value, digest in imported.defaults:
        out.emit(StepCode.DEFAULT, value, compiler.constant(digest))
    axes = _open_axes(imported)
    sizes = [out.dim() for _ in axes]
    out.dims(*((DimCode.OF, size, value, axis) for size, (_, value, axis) in zip(sizes, axes, strict=True)))
    ends = []
    for signature, number in zip(signatures, numbers[1:], strict=True):
        wanted, same, fits = out.dim(), out.dim(), out.dim()
        code: list[tuple[int, ...]] = [(DimCode.CONST, fits, 1)]
        for size, (position, _, axis) in zip(sizes, axes, strict=True):
            code += [
                (DimCode.CONST, wanted, signature[position][axis]),
                (DimCode.EQ, same, size, wanted),
                (DimCode.MIN, fits, fits, same),
            ]
        out.dims(*code)
        other = out.emit(StepCode.BRANCH_DIM, fits, 0)
        out.emit(StepCode.CALL, number, list(imported.inputs), list(imported.outputs))
        ends.append(out.emit(StepCode.JUMP, 0))
        out.land(other)
    out.emit(StepCode.CALL, numbers[0], list(imported.inputs), list(imported.outputs))
    out.land(*ends)


def _open_axes(graph: Graph) -> list[tuple[int, int, int]]:
    """(position among the inputs, value, axis) of every size that is open; one that has a name stands there once."""
    found: dict[Sym, tuple[int, int, int]] = {}
    for position, value in enumerate(graph.inputs):
        type = graph.type(value)
        for axis, dim in enumerate((type.shape or ()) if isinstance(type, TensorType) else ()):
            if isinstance(dim, Sym):
                found.setdefault(dim, (position, value, axis))
    return list(found.values())
