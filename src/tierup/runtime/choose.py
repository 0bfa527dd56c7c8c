"""The function that calls the one for a call's sizes, where the sizes of a signature give another cut."""

from __future__ import annotations

from collections.abc import Sequence

from tierup.ir.graph import Graph
from tierup.ir.types import Sym, TensorType
from tierup.plan.baseline import PlanCompiler
from tierup.plan.program import Assembler, DimCode, StepCode
from tierup.runtime.progress import Signature


def choose(
    out: Assembler, compiler: PlanCompiler, imported: Graph, closed: Sequence[tuple[Signature, int]], otherwise: int
) -> None:
    """Compare the open sizes of the inputs with each signature in turn; the function `otherwise` answers the rest."""
    for value, digest in imported.defaults:
        out.emit(StepCode.DEFAULT, value, compiler.constant(digest))
    axes = _open_axes(imported)
    sizes = [out.dim() for _ in axes]
    out.dims(*((DimCode.OF, size, value, axis) for size, (_, value, axis) in zip(sizes, axes, strict=True)))
    ends = []
    for signature, number in closed:
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
    out.emit(StepCode.CALL, otherwise, list(imported.inputs), list(imported.outputs))
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
