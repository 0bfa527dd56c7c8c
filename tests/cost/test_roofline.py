"""Work counted from nodes, and the time of a machine whose figures are known, both against numbers by hand."""

from __future__ import annotations

import msgspec
import pytest
from tests.profile.fakes import fake_machine

from tierup.cost.roofline import Work, border, flops, peak_gflops, roofline, work
from tierup.ir.text import parse_graph
from tierup.ir.types import Dim, Sym
from tierup.profile.machine import Machine

PRODUCT = """graph "g" {
  input %0 "x" : f32[d0, 5]
  weight %1 "w" : f32[5, 7] @aa
  weight %2 "b" : f32[7] @bb
  dim d0 = of %0 0
  %3 : f32[d0, 7] = core.matmul@1(%0, %1)
  %4 : f32[d0, 7] = core.add@1(%3, %2)
  %5 : f32[d0, 7] = core.exp@1(%4)
  %6 : f32[d0, 1] = core.reduce_sum@1(%5) {axes=[1], keepdims=1}
  %7 : f32[d0, 7] = core.div@1(%5, %6)
  return %7
}
"""
OTHERS = """graph "g" {
  input %0 "x" : f32[2, 6, 10, 10]
  weight %1 "w" : f32[8, 3, 3, 3] @aa
  weight %2 "pads" : i64[4] @bb
  %3 : f32[2, 8, 8, 8] = core.conv@1(%0, %1, %2) {dilations=[1, 1], group=2, strides=[1, 1]}
  %4 : f32[2, 8, 8, 8] = core.transpose@1(%3) {perm=[0, 1, 3, 2]}
  %5 : i64[2, 8, 8, 8] = core.cast@1(%4) {to=7}
  return %5
}
"""


def three(dim: Dim) -> int:
    return 3 if isinstance(dim, Sym) else dim


def machine(**rates: tuple[float, float]) -> Machine:
    """100 GFLOP/s a core, caches of 32 KiB, 1 MiB and 32 MiB (the last shared by two cores), and these GB/s."""
    made = fake_machine()
    bandwidths = tuple(
        msgspec.structs.replace(
            bandwidth, read_gbytes_per_s_one=rates[bandwidth.level][0], read_gbytes_per_s_all=rates[bandwidth.level][1]
        )
        for bandwidth in made.measured.bandwidths
    )
    return msgspec.structs.replace(made, measured=msgspec.structs.replace(made.measured, bandwidths=bandwidths))


MACHINE = machine(L1=(400, 800), L2=(200, 400), L3=(50, 100), memory=(10, 15))


def test_operations_are_counted_by_node() -> None:
    graph = parse_graph(PRODUCT)
    counted = [flops(graph, node, three) for node in graph.nodes]
    assert counted == [2 * 3 * 7 * 5, 21, 21, 21, 21]


def test_convolutions_moves_and_casts() -> None:
    graph = parse_graph(OTHERS)
    counted = [flops(graph, node, three) for node in graph.nodes]
    assert counted == [2 * (2 * 8 * 8 * 8) * (3 * 3 * 3), 0, 2 * 8 * 8 * 8]


def test_bytes_are_those_that_cross_the_border() -> None:
    graph = parse_graph(PRODUCT)
    assert border(graph, [0, 1]) == ([0, 1, 2], [4])
    assert work(graph, [0, 1], three) == Work(210 + 21, 4 * 15, 4 * (35 + 7), 4 * 21)
    assert border(graph, [2, 3]) == ([4], [5, 6])
    assert work(graph, [2, 3], three) == Work(42, 4 * 21, 0, 4 * (21 + 3), {"exp": 21})
    assert border(graph, [4]) == ([5, 6], [7])


def test_a_value_is_read_once_however_often_it_is_used() -> None:
    graph = parse_graph(PRODUCT)
    assert work(graph, [2, 3, 4], three).read_bytes == 4 * 21


def test_what_is_read_and_written_in_part_counts_as_such() -> None:
    graph = parse_graph(PRODUCT)
    found = work(graph, [4], three, reads={6: 2, 2: 7}, writes={7: 5})
    assert (found.read_bytes, found.constant_bytes, found.written_bytes) == (8, 28, 20)


def test_a_node_in_several_parts_counts_once() -> None:
    graph = parse_graph(PRODUCT)
    assert work(graph, [2, 2], three) == work(graph, [2], three)


def test_compute_bound() -> None:
    found = roofline(Work(2_000_000, 1000, 1000, 1000), MACHINE, threads=2, footprint_bytes=1000)
    assert found.compute_us == pytest.approx(10)  # 2 MFLOP at 200 GFLOP/s
    assert (found.time_us, found.bound) == (found.compute_us, "compute")


@pytest.mark.parametrize(
    ("footprint_bytes", "level", "rate"),
    [
        (2 * (32 << 10), "L1", 800),  # two cores have two first-level caches
        (2 * (32 << 10) + 1, "L2", 400),
        (2 << 20, "L2", 400),
        (32 << 20, "L3", 100),  # and one third-level cache between them
        ((32 << 20) + 1, "memory", 15),
    ],
)
def test_constants_come_from_the_level_that_holds_all_that_a_call_touches(
    footprint_bytes: int, level: str, rate: float
) -> None:
    found = roofline(Work(0, 0, 60_000, 0), MACHINE, 2, footprint_bytes)
    assert found.bound == level
    assert found.time_us == pytest.approx(60_000 / rate / 1000)


def test_values_come_from_the_level_that_holds_them() -> None:
    found = roofline(Work(0, 1 << 20, 1000, 1 << 19), MACHINE, 2, footprint_bytes=1 << 30)
    assert found.memory_us == pytest.approx(1.5 * (1 << 20) / 400 / 1000 + 1000 / 15 / 1000)
    assert found.bound == "L2"


def test_one_thread_has_its_own_rates() -> None:
    assert roofline(Work(1_000_000, 0, 0, 0), MACHINE, 1, 0).time_us == pytest.approx(10)
    assert roofline(Work(0, 0, 50_000, 0), MACHINE, 1, 1 << 25).time_us == pytest.approx(1)
    assert roofline(Work(0, 0, 50_000, 0), MACHINE, 1, (32 << 10) + 1).bound == "L2"


def test_threads_between_one_and_all_share_what_all_reach() -> None:
    wide = msgspec.structs.replace(
        MACHINE, measured=msgspec.structs.replace(MACHINE.measured, threads=8, fma_gflops_all=500)
    )
    assert [peak_gflops(wide, threads) for threads in (1, 2, 5, 8, 16)] == [100, 200, 500, 500, 500]


def test_a_level_that_was_not_measured_is_passed_over() -> None:
    *others, last = MACHINE.measured.bandwidths
    silent = msgspec.structs.replace(last, read_gbytes_per_s_one=None, read_gbytes_per_s_all=None)
    measured = msgspec.structs.replace(MACHINE.measured, bandwidths=(*others, silent))
    found = roofline(Work(0, 0, 100_000, 0), msgspec.structs.replace(MACHINE, measured=measured), 2, 1 << 40)
    assert (found.bound, found.time_us) == ("L3", pytest.approx(1))


def test_nothing_to_do_takes_no_time() -> None:
    assert roofline(Work(0, 0, 0, 0), MACHINE, 2, 0).time_us == 0


RECURRENCE = """graph "g" {
  input %0 "gates" : f32[d0, 2, 64]
  weight %1 "r" : f32[16, 64] @aa
  weight %2 "p" : f32[0] @bb
  input %3 "h" : f32[2, 16]
  input %4 "c" : f32[2, 16]
  weight %5 "lengths" : i64[0] @cc
  dim d0 = of %0 0
  %6 : f32[d0, 2, 16], %7 : f32[2, 16], %8 : f32[2, 16] = core.lstm@1(%0, %1, %2, %3, %4, %5) {activations=["Sigmoid", "Tanh", "Elu"], alphas=[0.0, 0.0, 1.0], betas=[0.0, 0.0, 0.0], clip=0.0, input_forget=FORGET, reverse=0}
  return %6, %7, %8
}
"""  # noqa: E501  # one node is one line


@pytest.mark.parametrize("input_forget", [0, 1])
def test_a_recurrence_reads_its_weights_at_every_step(input_forget: int) -> None:
    graph = parse_graph(RECURRENCE.replace("FORGET", str(input_forget)))
    counted = work(graph, [0], three)
    assert counted.flops == 3 * 2 * (2 * 16 * 64)
    assert counted.constant_bytes == 16 * 64 * 4
    assert counted.read_bytes == 4 * (3 * 2 * 64 + 2 * 2 * 16)
    assert counted.written_bytes == 4 * (3 * 2 * 16 + 2 * 2 * 16)
    assert (counted.kept_bytes, counted.again_bytes) == (16 * 64 * 4, 2 * 16 * 64 * 4)
    units = 3 * 2 * 16
    assert counted.functions == {"exp": (3 - input_forget) * units, "tanh": units, "expm1": units}


def test_what_is_read_again_comes_from_the_level_that_holds_it() -> None:
    once = Work(flops=0, read_bytes=0, constant_bytes=400_000, written_bytes=0, kept_bytes=400_000)
    again = Work(flops=0, read_bytes=0, constant_bytes=400_000, written_bytes=0, kept_bytes=400_000, again_bytes=10**6)
    large = 1 << 40  # all that a call touches: constants come from memory
    assert roofline(once, MACHINE, 1, large).memory_us == pytest.approx(400_000 / 10e3)
    assert roofline(again, MACHINE, 1, large).memory_us == pytest.approx(400_000 / 10e3 + 10**6 / 200e3)
