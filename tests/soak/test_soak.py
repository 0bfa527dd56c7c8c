"""Two minutes of mixed traffic; `make soak` is an hour of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SECONDS = 120


def test_two_minutes_of_mixed_traffic(tmp_path: Path) -> None:
    record = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak", str(SECONDS), str(record)],
        capture_output=True,
        text=True,
        check=False,
        timeout=3 * SECONDS,
    )
    assert record.exists(), done.stderr
    figures = json.loads(record.read_text(encoding="utf-8"))
    assert figures["findings"] == []
    assert done.returncode == 0
    assert figures["answers"] > 1000  # it did run
    assert figures["turned_away"] > 0
    assert any(model["swaps"] for model in figures["models"].values())
