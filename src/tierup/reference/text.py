"""Ops on strings. Strings are Python str in object arrays; loops over them are loops over Python objects anyway."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from tierup.ir.graph import Node
from tierup.ir.types import Array
from tierup.reference import pattern


def strings(items: Iterable[str], shape: Sequence[int] = (-1,)) -> Array:
    """An object array of strings."""
    listed = list(items)
    result = np.empty(len(listed), object)
    result[:] = listed
    return result.reshape(shape if listed or -1 not in shape else (0,))


def regex(node: Node, x: Array) -> Array:
    """Matched by an automaton in time linear in the text: a model's pattern must not be able to hang a call."""
    matches = pattern.compile_pattern(node.attrs["pattern"])
    return np.array([matches(str(text)) for text in x.reshape(-1)], bool).reshape(x.shape)


def concat(node: Node, a: Array, b: Array) -> Array:
    a, b = np.broadcast_arrays(a, b)
    return strings((f"{left}{right}" for left, right in zip(a.reshape(-1), b.reshape(-1), strict=True)), a.shape)


_CASES: dict[str, Callable[[str], str]] = {"LOWER": str.lower, "UPPER": str.upper, "NONE": str}


def normalize(node: Node, x: Array) -> Array:
    """`locale` is not looked at: Python's case mapping is Unicode's, the same everywhere."""
    key = str if node.attrs.get("is_case_sensitive", 0) else str.lower
    stop = {key(word) for word in node.attrs.get("stopwords", ())}
    change = _CASES[node.attrs.get("case_change_action", "NONE")]
    kept = [change(text) for text in map(str, x.reshape(-1)) if key(text) not in stop]
    result = strings(kept or [""])
    return result[None, :] if x.ndim == 2 else result


def split(node: Node, x: Array) -> tuple[Array, Array]:
    most = node.attrs.get("maxsplit")
    pieces = [
        str(text).split(node.attrs.get("delimiter") or None, -1 if most is None else most) for text in x.reshape(-1)
    ]
    counts = np.array([len(row) for row in pieces], np.int64)
    width = int(counts.max(initial=0))
    padded = [piece for row in pieces for piece in (*row, *[""] * (width - len(row)))]
    return strings(padded, (*x.shape, width)), counts.reshape(x.shape)


def tf_idf(node: Node, x: Array) -> Array:
    attrs = node.attrs
    grams = _pool(
        attrs.get("pool_int64s") or attrs.get("pool_strings") or (), attrs["ngram_counts"], attrs["ngram_indexes"]
    )
    weights = attrs.get("weights") or (1.0,) * len(attrs["ngram_indexes"])
    rows = x.reshape(-1, x.shape[-1]) if x.ndim == 2 else x.reshape(1, -1)
    result = np.zeros((len(rows), max(attrs["ngram_indexes"]) + 1), np.float32)
    for row, items in zip(result, rows.tolist(), strict=True):
        counts: defaultdict[int, int] = defaultdict(int)
        for gram in _grams(items, attrs["min_gram_length"], attrs["max_gram_length"], attrs["max_skip_count"]):
            if gram in grams:
                counts[grams[gram]] += 1
        for which, count in counts.items():
            amount = {"TF": count, "IDF": weights[which], "TFIDF": count * weights[which]}[attrs["mode"]]
            row[attrs["ngram_indexes"][which]] += amount
    return result if x.ndim == 2 else result[0]


def _pool(pool: Sequence[Any], starts: Sequence[int], columns: Sequence[int]) -> dict[tuple[Any, ...], int]:
    """The number of each n-gram: `starts[n - 1]` is where the n-grams of length n begin in the pool."""
    numbers: dict[tuple[Any, ...], int] = {}
    borders = [*starts, len(pool)]
    for size, (begin, end) in enumerate(pairwise(borders), start=1):
        if not 0 <= begin <= end <= len(pool) or (end - begin) % size:
            raise ValueError(f"ngram_counts {list(starts)} do not divide a pool of {len(pool)} items")
        for at in range(begin, end, size):
            numbers[tuple(pool[at : at + size])] = len(numbers)
    if len(numbers) != len(columns):
        raise ValueError(f"the pool has {len(numbers)} different n-grams, but ngram_indexes has {len(columns)} entries")
    return numbers


def _grams(items: list[Any], least: int, most: int, skips: int) -> Iterable[tuple[Any, ...]]:
    """Every n-gram in `items`, its members up to `skips` items apart; single items once."""
    for size in range(max(least, 1), min(most, len(items)) + 1):
        for stride in range(1, 2 if size == 1 else min(skips, len(items)) + 2):
            span = (size - 1) * stride + 1
            yield from (tuple(items[at : at + span : stride]) for at in range(len(items) - span + 1))
