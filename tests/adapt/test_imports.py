"""A worker imports a model once, as long as its file stays as it was."""

from __future__ import annotations

from pathlib import Path

import onnx
from tests.adapt.networks import perceptron

from tierup.adapt.imports import LastImport
from tierup.store.source import FileSource


def stamp(path: Path) -> tuple[int, ...]:
    return FileSource(path).stamp


def test_a_model_is_imported_once_until_its_file_changes(tmp_path: Path) -> None:
    last, path = LastImport(), tmp_path / "model.onnx"
    onnx.save(perceptron(), path)
    first = last.get(str(path), stamp(path))
    assert last.get(str(path), stamp(path)) is first
    assert last.get(str(path), (*stamp(path)[:-1], -1)) is not first


def test_another_model_takes_its_place(tmp_path: Path) -> None:
    last, paths = LastImport(), [tmp_path / name for name in ("one.onnx", "two.onnx")]
    for path in paths:
        onnx.save(perceptron(), path)
    one = last.get(str(paths[0]), stamp(paths[0]))
    assert last.get(str(paths[1]), stamp(paths[1])) is not one
    assert last.get(str(paths[0]), stamp(paths[0])) is not one


def test_what_lies_in_other_files_is_read_again(tmp_path: Path) -> None:
    """The stamp of the model's file says nothing about them."""
    last, path = LastImport(), tmp_path / "model.onnx"
    onnx.save(perceptron(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    first = last.get(str(path), stamp(path))
    assert any(first.files)
    assert last.get(str(path), stamp(path)) is not first
