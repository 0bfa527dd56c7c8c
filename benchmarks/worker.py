"""One contender, one task, in a process of its own; prints one line of JSON.

python -m benchmarks.worker CONTENDER load MODEL INPUTS
python -m benchmarks.worker CONTENDER calls MODEL INPUTS
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


def open_tierup_compiled(path: str, feeds: dict[str, Any]) -> Call:
    import tierup

    model = tierup.load(path, config=tierup.Config(force_tier=1))
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


CONTENDERS: dict[str, tuple[str, Callable[[str, dict[str, Any]], Call]]] = {
    "tierup": ("tierup.session", open_tierup),
    "tierup compiled": ("tierup.session", open_tierup_compiled),
    "tierup keywords": ("tierup.session", open_tierup_keywords),
    "tierup session": ("tierup.session", open_tierup_session),
    "onnxruntime": ("onnxruntime", open_onnxruntime),
}


def load_task(module: str, opener: Callable[[str, dict[str, Any]], Call], path: str, feeds: dict[str, Any]) -> Any:
    """Seconds to import the library, to load the model, and to the first answer after that."""
    started = time.perf_counter()
    __import__(module)
    imported = time.perf_counter()
    call = opener(path, feeds)
    loaded = time.perf_counter()
    call()
    return {"import_s": imported - started, "load_s": loaded - imported, "answer_s": time.perf_counter() - loaded}


def calls_task(module: str, opener: Callable[[str, dict[str, Any]], Call], path: str, feeds: dict[str, Any]) -> Any:
    """Seconds of one call: the median over 30 batches of some 20 ms, after half a second of warming up."""
    call = opener(path, feeds)
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
    return {"call_s": median(batches)}


def main() -> None:
    contender, task, path, inputs = sys.argv[1:]
    import numpy as np

    feeds = dict(np.load(inputs, allow_pickle=False))
    module, opener = CONTENDERS[contender]
    result = {"load": load_task, "calls": calls_task}[task](module, opener, path, feeds)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
