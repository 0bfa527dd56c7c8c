"""Tree ensembles as lookups: all trees of all rows go down one level at a step, as often as the deepest tree is high.

Nodes are numbered anew, level by level, so that the two children of a node are neighbours. A step is then three
lookups: the node's *word* (its first child, the feature that it looks at, flags), its threshold, and the feature;
a comparison; and the first child plus its result. Every test is `x <= threshold`: others are turned into that by
swapping children and by the next smaller threshold. Leaves lead to themselves, since no number is at most NaN. Trees
stand in blocks of neighbours of about equal height, so that a block's nodes stay in cache while rows pass.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from tierup.ir.graph import Node, ValueId
from tierup.ir.types import Array, DType
from tierup.reference.scores import class_labels
from tierup.reference.trees import (
    AGGREGATES,
    TRANSFORMS,
    Forest,
    classifier_forest,
    ensemble_forest,
    floats,
    regressor_forest,
)
from tierup.rewrite.decompose.core import Core, Declined, Decomposition
from tierup.rewrite.decompose.scores import pair, pick, transform

_BLOCK = 32  # trees that go down together: their nodes stay in cache while rows pass
_MOST_LEVELS = 64  # every level is written out; deeper trees are rare, and walked better one by one
_STAGE = 4  # levels after which blocks that have ended are left behind
_LEQ, _LT, _GTE, _GT, _EQ, _NEQ = range(6)  # the codes of tests in a Forest


class _Nodes(Struct, frozen=True):
    """Nodes in their new order. `first` is the false child, its neighbour the true one; a leaf is its own child.

    `equal` marks nodes that test for equality, `missing` those at which NaN goes to the true child.
    """

    first: Array
    feature: Array
    split: Array
    equal: Array
    missing: Array
    leaf: Array  # the position among the leaves of the forest; -1 for inner nodes
    roots: Array  # [blocks, trees of a block], the lowest trees first
    heights: Array  # of the highest tree in each block


def _renumbered(trees: Forest) -> _Nodes:
    """The nodes of all trees: block by block, and in a block level by level. Declines where trees share nodes."""
    order, heights = _heights(trees)
    block = _BLOCK if len(order) >= _BLOCK // 2 else len(order)
    blank = -len(order) % block  # trees of one leaf at which nobody votes fill the blocks, first as the lowest
    nobody = trees.inner + len(trees.votes) - 1
    # the last one is no tree: a node behind all others, so that each has a neighbour
    roots = np.concatenate([np.full(blank, nobody), trees.roots[order], [nobody]])
    split, swapped = _thresholds(trees)
    old, first, owner = _levels(trees, np.where(swapped[:, None], trees.children[:, ::-1], trees.children), roots)
    by_block = np.argsort(owner // block, kind="stable")  # children stay neighbours
    place = np.empty_like(by_block)
    place[by_block] = np.arange(len(by_block))
    old, inner = old[by_block], old[by_block] < trees.inner
    missing = np.where(swapped, ~trees.missing_true, trees.missing_true)
    missing &= trees.mode != _NEQ  # NaN is not equal to anything: its own result, swapped, is false

    def of(values: Array, leaf: float) -> Array:
        result = np.full(len(old), leaf, values.dtype)
        result[inner] = values[old[inner]]
        return result

    return _Nodes(
        first=place[first[by_block]],
        feature=of(trees.feature, 0),
        split=of(split, np.nan),
        equal=of((trees.mode == _EQ) | (trees.mode == _NEQ), False),
        missing=of(missing, False),
        leaf=np.where(inner, -1, old - trees.inner),
        roots=place[: len(roots) - 1].reshape(-1, block),
        heights=np.concatenate([np.zeros(blank, np.int64), heights]).reshape(-1, block).max(axis=1),
    )


def _levels(trees: Forest, pairs: Array, roots: Array) -> tuple[Array, Array, Array]:
    """Nodes level by level: which they were, the first child of each (of a leaf itself), and of which root they are."""
    level, owner = roots, np.arange(len(roots))
    levels, firsts, owners, before = list[Array](), list[Array](), list[Array](), 0
    every = trees.inner + len(trees.votes) + len(roots)
    while len(level):
        inner, behind = level < trees.inner, before + len(level)
        if behind > every:
            raise Declined("trees share nodes")
        levels.append(level)
        owners.append(owner)
        firsts.append(np.where(inner, behind + 2 * (np.cumsum(inner) - 1), before + np.arange(len(level))))
        level, owner, before = pairs[level[inner]].reshape(-1), np.repeat(owner[inner], 2), behind
    return np.concatenate(levels), np.concatenate(firsts), np.concatenate(owners)


def _heights(trees: Forest) -> tuple[Array, Array]:
    """The trees by height, the lowest first, and their heights in that order."""
    heights, at = np.zeros(len(trees.roots), np.int64), [(i, root) for i, root in enumerate(trees.roots.tolist())]
    for height in range(_MOST_LEVELS + 1):
        below = [(i, child) for i, node in at if node < trees.inner for child in trees.children[node].tolist()]
        heights[list({i for i, _ in at})] = height
        if len(below) > 2 * trees.inner:
            raise Declined("trees share nodes")
        if not below:
            order = np.argsort(heights, kind="stable")
            return order, heights[order]
        at = below
    raise Declined(f"a tree is more than {_MOST_LEVELS} levels high")


def _thresholds(trees: Forest) -> tuple[Array, Array]:
    """Thresholds for `x <= threshold`, and at which nodes the children have to be swapped for it."""
    split, mode = trees.split, trees.mode
    if (mode > _NEQ).any():
        raise Declined("a node tests for one of many members")
    swapped = ((mode == _GTE) | (mode == _GT)) & ~np.isnan(split) | (mode == _NEQ)
    less = np.isin(mode, (_LT, _GTE))
    before = np.nextafter(split, np.asarray(-np.inf, split.dtype))
    return np.where(less, np.where(np.isneginf(split), np.nan, before), split).astype(split.dtype), swapped


class _Walk:
    """Writes the way of every row down every tree."""

    def __init__(self, b: Core, nodes: _Nodes, x: ValueId) -> None:
        self._b = b
        wide = nodes.split.dtype == np.float64 or b.dtype(x) is DType.F64
        self._x = b.cast(x, DType.F64 if wide else DType.F32)
        self._splits = b.weight(nodes.split.astype(np.float64 if wide else np.float32))
        self._feature_bits = max(int(nodes.feature.max(initial=0)), 1).bit_length()
        flags = [flag for flag in (nodes.equal, nodes.missing) if flag.any()]
        self._equal, self._missing = (
            next((self._feature_bits + i for i, flag in enumerate(flags) if flag is wanted), None)
            for wanted in (nodes.equal, nodes.missing)
        )
        self._shift = self._feature_bits + len(flags)
        words = nodes.feature | (nodes.first << self._shift)
        for i, flag in enumerate(flags):
            words |= flag.astype(np.int64) << (self._feature_bits + i)
        fits = int(words.max(initial=0)) < 1 << 31
        self._dtype = DType.I32 if fits else DType.I64
        self._words = b.weight(words.astype(self._dtype.numpy))

        self._roots = b.weight(nodes.roots.astype(self._dtype.numpy)[:, None, :])

    def start(self) -> ValueId:
        """The roots: (blocks, rows, trees of a block)."""
        blocks, _, block = self._b.shape(self._roots)
        return self._b.broadcast(self._roots, (blocks, self._b.shape(self._x)[0], block))

    def step(self, at: ValueId) -> ValueId:
        b = self._b
        word, split = b.gather(self._words, at, 0), b.gather(self._splits, at, 0)
        feature = b.op("and", word, b.like((1 << self._feature_bits) - 1, word))
        rows, columns = b.shape(self._x)
        value = b.op("gather_elements", b.broadcast(self._x, (b.shape(at)[0], rows, columns)), feature, axis=2)
        down = b.le(value, split)
        if self._equal is not None:
            down = b.both(down, b.either(b.eq(value, split), b.inverse(self._flag(word, self._equal))))
        if self._missing is not None:
            down = b.either(down, b.both(self._flag(word, self._missing), b.inverse(b.eq(value, value))))
        return b.add(b.op("shr", word, b.like(self._shift, word)), b.cast(down, self._dtype))

    def _flag(self, word: ValueId, bit: int) -> ValueId:
        b = self._b
        return b.eq(b.op("and", word, b.like(1 << bit, word)), b.like(1 << bit, word))


def _votes(b: Core, trees: Forest, x: ValueId, targets: list[int], how: str) -> ValueId:
    """The votes of all trees for some targets, put together in f64: (rows, targets)."""
    if not len(trees.roots) or (trees.targets.size and max(trees.targets) > max(targets)):
        raise Declined("the trees and their votes do not fit together")
    columns = b.shape(x)[1]
    if isinstance(columns, int) and trees.inner and not 0 <= trees.feature.min() <= trees.feature.max() < columns:
        raise Declined(f"the trees look at feature {trees.feature.max()}, but the input has {columns}")
    nodes = _renumbered(trees)
    table, name = _table(trees, nodes, targets, how), {"MIN": "min", "MAX": "max"}.get(how, "sum")
    walk, leaves, heights = _Walk(b, nodes, x), b.weight(table), nodes.heights
    ends = sorted({min(-(-int(height) // _STAGE) * _STAGE, int(heights[-1])) for height in heights})
    at, total, level, done = walk.start(), None, 0, 0
    for end in ends:
        for _ in range(end - level):
            at = walk.step(at)
        ended = int(np.searchsorted(heights, end, side="right"))
        voted = _gathered(b, leaves, b.part(at, 0, 0, ended - done), name, len(targets))
        total = voted if total is None else b.op({"sum": "add"}.get(name, name), total, voted)
        at = b.part(at, 0, ended - done, len(heights) - done)
        level, done = end, ended
    assert total is not None
    if how == "AVERAGE":
        total = b.div(total, b.like(len(trees.roots), total))
    if name != "sum":
        total = b.select(b.eq(b.abs(total), b.like(np.inf, total)), b.like(0, total), total)  # nobody voted
    return total


def _gathered(b: Core, leaves: ValueId, at: ValueId, name: str, targets: int) -> ValueId:
    """What the leaves `at` hold, over the trees of each block and then over blocks."""
    votes = b.cast(b.gather(leaves, at, 0), DType.F64)
    within = b.reduce(name, votes, (2,), keepdims=False)
    joint = b.reduce(name, within, (0,), keepdims=False)
    return joint if targets > 1 else b.reshape(joint, (b.shape(at)[1], 1))


def _table(trees: Forest, nodes: _Nodes, targets: list[int], how: str) -> Array:
    """For each node its votes for the targets, those of one leaf put together; for one target a vector."""
    combine, nothing = {"MIN": (np.minimum, np.inf), "MAX": (np.maximum, -np.inf)}.get(how, (np.add, 0.0))
    if how in ("MIN", "MAX") and not np.isfinite(trees.weights).all():
        raise Declined("a vote is not finite")
    leaves = np.full((len(trees.votes), len(targets)), nothing)  # the last one stands for all that nobody votes at
    leaf = np.repeat(np.arange(len(trees.votes) - 1), np.diff(trees.votes))
    for column, target in enumerate(targets):
        own = trees.targets == target
        combine.at(leaves[:, column], leaf[own], trees.weights[own].astype(np.float64))
    table = leaves[nodes.leaf]
    narrow = table.astype(np.float32)
    table = narrow if np.array_equal(narrow, table) else table
    return table[:, 0] if len(targets) == 1 else table


def _rows(b: Core, n: Node) -> ValueId:
    x = b.input(n)
    rows = x if b.rank(x) == 2 else b.reshape(x, (1, b.dims.product(b.shape(x))))
    return rows if b.dtype(x).is_float else b.cast(rows, DType.F32)


def _made(make: object, node: Node) -> Forest:
    try:
        return make(node)  # type: ignore[operator,no-any-return]  # one of the three makers of forests
    except (ValueError, KeyError, IndexError) as error:
        raise Declined(f"the trees are not right: {error}") from error


def _ensemble(b: Core, n: Node) -> ValueId:
    """The votes of all trees, then the post transform"""
    x, how, after = _rows(b, n), AGGREGATES[n.attrs["aggregate_function"]], TRANSFORMS[n.attrs["post_transform"]]
    votes = _votes(b, _made(ensemble_forest, n), x, list(range(n.attrs.get("n_targets", 1))), how)
    return b.cast(transform(b, after, votes), b.dtype(b.input(n)))


def _regressor(b: Core, n: Node) -> ValueId:
    """The votes of all trees and the base values, then the post transform"""
    attrs, base = n.attrs, floats(n.attrs, "base_values")
    trees, targets = _made(regressor_forest, n), list(range(attrs.get("n_targets", 1)))
    votes = _votes(b, trees, _rows(b, n), targets, attrs["aggregate_function"])
    votes = b.add(votes, b.weight(base.astype(np.float64))) if base.size else votes
    return b.cast(transform(b, attrs["post_transform"], votes), DType.F32)


def _classifier(b: Core, n: Node) -> tuple[ValueId, ValueId]:
    """Labels and scores. Two classes of which one is voted for, and a single class, go by the size of one score."""
    attrs, labels, trees = n.attrs, tuple(class_labels(n.attrs)), _made(classifier_forest, n)
    base, after, x = floats(attrs, "base_values").astype(np.float64), attrs["post_transform"], _rows(b, n)
    voted_for = np.unique(trees.targets)
    if len(labels) == 2 and len(voted_for) == 1:
        score = _votes(b, trees, x, [int(voted_for[0])], "SUM")
        score = b.add(score, b.like(base[-1], score)) if base.size else score
        positive = bool((trees.weights >= 0).all())
        chosen = b.lt(b.like(0.5 if positive else 0, score), score)
        if voted_for[0] == 0:
            scores = pair(b, after, score, positive)
        else:
            scores = transform(b, after, b.concat([b.broadcast(b.like(0, score), b.shape(score)), score], 1))
    else:
        scores = _votes(b, trees, x, list(range(max(len(labels), 1))), "SUM")
        if base.size:
            kept = base[:1] if len(labels) < 2 else base
            scores = b.add(scores, b.weight(np.pad(kept, (0, max(len(labels), 1) - len(kept)))))
        chosen = b.lt(b.like(0, scores), scores)
        if len(labels) > 1:
            chosen = b.op("argmax", scores, axis=1, keepdims=1, last=0)
        scores = transform(b, after, scores)
    which = b.reshape(chosen, b.shape(chosen)[:1])
    return pick(b, (0, 1) if len(labels) < 2 else labels, which), b.cast(scores, DType.F32)


TREES: dict[str, Decomposition] = {
    "ml.TreeEnsemble": _ensemble,
    "ml.TreeEnsembleClassifier": _classifier,
    "ml.TreeEnsembleRegressor": _regressor,
}
