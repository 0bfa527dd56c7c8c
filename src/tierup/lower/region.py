"""A region -> its kernel: which lowering makes what kind."""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import cache
from importlib import import_module

from tierup.ir.dims import DimBuilder
from tierup.ir.graph import Graph, Weights
from tierup.lower.kernel import Kernel
from tierup.plan.regions import Region

_ON_WORDS = ("matmul", "conv", "attention")  # which the machine may have instructions for


@cache
def _lowering(kind: str) -> Callable[..., Kernel]:
    """Imported when a region is of that kind: most models have few, and their first kernels wait for it."""
    found: Callable[..., Kernel] = getattr(import_module(f"tierup.lower.{kind}"), f"lower_{kind}")
    return found


def lower_region(
    graph: Graph, weights: Weights, region: Region, dims: DimBuilder, lanes: int, dots: Set[str]
) -> Kernel:
    """The kernel of a region; `dots` are the maps of words that the machine has instructions for."""
    words = (dots,) if region.kind in _ON_WORDS else ()
    return _lowering(region.kind)(graph, weights, region, dims, lanes, *words)
