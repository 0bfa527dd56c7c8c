"""Large weights are named by where they lie in a file, small ones by their content."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tests.security.models import model, node, value

from tierup.frontends.onnx import Imported, load_onnx
from tierup.frontends.onnx.places import _MOST_ALIKE, LEAST_BYTES
from tierup.ir.graph import weight_digest

SIDE = 512
assert 4 * SIDE * SIDE >= LEAST_BYTES


def two_products(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> onnx.ModelProto:
    """x first + second"""
    nodes = [node("MatMul", ["x", "a"], ["h"]), node("Add", ["h", "b"], ["y"])]
    weights = [numpy_helper.from_array(first, "a"), numpy_helper.from_array(second, "b")]
    return model(nodes, [value("x", ["n", SIDE])], [value("y", [SIDE, SIDE])], weights)


def drawn(seed: int, rows: int = SIDE) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal((rows, SIDE)).astype(np.float32)


def saved(folder: Path, proto: onnx.ModelProto, **options: Any) -> Path:
    path = folder / "model.onnx"
    onnx.save(proto, path, **options)
    return path


def names(imported: Imported) -> list[str]:
    return [digest for _, digest in imported.graph.weights]


def by_content(imported: Imported) -> list[str]:
    return [weight_digest(imported.weights[digest]) for digest in names(imported)]


EXTERNAL = {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 0}


@pytest.mark.parametrize("options", [{}, EXTERNAL], ids=["inside", "beside"])
def test_names_are_the_same_as_long_as_the_file_is(options: dict[str, Any], tmp_path: Path) -> None:
    path = saved(tmp_path, two_products(drawn(0), drawn(1)), **options)
    first = load_onnx(path)
    assert names(first) == names(load_onnx(path))
    assert not set(names(first)) & set(by_content(first))
    where = tmp_path / (options.get("location") or path.name)
    os.utime(where, ns=(1, 1))
    assert not set(names(first)) & set(names(load_onnx(path)))  # somebody may have written to it


def test_large_weights_with_the_same_content_are_one(tmp_path: Path) -> None:
    imported = load_onnx(saved(tmp_path, two_products(drawn(0), drawn(0))))
    assert len(names(imported)) == len(imported.weights) == 1


def test_weights_that_begin_alike_are_two(tmp_path: Path) -> None:
    other = drawn(0)
    other[-1, -1] += 1
    imported = load_onnx(saved(tmp_path, two_products(drawn(0), other)))
    assert len(set(names(imported))) == 2
    for digest, array in zip(names(imported), (drawn(0), other), strict=True):
        np.testing.assert_array_equal(imported.weights[digest], array)


def test_only_some_that_begin_alike_are_compared(tmp_path: Path) -> None:
    """The others are read once each: comparing all with all would take hours for a hostile model."""
    count = _MOST_ALIKE + 3
    arrays = [np.zeros((SIDE, SIDE), np.float32) for _ in range(count)]
    for number, array in enumerate(arrays):
        array[-1, -1] = min(number, count - 2)  # the last two are the same
    weights = [numpy_helper.from_array(array, f"w{number}") for number, array in enumerate(arrays)]
    nodes = [node("Sum", ["x", *(weight.name for weight in weights)], ["y"])]
    proto = model(nodes, [value("x", [SIDE, SIDE])], [value("y", [SIDE, SIDE])], weights)
    imported = load_onnx(saved(tmp_path, proto))
    found = [name == content for name, content in zip(names(imported), by_content(imported), strict=True)]
    assert found == [False] * _MOST_ALIKE + [True] * 2


@pytest.mark.parametrize("form", ["small", "bytes", "a file that does not last"])
def test_others_are_named_by_content(form: str, tmp_path: Path) -> None:
    proto = two_products(drawn(0), drawn(1, 1 if form == "small" else SIDE))
    path = saved(tmp_path, proto)
    imported = load_onnx(proto.SerializeToString() if form == "bytes" else path, lasts=form == "small")
    same = [name == content for name, content in zip(names(imported), by_content(imported), strict=True)]
    assert same == [form != "small", True]
