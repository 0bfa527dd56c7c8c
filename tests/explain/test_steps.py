"""Call-outs between the steps of a function: it does what it did, and they see what it has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.runtime.programs import I64, runner, tensor

from tierup import _native
from tierup.explain.steps import Insertion, kernel_registers, operands, written
from tierup.plan.program import Assembler, DimCode, Function, StepCode


def counting(rounds: int) -> Function:
    """y = the number of rounds that a loop makes, as a scalar."""
    out = Assembler("count", 1)
    step, one, limit, more = (out.dim() for _ in range(4))
    out.dims((DimCode.CONST, one, 1), (DimCode.CONST, limit, rounds))
    top = len(out.steps)
    out.dims((DimCode.LT, more, step, limit))
    end = out.emit(StepCode.BRANCH_DIM, more, 0)
    out.dims((DimCode.ADD, step, step, one))
    out.emit(StepCode.JUMP, top)
    out.land(end)
    out.emit(StepCode.SCALAR, 0, I64, step)
    return out.finish((), (0,))


def run(function: Function, callouts: list[Any]) -> int:
    program = _native.Program([function.native()], callouts, [], 0)
    return int(runner([], ["y"], program)()["y"])


@pytest.mark.parametrize("position", range(7))
def test_a_function_does_what_it_did_wherever_something_is_inserted(position: int) -> None:
    function = counting(3)
    assert len(function.steps) == 6
    seen: list[int] = []
    out = Insertion(function, 0)
    out.dims(position, [0], lambda step: seen.append(int(step)) or ())
    assert run(out.finish(), out.callouts) == 3
    # Before the loop once; at its top, where the jump back lands, once more than it has rounds; inside it in each.
    assert seen == {0: [0], 1: [0, 1, 2, 3], 2: [0, 1, 2, 3], 3: [0, 1, 2], 4: [1, 2, 3], 5: [3], 6: [3]}[position]


def test_what_is_inserted_at_one_place_runs_in_order() -> None:
    seen: list[str] = []
    out = Insertion(counting(0), 0)
    out.callout(0, lambda: seen.append("first") or ())
    out.dims(0, [0], lambda _: seen.append("second") or ())
    run(out.finish(), out.callouts)
    assert seen == ["first", "second"]


def test_call_outs_come_after_those_that_are_there() -> None:
    code = Assembler("call", 2)
    code.emit(StepCode.CALLOUT, 0, [0], [1])
    out, seen = Insertion(code.finish((0,), (1,)), 1), list[Any]()
    out.callout(1, lambda value: seen.append(value.tolist()) or (), [1])
    program = _native.Program([out.finish().native()], [lambda x: (x * 2,), *out.callouts], [], 0)
    assert runner([tensor("x")], ["y"], program)(x=np.float32([3]))["y"].tolist() == [6]
    assert seen == [[6]]


def test_operands_of_steps() -> None:
    out = Assembler("f", 9)
    out.emit(StepCode.KERNEL, 5, [1, 2, 3], [10, 11], 12, 13, 14)
    out.emit(StepCode.CALLOUT, 0, [1], [2, 3])
    out.emit(StepCode.CALL, 1, [1, 2], [4])
    out.emit(StepCode.MOVE, 6, 7)
    out.emit(StepCode.FREE, 6)
    kernel, callout, call, move, free = out.steps
    assert operands(kernel) == (1, 2, 3)
    assert kernel_registers(kernel) == ((10, 11), (12, 13, 14))
    assert [tuple(written(step)) for step in (callout, call, move, free, kernel)] == [(2, 3), (4,), (6,), (), ()]
