"""The steps of a function: what they write, and more of them between.

In: a function of a plan. Out: one with call-outs inserted, that does otherwise what it did.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tierup.ir.types import DType
from tierup.plan.program import Function, StepCode
from tierup.runtime.executable import Callout

Step = tuple[int, ...]

_JUMPS = (StepCode.JUMP, StepCode.BRANCH, StepCode.BRANCH_DIM)


class Insertion:
    """A function with more steps in it; jumps land before what was inserted at their target."""

    def __init__(self, function: Function, n_callouts: int) -> None:
        self._function, self._n_callouts = function, n_callouts
        self._before: dict[int, list[Step]] = {}
        self._n_values = function.n_values
        self.callouts: list[Callout] = []

    def callout(self, position: int, call: Callout, values: Sequence[int] = ()) -> None:
        """Call this before the step at `position`."""
        number = self._n_callouts + len(self.callouts)
        self.callouts.append(call)
        self._insert(position, (StepCode.CALLOUT, number, len(values), *values, 0))

    def dims(self, position: int, registers: Sequence[int], call: Callout) -> None:
        """Call this with the numbers in some dim registers before the step at `position`."""
        values = range(self._n_values, self._n_values + len(registers))
        self._n_values += len(registers)
        for value, register in zip(values, registers, strict=True):
            self._insert(position, (StepCode.SCALAR, value, DType.I64.code, register))
        self.callout(position, call, values)

    def _insert(self, position: int, step: Step) -> None:
        self._before.setdefault(position, []).append(tuple(map(int, step)))

    def finish(self) -> Function:
        steps = self._function.steps
        starts, at = [], 0
        for position in range(len(steps) + 1):
            starts.append(at)
            at += len(self._before.get(position, ())) + 1
        inserted: list[Step] = []
        for position, step in enumerate(steps):
            moved = (*step[:-1], starts[step[-1]]) if step[0] in _JUMPS else step
            inserted += [*self._before.get(position, ()), moved]
        inserted += self._before.get(len(steps), ())
        return replace(self._function, n_values=self._n_values, steps=tuple(inserted))


def kernel_registers(step: Step) -> tuple[Sequence[int], Sequence[int]]:
    """The registers of a kernel step's sizes; those of its scratch, range and grain."""
    sizes_at = 3 + step[2]
    count = step[sizes_at]
    return step[sizes_at + 1 : sizes_at + 1 + count], step[sizes_at + 1 + count :]


def operands(step: Step) -> Sequence[int]:
    """The value registers of a kernel step: what it reads and what it writes."""
    return step[3 : 3 + step[2]]


def written(step: Step) -> Sequence[int]:
    """The value registers that are bound anew by a step that is no kernel."""
    if step[0] in (StepCode.CALLOUT, StepCode.CALL):
        return step[3 + step[2] + 1 :]
    single = (StepCode.COPY, StepCode.MOVE, StepCode.INDEX, StepCode.STACK, StepCode.SCALAR, StepCode.VIEW)
    return step[1:2] if step[0] in single else ()
