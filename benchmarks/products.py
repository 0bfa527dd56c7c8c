"""Matrix products as the planner lowers them, on one thread and on all, against the machine's measured peak."""

from __future__ import annotations

from time import perf_counter

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tierup
from benchmarks.rounds import middle, spread
from tierup.profile.machine import measure

SHAPES = ((96, 3072, 768), (96, 768, 3072), (97, 3071, 769), (1, 3072, 768), (4, 3072, 768), (16, 3072, 768))


def products_benchmark(rounds: int = 5) -> dict[str, object]:
    """Prints one row a shape: median GFLOP/s over rounds of 20 calls, with quartiles. One contender, one process."""
    measured = measure().measured
    one, everything = measured.fma_gflops_one, measured.fma_gflops_all
    print(f"\nproducts M×N×K, GFLOP/s; measured peak {one:.0f} on one core, {everything:.0f} on all")
    record: dict[str, object] = {}
    threads = tierup.Config().threads or 1
    for m, n, k in SHAPES:
        cells = []
        for count in (1, threads):
            rates = _rates(
                product(k, n), np.random.default_rng(0).standard_normal((m, k)), 2 * m * n * k, count, rounds
            )
            record[f"{m}x{n}x{k} on {count}"] = rates
            low, high = spread(rates)
            cells.append(f"{middle(rates):6.1f} ({low:.1f}-{high:.1f})")
        print(f"{m}×{n}×{k}".ljust(16), f"one thread {cells[0]:24} {threads} threads {cells[1]}")
    return record


def _rates(proto: onnx.ModelProto, x: np.ndarray, flops: int, threads: int, rounds: int) -> list[float]:
    model = tierup.load(proto, config=tierup.Config(force_tier=1, threads=threads, adapt=False))
    feeds = {"x": x.astype(np.float32)}
    for _ in range(20):
        model.run(feeds)
    rates = []
    for _ in range(rounds):
        started = perf_counter()
        for _ in range(20):
            model.run(feeds)
        rates.append(flops * 20 / (perf_counter() - started) / 1e9)
    return rates


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
