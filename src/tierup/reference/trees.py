"""Tree ensembles: all rows go down all trees at once, one level at a step.

Both encodings, ONNX's first one (nodes and leaves in one list, with ids) and the one of TreeEnsemble (positions, leaves
apart), become one `Forest`. A forest is checked when it is made: every child exists and no path comes back, so a
hostile one ends in an error.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tierup.ir.graph import Attrs, Const, Node
from tierup.ir.types import Array
from tierup.reference.prepared import Prepared
from tierup.reference.scores import class_labels, pair, pick, transform

_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
_COMPARE = (np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal)
_MEMBER = 6
_BLOCK = 1 << 20  # votes under way at once: bounds the temporaries, not the result


class Forest(Struct, frozen=True):
    """Inner nodes come first, then leaves. Leaf i has the votes `votes[i]` to `votes[i + 1]` of targets and weights."""

    roots: Array
    feature: Array
    split: Array
    mode: Array
    missing_true: Array
    children: Array  # [inner nodes, 2]: the false one, the true one
    votes: Array
    targets: Array
    weights: Array
    members: Array  # sorted values of all sets
    member_keys: Array  # node * len(members) + rank of a member, sorted
    depth: int

    @property
    def inner(self) -> int:
        return len(self.feature)


def forest(
    roots: Sequence[int],
    feature: Sequence[int],
    split: Array,
    mode: Array,
    missing_true: Sequence[int],
    children: Array,
    leaves: tuple[Array, Array, Array],
    sets: Sequence[tuple[int, Array]] = (),
) -> Forest:
    """A checked forest. `leaves` are leaf, target and weight of each vote; `sets` the members that nodes test for."""
    leaf, targets, weights = leaves
    inner, count = len(feature), int(leaf.max(initial=-1)) + 1
    count = max(count, int(children.max(initial=-1)) + 1 - inner)
    if children.min(initial=0) < 0 or len(split) != inner or len(mode) != inner or len(children) != inner:
        raise ValueError("the nodes of the trees do not fit together")
    order = np.argsort(leaf, kind="stable")
    members = np.unique(np.concatenate([values for _, values in sets])) if sets else np.empty(0, split.dtype)
    keys = [node * len(members) + np.searchsorted(members, values) for node, values in sets]
    return Forest(
        roots=np.array(roots, np.int64),
        feature=np.array(feature, np.int64),
        split=split,
        mode=mode,
        missing_true=np.array(missing_true, bool) if len(missing_true) else np.zeros(inner, bool),
        children=children,
        votes=np.searchsorted(leaf[order], np.arange(count + 1)),
        targets=targets[order],
        weights=weights[order],
        members=members,
        member_keys=np.unique(np.concatenate(keys)) if keys else np.empty(0, np.int64),
        depth=_depth(children.tolist(), inner),
    )


def _depth(children: list[list[int]], inner: int) -> int:
    """The longest way down, by taking nodes away that nobody points to. Nodes that are never free form a circle."""
    parents = [0] * inner
    for both in children:
        for child in both:
            if child < inner:
                parents[child] += 1
    free = [node for node in range(inner) if not parents[node]]
    level, taken, depth = [0] * inner, 0, 0
    while free:
        node = free.pop()
        taken += 1
        depth = max(depth, level[node] + 1)
        for child in children[node]:
            if child < inner:
                level[child] = max(level[child], level[node] + 1)
                parents[child] -= 1
                if not parents[child]:
                    free.append(child)
    if taken < inner:
        raise ValueError("the nodes of a tree lead back to themselves")
    return depth


def leaves_of(trees: Forest, x: Array) -> Array:
    """For each row and tree, the leaf that it ends in."""
    at = np.broadcast_to(trees.roots, (len(x), len(trees.roots))).copy()
    if not trees.inner:
        return at
    if trees.feature.min() < 0 or trees.feature.max() >= x.shape[1]:
        raise ValueError(f"the trees look at feature {trees.feature.max()}, but the input has {x.shape[1]}")
    rows = np.broadcast_to(np.arange(len(x))[:, None], at.shape)
    for _ in range(trees.depth):
        going = at < trees.inner
        if not going.any():
            break
        nodes = at[going]
        values = x[rows[going], trees.feature[nodes]]
        at[going] = trees.children[nodes, _holds(trees, nodes, values).astype(np.intp)]
    return np.asarray(at - trees.inner)


def _holds(trees: Forest, nodes: Array, values: Array) -> Array:
    """Whether each value passes its node's test; NaN passes where the node says that missing values do."""
    result = np.zeros(len(nodes), bool)
    modes, splits = trees.mode[nodes], trees.split[nodes]
    for code in np.unique(modes):
        here = modes == code
        if code == _MEMBER:
            result[here] = _is_member(trees, nodes[here], values[here])
        else:
            result[here] = _COMPARE[code](values[here], splits[here])
    return result | (trees.missing_true[nodes] & np.isnan(values))


def _is_member(trees: Forest, nodes: Array, values: Array) -> Array:
    if not len(trees.members):
        return np.zeros(len(nodes), bool)
    rank = np.minimum(np.searchsorted(trees.members, values), len(trees.members) - 1)
    known = trees.members[rank] == values
    keys = nodes * len(trees.members) + rank
    return np.asarray(known & np.isin(keys, trees.member_keys))


def vote(trees: Forest, x: Array, n_targets: int, how: str) -> tuple[Array, Array]:
    """The votes of all trees for each row and target, put together, and whether there was any vote at all."""
    result = np.zeros((len(x), n_targets), np.float64)
    voted = np.zeros((len(x), n_targets), bool)
    if trees.targets.size and not 0 <= trees.targets.min() <= trees.targets.max() < n_targets:
        raise ValueError(f"a leaf votes for target {trees.targets.max()}, but there are {n_targets}")
    votes_each = int(np.diff(trees.votes).max(initial=1))
    step = max(1, _BLOCK // max(1, len(trees.roots) * votes_each))
    for begin in range(0, len(x), step):
        block = slice(begin, begin + step)
        result[block], voted[block] = _vote_block(trees, x[block], n_targets, how)
    if how == "AVERAGE":
        result /= max(1, len(trees.roots))
    return result, voted


def _vote_block(trees: Forest, x: Array, n_targets: int, how: str) -> tuple[Array, Array]:
    leaves = leaves_of(trees, x)
    begins, counts = trees.votes[leaves], trees.votes[leaves + 1] - trees.votes[leaves]
    total, shape = int(counts.sum()), (len(x), n_targets)
    row = np.repeat(np.arange(len(x)), counts.sum(axis=1))
    flat = counts.reshape(-1)
    which = np.repeat(begins.reshape(-1) - np.cumsum(flat) + flat, flat) + np.arange(total)
    place, weights = row * n_targets + trees.targets[which], trees.weights[which].astype(np.float64)
    voted = np.bincount(place, minlength=len(x) * n_targets)[: len(x) * n_targets].reshape(shape) > 0
    if how in ("SUM", "AVERAGE"):
        sums = np.bincount(place, weights, minlength=len(x) * n_targets)
        return sums.reshape(shape), voted
    best = np.full(len(x) * n_targets, np.inf if how == "MIN" else -np.inf)
    (np.minimum if how == "MIN" else np.maximum).at(best, place, weights)
    return np.where(voted, best.reshape(shape), 0), voted


def floats(attrs: Attrs, name: str) -> Array:
    """A list of floats, or the tensor that stands for it in f64."""
    tensor = attrs.get(f"{name}_as_tensor")
    if isinstance(tensor, Const):
        return tensor.array.reshape(-1)
    return np.array(attrs.get(name) or (), np.float32)


def _listed(attrs: Attrs, votes: str) -> Forest:
    """ONNX's first encoding: nodes with ids inside trees with ids; `votes` is "class" or "target"."""
    trees, ids, modes = (
        attrs.get("nodes_treeids") or (),
        attrs.get("nodes_nodeids") or (),
        attrs.get("nodes_modes") or (),
    )
    if not len(trees) == len(ids) == len(modes):
        raise ValueError("the nodes of the trees do not fit together")
    inner = [i for i, mode in enumerate(modes) if mode != "LEAF"]
    outer = [i for i, mode in enumerate(modes) if mode == "LEAF"]
    position = {(trees[i], ids[i]): k for k, i in enumerate([*inner, *outer])}
    lists = [attrs.get(f"nodes_{side}nodeids") or () for side in ("false", "true")]
    children = [[position[trees[i], side[i]] for side in lists] for i in inner]
    referred = {child for pair in children for child in pair}
    roots: dict[int, int] = {}
    for i in range(len(trees)):
        if position[trees[i], ids[i]] not in referred:
            roots.setdefault(trees[i], position[trees[i], ids[i]])
    if len(roots) < len(set(trees)):
        raise ValueError("a tree has no root: its nodes lead back to themselves")
    leaf_ids = zip(attrs.get(f"{votes}_treeids") or (), attrs.get(f"{votes}_nodeids") or (), strict=True)
    places = np.array([position[key] - len(inner) for key in leaf_ids], np.int64)
    kept = places >= 0  # a vote of an inner node is never reached
    targets, weights = np.array(attrs.get(f"{votes}_ids") or (), np.int64), floats(attrs, f"{votes}_weights")
    missing = attrs.get("nodes_missing_value_tracks_true") or ()
    codes = {mode: code for code, mode in enumerate(_MODES[:_MEMBER])}
    made = forest(
        list(roots.values()),
        [attrs["nodes_featureids"][i] for i in inner],
        floats(attrs, "nodes_values")[inner],
        np.array([codes[modes[i]] for i in inner], np.int64),
        [missing[i] for i in inner] if missing else (),
        np.array(children, np.int64).reshape(-1, 2),
        (places[kept], targets[kept], weights[kept]),
    )
    return made if len(made.votes) > len(outer) else _with_leaves(made, len(outer))


def _with_leaves(trees: Forest, count: int) -> Forest:
    """Leaves after the last one that votes have no votes."""
    votes = np.concatenate([trees.votes, np.full(count + 1 - len(trees.votes), trees.votes[-1])])
    return replace(trees, votes=votes)


def _positioned(attrs: Attrs) -> Forest:
    """The encoding of TreeEnsemble: children by position among nodes or among leaves."""
    mode = attrs["nodes_modes"].array.astype(np.int64)
    inner, weights = len(mode), attrs["leaf_weights"].array
    columns = [
        np.array(attrs[f"nodes_{side}nodeids"], np.int64) + inner * np.array(attrs[f"nodes_{side}leafs"], np.int64)
        for side in ("false", "true")
    ]
    children = np.stack(columns, axis=1)
    leafs = np.stack([np.array(attrs[f"nodes_{side}leafs"], bool) for side in ("false", "true")], axis=1)
    if (
        ((children >= inner) != leafs).any()
        or children.max(initial=0) >= inner + len(weights)
        or mode.max(initial=0) > _MEMBER
    ):
        raise ValueError("the nodes of the trees do not fit together")
    roots = attrs["tree_roots"]
    if min(roots, default=0) < 0 or max(roots, default=0) >= inner:
        raise ValueError(f"tree_roots {list(roots)} are outside {inner} nodes")
    targets = np.array(attrs["leaf_targetids"], np.int64)
    return forest(
        roots,
        attrs["nodes_featureids"],
        attrs["nodes_splits"].array,
        mode,
        attrs.get("nodes_missing_value_tracks_true") or (),
        children,
        (np.arange(len(weights)), targets, weights),
        _sets(np.flatnonzero(mode == _MEMBER), attrs.get("membership_values")),
    )


def _sets(nodes: Array, values: Const | None) -> list[tuple[int, Array]]:
    """The members of each testing node: the values between NaNs, in the order of the nodes."""
    if not len(nodes):
        return []
    if values is None:
        raise ValueError("nodes test for members, but there are no membership_values")
    flat = values.array.reshape(-1)
    pieces = np.split(flat, np.flatnonzero(np.isnan(flat)))
    sets = [piece[~np.isnan(piece)] for piece in pieces]
    if len(sets) < len(nodes):
        raise ValueError(f"{len(nodes)} nodes test for members, but there are {len(sets)} sets of them")
    return list(zip(nodes.tolist(), sets, strict=False))


_CLASSIFIERS = Prepared(lambda node: _listed(node.attrs, "class"))
_REGRESSORS = Prepared(lambda node: _listed(node.attrs, "target"))
_ENSEMBLES = Prepared(lambda node: _positioned(node.attrs))
classifier_forest, regressor_forest, ensemble_forest = _CLASSIFIERS.of, _REGRESSORS.of, _ENSEMBLES.of
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def _rows(x: Array) -> Array:
    x = x if x.ndim == 2 else x.reshape(1, -1)
    return x if x.dtype.kind == "f" else x.astype(np.float32)


def ensemble(node: Node, x: Array) -> Array:
    attrs = node.attrs
    how, after = AGGREGATES[attrs["aggregate_function"]], TRANSFORMS[attrs["post_transform"]]
    result, _ = vote(ensemble_forest(node), _rows(x), attrs.get("n_targets", 1), how)
    return transform(after, result).astype(x.dtype)


def regressor(node: Node, x: Array) -> Array:
    attrs = node.attrs
    rows = _rows(x)
    result, _ = vote(regressor_forest(node), rows, attrs.get("n_targets", 1), attrs["aggregate_function"])
    base = floats(attrs, "base_values")
    result = result + base if base.size else result
    return _f32(transform(attrs["post_transform"], result))


def classifier(node: Node, x: Array) -> tuple[Array, Array]:
    """Labels and scores. Two classes of which one is voted for, and a single class, go by the size of one score."""
    attrs, labels = node.attrs, class_labels(node.attrs)
    trees, base, after = classifier_forest(node), floats(attrs, "base_values"), attrs["post_transform"]
    scores, _ = vote(trees, _rows(x), max(len(labels), 1), "SUM")
    voted_for = np.unique(trees.targets)
    if len(labels) < 2:
        scores = scores + base[:1] if base.size else scores
        which = (scores[:, 0] > 0).astype(np.int64)
        names = ("", labels[0]) if labels and isinstance(labels[0], str) else (0, 1)
        return pick(names, which), _f32(transform(after, scores))
    if len(labels) > 2 or len(voted_for) != 1:
        scores[:, : base.size] += base
        return pick(labels, scores.argmax(axis=1)), _f32(transform(after, scores))
    score = scores[:, voted_for[0]] + (base[-1] if base.size else 0)
    positive = bool((trees.weights >= 0).all())
    chosen = pick(labels, (score > (0.5 if positive else 0)).astype(np.int64))
    if voted_for[0] == 0:
        return chosen, _f32(pair(after, score, positive))
    return chosen, _f32(transform(after, np.stack([np.zeros_like(score), score], axis=1)))


def _f32(scores: Array) -> Array:
    return scores.astype(np.float32)
