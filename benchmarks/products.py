"""Matrix products as the planner lowers them, on one thread and on all, against the roofline of the same run."""

from __future__ import annotations

import os
from time import perf_counter

import numpy as np
import onnx
from msgspec import Struct
from onnx import TensorProto, helper, numpy_helper

import tierup
from benchmarks.effort import Effort
from benchmarks.rounds import middle, spread
from benchmarks.tables import header, row
from tierup.profile.identity import ROOT, cores
from tierup.profile.machine import native_machine
from tierup.profile.measured import one_cpu_per_core_first

LARGE = ((96, 3072, 768), (96, 768, 3072), (97, 3071, 769))
# A few rows are bound by reading the weights: from the last-level cache, and from memory.
FEW_ROWS = tuple((m, 3072, 768) for m in (1, 2, 3, 4, 6, 8, 12, 16)) + tuple((m, 4096, 4096) for m in (1, 2, 4, 8, 16))
ROUNDS, CALLS = 7, 20


class Roof(Struct, frozen=True):
    """What bounds a product: GFLOP/s of the cores, GB/s at which they read a working set as large as the product's."""

    peak_gflops: float
    gbytes_per_s: float
    flops: int
    moved_bytes: int

    @property
    def gflops(self) -> float:
        return min(self.peak_gflops, self._reading_gflops)

    @property
    def bound(self) -> str:
        return "compute" if self.peak_gflops <= self._reading_gflops else "reading"

    @property
    def _reading_gflops(self) -> float:
        return self.flops * self.gbytes_per_s / self.moved_bytes


def products_benchmark(effort: Effort) -> dict[str, object]:
    """Prints one row a shape and number of threads: median GFLOP/s over rounds of 20 calls, with quartiles, and its
    share of the roofline, which is measured around the rounds. One process."""
    record: dict[str, object] = {}
    everyone = tierup.Config().threads or 1
    columns = ("M×N×K", "threads", "GFLOP/s", "peak", "GB/s", "roofline", "share", "bound")
    print(f"\n{header(*columns)}")
    for m, n, k in (*LARGE, *FEW_ROWS):
        proto, x = product(k, n), np.random.default_rng(0).standard_normal((m, k)).astype(np.float32)
        for threads in dict.fromkeys((1, everyone)):
            rates, roof = _measure(proto, x, (m, n, k), threads, effort.rounds or ROUNDS)
            low, high = spread(rates)
            record[f"{m}x{n}x{k} on {threads}"] = {"gflops": rates, "roof_gflops": roof.gflops, "bound": roof.bound}
            figures = (f"{roof.peak_gflops:.0f}", f"{roof.gbytes_per_s:.0f}", f"{roof.gflops:.1f}")
            share = f"{middle(rates) / roof.gflops:.0%}"
            print(
                row(
                    f"{m}×{n}×{k}",
                    str(threads),
                    f"{middle(rates):.1f} ({low:.1f}–{high:.1f})",
                    *figures,
                    share,
                    roof.bound,
                )
            )
    return record


def _measure(
    proto: onnx.ModelProto, x: np.ndarray, shape: tuple[int, int, int], threads: int, rounds: int
) -> tuple[list[float], Roof]:
    """GFLOP/s of each round, and the roofline: the better of one measured before and one measured after them."""
    m, n, k = shape
    flops, moved_bytes = 2 * m * n * k, 4 * (m * k + k * n + n + m * n)
    before = _roof(flops, moved_bytes, threads)
    with tierup.load(proto, config=tierup.Config(force_tier=1, threads=threads, adapt=False)) as model:
        feeds = {"x": x}
        for _ in range(CALLS):
            model.run(feeds)
        rates = []
        for _ in range(rounds):
            started = perf_counter()
            for _ in range(CALLS):
                model.run(feeds)
            rates.append(flops * CALLS / (perf_counter() - started) / 1e9)
    after = _roof(flops, moved_bytes, threads)
    peak, reading = (max(getattr(roof, name) for roof in (before, after)) for name in ("peak_gflops", "gbytes_per_s"))
    return rates, Roof(peak, reading, flops, moved_bytes)


def _roof(flops: int, moved_bytes: int, threads: int) -> Roof:
    native = native_machine()
    cpus = one_cpu_per_core_first(cores(ROOT, os.sched_getaffinity(0)))[:threads]
    peak, _ = native.machine_fma_gflops(cpus)
    reading, _ = native.machine_read_gbytes_per_s(cpus, moved_bytes // len(cpus))
    return Roof(peak, reading, flops, moved_bytes)


def product(depth: int, columns: int) -> onnx.ModelProto:
    """relu(x w + b), rows open."""
    random = np.random.default_rng(0)
    weights = [random.standard_normal(shape) / np.sqrt(depth) for shape in ((depth, columns), (columns,))]
    tensors = [numpy_helper.from_array(w.astype(np.float32), n) for n, w in zip("wb", weights, strict=True)]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("Add", ["xw", "b"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["y"]),
    ]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", size])
        for name, size in (("x", depth), ("y", columns))
    )
    graph = helper.make_graph(nodes, "product", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
