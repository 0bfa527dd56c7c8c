"""Runs a core graph as it is cut: every region's tile program in the interpreter, which checks each address."""

from __future__ import annotations

from typing import Any

import numpy as np

from tierup.ir.dims import READS, DimBuilder, apply
from tierup.ir.graph import Graph, ValueId, Weights
from tierup.ir.types import Array, Dim, DType, Sym, TensorType
from tierup.lower.attention import lower_attention
from tierup.lower.conv import lower_conv
from tierup.lower.interpret import interpret
from tierup.lower.kernel import Kernel, Panels
from tierup.lower.known import lower_known
from tierup.lower.matmul import lower_matmul
from tierup.lower.recurrent import lower_recurrent
from tierup.lower.rows import lower_rows
from tierup.lower.scan import lower_scan
from tierup.lower.scatter import lower_scatter
from tierup.lower.tile import Buffer
from tierup.plan.cut import cut
from tierup.plan.regions import Cut, Region
from tierup.reference.bind import bind
from tierup.runtime.constants import pack_panels

LOWERINGS = {
    "rows": lower_rows, "known": lower_known, "recurrent": lower_recurrent, "scan": lower_scan,
    "scatter": lower_scatter, "matmul": lower_matmul, "conv": lower_conv, "attention": lower_attention,
}  # fmt: skip
LANES = 4  # ragged edges and several steps even in small tensors


class CutRun:
    """One call of a graph, unit by unit. `kernels` are what its regions became."""

    def __init__(self, graph: Graph, weights: Weights, inputs: list[Array], dots: frozenset[str] = frozenset()) -> None:
        self.graph, self.weights, self.dots = graph, weights, dots
        self.cut: Cut = cut(graph, weights)
        self.dims = DimBuilder(self.cut.dims)
        self.values: dict[ValueId, Array] = {value: weights[digest] for value, digest in graph.weights}
        self.values.update(zip(graph.inputs, inputs, strict=True))
        self.kernels: list[tuple[Region, Kernel]] = []
        self._sizes: dict[Sym, int] = {}

    def outputs(self) -> list[Array]:
        for unit in self.cut.order:
            if isinstance(unit, Region):
                self._region(unit)
            else:
                self._node(unit)
        return [self.values[value] for value in self.graph.outputs]

    def size(self, dim: Dim) -> int:
        """What the native program's dim code would give by now."""
        if not isinstance(dim, Sym):
            return dim
        if dim not in self._sizes:
            op = self.dims.ops[dim.id]
            if op.op not in READS:
                self._sizes[dim] = apply(op.op, *map(self.size, op.args))
            else:
                value, index = (self.size(arg) for arg in op.args)
                array = self.values[value]
                self._sizes[dim] = array.shape[index] if op.op == "of" else int(array.reshape(-1)[index])
        return self._sizes[dim]

    def _node(self, index: int) -> None:
        node = self.graph.nodes[index]
        given: list[Any] = [None if value is None else self.values[value] for value in node.inputs]
        if node.op == "core.reshape":
            type = self.graph.type(node.outputs[0] or 0)
            assert isinstance(type, TensorType)
            given[1] = np.array([self.size(dim) for dim in type.shape or ()], np.int64)
        for value, result in zip(node.outputs, bind(node)(*given), strict=False):
            if value is not None:
                self.values[value] = np.asarray(result)

    def _region(self, region: Region) -> None:
        more = {"dots": self.dots} if region.kind in ("matmul", "conv", "attention") else {}
        kernel = LOWERINGS[region.kind](self.graph, self.weights, region, self.dims, LANES, **more)
        self.kernels.append((region, kernel))
        passed = [buffer for buffer in kernel.program.buffers if buffer.mode != "scratch"]
        arrays: dict[str, Array] = {}
        for buffer, value in zip(passed, kernel.buffers, strict=True):
            if isinstance(value, Panels):
                arrays[buffer.name] = pack_panels(self.values[value.value], value.width, form=value.form).reshape(-1)
            else:
                arrays[buffer.name] = self._array(buffer, value)
        scratch = np.full(self.size(kernel.scratch_bytes), 0xFF, np.uint8)  # NaN: nobody counts on zeros
        for buffer in kernel.program.buffers:
            if buffer.mode == "scratch":
                arrays[buffer.name] = scratch.view(buffer.dtype.numpy)
        steps = [(self.size(extent), step) for extent, step in kernel.steps]
        assert steps == [(self._extent(kernel, number), grid.step) for number, grid in enumerate(kernel.program.grid)]
        sizes = [self.size(dim) for dim in kernel.sizes]
        if kernel.rounds is None:
            interpret(kernel.program, arrays, sizes)
            return
        for number in range(self.size(kernel.rounds)):
            interpret(kernel.program, arrays, [number, number + 1, *sizes])

    def _extent(self, kernel: Kernel, number: int) -> int:
        extent = kernel.program.grid[number].extent
        reserved = kernel.n_sizes - len(kernel.sizes)
        return extent if isinstance(extent, int) else self.size(kernel.sizes[extent.index - reserved])

    def _array(self, buffer: Buffer, value: ValueId) -> Array:
        """A value's memory, allocated by the first kernel that writes it; what nobody writes shows."""
        type = self.graph.type(value)
        assert isinstance(type, TensorType)
        if buffer.mode == "out" and value not in self.values:
            shape = [self.size(dim) for dim in type.shape or ()]
            self.values[value] = np.full(shape, _unwritten(type.dtype), type.dtype.numpy)
        array = self.values[value]
        if not array.flags.c_contiguous:
            array = self.values[value] = np.ascontiguousarray(array)
        return array.reshape(-1).view(buffer.dtype.numpy)


def _unwritten(dtype: DType) -> Any:
    return np.nan if dtype.is_float else 77 if dtype.is_integer else True
