"""Where a model came from: what is read of its file is not held in memory longer than it is needed."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
from onnx import numpy_helper
from tests.security.models import model, node, value

import tierup
from tierup.runtime.origin import Origin

WIDTH = 1024
X = np.ones((1, WIDTH), np.float32)


def large(path: Path, op: str = "MatMul", shape: tuple[int, ...] = (WIDTH, WIDTH)) -> np.ndarray:
    """y = op(x, w), with 4 MiB of w at an odd place of the file."""
    w = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for name in ("w", "wx", "wxx", "wxxx"):  # one of them puts it there
        nodes = [node(op, ["x", name], ["y"])]
        weights = [numpy_helper.from_array(w, name)]
        content = model(
            nodes, [value("x", ["n", WIDTH])], [value("y", [f"y{axis}" for axis in range(len(shape))])], weights
        ).SerializeToString()
        path.write_bytes(content)
        if content.index(w.tobytes()) % 4:
            return w
    raise AssertionError("four lengths of a name are four places")


def mapped_kib(path: Path) -> int:
    """What this process holds of a mapped file."""
    maps, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0] and ":" not in line.split()[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            maps += int(line.split()[1])
    return maps


def test_the_baseline_reads_large_matrices_where_they_lie(tmp_path: Path) -> None:
    w = large(tmp_path / "m.onnx")
    (digest,) = (imported := Origin(tmp_path / "m.onnx").imported()).weights
    assert not imported.weights[digest].flags.aligned
    tracemalloc.start()
    try:
        loaded = tierup.load(tmp_path / "m.onnx", config=tierup.Config(force_tier=0))
        answer = loaded(x=X)["y"]
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < w.nbytes // 2  # modules that are imported meanwhile count, too
    # Sums of a thousand products in f32 against f64.
    np.testing.assert_allclose(answer, X.astype(np.float64) @ w, rtol=1e-3, atol=1e-3)


def test_large_weights_of_other_operators_are_not_copied_either(tmp_path: Path) -> None:
    w = large(tmp_path / "m.onnx", "Mul", (4, WIDTH // 4, WIDTH))
    tracemalloc.start()
    try:
        loaded = tierup.load(tmp_path / "m.onnx", config=tierup.Config(force_tier=0))
        np.testing.assert_array_equal(loaded(x=2 * X)["y"], 2 * w)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < w.nbytes // 2  # modules that are imported meanwhile count, too


def test_pages_are_released_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    w = large(path)
    origin = Origin(path)
    (digest,) = origin.imported().weights
    assert np.array_equal(origin.imported().weights[digest], w)
    assert mapped_kib(path) >= w.nbytes >> 10
    origin.release_pages()
    assert mapped_kib(path) < 64
    assert np.array_equal(origin.imported().weights[digest], w)
