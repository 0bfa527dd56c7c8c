"""External data is read only from regular files inside the model's folder."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest

import tierup
from tests.security.models import external

W = np.array([10.0, 20.0], np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "model"
    (inside / "sub").mkdir(parents=True)
    (tmp_path / "outside.bin").write_bytes(W.tobytes())
    (inside / "w.bin").write_bytes(W.tobytes())
    (inside / "sub" / "w.bin").write_bytes(b"head" + W.tobytes())
    (inside / "link.bin").symlink_to(inside / "w.bin")
    (inside / "away").symlink_to(tmp_path)
    os.link(tmp_path / "outside.bin", inside / "hard.bin")
    os.mkfifo(inside / "pipe.bin")
    return inside


def save(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize(
    ("location", "entries"),
    [
        ("w.bin", {}),
        ("./w.bin", {"length": 8}),
        ("sub/w.bin", {"offset": 4}),
        ("sub/w.bin", {"offset": 4, "length": 8}),
    ],
)
def test_files_inside_the_folder_are_read(folder: Path, location: str, entries: dict[str, int]) -> None:
    model = tierup.load(save(external(location, **entries), folder))
    assert np.array_equal(model(x=np.ones(2, np.float32))["y"], W + 1)


def test_the_model_file_itself_may_be_a_link(folder: Path, tmp_path: Path) -> None:
    path = save(external("w.bin"), folder)
    target = tmp_path / "blob"
    path.rename(target)
    path.symlink_to(target)
    assert tierup.load(path).inputs[0].name == "x"


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("{tmp}/outside.bin", "relative path inside"),
        ("/dev/zero", "relative path inside"),
        ("../outside.bin", "relative path inside"),
        ("sub/../../outside.bin", "relative path inside"),
        ("link.bin", "symbolic link"),
        ("away/outside.bin", "symbolic link"),
        ("hard.bin", "hard link"),
        ("pipe.bin", "not a regular file"),
        ("sub", "not a regular file"),
        ("w.bin/w.bin", "Not a directory"),
        ("none.bin", "No such file"),
        ("", "not a file name"),
        (".", "relative path inside"),
        ("w.bin\0.txt", "not a file name"),
        ("..\\outside.bin", "not a file name"),
    ],
)
def test_other_places_are_refused(folder: Path, tmp_path: Path, location: str, reason: str) -> None:
    path = save(external(location.format(tmp=tmp_path)), folder)
    with pytest.raises(tierup.ModelError, match=reason) as caught:
        tierup.load(path)
    assert "'w'" in str(caught.value)  # it names the tensor


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"length": 9}, "has 8 bytes"),
        ({"offset": 1, "length": 8}, "has 8 bytes"),
        ({"offset": 9}, "has 8 bytes"),
        ({"offset": 2**63}, "has 8 bytes"),
        ({"length": 4}, "needs 8 bytes"),
        ({"offset": "-1"}, "not a number"),
        ({"length": "8x"}, "not a number"),
        ({"length": "٨"}, "not a number"),
        ({"length": "9" * 5000}, "not a number"),
    ],
)
def test_ranges_outside_the_file_are_refused(folder: Path, entries: dict[str, object], reason: str) -> None:
    path = save(external("w.bin", **entries), folder)
    with pytest.raises(tierup.ModelError, match=reason):
        tierup.load(path)


def test_bytes_have_no_folder(folder: Path) -> None:
    with pytest.raises(tierup.ModelError, match=r"path of the \.onnx file"):
        tierup.load(external("w.bin").SerializeToString())
    with pytest.raises(tierup.ModelError, match=r"path of the \.onnx file"):
        tierup.load(external("w.bin"))
