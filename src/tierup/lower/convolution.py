"""The statements of a convolution -> its kernel: buffers, grid, and what a call passes to it."""

from __future__ import annotations

from collections.abc import Sequence

from tierup.ir.graph import ValueId
from tierup.ir.types import Dim, DType
from tierup.lower.epilogue import Epilogue
from tierup.lower.kernel import Kernel, Panels
from tierup.lower.names import Sizes
from tierup.lower.tile import Buffer, Grid, Statement, TileProgram
from tierup.lower.windows import Windows

Step = tuple[str, Dim, int]  # an axis of the grid, its extent, and how much of it one step takes
Side = tuple[str, ValueId | Panels, DType]  # what is multiplied: its buffer, what is passed there, what that holds


def convolution_kernel(
    name: str, windows: Windows, epilogue: Epilogue, sizes: Sizes, *, sides: Sequence[Side],
    body: Sequence[Statement], steps: Sequence[Step], vector: tuple[str, ...], grain: Dim,
    scratch: tuple[DType, Dim] | None = None,
) -> Kernel:  # fmt: skip
    """The kernel of statements that were written with `epilogue` and `sizes`: buffers are the sides, the operands of
    the maps behind the sums, the results, and `scratch`: what it holds, and how many elements."""
    buffers = [Buffer(side, dtype) for side, _, dtype in sides]
    buffers += [Buffer(operand, windows.dtype(value)) for value, operand in epilogue.operands.items()]
    buffers += epilogue.outs()
    if scratch is not None:
        buffers.append(Buffer("scratch", scratch[0], "scratch"))
    grid = tuple(Grid(axis, sizes.of(extent), step) for axis, extent, step in steps)
    return Kernel(
        TileProgram(name, tuple(buffers), len(sizes.dims), grid, tuple(body), vector),
        (*(passed for _, passed, _ in sides), *epilogue.operands, *epilogue.results),
        tuple(sizes.dims),
        tuple((extent, step) for _, extent, step in steps),
        grain,
        windows.scaled(scratch[1], scratch[0].numpy.itemsize) if scratch is not None else 0,
    )
