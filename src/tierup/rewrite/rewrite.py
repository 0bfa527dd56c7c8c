"""The spine: which passes run on a graph, in which order, and what holds after each.

A pass takes a valid graph and gives a valid one that computes the same: inputs, outputs, their names and order,
defaults and names of dims stay. Bodies of control nodes go through it too. New constants are added to `weights`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tierup.ir.graph import Graph, Weights
from tierup.ir.types import Shape
from tierup.rewrite.assume import Assumptions
from tierup.rewrite.decompose import decompose_all
from tierup.rewrite.fold import fold, known_integers
from tierup.rewrite.merge import merge
from tierup.rewrite.narrow import narrow
from tierup.rewrite.rules import simpler
from tierup.rewrite.rules.affine import joined_constants
from tierup.rewrite.rules.bent import bent_pads
from tierup.rewrite.rules.layout import CHANNELED, channels_last
from tierup.rewrite.rules.quantised import QUANTISING, byte_products, byte_tensors
from tierup.rewrite.rules.reforms import POOLED, padded_pool, reformed
from tierup.rewrite.rules.regrouped import regrouped
from tierup.rewrite.rules.row_factors import factors_of_rows
from tierup.rewrite.rules.scales import clipped_once, joined_scales
from tierup.rewrite.rules.sequences import SEQUENCE_OPS
from tierup.rewrite.rules.words import whole_words
from tierup.rewrite.scalars import settle_scalars
from tierup.rewrite.tails import sink_tails
from tierup.rewrite.walk import walk
from tierup.rewrite.widen import widening

_TIGHTENED = 4  # loops within each other; each tries its body some times, and with it all that is inside
_TAILS = 3  # within each other; each is written twice
_SEQUENCES = 3  # times: a sequence that is known may tell the sizes in a loop, and those the next sequence
_ROUNDS = 8  # real models settle in two or three; a rule may need another's result


def prune(graph: Graph, weights: Weights) -> Graph:
    """Afterwards: every node is needed by an output, and every weight by a node or an output."""
    return walk(graph, weights, ()).graph


def fold_constants(graph: Graph, weights: Weights) -> Graph:
    """Afterwards: no node has constants alone as inputs, unless its result is too large to keep."""
    return walk(graph, weights, (fold,)).graph


def settle_shapes(graph: Graph, weights: Weights) -> Graph:
    """Afterwards: every small integer tensor whose elements are all known as numbers is a constant."""
    return walk(graph, weights, (known_integers,)).graph


def merge_equal(graph: Graph, weights: Weights) -> Graph:
    """Afterwards: no two nodes compute the same."""
    return walk(graph, weights, (merge,)).graph


def apply_rules(graph: Graph, weights: Weights) -> Graph:
    """Afterwards: each node met the table of simplifications once, after the nodes before it."""
    return walk(graph, weights, (simpler,)).graph


def simplify(graph: Graph, weights: Weights, assume: Assumptions | None = None) -> Graph:
    """All of the above at once, until nothing changes. Afterwards none of them finds anything to do."""
    for _ in range(_ROUNDS):
        walked = walk(graph, weights, (known_integers, fold, simpler, merge), assume)
        graph = walked.graph
        if not walked.changes:
            return graph
    return walk(graph, weights, (), assume).graph


def tighten(graph: Graph, weights: Weights, assume: Assumptions | None = None) -> Graph:
    """Afterwards: sizes that a loop's carried values have from the first step to the last are known in its body."""
    if not any(node.graphs for node in graph.nodes):
        return graph
    return walk(graph, weights, (), assume, tighten=_TIGHTENED).graph


def settle_ranks(graph: Graph, weights: Weights, assume: Assumptions | None = None) -> Graph:
    """Afterwards: no rank is lost behind an If whose branches have it, unless much follows. Simplified."""
    for _ in range(_TAILS):
        sunk = sink_tails(graph, weights)
        if sunk is graph:
            break
        graph = simplify(sunk, weights, assume)
    return graph


def settle_sequences(graph: Graph, weights: Weights, assume: Assumptions | None = None) -> Graph:
    """Afterwards: sequences are tensors where what loops leave as it is shows what they hold. Tightened."""
    for _ in range(_SEQUENCES):
        if not any(node.op in SEQUENCE_OPS for _, node in graph.walk()):
            break
        before, graph = graph, tighten(simplify(graph, weights, assume), weights, assume)
        if graph == before:
            break
    return graph


def close_sizes(graph: Graph, weights: Weights, signature: Sequence[Shape]) -> Graph:
    """The same graph for inputs of these shapes, one for each input that is a tensor."""
    return walk(graph, weights, (), shapes=signature).graph


def shorten_scales(graph: Graph, weights: Weights, assume: Assumptions | None = None) -> Graph:
    """Afterwards: sums of bytes are scaled once, and clipped once, on their way to bytes."""
    for find in (joined_scales, clipped_once):
        rule = find(graph, weights)
        if rule is not None:
            walked = walk(graph, weights, (rule,), assume)
            graph = walk(walked.graph, weights, (), assume).graph if walked.changes else walked.graph
    return graph


def reshape_work(graph: Graph, weights: Weights, assume: Assumptions | None = None, *, on_words: bool = False) -> Graph:
    """Afterwards: what has no kernel is written as what has one, in the layout and grouping that kernels like. Of a
    simplified graph; simplified."""
    found = {node.op for _, node in graph.walk()}
    walked = walk(graph, weights, (reformed,), assume)
    changes, after = walked.changes, walked.graph
    made = {node.op for _, node in after.walk()} if changes else found
    for rule, ops in ((channels_last, CHANNELED), (padded_pool, POOLED)):
        if not made.isdisjoint(ops):
            walked = walk(after, weights, (rule,), assume)
            changes, after = changes + walked.changes, walked.graph
    for find in (bent_pads, whole_words, regrouped) if on_words else (bent_pads, regrouped):
        found_rule = find(after)
        if found_rule is not None:
            walked = walk(after, weights, (found_rule,), assume)
            changes, after = changes + walked.changes, walked.graph
    if changes or len(after.nodes) != len(graph.nodes):  # what a rule wrote before it declined is dead
        return simplify(after, weights, assume)  # what the decompositions wrote too carefully is gone
    return after


def widen_floats(graph: Graph, weights: Weights, assume: Assumptions | None = None) -> Graph:
    """Afterwards: nothing computes in f16 or bf16 that can be computed in f32. Of a simplified graph; simplified."""
    rule = widening(graph)
    walked = None if rule is None else walk(graph, weights, (rule,), assume)
    return graph if walked is None or not walked.changes else simplify(walked.graph, weights, assume)


def narrow_products(graph: Graph, weights: Weights, assume: Assumptions | None = None) -> Graph:
    """Afterwards: products with constants, and those of batches, round both sides to bf16. What is rounded is rounded
    once."""
    graph = walk(graph, weights, (narrow, merge), assume).graph
    return walk(graph, weights, (), assume).graph  # without what stood where it is rounded earlier now


def scale_rows(graph: Graph, weights: Weights, assume: Assumptions | None = None) -> Graph:
    """Afterwards: what only multiplies the columns of a large left side multiplies the rows of its weights."""
    rule = factors_of_rows(graph)
    walked = None if rule is None else walk(graph, weights, (rule,), assume)
    return graph if walked is None or not walked.changes else walk(walked.graph, weights, (), assume).graph


def lower_to_core(
    graph: Graph, weights: Weights, assume: Assumptions | None = None, *, on_words: bool = False
) -> Graph:
    """The graph that is planned and compiled: core ops, simplified, in bodies too.

    With `assume`, it computes the same as `graph` in those calls in which everything assumed there holds. With
    `on_words`, for machines that multiply four bytes in a word at once, quantised products are products of bytes.
    """
    graph = simplify(graph, weights, assume)  # constants stand where the decompositions look for axes and shapes
    graph = widen_floats(graph, weights, assume)
    graph = settle_sequences(tighten(graph, weights, assume), weights, assume)
    hidden = settle_scalars(graph, weights)
    if hidden is not graph:
        graph = tighten(hidden, weights, assume)
    graph = settle_ranks(graph, weights, assume)
    if on_words and any(node.op in QUANTISING for _, node in graph.walk()):
        for rule in (byte_tensors, byte_products):
            graph = walk(graph, weights, (rule,), assume).graph
    graph = decompose_all(graph, weights, assume)  # core ops, and those that stay whole with a reason
    graph = simplify(graph, weights, assume)  # sizes are numbers where they can be
    graph = reshape_work(graph, weights, assume, on_words=on_words)
    joining = joined_constants(graph)  # which needs the constants that were folded
    if joining is not None:
        joined = walk(graph, weights, (joining,), assume)
        graph = walk(joined.graph, weights, (), assume).graph if joined.changes else joined.graph
    return shorten_scales(graph, weights, assume) if on_words else graph
