"""Graph -> the compiled plan: regions as kernels, what is left as call-outs.

In: the graph as imported, and signatures that are worth kernels of their own. Out: a plan, the kernels of its slots,
and why nodes stand alone. Its function has open sizes (tier 1). With signatures, variants whose sizes are closed to
those hang in its slots (tier 2), and every kernel step chooses for itself. Models with control flow have functions of
their own for signatures instead, since closed sizes may decide branches and with them the cut; function 0 chooses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tierup.codegen.target import Target
from tierup.ir.dims import DimOp
from tierup.ir.facts import Fact
from tierup.ir.graph import Graph, ValueId, Weights
from tierup.lower.tile import TileProgram
from tierup.plan.cut import cut
from tierup.plan.memory import Request
from tierup.plan.program import Assembler, Plan, Variant
from tierup.plan.regions import Cut
from tierup.rewrite.assume import Assumptions, Pair
from tierup.rewrite.rewrite import close_sizes, lower_to_core, narrow_products
from tierup.runtime.choose import choose
from tierup.runtime.progress import Signature
from tierup.runtime.standins import StandIn
from tierup.runtime.steps import Alone, KernelCompiler, KernelFunction, Part, Placed
from tierup.runtime.variants import Closed, close_kernels


@dataclass(frozen=True)
class Function:
    """A compiled function: its core graph, its cut, its kernels, its arena. With a signature it is one of its own, or
    the open one as such calls find it: the graph has numbers for sizes, and the kernels are variants, at their numbers.

    `dims` are the graph's, and after them what kernels compute of those. `assumed` are sizes that are equal in every
    call that reaches a kernel. `alone` are the nodes that call out, `number` is the function's in the plan, and
    `bodies` are those of all control nodes inside it. `uniform` are values that are one number in all their elements
    where the facts hold that its kernels rely on.
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
    uniform: tuple[tuple[ValueId, float], ...] = ()


@dataclass(frozen=True)
class Compiled:
    """A plan with kernels: the programs of its slots, those of variants after them, and its functions, the one with
    open sizes first, those with closed sizes after it, and then what is left of these where facts hold. `stand_ins` are
    regions that the reference computes because their kernels were refused, `saved` is the share of the kernels' work
    that facts save, as far as statements tell."""

    plan: Plan
    programs: tuple[TileProgram, ...]
    functions: tuple[Function, ...]
    stand_ins: tuple[StandIn, ...] = ()
    saved: float = 0.0

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
    facts: Sequence[Fact] = (),
) -> Compiled:
    """Lower to core ops, cut into regions, lower the regions, and write the steps of a call.

    With the precision "bf16", products are computed on bf16 where the machine has instructions for that. `refused` are
    tile programs, by digest, that may not serve, and why: the reference stands in for open kernels, and open kernels
    for variants. Where `facts` hold, variants of these signatures may rely on them; not those of models with control
    flow, whose bodies share slots.
    """
    return _Planner(imported, weights, target, precision, refused).compiled(signatures, facts)


class _Planner:
    """Compiles one model."""

    def __init__(
        self, imported: Graph, weights: Weights, target: Target, precision: str, refused: Mapping[str, str] | None
    ) -> None:
        self._imported, self._weights = imported, weights
        self._target, self._precision, self._refused = target, precision, refused
        self._compiler = KernelCompiler(weights, target, refused)

    def compiled(self, signatures: Sequence[Signature], facts: Sequence[Fact]) -> Compiled:
        compiler = self._compiler
        recut = [signature for signature in signatures if self._has_control and self._is_allowed(signature)]
        chooser = Assembler("choose", len(self._imported.values))
        if recut:
            compiler.functions.append(chooser.finish((), ()))
        opened, written = self._function(self._imported, compiler)
        found: dict[Signature | None, Function] = {None: opened}
        for signature in recut:
            function, _ = self._function(close_sizes(self._imported, self._weights, signature), compiler)
            found[signature] = replace(function, signature=signature)
        if recut:
            numbers = [(signature, found[signature].number) for signature in recut]
            choose(chooser, compiler, self._imported, numbers, opened.number)
            compiler.functions[0] = chooser.finish(self._imported.inputs, self._imported.outputs)
        slots, variants = len(compiler.programs), dict[Variant, None]()
        usable = () if self._has_control else facts
        under_facts: list[Function] = []
        saved = [0.0]
        for signature in (signature for signature in signatures if signature not in found):
            closed, *more = close_kernels(written, signature, usable)
            found[signature] = _closed(opened, closed)
            under_facts += [_closed(opened, one) for one in more]
            saved += [one.saved for one in more]
            variants.update((variant, None) for one in (closed, *more) for variant in one.variants)
        made, constants = tuple(compiler.functions), tuple(compiler.constants)
        plan = Plan(made, tuple(compiler.callouts), constants, slots, tuple(variants), tuple(facts))
        functions = (*(found[signature] for signature in dict.fromkeys((None, *signatures))), *under_facts)
        return Compiled(plan, tuple(compiler.programs), functions, tuple(compiler.stand_ins), max(saved))

    def _function(self, graph: Graph, compiler: KernelCompiler) -> tuple[Function, KernelFunction]:
        """Compile a graph; its description, with those of its bodies, and how it was written."""
        compiler.written.clear()
        compiler.compiled(_prepare(graph, self._weights, self._target, self._precision))
        outermost, *inner = compiler.written
        return replace(_described(outermost), bodies=tuple(map(_described, inner))), outermost

    @property
    def _has_control(self) -> bool:
        """Whether closed sizes may decide which branch it is, or what rank comes out."""
        return any(node.graphs for node in self._imported.nodes)

    def _is_allowed(self, signature: Signature) -> bool:
        """Whether the function of a signature gets along without kernels that were refused."""
        if not self._refused:
            return True
        scratch = KernelCompiler(self._weights, self._target, self._refused)
        self._function(close_sizes(self._imported, self._weights, signature), scratch)
        return not scratch.stand_ins


def _described(written: KernelFunction) -> Function:
    part, kernels, alone = written.part, tuple(written.placed), tuple(written.alone)
    return Function(
        None, part.graph, part.cut, kernels, written.arena, written.dims, part.assumed, alone, written.number
    )


def _closed(function: Function, closed: Closed) -> Function:
    """The open function as calls with a signature find it, with the kernels that are variants."""
    return replace(
        function,
        signature=closed.signature,
        graph=closed.graph,
        kernels=closed.kernels,
        dims=closed.dims,
        assumed=(),
        bodies=(),
        uniform=closed.uniform,
    )


def _prepare(graph: Graph, weights: Weights, target: Target, precision: str) -> Part:
    assume = Assumptions(graph)
    core = lower_to_core(graph, weights, assume, on_words="dot_bytes" in target.dots)
    if precision == "bf16" and "dot_bf16" in target.dots:
        core = narrow_products(core, weights, assume)
    return Part(core, cut(core, weights), tuple(assume.pairs), graph)
