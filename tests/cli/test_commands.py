"""The command line, as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.security.models import model, node, value

RUN = [sys.executable, "-c", "from tierup.cli import main; main()"]


def tierup(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*RUN, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "m.onnx"
    proto = model([node("Softmax", ["x"], ["y"])], [value("x", ["batch", 4])], [value("y", ["batch", 4])])
    file.write_bytes(proto.SerializeToString())
    return file


def test_run_makes_inputs_up(path: Path, tmp_path: Path) -> None:
    done = tierup("run", path, "--calls", "3", "--json", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    assert "made up" in done.stdout
    assert "float32[1, 4]" in done.stdout
    assert "first answer" in done.stdout
    record = json.loads((tmp_path / "out.json").read_text())
    assert record["timings"]["calls"] == 3
    assert record["report"]["counters"]["calls"] == 3


def test_run_takes_files_and_shapes(path: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 4), np.float32))
    np.savez(tmp_path / "all.npz", x=np.zeros((3, 4), np.float32))
    assert "float32[2, 4]" in tierup("run", path, "--input", f"x={tmp_path}/x.npy").stdout
    assert "float32[2, 4]" in tierup("run", path, "--input", f"{tmp_path}/x.npy").stdout
    assert "float32[3, 4]" in tierup("run", path, "--input", f"{tmp_path}/all.npz").stdout
    assert "float32[5, 4]" in tierup("run", path, "--shape", "x=5,4").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shape", "x=5,3"], "axis 1 is 3 instead of 4"),
        (["--shape", "z=1"], "there is no input 'z'"),
        (["--shape", "x=a"], "is no shape"),
        (["--input", "x=none.npy"], "cannot be read"),
    ],
)
def test_run_says_what_is_wrong(path: Path, arguments: list[str], message: str) -> None:
    done = tierup("run", path, *arguments)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_is_no_model_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "x.onnx").write_bytes(b"nonsense")
    done = tierup("run", tmp_path / "x.onnx")
    assert done.returncode == 1
    assert done.stderr.startswith("tierup: ")
    assert done.stderr.count("\n") == 1


def test_pickles_are_not_read(path: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{}], object), allow_pickle=True)
    done = tierup("run", path, "--input", f"x={tmp_path}/x.npy")
    assert done.returncode == 1
    assert "cannot be read" in done.stderr


def test_inspect_shows_signature_and_ops(path: Path, tmp_path: Path) -> None:
    done = tierup("inspect", path, "--json", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    assert "[batch, 4]" in done.stdout
    assert "1 onnx.Softmax" in done.stdout
    record = json.loads((tmp_path / "out.json").read_text())
    assert record["ops"] == {"onnx.Softmax": 1}
    assert record["lowering"]["core_ops"]["core.exp"] == 1
    assert record["lowering"]["whole"] == []


def test_inspect_prints_the_graph(path: Path) -> None:
    assert "onnx.Softmax@13" in tierup("inspect", path, "--graph").stdout


def test_help_shows_examples() -> None:
    for command in ("run", "inspect", "doctor"):
        done = tierup(command, "--help")
        assert done.returncode == 0
        assert f"tierup {command}" in done.stdout
        assert "Example" in done.stdout
