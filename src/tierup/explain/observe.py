"""A model from its first answer on, in caches of its own: how long calls take while it gets better."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from tierup.config import Config
from tierup.explain.page import Observed
from tierup.session import load

_SETTLED_CALLS = 200
_LEAST_S = 1.0  # of calls after it has settled, or as many calls as above
_MOST_CALLS = 200_000


def observe(path: Path, values: dict[str, Any], timeout_s: float = 30.0) -> Observed:
    """Call the model until it has settled, and a little longer."""
    # What is still being built when the model is closed may write there once more.
    with tempfile.TemporaryDirectory(prefix="tierup-observe-", ignore_cleanup_errors=True) as folder:
        config = Config(cache_dir=Path(folder) / "cache", data_dir=Path(folder) / "data", adapt=True)
        calls: list[tuple[float, float]] = []
        began_s, began = time.time(), time.perf_counter()
        with load(path, config=config) as model:
            settled_s, after = None, 0
            while len(calls) < _MOST_CALLS:
                start = time.perf_counter()
                model.run(values)
                end = time.perf_counter()
                calls.append((end - began, 1000 * (end - start)))
                after += settled_s is not None
                if settled_s is None and model.settled:
                    settled_s = end
                if end - began > timeout_s:
                    break
                if settled_s is not None and after >= _SETTLED_CALLS and end - settled_s > _LEAST_S and model.settled:
                    break
            return Observed(tuple(calls), model.events.all(), began_s, model.settled)
