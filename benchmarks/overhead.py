"""What one call costs around the work: an Identity model of one element, beside ONNX Runtime."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.effort import Effort
from benchmarks.rounds import interleaved, middle, spread
from benchmarks.tables import header, row

CONTENDERS = ("tierup keywords", "tierup", "tierup session", "onnxruntime")


def overhead_benchmark(effort: Effort) -> dict[str, object]:
    """Prints one row a contender: median microseconds with quartiles."""
    with tempfile.TemporaryDirectory() as folder:
        model, inputs = Path(folder) / "identity.onnx", Path(folder) / "inputs.npz"
        value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
        graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "identity", value[:1], value[1:])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), model)
        np.savez(inputs, x=np.ones(1, np.float32))
        results = interleaved(CONTENDERS, model, inputs, effort.rounds or 5)
    print(f"\n{header('one call of an Identity model', 'µs')}")
    for contender, figures in results.items():
        low, high = spread(figures["call_s"])
        print(row(contender, f"{middle(figures['call_s']) * 1e6:.2f} ({low * 1e6:.2f}–{high * 1e6:.2f})"))
    return {"identity": results}
