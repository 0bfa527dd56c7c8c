"""Elementary functions on vectors, as LLVM IR text.

Comes in: an op's name, a float type, and the names of vector values. Goes out: the name of the result. The text calls
no library function, carries no fast-math flag, and treats ±0, denormals, infinities and NaN as C99 and IEEE 754 say.
sin, cos, tan and fmod write blocks of their own, so after `emit` the current block is `writer.label`; all others are
straight lines. A vector of one lane is `<1 x float>`. The target must have fused multiply-add.
"""

from __future__ import annotations

from collections.abc import Callable

from tierup.codegen.llvm.math_erf import erf
from tierup.codegen.llvm.math_exp import cosh, exp, exp2, expm1, sigmoid, sinh, tanh
from tierup.codegen.llvm.math_log import acosh, asinh, atanh, log, log1p
from tierup.codegen.llvm.math_pow import fmod, power
from tierup.codegen.llvm.math_trig import TRIGONOMETRY
from tierup.codegen.llvm.math_value import Value
from tierup.codegen.llvm.writer import Writer
from tierup.ir.types import DType


def rsqrt(x: Value) -> Value:
    return 1.0 / x.sqrt()


UNARY: dict[str, Callable[[Value], Value]] = {
    "exp": exp, "exp2": exp2, "expm1": expm1, "sigmoid": sigmoid, "sinh": sinh, "cosh": cosh, "tanh": tanh,
    "log": log, "log1p": log1p, "asinh": asinh, "acosh": acosh, "atanh": atanh, "erf": erf, "rsqrt": rsqrt,
    **TRIGONOMETRY,
}  # fmt: skip
BINARY: dict[str, Callable[[Value, Value], Value]] = {"pow": power, "fmod": fmod}
# The largest error in units in the last place, f32 and f64, that tests/codegen/test_math.py lets pass: what was
# measured over every 61st f32 and some 10⁶ doubles, rounded up to a quarter.
ULPS = {
    "exp": (1.0, 1.0), "exp2": (1.0, 1.0), "expm1": (1.75, 2.25), "sigmoid": (2.5, 2.5), "sinh": (2.0, 2.5),
    "cosh": (2.25, 2.25), "tanh": (2.5, 2.75), "log": (1.0, 1.0), "log1p": (1.5, 1.75), "asinh": (2.0, 2.25),
    "acosh": (2.25, 2.75), "atanh": (2.25, 2.5), "erf": (2.0, 1.5), "rsqrt": (1.5, 1.5), "sin": (1.75, 1.0),
    "cos": (1.75, 1.0), "tan": (3.25, 2.5), "asin": (2.5, 2.5), "acos": (1.25, 1.25), "atan": (2.25, 2.25),
    "pow": (0.75, 1.25), "fmod": (0.0, 0.0),
}  # fmt: skip
KINDS = {DType.F32: "float", DType.F64: "double"}


def emit(writer: Writer, op: str, dtype: DType, lanes: int, *args: str) -> str:
    """Write `op` on vectors `<lanes x dtype>`; the name of the result."""
    values = [Value(writer, lanes, KINDS[dtype], arg) for arg in args]
    if op in UNARY:
        (x,) = values
        return UNARY[op](x).text
    x, y = values
    return BINARY[op](x, y).text
