"""Import, load and first answer of every real model, beside ONNX Runtime."""

from __future__ import annotations

from tests.models.catalog import HERE, NAMES, model_path

from benchmarks.rounds import interleaved, middle, spread

CONTENDERS = ("tierup", "onnxruntime")


def load_benchmark(rounds: int = 5) -> dict[str, object]:
    """Prints one row a model: median milliseconds with quartiles."""
    print("\nimport, load and first answer, ms: median (quartiles)")
    print(f"{'model':20} {'contender':12} {'import':>8} {'load':>22} {'first answer':>22}")
    record: dict[str, object] = {}
    for name in NAMES:
        results = interleaved(CONTENDERS, "load", model_path(name), HERE / "inputs" / f"{name}.npz", rounds)
        record[name] = results
        for contender, figures in results.items():
            load, answer = (_cell(figures[key]) for key in ("load_s", "answer_s"))
            print(f"{name:20} {contender:12} {middle(figures['import_s']) * 1e3:8.0f} {load:>22} {answer:>22}")
    return record


def _cell(seconds: list[float]) -> str:
    low, high = spread(seconds)
    return f"{middle(seconds) * 1e3:.1f} ({low * 1e3:.1f}-{high * 1e3:.1f})"
