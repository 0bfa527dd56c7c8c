"""Imports go one way, public names are what they are, and the environment is read in one place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import tierup

SOURCE = Path(tierup.__file__).parent

# From the top down: a package may import what stands below it, and itself.
LAYERS = (
    "cli", "bench", "explain", "backend", "session", "report", "adapt", "runtime", "store", "codegen", "lower", "plan",
    "cost", "profile", "rewrite", "reference", "frontends", "ir", "_native", "events", "config", "logs",
    "private", "stamps", "digests", "errors",
)  # fmt: skip


def modules() -> Iterator[tuple[str, Path, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        yield parts[0], path, ast.parse(path.read_text())


def imported_packages(tree: ast.Module) -> Iterator[str]:
    for entry in ast.walk(tree):
        names: list[str] = []
        if isinstance(entry, ast.ImportFrom) and entry.module:
            names = [
                entry.module,
                *(f"{entry.module}.{alias.name}" for alias in entry.names if entry.module == "tierup"),
            ]
        elif isinstance(entry, ast.Import):
            names = [alias.name for alias in entry.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "tierup" and len(parts) > 1:
                yield parts[1]


def test_imports_go_down() -> None:
    wrong = []
    for package, path, tree in modules():
        if package == "__init__":
            continue
        assert package in LAYERS, f"{package} has no place among the layers"
        for used in imported_packages(tree):
            if used in LAYERS and LAYERS.index(used) < LAYERS.index(package):
                wrong.append(f"{path.relative_to(SOURCE)} imports tierup.{used}")
    assert not wrong


def test_the_environment_is_read_in_config_only() -> None:
    readers = [
        str(path.relative_to(SOURCE))
        for _, path, tree in modules()
        for entry in ast.walk(tree)
        if isinstance(entry, ast.Attribute) and entry.attr in ("environ", "getenv") and path.name != "config.py"
    ]
    assert not readers


def test_no_pickle_no_eval() -> None:
    banned = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
    wrong = []
    for _, path, tree in modules():
        for entry in ast.walk(tree):
            if isinstance(entry, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in entry.names] + [getattr(entry, "module", None) or ""]
                wrong += [f"{path}: {name}" for name in names if name.split(".")[0] in banned]
            if isinstance(entry, ast.Call) and isinstance(entry.func, ast.Name) and entry.func.id in ("eval", "exec"):
                wrong.append(f"{path}: {entry.func.id}")
    assert not wrong


def test_no_peer_inside_the_product() -> None:
    peers = {"onnxruntime", "openvino", "torch", "tvm", "scipy"}
    used = {
        name
        for _, _, tree in modules()
        for entry in ast.walk(tree)
        if isinstance(entry, ast.Import | ast.ImportFrom)
        for name in [*(alias.name for alias in entry.names), getattr(entry, "module", None) or ""]
        if name.split(".")[0] in peers
    }
    assert not used


def test_public_names() -> None:
    assert sorted(tierup.__all__) == sorted(
        [
            "Config",
            "ConfigError",
            "InferenceSession",
            "InputError",
            "Model",
            "ModelError",
            "StoreError",
            "TierupError",
            "UnsupportedError",
            "__version__",
            "load",
        ]
    )
    assert all(hasattr(tierup, name) for name in tierup.__all__)
