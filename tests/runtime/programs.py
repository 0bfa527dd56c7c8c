"""Small native programs and runners, assembled by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tierup import _native
from tierup.errors import InputError
from tierup.ir.types import DType
from tierup.plan.program import Assembler, StepCode

F32, I32, I64, BOOL, BF16 = (dtype.code for dtype in (DType.F32, DType.I32, DType.I64, DType.BOOL, DType.BF16))
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
ANY = -1  # an input that takes any object
CHECKED = -2  # the same, once convert_feeds has let it through
DEFAULT = StepCode.DEFAULT

_native.set_dtypes({dtype.code: dtype.numpy for dtype in DType})
_native.set_call_error(InputError)

Spec = tuple[str, int, list[int] | None, bool]


class Recorder(_native.Runner):
    """A runner whose slow path records what came and answers with `converted`."""

    run = _native.Runner.call_dict

    def __init__(self, inputs: list[Spec], outputs: list[str]) -> None:
        super().__init__(inputs, outputs)
        self.slow: list[Any] = []
        self.converted: Any = None

    def convert_feeds(self, feeds: Any) -> dict[str, Any]:
        self.slow.append(feeds)
        if self.converted is None:
            raise InputError("the test refuses")
        return self.converted


def program(
    *functions: tuple[Assembler, tuple[int, ...], tuple[int, ...]],
    callouts: Sequence[Callable[..., Any]] = (),
    constants: Sequence[Any] = (),
    slots: int = 0,
) -> _native.Program:
    """A program from (assembler, inputs, outputs) of each function."""
    native = [function.finish(ins, outs).native() for function, ins, outs in functions]
    return _native.Program(native, list(callouts), list(constants), slots)


def runner(inputs: list[Spec], outputs: list[str], loaded: _native.Program) -> Recorder:
    made = Recorder(inputs, outputs)
    made.program = loaded
    return made


def tensor(name: str, shape: list[int] | None = None, dtype: int = F32, required: bool = True) -> Spec:
    return (name, dtype, shape, required)


def copying(spec: Spec | None = None) -> Recorder:
    """y = a native copy of x."""
    code = Assembler("copy", 2)
    code.emit(StepCode.COPY, 1, 0)
    return runner([spec or tensor("x")], ["y"], program((code, (0,), (1,))))


def passing(spec: Spec | None = None) -> Recorder:
    """y = x, without any step."""
    return runner([spec or tensor("x")], ["y"], program((Assembler("pass", 1), (0,), (0,))))


def calling(function: Callable[..., Any], inputs: int = 1, outputs: int = 1, dtype: int = ANY) -> Recorder:
    """y0, .. = function(x0, ..)"""
    code = Assembler("call", inputs + outputs)
    ins, outs = list(range(inputs)), list(range(inputs, inputs + outputs))
    code.emit(StepCode.CALLOUT, 0, ins, outs)
    specs = [tensor(f"x{i}", dtype=dtype) for i in range(inputs)]
    names = [f"y{i}" for i in range(outputs)]
    return runner(specs, names, program((code, tuple(ins), tuple(outs)), callouts=[function]))
