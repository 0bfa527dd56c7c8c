"""The error function, which NumPy lacks, and what is made of it.

In f64: W. J. Cody's rational approximations (Rational Chebyshev approximations for the error function, Math. Comp. 23,
1969), near one unit in the last place. In f32: shorter and faster ones, within 7 units for erf.
Arrays are taken in blocks, so that temporaries stay in cache.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tierup.ir.types import Array

_BLOCK = 16384  # elements: some ten f64 temporaries of this length fit a 2 MiB second-level cache
_NEAR, _FAR = 0.46875, 4.0  # Cody's borders between the three approximations
_TINY = 26.543  # erfc underflows beyond

_A = (3.16112374387056560e00, 1.13864154151050156e02, 3.77485237685302021e02, 3.20937758913846947e03)
_A_LEAD = 1.85777706184603153e-1
_B = (2.36012909523441209e01, 2.44024637934444173e02, 1.28261652607737228e03, 2.84423683343917062e03)
_C = (
    5.64188496988670089e-1, 8.88314979438837594e00, 6.61191906371416295e01, 2.98635138197400131e02,
    8.81952221241769090e02, 1.71204761263407058e03, 2.05107837782607147e03, 1.23033935479799725e03,
)  # fmt: skip
_C_LEAD = 2.15311535474403846e-8
_D = (
    1.57449261107098347e01, 1.17693950891312499e02, 5.37181101862009858e02, 1.62138957456669019e03,
    3.29079923573345963e03, 4.36261909014324716e03, 3.43936767414372164e03, 1.23033935480374942e03,
)  # fmt: skip
_P = (
    3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1, 1.60837851487422766e-2,
    6.58749161529837803e-4,
)  # fmt: skip
_P_LEAD = 1.63153871373020978e-2
_Q = (
    2.56852019228982242e00, 1.87295284992346725e00, 5.27905102951428412e-1, 6.05183413124413191e-2,
    2.33520497626869185e-3,
)  # fmt: skip
_INVERSE_SQRT_PI = 5.6418958354775628695e-1
_SQRT_HALF = 7.0710678118654752440e-1
# Fitted for this file by weighted least squares and Chebyshev nodes; highest power first.
# erf(x) = x · E(x²) / F(x²), within 1.4e-8 of itself up to the limit, beyond which erf is 1 in f32
_E = (2.12311113e-06, 0.000285942745, 0.0036527813, 0.052418609, 0.18730911, 1.12837915)
_F = (3.88980386e-05, 0.00114171193, 0.014742552, 0.112900801, 0.499331281, 1.0)
_ERF_LIMIT = 3.8325069
# erfc(z) = t · exp(G(t) - z²), t = 1 / (1 + z/2), within 8e-8 of itself up to z = 20, where it is 0 in f32
_G = (
    0.175545636, -0.843814862, 1.53038797, -1.17874975, 0.304992914, -0.19519007, 0.0982929467, 0.374037787,
    1.00000843, -1.26551093,
)  # fmt: skip


def erf(x: Array) -> Array:
    """erf of an f32 or f64 array, in its dtype."""
    return _blocked(_erf if x.dtype == np.float64 else _erf_f32, x)


def gelu(x: Array) -> Array:
    """x · Φ(x); through erfc, because 1 + erf cancels where x is far below 0."""
    return _blocked(_gelu if x.dtype == np.float64 else _gelu_f32, x)


def _blocked(function: Callable[[Array], Array], x: Array) -> Array:
    flat = x.reshape(-1)
    result = np.empty(flat.shape, x.dtype)
    for begin in range(0, flat.size, _BLOCK):
        result[begin : begin + _BLOCK] = function(flat[begin : begin + _BLOCK])
    return result.reshape(x.shape)


def _polynomial(coefficients: tuple[float, ...], y: Array) -> Array:
    result = np.full_like(y, coefficients[0])
    for coefficient in coefficients[1:]:
        result *= y
        result += coefficient
    return result


def _erf_f32(x: Array) -> Array:
    bounded = np.clip(x, -_ERF_LIMIT, _ERF_LIMIT)
    square = bounded * bounded
    result = np.clip(bounded * _polynomial(_E, square) / _polynomial(_F, square), -1, 1)
    return np.asarray(np.where(np.abs(x) > _ERF_LIMIT, np.sign(x), result))


def _gelu_f32(x: Array) -> Array:
    z = np.abs(x) * _SQRT_HALF
    t = 1 / (1 + 0.5 * z)
    tail = t * np.exp(_polynomial(_G, t) - z * z)
    return np.asarray(0.5 * x * np.where(x < 0, tail, 2 - tail))


def _gelu(x: Array) -> Array:
    return 0.5 * x * _erfc(-_SQRT_HALF * x)


def _erf(x: Array) -> Array:
    size = np.abs(x)
    result = np.sign(x) * (1.0 - _erfc_beyond(np.maximum(size, _NEAR)))
    near = size <= _NEAR
    result[near] = _erf_near(x[near])
    return result


def _erfc(x: Array) -> Array:
    size = np.abs(x)
    result = _erfc_beyond(np.maximum(size, _NEAR))
    below = x < 0
    result[below] = 2.0 - result[below]
    near = size <= _NEAR
    result[near] = 1.0 - _erf_near(x[near])
    return result


def _ratio(lead: float, above: tuple[float, ...], below: tuple[float, ...], y: Array) -> Array:
    """Two polynomials in y by Horner's rule, divided; the one below has leading coefficient 1."""
    numerator, denominator = lead * y, y.copy()
    for p, q in zip(above[:-1], below[:-1], strict=True):
        numerator += p
        numerator *= y
        denominator += q
        denominator *= y
    return (numerator + above[-1]) / (denominator + below[-1])


def _erf_near(x: Array) -> Array:
    return x * _ratio(_A_LEAD, _A, _B, x * x)


def _erfc_beyond(y: Array) -> Array:
    """erfc for y of at least 0.46875, or NaN."""
    tail = np.minimum(y, _TINY)
    rational = _ratio(_C_LEAD, _C, _D, tail)
    far = tail > _FAR
    if far.any():
        z = tail[far]
        inverse = 1.0 / (z * z)
        rational[far] = (_INVERSE_SQRT_PI - inverse * _ratio(_P_LEAD, _P, _Q, inverse)) / z
    # exp(-y²) with y² split, so that its rounding error does not grow with y
    coarse = np.trunc(tail * 16.0) / 16.0
    scale = np.exp(-coarse * coarse) * np.exp(-(tail - coarse) * (tail + coarse))
    return np.asarray(np.where(y > _TINY, 0.0, scale * rational))
