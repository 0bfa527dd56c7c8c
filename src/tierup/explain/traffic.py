"""What a kernel reads and writes in one call: elements of each value, each once.

A kernel may read less than the value that a node names: rows of a table, a slice, or what lies behind a broadcast. What
it can touch at most is what its addresses say, and never more than there is.
"""

from __future__ import annotations

import math

from tierup.cost.roofline import Size, border, elements
from tierup.ir.graph import Graph, ValueId
from tierup.lower.kernel import Kernel, Panels
from tierup.plan.regions import Region
from tierup.plan.sources import Read, linears, reads

Elements = dict[ValueId, int]


def traffic(graph: Graph, region: Region, kernel: Kernel, size: Size) -> tuple[Elements, Elements]:
    """Elements that are read, and elements that are written."""
    if region.kind == "rows":
        return _read_by_rows(graph, region, size), _written_by_rows(region, size)
    passed = [buffer for buffer in kernel.program.buffers if buffer.mode != "scratch"]
    bound = list(zip((buffer.mode for buffer in passed), map(_value, kernel.buffers), strict=True))
    outward = {value: elements(graph, value, size) for mode, value in bound if mode == "out"}
    if region.kind in ("matmul", "attention", "recurrent"):
        return _read_by_products(graph, region, {value for _, value in bound}, size), outward
    inward = {value: elements(graph, value, size) for mode, value in bound if mode == "in"}
    if region.kind == "scatter":  # writes as much as its updates have
        outward = dict.fromkeys(outward, elements(graph, graph.nodes[region.nodes[0]].inputs[2], size))
    return inward, outward


def _value(buffer: ValueId | Panels) -> ValueId:
    return buffer.value if isinstance(buffer, Panels) else buffer


def _read_by_rows(graph: Graph, region: Region, size: Size) -> Elements:
    made = {step.made for step in region.steps}
    found: Elements = {}
    sources = dict.fromkeys(s for step in region.steps for s in step.arguments)
    for read in dict.fromkeys(read for source in sources for read in reads(source)):
        if read.base not in made:
            found[read.base] = found.get(read.base, 0) + _touched(read, region, size)
    return {value: min(count, elements(graph, value, size)) for value, count in found.items()}


def _touched(read: Read, region: Region, size: Size) -> int:
    """The points of the domain at which a read may differ from another."""
    strides = zip(*(linear.strides for linear in linears(read)), strict=True)
    along = [any(stride != 0 and size(stride) != 0 for stride in axis) for axis in strides]
    return math.prod(size(extent) for extent, differs in zip(region.domain, along, strict=True) if differs)


def _written_by_rows(region: Region, size: Size) -> Elements:
    found: Elements = {}
    for step in region.steps:
        if step.made is None or step.made in region.stores:
            points = [
                size(extent) for extent, stride in zip(region.domain, step.result.strides, strict=True) if stride != 0
            ]
            found[step.target] = found.get(step.target, 0) + math.prod(points)
    return found


def _read_by_products(graph: Graph, region: Region, buffers: set[ValueId], size: Size) -> Elements:
    """Each value from outside, or what lies behind it and is bound to a buffer, if that is less."""
    sources = {
        result: node.inputs[0]
        for node in graph.nodes
        for result in node.outputs
        if result is not None and node.inputs and node.inputs[0] is not None
    }
    found: Elements = {}
    for value in border(graph, region.nodes)[0]:
        base = value
        while base not in buffers and base in sources:
            base = sources[base]
        ends = (value, base) if base in buffers else (value,)
        least = min(ends, key=lambda end: elements(graph, end, size))
        found[least] = elements(graph, least, size)
    return found
