"""Error bounds: the numbers that the rules give, that f32 keeps them, and what jumps and overflows leave open."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from tierup.ir.build import GraphBuilder
from tierup.ir.graph import Attrs, Graph, Weights
from tierup.ir.types import Array, DType, dtype_from_numpy
from tierup.plan.forms import VIEWS
from tierup.plan.regions import ELEMENTWISE, PLACES, REDUCTIONS, SCANS, SCATTERS
from tierup.plan.spaces import ARG_REDUCTIONS, PARTED, POOLS
from tierup.reference.bind import LOOKUPS
from tierup.reference.bound_rules import RULES
from tierup.reference.bounds import (
    EPS,
    Bounded,
    NoRule,
    evaluate_bounded,
    evaluate_plainly,
    longest_sum,
    missing_rules,
    tolerance,
    within,
)
from tierup.reference.evaluate import evaluate

UNIT = tolerance(1)
INF, NAN = np.inf, np.nan


def test_a_known_number_rounded_once_is_known() -> None:
    """A cast of what came in is exact; of what was rounded before it is not."""
    m = Maker([1.00390625, 3.4e38, 3.0])
    cast = m.bounded(m.op("cast", m.inputs[0], to=DType.BF16.code, saturate=1))
    np.testing.assert_array_equal(cast.value, [1.0, INF, 3.0])
    assert cast.bound is None
    again = Maker([1.00390625, 2.0])
    value = again.op("cast", again.rounded(again.inputs[0]), to=DType.BF16.code, saturate=1)
    assert (again.bounded(value).own > 0).all()


def test_what_is_only_looked_up_in_is_not_widened() -> None:
    table, places = np.zeros((1 << 16, 16), np.float32), np.array([3, 5])
    table[3] = 0.1
    m = Maker(table, places)
    found = m.op("gather", *m.inputs, axis=0)
    tracemalloc.start()
    y = m.bounded(found)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (y.value.dtype, y.value[0, 0], y.value[1, 0]) == (np.float64, float(np.float32(0.1)), 0.0)
    assert peak < table.nbytes


def test_denormals_may_be_flushed_where_they_are_rounded() -> None:
    least = 2.0**-126
    m = Maker([least, -least / 2, 1.0])
    cast = m.bounded(m.op("cast", m.inputs[0], to=DType.BF16.code, saturate=1, flush=1))
    np.testing.assert_array_equal(cast.value, [least, 0.0, 1.0])
    assert cast.bound is None
    near = Maker([least, least * 4])  # what was rounded before may lie on either side of the least
    value = near.bounded(near.op("cast", near.rounded(near.inputs[0]), to=DType.BF16.code, saturate=1, flush=1))
    assert within(np.float32([0.0, least * 4]), value, UNIT).all()
    assert within(np.float32([least, least * 4]), value, UNIT).all()
    assert not within(np.float32([least, 0.0]), value, UNIT).all()


def test_products_of_bf16_are_judged_as_f32() -> None:
    a, b = (np.array(x).astype(DType.BF16.numpy) for x in ([[1.0, 2.0, -3.0]], [[4.0], [0.5], [2.0]]))
    m = Maker(a, b)
    y = m.bounded(m.op("matmul", *m.inputs, to=DType.F32.code))
    assert (y.value.item(), y.dtype) == (-1.0, DType.F32)
    assert y.own.item() == pytest.approx(11)  # 4 + 1 + 6, in units of f32
    tiny = Maker(
        np.array([[2.0**-130, 1.0]]).astype(DType.BF16.numpy), np.array([[2.0**120], [0.0]]).astype(DType.BF16.numpy)
    )
    y = tiny.bounded(tiny.op("matmul", *tiny.inputs, to=DType.F32.code))
    assert within(np.float32([[0.0]]), y, UNIT).all()  # taken as zero
    assert not within(np.float32([[2.0**-8]]), y, UNIT).any()


class Maker:
    """Builds a graph over given arrays."""

    def __init__(self, *arrays: Any) -> None:
        self.arrays = [np.asarray(array, np.float32) if isinstance(array, list) else array for array in arrays]
        self.weights = Weights()
        self.builder = GraphBuilder(self.weights)
        self.inputs = [
            self.builder.open_input(dtype_from_numpy(array.dtype) or DType.F32, array.shape) for array in self.arrays
        ]

    def op(self, name: str, *inputs: int, **attrs: Any) -> int:
        return self.builder.op(f"core.{name}", *inputs, **attrs)

    def constant(self, content: Any, dtype: Any = np.float32) -> int:
        return self.builder.weight(np.asarray(content, dtype))

    def bounded(self, value: int, unit: float = UNIT) -> Bounded:
        (result,) = evaluate_bounded(self.builder.finish([value]), self.weights, self.arrays, unit)
        return result

    def plain(self, value: int) -> Array:
        (result,) = evaluate_plainly(self.builder.finish([value]), self.weights, self.arrays)
        return result

    def rounded(self, value: int) -> int:
        """The same value after a multiplication, which may have been off."""
        return self.op("mul", value, self.constant(1.0))


def bound_of(op: str, *arrays: list[float], **attrs: Any) -> list[float]:
    made = Maker(*arrays)
    bound = made.bounded(made.op(op, *made.inputs, **attrs)).bound
    assert bound is not None
    found: list[float] = bound.tolist()
    return found


def test_sums_and_products_are_taken_on_absolute_values() -> None:
    assert bound_of("add", [1, -2], [3, 2]) == [4, 4]
    assert bound_of("sub", [1, -2], [3, 2]) == [4, 4]
    assert bound_of("mul", [2, -3], [5, 0.5]) == [10, 1.5]
    assert bound_of("reduce_sum", [1, -2, 3], axes=(0,), keepdims=0) == 6
    made = Maker(np.array([[1, -2]], np.float32), np.array([[3], [-4]], np.float32))
    product = made.bounded(made.op("matmul", *made.inputs))
    assert (product.value.tolist(), product.bound.tolist()) == ([[11]], [[11]])  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("op", "at", "slope"),
    [("exp", 2.0, np.exp(2)), ("log", 5.0, 0.2), ("tanh", 0.5, 1 - np.tanh(0.5) ** 2), ("sqrt", 4.0, 0.25)],
)
def test_functions_add_slope_times_bound_and_their_size(op: str, at: float, slope: float) -> None:
    made = Maker([at])
    result = made.bounded(made.op(op, 0))
    assert result.bound is not None
    # by a difference over some 1e-6 of x, so to about that
    np.testing.assert_allclose(result.bound, slope * at + np.abs(result.value), rtol=1e-5)


def test_quotients_are_functions_of_both_sides() -> None:
    np.testing.assert_allclose(bound_of("div", [6.0], [-2.0]), [9.0], rtol=1e-5)  # 3 from each side, and |f|


def test_bounds_run_through_the_graph() -> None:
    """(a + b) · c with a + b = 0: nothing of the value is left, and all of the bound."""
    made = Maker([3.0], [-3.0], [2.0])
    total = made.op("add", 0, 1)
    result = made.bounded(made.op("mul", total, 2))
    assert result.value == [0]
    np.testing.assert_allclose(result.bound, [12], rtol=1e-5)  # type: ignore[arg-type]


def test_what_only_moves_keeps_its_bound() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    made = Maker(x)
    total = made.op("add", 0, made.constant(-1.0))
    moved = made.op("transpose", total, perm=(1, 0))
    relu = made.bounded(made.op("max", moved, made.constant(0.0)))
    # x - 1 below, at and above 0: where 0 is taken it is exact, and where it may be either, as much off as the sum
    np.testing.assert_array_equal(relu.bound, [[0, 4], [2, 5], [3, 6]])  # type: ignore[arg-type]
    clipped = made.bounded(made.op("min", total, made.constant(1e30)))
    np.testing.assert_array_equal(clipped.bound, x + 1)  # type: ignore[arg-type]
    assert made.bounded(made.op("transpose", 0, perm=(1, 0))).bound is None  # nothing was rounded


def test_doubles_are_held_to_their_own_eps() -> None:
    made = Maker(np.array([1.0, 3.0]))
    result = made.bounded(made.op("add", 0, 0))
    np.testing.assert_array_equal(result.bound * 2.0**29, [2, 6])  # type: ignore[operator]


def values_for(op: str, special: bool) -> list[Array]:
    """Two operands, or one, in the op's domain or all over."""
    draw = np.random.default_rng(len(op))
    arrays = [draw.standard_normal(400).astype(np.float32) * 3 for _ in range(2)]
    if special:
        odd = np.array([NAN, INF, -INF, 0, -0.0, 1e-40, -1e-45, 1e30, -1e30, 1.0, 88.8, 2.0**24], np.float32)
        for array in arrays:
            array[draw.integers(0, 400, 200)] = draw.choice(odd, 200)
    return arrays


UNARY = sorted(
    name for name in ELEMENTWISE if name not in ("and", "or", "xor", "not", "shl", "shr", "mod", "select")
    and name not in ("add", "sub", "mul", "div", "min", "max", "eq", "lt", "le", "pow", "fmod")
)  # fmt: skip


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("indirect", [False, True])
@pytest.mark.parametrize("op", [*UNARY, "add", "sub", "mul", "div", "min", "max", "eq", "lt", "le", "pow", "fmod"])
def test_f32_stays_within_its_bound(op: str, indirect: bool, special: bool) -> None:
    """NumPy's own results, on inputs as they are and on rounded ones. A result off by more shows."""
    made = Maker(*values_for(op, special)[: 1 if op in UNARY else 2])
    operands = made.inputs
    if indirect:
        operands = [made.op("add", made.op("mul", x, made.constant(1.7)), made.constant(0.3)) for x in operands]
    value = made.op(op, *operands)
    graph = made.builder.finish([value])
    (expected,) = evaluate_bounded(graph, made.weights, made.arrays, UNIT)
    (got,) = evaluate(graph, made.weights, made.arrays)
    assert within(got, expected, UNIT).all(), (got[~within(got, expected, UNIT)], op)
    fixed = ~np.broadcast_to(expected.free, got.shape)
    assert fixed.sum() > 150  # most are judged
    if got.dtype == np.bool_:
        assert not within(~got, expected, UNIT)[fixed].any()
        return
    finite = fixed & np.isfinite(expected.value) & np.isfinite(got)
    allowed = UNIT * np.asarray(0.0 if expected.bound is None else expected.bound)
    size = np.where(np.isfinite(expected.value), np.abs(expected.value), 0)
    off = expected.value + 1.5 * np.where(finite, allowed, 0) + 1e-12 * size + 1e-60
    assert not within(off, expected, UNIT)[finite].any()
    assert not within(np.full(400, NAN), expected, UNIT)[finite].any()
    assert not within(np.zeros(400), expected, UNIT)[fixed & np.isnan(expected.value)].any()


def test_comparisons_are_free_only_near_equality() -> None:
    near, far = 1 + 2 * EPS, 1 + 40 * EPS
    made = Maker([1.0, near, far, NAN, INF], [1.0, 1.0, 1.0, 1.0, INF])
    exact = made.bounded(made.op("lt", 1, 0))
    assert exact.bound is None
    assert exact.value.tolist() == [False, True, True, False, False]
    rounded = made.bounded(made.op("lt", made.rounded(1), made.rounded(0)))
    assert rounded.free.tolist() == [True, True, False, False, False]  # type: ignore[union-attr]


def test_a_value_equals_itself_whatever_its_error() -> None:
    made = Maker([1.0, NAN, 3.0])
    value = made.rounded(0)
    same = made.bounded(made.op("eq", value, value))
    assert (same.value.tolist(), same.bound) == ([True, False, True], None)


def test_a_free_choice_allows_both() -> None:
    """relu by comparison: at the jump both sides are as good as equal. A step there is one that may be either."""
    made = Maker([1.0, 1.0], [-1.0, 5.0])
    total = made.op("add", 0, 1)
    zero = made.constant(0.0)
    positive = made.op("lt", zero, total)
    relu = made.bounded(made.op("select", positive, total, zero))
    assert (relu.bound <= 6 + 1e-9).all()  # type: ignore[operator]
    step = made.bounded(made.op("select", positive, made.constant(1.0), zero))
    assert within(np.array([0, 1]), step, UNIT).all()
    assert within(np.array([1, 1]), step, UNIT).all()
    assert not within(np.array([0.5, 0]), step, UNIT)[1]
    assert within(np.array([2, 1]), step, UNIT).tolist() == [False, True]


@pytest.mark.parametrize("op", ["floor", "ceil", "round"])
def test_steps_may_be_taken_early_within_the_bound(op: str) -> None:
    base = 2.5 if op == "round" else 3.0
    made = Maker(np.array([base, base + 0.25], np.float32))
    assert made.bounded(made.op(op, 0)).bound is None
    result = made.bounded(made.op(op, made.rounded(0)))
    assert within(result.value, result, UNIT).all()
    lower, upper = np.floor(base - 0.1), np.ceil(base + 0.1)
    for other in (lower, upper):
        if abs(other - result.value[0]) <= 1:
            assert within(np.array([other, result.value[1]]), result, UNIT).all()
    assert not within(result.value + np.array([0, 1]), result, UNIT)[1]
    assert not within(result.value + 0.5, result, UNIT)[1]


def test_casts_to_integers_may_differ_at_the_jump_only() -> None:
    made = Maker([3.0, 3.5, NAN, 1e10])
    exact = made.bounded(made.op("cast", 0, to=DType.I32.code))
    assert (exact.value.tolist(), exact.bound) == ([3, 3, -(2**31), -(2**31)], None)
    rounded = made.bounded(made.op("cast", made.rounded(0), to=DType.I32.code))
    assert rounded.free.tolist() == [True, False, False, False]  # type: ignore[union-attr]
    truth = made.bounded(made.op("cast", made.op("sub", made.rounded(0), 0), to=DType.BOOL.code))
    assert truth.free.tolist() == [True, True, False, True]  # type: ignore[union-attr]


def test_whole_numbers_are_exact_but_count_in_sums() -> None:
    made = Maker([1000.25, 2.0])
    whole = made.op("floor", made.rounded(0))
    assert made.bounded(made.op("cast", whole, to=DType.I64.code)).free.tolist() == [False, True]  # type: ignore[union-attr]
    total = made.bounded(made.op("add", whole, made.constant(0.1)))
    assert total.bound is not None
    assert total.bound[0] > 1000


def test_what_counts_in_floats_is_exact_as_far_as_they_hold_integers() -> None:
    made = Maker(np.array([5, 2**24, 2**24 + 2]))
    count = made.op("cast", 0, to=DType.F32.code)
    more = made.op("add", count, made.constant(1.0))
    back = made.bounded(made.op("cast", more, to=DType.I64.code))
    assert back.free.tolist() == [False, True, True]  # type: ignore[union-attr]
    half = made.bounded(made.op("cast", made.op("add", count, made.constant(0.5)), to=DType.I64.code))
    assert half.value.tolist()[0] == 5
    assert made.bounded(made.op("add", count, made.constant(0.5))).bound[0] > 5  # type: ignore[index]


def test_a_zero_point_behind_a_rounding_is_exact() -> None:
    """As quantisation has it: what is rounded and moved by a whole number is cast to that integer, and no other."""
    made = Maker([1000.25, 2.5])
    moved = made.op("add", made.op("round", made.rounded(0)), made.constant(133.0))
    result = made.bounded(made.op("cast", moved, to=DType.I32.code))
    assert result.value.tolist() == [1133, 135]
    assert result.free.tolist() == [False, True]  # type: ignore[union-attr]


def test_what_a_free_index_leads_to_is_free() -> None:
    data = np.arange(12, dtype=np.float32).reshape(4, 3)
    made = Maker(data, [1.0, 2.5])
    index = made.op("cast", made.rounded(1), to=DType.I64.code)
    rows = made.bounded(made.op("gather", 0, index, axis=0))
    assert rows.free.tolist() == [[True] * 3, [False] * 3]  # type: ignore[union-attr]
    columns = made.bounded(made.op("gather", 0, index, axis=1))
    assert columns.free.tolist() == [[True, False]] * 4  # type: ignore[union-attr]
    pairs = made.op("reshape", index, made.constant([1, 2], np.int64))
    assert made.bounded(made.op("gather_nd", 0, pairs, batch_dims=0)).free.tolist() == [True]  # type: ignore[union-attr]


def test_the_index_of_the_largest_is_free_among_equals() -> None:
    made = Maker(np.array([[1, 2, 2 + 3 * EPS], [1, 2, 3], [5, 5, 1]], np.float32))
    attrs = {"axis": 1, "keepdims": 0, "last": 0}
    assert made.bounded(made.op("argmax", 0, **attrs)).bound is None
    rounded = made.bounded(made.op("argmax", made.rounded(0), **attrs))
    assert rounded.value.tolist() == [2, 2, 0]
    assert rounded.free.tolist() == [True, False, True]  # type: ignore[union-attr]


def test_the_largest_has_the_bound_of_those_that_may_be_it() -> None:
    made = Maker(np.array([[1, 2, 3], [3, 3, 3]], np.float32), np.array([[100, 1, 1], [1, 100, 1]], np.float32))
    wide = made.op("sub", made.op("add", 0, 1), 1)
    result = made.bounded(made.op("reduce_max", wide, axes=(1,), keepdims=0))
    np.testing.assert_array_equal(result.value, [3, 3])
    np.testing.assert_array_equal(result.bound, [3 + 2, 3 + 200])  # type: ignore[arg-type]


def test_what_overflows_must_be_infinite_and_frees_what_is_made_of_it() -> None:
    made = Maker([100.0, 1.0, -1000.0])
    power = made.op("exp", 0)
    result = made.bounded(power)
    assert result.value[0] == INF
    assert within(np.float32([INF, np.e, 0]), result, UNIT).all()
    assert not within(np.float32([3e38, np.e, 0]), result, UNIT)[0]
    assert made.bounded(made.op("div", made.constant(1.0), power)).value[0] == 0  # whatever f32 does, it does so
    # a product that overflows may be part of a fused multiply-add, which does not
    huge = Maker([1e30, 2.0])
    square = huge.op("mul", 0, 0)
    assert within(np.float32([INF, 4]), huge.bounded(square), UNIT).all()
    assert not within(np.float32([-INF, 4]), huge.bounded(square), UNIT)[0]
    assert huge.bounded(huge.op("sub", square, square)).free.tolist() == [True, False]  # type: ignore[union-attr]


def test_partial_sums_may_overflow() -> None:
    made = Maker([3e38, 3e38, -3e38, -3e38])
    assert made.bounded(made.op("reduce_sum", 0, axes=(0,), keepdims=0)).free
    assert not made.bounded(made.op("reduce_max", 0, axes=(0,), keepdims=0)).free


def test_the_largest_number_less_something_ordinary_is_itself() -> None:
    least = float(np.finfo(np.float32).min)
    made = Maker([least, least, least], [2.5, -1e22, 1e32])
    result = made.bounded(made.op("sub", 0, made.rounded(1)))
    np.testing.assert_array_equal(result.value[:2], [least, least])
    np.testing.assert_array_equal(result.own[:2], [0, 0])  # f32 has no number between
    assert result.own[2] > 0
    power = made.bounded(made.op("exp", made.op("sub", 0, made.rounded(1))))
    assert power.free.tolist() == [False, False, True]  # type: ignore[union-attr]
    assert within(np.float32([0, 1e-30, 7]), power, UNIT).tolist() == [True, False, True]


def test_denormals_are_off_by_their_own_distance() -> None:
    made = Maker([1e-30, 1e-20], [1e-12, 1e-30])
    result = made.bounded(made.op("mul", 0, 1))
    assert within(np.float32([1e-30]) * np.float32([1e-12]), replace_first(result), UNIT).all()
    assert within(np.float32([1e-42, 0]), result, UNIT).all()
    assert not within(np.float32([0, 0]), result, UNIT)[0]
    # 1 / (1e-50) is infinite in f32 and is not in f64
    assert made.bounded(made.op("div", made.constant(1.0), made.op("mul", 0, 1))).free.tolist() == [False, True]  # type: ignore[union-attr]


def replace_first(result: Bounded) -> Bounded:
    return Bounded(result.value[:1], result.dtype, None if result.bound is None else result.bound[:1])


def test_infinities_are_certain_unless_a_factor_may_vanish() -> None:
    made = Maker([INF, INF, -INF, NAN], [1.0, 1.0, 2.0, 1.0], [-1.0, 1.0, 1.0, 1.0])
    factor = made.op("add", 1, 2)
    result = made.bounded(made.op("mul", 0, factor))
    assert result.free.tolist() == [True, False, False, False]  # type: ignore[union-attr]
    assert within(np.float32([7, INF, -INF, NAN]), result, UNIT).all()
    assert not within(np.float32([7, -INF, 1, 0]), result, UNIT)[1:].any()
    rows = Maker(np.float32([[INF, 0]]), np.float32([[1, 2], [NAN, 3]]))
    product = rows.bounded(rows.op("matmul", *rows.inputs))
    assert within(np.float32([[NAN, INF]]), product, UNIT).all()
    assert not within(np.float32([[0, 0]]), product, UNIT).any()


def test_division_by_what_may_vanish_is_free() -> None:
    made = Maker([1.0, 1.0], [-1.0, 1.0], [0.0, 2.0])
    assert made.bounded(made.op("div", 0, made.op("add", 0, 1))).free.tolist() == [True, False]  # type: ignore[union-attr]
    exact = made.bounded(made.op("div", 0, 2))
    assert exact.value.tolist() == [INF, 0.5]
    assert not np.any(exact.free)
    assert made.bounded(made.op("log", made.op("add", 0, 1))).free.tolist() == [True, False]  # type: ignore[union-attr]


def test_integers_are_exact() -> None:
    numbers = np.array([7, -(2**31), 5], np.int32)
    made = Maker(numbers, np.array([2, -1, 0], np.int32))
    for op in ("add", "sub", "mul", "div", "mod", "and", "or", "xor", "shl", "shr", "min", "max", "eq", "lt"):
        result = made.bounded(made.op(op, 0, 1))
        assert result.bound is None
        assert within(result.value, result, UNIT).all()
    assert not within(numbers + 1, made.bounded(made.op("neg", made.op("neg", 0))), UNIT).any()
    large = Maker(np.array([2**24 + 1, 3], np.int64))
    assert large.bounded(large.op("cast", 0, to=DType.F32.code)).bound is not None
    small = Maker(np.array([2**24, 3], np.int64))
    assert small.bounded(small.op("cast", 0, to=DType.F32.code)).bound is None


def test_freedom_reaches_what_is_computed_from_it() -> None:
    made = Maker([1.0, 2.0], [1.0, 3.0])
    free = made.op("cast", made.op("lt", made.rounded(0), 1), to=DType.I64.code)
    total = made.op("add", free, made.constant(1, np.int64))
    assert made.bounded(total).free.tolist() == [True, False]  # type: ignore[union-attr]
    floats = made.op("cast", total, to=DType.F32.code)
    assert made.bounded(floats).free.tolist() == [True, False]  # type: ignore[union-attr]
    assert made.bounded(made.op("reduce_sum", floats, axes=(0,), keepdims=1)).free.tolist() == [True]  # type: ignore[union-attr]


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max"])
def test_scattered_values_have_the_bound_of_what_was_put_or_combined(reduction: str) -> None:
    made = Maker([1.0, 2.0, 3.0], np.array([1, 1], np.int64), [10.0, -20.0])
    data, updates = made.rounded(0), made.rounded(2)
    result = made.bounded(made.op("scatter_elements", data, 1, updates, axis=0, reduction=reduction))
    expected = {"none": (-20, 20), "add": (-8, 32), "mul": (-400, 1200), "max": (10, 20)}[reduction]
    assert result.value.tolist() == [1, expected[0], 3]
    np.testing.assert_allclose(result.bound, [1, expected[1], 3], rtol=1e-4)  # type: ignore[arg-type]
    moved = made.bounded(made.op("scatter_elements", 0, 1, 2, axis=0, reduction=reduction))
    assert (moved.bound is None) == (reduction in ("none", "max"))


def test_windows_and_running_products() -> None:
    made = Maker(np.array([[[1, -2, 3, -4]]], np.float32))
    pads = made.constant([0, 0], np.int64)
    window = {"kernel_shape": (2,), "strides": (2,), "dilations": (1,)}
    total = made.bounded(made.op("pool_sum", 0, pads, **window))
    assert (total.value.tolist(), total.bound.tolist()) == ([[[-1, -1]]], [[[3, 7]]])  # type: ignore[union-attr]
    largest, _ = made.builder.node("core.pool_max", [made.rounded(0), pads], Attrs(window), outputs=(True, False))
    assert largest is not None
    assert made.bounded(largest).bound.tolist() == [[[2, 4]]]  # type: ignore[union-attr]
    product = made.bounded(made.op("cumprod", 0, axis=2, exclusive=0, reverse=0))
    np.testing.assert_allclose(product.bound, [[[1, 4, 18, 96]]], rtol=1e-4)  # type: ignore[arg-type]


def random_graph(seed: int) -> tuple[Graph, Weights, list[Array]]:
    """A norm, a product and a softmax over drawn rows."""
    draw = np.random.default_rng(seed)
    x, w = draw.standard_normal((5, 40)).astype(np.float32), draw.standard_normal((40, 24)).astype(np.float32)
    made = Maker(x, w)
    last = {"axes": (1,), "keepdims": 1}
    mean = made.op("div", made.op("reduce_sum", 0, **last), made.constant(40.0))
    centred = made.op("sub", 0, mean)
    variance = made.op("div", made.op("reduce_sum", made.op("mul", centred, centred), **last), made.constant(40.0))
    normal = made.op("div", centred, made.op("sqrt", made.op("add", variance, made.constant(1e-5))))
    scores = made.op("matmul", normal, 1)
    powers = made.op("exp", made.op("sub", scores, made.op("reduce_max", scores, **last)))
    return (
        made.builder.finish([made.op("div", powers, made.op("reduce_sum", powers, **last))]),
        made.weights,
        made.arrays,
    )


@pytest.mark.parametrize("seed", range(8))
def test_a_whole_region_in_f32_is_within_its_bound(seed: int) -> None:
    graph, weights, arrays = random_graph(seed)
    shapes = {value: tuple(graph.values[value].type.shape) for value in range(len(graph.values))}  # type: ignore[union-attr,arg-type]
    assert longest_sum(graph, shapes.__getitem__) == 40
    unit = tolerance(40)
    assert unit == (4 + 40**0.5) * EPS
    (expected,) = evaluate_bounded(graph, weights, arrays, unit)
    for results in (evaluate(graph, weights, arrays), evaluate_plainly(graph, weights, arrays)):
        assert within(results[0], expected, unit).all()
    assert not np.any(expected.free)
    assert not within(results[0] * np.float32(1.01), expected, unit).all()  # the bound is below a percent somewhere


def test_products_are_added_up_in_order() -> None:
    """1 is lost in 2^24, every time."""
    a = np.full((1, 64), 1.0, np.float32)
    a[0, 0] = 2.0**24
    made = Maker(a, np.ones((64, 1), np.float32))
    assert made.plain(made.op("matmul", 0, 1)).item() == 2.0**24


def test_every_op_of_a_region_has_a_rule() -> None:
    compiled = {f"core.{name}" for name in (*ELEMENTWISE, "cast", "matmul", "iota", "shape")}
    compiled |= {*REDUCTIONS, *ARG_REDUCTIONS, *POOLS, *SCANS, *SCATTERS, *PARTED, *VIEWS, *LOOKUPS, PLACES}
    assert compiled <= RULES.keys()


def test_an_op_without_a_rule_is_named() -> None:
    made = Maker([1.0, 2.0])
    k = made.constant([1], np.int64)
    made.builder.node("core.topk", [0, k], Attrs({"axis": 0, "largest": 1}), outputs=(True, True))
    graph = made.builder.finish([2])
    assert missing_rules(graph) == ["core.topk"]
    with pytest.raises(NoRule, match=r"core\.topk has no rule"):
        evaluate_bounded(graph, made.weights, made.arrays, UNIT)


def test_values_that_nobody_needs_any_more_are_let_go() -> None:
    """A long chain takes no more memory than a short one: a value with its bound is two arrays of f64."""

    def peak_bytes(length: int) -> int:
        made = Maker(np.ones(elements, np.float32))
        (value,) = made.inputs
        for _ in range(length):
            value = made.op("tanh", value)
        tracemalloc.start()
        try:
            made.bounded(value)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    elements = 1 << 16
    assert peak_bytes(24) < peak_bytes(4) + 2 * 8 * elements


def test_whole_numbers_that_add_up_stay_exact() -> None:
    """round(x) + zero point, cast to bytes: what is not near a half has one right answer."""
    m = Maker([0.3, 7.49, 100.2, 2.5, 16777216.0])
    scaled = m.rounded(m.inputs[0])
    zero = m.op("cast", m.constant([3, 3, 3, 3, 1], np.uint8), to=DType.F32.code, saturate=1)
    total = m.op("add", m.op("round", scaled), zero)
    y = m.bounded(total)
    np.testing.assert_array_equal(y.own[:3], 0)
    assert (y.own[3:] > 0).all()  # a half, which may go either way; and what f32 cannot hold


@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions_add_up_in_order(stride: int) -> None:
    """The baseline that kernels are compared with takes one sum, place by place: exact where nothing is rounded."""
    numbers = np.random.default_rng(0)
    x, w = numbers.integers(-4, 5, (2, 6, 7, 3)), numbers.integers(-4, 5, (27, 5))
    made = Maker(x.astype(np.float32), w.astype(np.float32))
    attrs = {"group": 1, "kernel_shape": (3, 3), "strides": (stride,) * 2, "dilations": (1, 1), "algorithm": "direct"}
    y = made.op("conv_last", *made.inputs, made.builder.weight(np.array([1, 0, 1, 2])), **attrs)
    graph = made.builder.finish([y])
    wanted = evaluate(graph, made.weights, made.arrays, wide=True)
    np.testing.assert_array_equal(evaluate_plainly(graph, made.weights, made.arrays)[0], wanted[0])


@pytest.mark.parametrize("last", [True, False])
def test_what_is_not_finite_beyond_the_data_is_free(last: bool) -> None:
    """Kernels may pass over rows of weights that only padding meets; what meets data is as it was."""
    x, w = np.ones((1, 3, 2, 1), np.float32), np.ones((3, 2), np.float32)  # three rows of two places, one channel
    w[0, 1] = INF  # the upper row of the second result's kernel
    attrs = {"strides": (1, 1), "dilations": (1, 1), "group": 1}
    if last:
        m = Maker(x, w)
        pads = m.builder.weight(np.array([1, 0, 1, 0]))
        y = m.bounded(m.op("conv_last", *m.inputs, pads, kernel_shape=(3, 1), algorithm="direct", **attrs))
        free = y.free[0, :, 0, :].T
    else:
        m = Maker(x.transpose(0, 3, 1, 2), w.T.reshape(2, 1, 3, 1))
        y = m.bounded(m.op("conv", *m.inputs, m.builder.weight(np.array([1, 0, 1, 0])), **attrs))
        free = y.free[0, :, :, 0]
    np.testing.assert_array_equal(free, [[False, False, False], [True, False, False]])
