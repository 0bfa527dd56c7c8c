"""One contender in a process of its own; prints one line of JSON.

python -m benchmarks.worker CONTENDER MODEL INPUTS
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

Call = Callable[[], Any]


def open_tierup(path: str, feeds: dict[str, Any]) -> Call:
    import tierup

    model = tierup.load(path)
    return lambda: model.run(feeds)


def open_tierup_keywords(path: str, feeds: dict[str, Any]) -> Call:
    import tierup

    model = tierup.load(path)
    return lambda: model(**feeds)


def open_tierup_session(path: str, feeds: dict[str, Any]) -> Call:
    import tierup

    session = tierup.InferenceSession(path)
    return lambda: session.run(None, feeds)


def open_onnxruntime(path: str, feeds: dict[str, Any]) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feeds)


CONTENDERS: dict[str, Callable[[str, dict[str, Any]], Call]] = {
    "tierup": open_tierup,
    "tierup keywords": open_tierup_keywords,
    "tierup session": open_tierup_session,
    "onnxruntime": open_onnxruntime,
}


def median_call_s(call: Call) -> float:
    """Seconds of one call: the median over 30 batches of some 20 ms, after half a second of warming up."""
    started, calls = time.perf_counter(), 0
    while time.perf_counter() - started < 0.5:
        call()
        calls += 1
    size = max(1, calls // 25)
    batches = []
    for _ in range(30):
        started = time.perf_counter()
        for _ in range(size):
            call()
        batches.append((time.perf_counter() - started) / size)
    return median(batches)


def main() -> None:
    contender, path, inputs = sys.argv[1:]
    import numpy as np

    feeds = dict(np.load(inputs, allow_pickle=False))
    print(json.dumps({"call_s": median_call_s(CONTENDERS[contender](path, feeds))}))


if __name__ == "__main__":
    main()
