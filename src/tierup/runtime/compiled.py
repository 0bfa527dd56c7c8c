"""Graph -> the compiled plan: regions as kernels, what is left as call-outs.

In: the graph as imported, and signatures that are worth kernels of their own. Out: a plan, the kernels of its slots,
and why nodes stand alone. Its function has open sizes (tier 1). With signatures, variants whose sizes are closed to
those hang in its slots (tier 2), and every kernel step chooses for itself. Models with control flow have functions of
their own for signatures instead, since closed sizes may decide branches and with them the cut; function 0 chooses.
Calls in which sizes differ that were taken to be equal go to a function in which less is assumed, if there is one for
such calls, and to the imported graph otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from tierup.codegen.target import Target
from tierup.ir.dims import DimOp
from tierup.ir.facts import Fact, Kind, kind_of
from tierup.ir.graph import Graph, ValueId, Weights
from tierup.lower.tile import TileProgram
from tierup.plan.cut import cut
from tierup.plan.memory import Request
from tierup.plan.program import Assembler, Plan, Variant
from tierup.plan.regions import Cut
from tierup.rewrite.assume import Assumptions, Pair
from tierup.rewrite.rewrite import close_sizes, lower_to_core, narrow_products, scale_rows
from tierup.runtime.choose import choose
from tierup.runtime.progress import Signature
from tierup.runtime.standins import StandIn
from tierup.runtime.steps import Alone, KernelCompiler, KernelFunction, Part, Placed
from tierup.runtime.variants import Closed, Sizes, close_kernels


class Function(Struct, frozen=True):
    """A compiled function: its core graph, its cut, its kernels, its arena. With a signature it is one of its own, or
    the open one as such calls find it: the graph has numbers for sizes, and the kernels are variants, at their numbers.

    `dims` are the graph's, and after them what kernels compute of those. `assumed` are sizes that are equal in every
    call that reaches a kernel. `alone` are the nodes that call out, `number` is the function's in the plan, and
    `bodies` are those of all control nodes inside it. `uniform` are values that are one number in all their elements
    where the facts hold that its kernels rely on. `strays` are the calls that it is made for if it is one of those that
    answer where sizes differ.
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
    strays: tuple[Signature, ...] = ()


class Compiled(Struct, frozen=True):
    """A plan with kernels: the programs of its slots, those of variants after them, and its functions, the one with
    open sizes first, those for strays and those with closed sizes after it, and then what is left of the latter where
    facts hold. `stand_ins` are regions that the reference computes because their kernels were refused, `saved` is the
    share of the kernels' work that facts save, as far as statements tell."""

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
    strays: Sequence[Signature] = (),
) -> Compiled:
    """Lower to core ops, cut into regions, lower the regions, and write the steps of a call.

    With the precision "bf16", products are computed on bf16 where the machine has instructions for that. `refused` are
    tile programs, by digest, that may not serve, and why: the reference stands in for open kernels, and open kernels
    for variants. Where `facts` hold, variants of these signatures may rely on them; not those of models with control
    flow, whose bodies share slots. `strays` are calls that break what is assumed of sizes: each kind of them gets a
    function.
    """
    return _Planner(imported, weights, target, precision, refused).compiled(signatures, facts, strays)


class _Planner:
    """Compiles one model."""

    def __init__(
        self, imported: Graph, weights: Weights, target: Target, precision: str, refused: Mapping[str, str] | None
    ) -> None:
        self._imported, self._weights = imported, weights
        self._target, self._precision, self._refused = target, precision, refused
        self._compiler = KernelCompiler(weights, target, refused)

    def compiled(self, signatures: Sequence[Signature], facts: Sequence[Fact], strays: Sequence[Signature]) -> Compiled:
        compiler = self._compiler
        recut = [signature for signature in signatures if self._has_control and self._is_allowed(signature)]
        chooser = Assembler("choose", len(self._imported.values))
        if recut:
            compiler.functions.append(chooser.finish((), ()))
        ways = self._functions(self._chain(strays), compiler)
        opened, _ = ways[0]
        found: dict[Signature | None, Function] = {None: opened}
        for signature in recut:
            closed_graph = close_sizes(self._imported, self._weights, signature)
            ((function, _),) = self._functions(self._prepare(closed_graph), compiler)
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
            function, written = next((way for way in ways if _fits(way[1].part, signature)), ways[0])
            shared = {placed.slot for other, _ in ways if other is not function for placed in other.kernels}
            closed, *more = close_kernels(written, signature, usable, shared)
            found[signature] = _closed(function, closed)
            under_facts += [_closed(function, one) for one in more]
            saved += [one.saved for one in more]
            variants.update((variant, None) for one in (closed, *more) for variant in one.variants)
        made, constants = tuple(compiler.functions), tuple(compiler.constants)
        plan = Plan(made, tuple(compiler.callouts), constants, slots, tuple(variants), tuple(facts), tuple(strays))
        closed_ones = (found[signature] for signature in dict.fromkeys(signatures))
        functions = (*(function for function, _ in ways), *closed_ones, *under_facts)
        return Compiled(plan, tuple(compiler.programs), functions, tuple(compiler.stand_ins), max(saved))

    def _chain(self, strays: Sequence[Signature]) -> Part:
        """The open function's part, and behind it one for each kind of strays that breaks what those before assume."""
        parts = [self._prepare(self._imported)]
        for kind in _kinds(strays):
            new = [stray for stray in kind if not any(_fits(part, stray) for part in parts)]
            if new:
                parts.append(self._prepare(self._imported, kind))
        chain: Part | None = None
        for part in reversed(parts):
            chain = replace(part, otherwise=chain)
        assert chain is not None
        return chain

    def _functions(self, part: Part, compiler: KernelCompiler) -> list[tuple[Function, KernelFunction]]:
        """Compile a part and those behind it; their descriptions, with those of their bodies, and how they were
        written."""
        compiler.written.clear()
        compiler.compiled(part)
        chain = [part]
        while (behind := chain[-1].otherwise) is not None and chain[-1].assumed:
            chain.append(behind)
        groups: list[list[KernelFunction]] = []
        for written in compiler.written:  # bodies follow the function that they are in
            if any(written.part is one for one in chain):
                groups.append([])
            groups[-1].append(written)
        return [
            (replace(_described(outermost), bodies=tuple(map(_described, inner))), outermost)
            for outermost, *inner in groups
        ]

    def _prepare(self, graph: Graph, strays: Sequence[Signature] = ()) -> Part:
        assume, weights, dots = Assumptions(graph, strays), self._weights, self._target.dots
        core = lower_to_core(graph, weights, assume, on_words="dot_bytes" in dots)
        if self._precision == "bf16" and "dot_bf16" in dots:
            core = narrow_products(core, weights, assume)
        else:
            core = scale_rows(core, weights, assume)
        return Part(core, cut(core, weights), tuple(assume.pairs), graph, strays=tuple(strays))

    @property
    def _has_control(self) -> bool:
        """Whether closed sizes may decide which branch it is, or what rank comes out."""
        return any(node.graphs for node in self._imported.nodes)

    def _is_allowed(self, signature: Signature) -> bool:
        """Whether the function of a signature gets along without kernels that were refused."""
        if not self._refused:
            return True
        scratch = KernelCompiler(self._weights, self._target, self._refused)
        self._functions(self._prepare(close_sizes(self._imported, self._weights, signature)), scratch)
        return not scratch.stand_ins


def _described(written: KernelFunction) -> Function:
    part, kernels, alone = written.part, tuple(written.placed), tuple(written.alone)
    return Function(
        None, part.graph, part.cut, kernels, written.arena, written.dims, part.assumed, alone, written.number,
        strays=part.strays,
    )  # fmt: skip


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


def _fits(part: Part, signature: Signature) -> bool:
    """Whether calls with a signature keep what is assumed."""
    return Sizes(part.cut.dims, part.graph, signature).agree(part.assumed)


def _kinds(strays: Sequence[Signature]) -> list[list[Signature]]:
    """Strays that get one function each, in the order in which they came."""
    kinds: dict[Kind, list[Signature]] = {}
    for stray in strays:
        kinds.setdefault(kind_of(stray), []).append(stray)
    return list(kinds.values())
