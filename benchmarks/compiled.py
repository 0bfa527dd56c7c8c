"""Settled calls of compiled plans beside ONNX Runtime: a perceptron, an element-wise chain, a feed-forward stack."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx

from benchmarks.models import chain, feed_forward, mlp
from benchmarks.rounds import interleaved, middle, spread

CONTENDERS = ("tierup compiled", "onnxruntime")
CASES = {
    "mlp": (mlp, {"x": 64}, (1, 64)),
    "chain": (chain, {"x": 1024, "b": 1024, "c": 1024}, (1, 256, 4096)),
    "feed_forward": (feed_forward, {"x": 1024}, (1, 32)),
}


def compiled_benchmark(rounds: int = 5) -> dict[str, object]:
    """Prints one row a model and batch: median microseconds with quartiles, and the ratio."""
    print("\nsettled calls, µs: median (quartiles)")
    print(f"{'model':14} {'batch':>6} {'tierup compiled':>26} {'onnxruntime':>26} {'ratio':>6}")
    record: dict[str, object] = {}
    random = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        for name, (make, widths, batches) in CASES.items():
            path, inputs = Path(folder) / f"{name}.onnx", Path(folder) / "inputs.npz"
            onnx.save(make(), path)
            for batch in batches:
                arrays = {key: random.standard_normal((batch, n)).astype(np.float32) for key, n in widths.items()}
                np.savez(inputs, **arrays)
                results = interleaved(CONTENDERS, "calls", path, inputs, rounds)
                record[f"{name} {batch}"] = results
                ours, theirs = (results[contender]["call_s"] for contender in CONTENDERS)
                ratio = middle(theirs) / middle(ours)
                print(f"{name:14} {batch:6} {_cell(ours):>26} {_cell(theirs):>26} {ratio:6.2f}")
    return record


def _cell(seconds: list[float]) -> str:
    low, high = spread(seconds)
    return f"{middle(seconds) * 1e6:.1f} ({low * 1e6:.1f}-{high * 1e6:.1f})"
