"""Records without measuring."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tierup.bench.answers import Agreement
from tierup.bench.contenders import TABLE
from tierup.bench.record import Entry, Record, best_peer, figures, measured


def entry(name: str, medians_us: Sequence[float], agrees: bool = True) -> Entry:
    rounds = [np.full(4, us * 1000, np.int64) for us in medians_us]
    found = figures(rounds, "median", "1.0", {"threads": 2}, [])
    found.answers = Agreement("onnxruntime", agrees, 0.0 if agrees else 1.0, 0.0)
    return measured(TABLE[name], found)


def record(*entries: Entry) -> Record:
    ratio, why = best_peer(entries)
    return Record(
        kind="rounds",
        model="m.onnx",
        inputs={"x": "float32[1]"},
        machine="a <machine> & more",
        threads=2,
        python="3.11",
        date="2026-01-01T00:00:00+00:00",
        rounds=3,
        seconds=0.5,
        entries=list(entries),
        ratio=ratio,
        why_no_ratio=why,
        others_share=0.0,
    )
