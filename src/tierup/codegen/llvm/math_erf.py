"""The error function."""

from __future__ import annotations

from tierup.codegen.llvm.math_exp import exp_of_clamped
from tierup.codegen.llvm.math_value import F32, F64, Value, fma, polynomial

# erf(a)/a - 1 in a² on a ≤ 1; relative error of erf: 2.2e-9 and 2.4e-17.
ERF = {
    F32: (
        0.12837916612625122, -0.3761262595653534, 0.1128358542919159, -0.026853812858462334, 0.005188327748328447,
        -0.0008010193705558777, 7.853860734030604e-05,
    ),
    F64: (
        0.12837916709551256, -0.3761263890318352, 0.11283791670944185, -0.02686617064311144, 0.005223977606118296,
        -0.0008548325929306829, 0.00012055293576686918, -1.4924712298094114e-05, 1.6447131524503547e-06,
        -1.6206313408057644e-07, 1.37109789045861e-08, -7.779465729549996e-10,
    ),
}  # fmt: skip
# erf a in a - 2.5 on 1 ≤ a ≤ 3.93; absolute error 3.4e-8, of which 2.7e-8 is the rounding of the first coefficient.
ERF_FAR_F32 = (
    0.9995930194854736, 0.0021782175172120333, -0.0054455772042274475, 0.008351287804543972, -0.008623544126749039,
    0.006111107300966978, -0.0027946108020842075, 0.0005568486521951854, 0.00025438153534196317,
    -0.00026764089125208557, 8.437185169896111e-05, 1.655629966990091e-05, -1.693156264082063e-05,
    6.84816427565238e-07, 1.0656450513124582e-06,
)  # fmt: skip
# e^(a²) · erfc a in (a - 2) / (a + 2) on 1 ≤ a ≤ 6 (the variable of Shepherd and Laframboise, 1981); error weighted
# with e^(-a²): 2.8e-18.
ERFC_FAR_F64 = (
    0.25539567631050575, -0.42718584741395826, 0.2416581942424582, -0.07897858101587535, 0.0037328924051636602,
    0.006997461763515393, -0.0008471431958241443, -0.0009819781249306853, 4.354936590974581e-05,
    0.00017436940458441026, 2.7666193401911692e-05, -2.7312799985548314e-05, -1.4599499720946505e-05,
    -1.6213741914355942e-06,
)  # fmt: skip
ONE_FROM = 3.92  # erf rounds to 1 in f32


def erf(x: Value) -> Value:
    a = x.abs()
    square = a * a
    near = fma(a, polynomial(square, ERF[x.format]), a)
    if x.format is F32:
        far = (a < ONE_FROM).select(polynomial(a - 2.5, ERF_FAR_F32), 1.0)
    else:
        b = a.at_most(6.0)
        far = 1.0 - exp_of_clamped(-(b * b)) * polynomial((b - 2.0) / (b + 2.0), ERFC_FAR_F64)
    return (a > 1.0).select(far, near).signed(x)
