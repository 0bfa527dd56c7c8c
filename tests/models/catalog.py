"""The real models that tests and benchmarks use: where they are, and what to feed them."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent.parent / ".models"
NAMES = tuple(entry["name"] for entry in json.loads((HERE / "models.json").read_text())["models"])


def model_path(name: str) -> Path:
    """The model's file, fetched first where it is missing. Files are kept between runs."""
    path = FOLDER / f"{name}.onnx"
    if not path.exists():
        FOLDER.mkdir(exist_ok=True)
        with (FOLDER / ".lock").open("w") as lock:  # tests run in several processes
            fcntl.flock(lock, fcntl.LOCK_EX)
            command = [sys.executable, str(HERE / "fetch_models.py"), "--out", str(FOLDER), "--only", name]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return path


def model_inputs(name: str) -> dict[str, Any]:
    """The realistic input kept beside this file."""
    return dict(np.load(HERE / "inputs" / f"{name}.npz", allow_pickle=False))
