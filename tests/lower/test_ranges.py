"""Which integers values can hold; that only such lookups go unchecked, and that proofs leave their tables alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.rewrite.graphs import Build, const, f32, made

from tierup.adapt.case import Case, cases_of
from tierup.adapt.draws import draw_sizes, index_limits, outside
from tierup.codegen.target import AVX2
from tierup.ir.build import GraphBuilder
from tierup.ir.types import DType
from tierup.lower.ranges import Range, Ranges
from tierup.lower.text import print_program
from tierup.runtime.compiled import compile_plan

TABLE = np.array([3, 18, 35, 64], np.int32)


def at(b: GraphBuilder, *shape: Any) -> int:
    return b.op("core.gather", const(b, TABLE, np.int32), b.open_input(DType.I64, shape or ("n",)), axis=0)


def by(b: GraphBuilder, op: str, x: int, number: int) -> int:
    return b.op(f"core.{op}", x, const(b, number, np.int32))


def truth(b: GraphBuilder) -> int:
    positive = b.op("core.lt", const(b, 0.0), f32(b, "n"))
    return b.op("core.cast", positive, to=DType.I32.code, saturate=1)


def found(build: Build) -> Range | None:
    graph, weights = made(build)
    return Ranges(graph, weights, range(len(graph.nodes))).of(graph.outputs[0])


@pytest.mark.parametrize(
    ("build", "wanted"),
    [
        (at, (3, 64)),
        (lambda b: by(b, "shr", at(b), 4), (0, 4)),
        (lambda b: by(b, "and", at(b), 15), (0, 3)),  # of the elements that there are, not of all integers
        (lambda b: by(b, "shr", at(b), -1), None),
        (lambda b: b.op("core.add", by(b, "shr", at(b), 4), truth(b)), (0, 5)),
        (lambda b: b.op("core.min", at(b), by(b, "and", at(b), 1)), (0, 1)),
        (lambda b: b.op("core.max", at(b), truth(b)), (3, 64)),
        (lambda b: b.op("core.reshape", at(b, 2), const(b, [2, 1], np.int64)), (3, 64)),
        (lambda b: b.op("core.add", at(b), b.open_input(DType.I32, ("n",))), None),
        (lambda b: by(b, "mul", at(b), 2), None),  # nothing is known of products
        (lambda b: by(b, "add", at(b), 2**31 - 1), None),  # it wraps
    ],
)
def test_ranges(build: Build, wanted: Range | None) -> None:
    assert found(build) == wanted


def test_what_other_kernels_write_is_not_relied_on() -> None:
    graph, weights = made(lambda b: by(b, "shr", at(b), 4))
    last = len(graph.nodes) - 1
    assert Ranges(graph, weights, [last]).of(graph.outputs[0]) is None


def kernels(rows: int) -> tuple[str, Case]:
    """The program and the case of x[table[i] >> 4], where the table is a constant."""

    def build(b: GraphBuilder) -> int:
        index = by(b, "shr", at(b, 5), 4)
        return b.op("core.gather", f32(b, rows, 3), index, axis=0)

    graph, weights = made(build)
    plan = compile_plan(graph, weights, AVX2)
    ((_, case),) = cases_of(plan.functions[0], weights)
    assert isinstance(case, Case)
    return print_program(plan.programs[0]), case


def test_only_what_can_leave_its_axis_is_checked() -> None:
    inside, case = kernels(5)
    assert inside.count("check") == 1  # the index that is data; what it finds leads nowhere else
    tight, _ = kernels(4)
    assert tight.count("check") == 2
    (table,) = case.fixed
    draw = np.random.default_rng(0)
    sized = draw_sizes(case, draw, "typical")
    assert sized is not None
    inputs = {value: np.zeros(sized.shape(value), sized.dtype(value).numpy) for value in case.graph.inputs}
    assert table in index_limits(sized)
    for _ in range(20):
        changed = outside(sized, inputs, draw)
        assert changed is not None
        assert not changed[table].any()
