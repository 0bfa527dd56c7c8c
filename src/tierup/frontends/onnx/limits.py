"""Bounds on what a model file may ask for. Generous for real models, tight enough that a hostile one ends soon."""

from __future__ import annotations

import os

MAX_IMPORTED_NODES = 200_000  # functions inlined and loop bodies retyped count each time; large exports have 50,000
MAX_GRAPH_DEPTH = 32  # graphs inside graphs; protobuf's own limit of 100 messages allows about as many
MAX_RANK = 64  # NumPy's limit
MAX_NAME_CHARS = 65_536  # bytes of one value, node or dim name


def max_tensor_bytes() -> int:
    """No single tensor may be larger than this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
