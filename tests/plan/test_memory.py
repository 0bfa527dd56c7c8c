"""Layouts of values between kernels: nothing is in the way of anything at any size, and little memory is wasted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tierup.ir.dims import DimBuilder, evaluate
from tierup.ir.types import Dim, Sym
from tierup.plan.memory import ALIGNMENT, Layout, Request, lower_bound, plan_lanes, plan_memory

INPUTS = 4  # open sizes that the examples have


def numbers(dims: DimBuilder, inputs: Sequence[int]) -> Callable[[Dim], int]:
    """What each dim is where axis i of the input has `inputs[i]` elements."""
    results = evaluate(dims.ops, lambda op, value, index: inputs[index])
    return lambda dim: results[dim.id] if isinstance(dim, Sym) else dim


plain = numbers(DimBuilder(), ())  # for sizes that are all numbers


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def plan(requests: Sequence[Request], dims: DimBuilder, inputs: Sequence[int] = ()) -> tuple[Layout, int]:
    """A layout made at some input sizes, and the bytes that it takes there."""
    layout = plan_memory(requests, dims, numbers(dims, inputs))
    return layout, numbers(dims, inputs)(layout.total)


def may_take_over(old: Request, new: Request) -> bool:
    return old.key in new.reuses and old.size == new.size and old.first < new.first == old.last


def check(requests: Sequence[Request], layout: Layout, number: Callable[[Dim], int]) -> None:
    """Aligned, inside, and apart: two values share bytes in a step only where one takes over the other's memory."""
    total = number(layout.total)
    places = {r.key: (number(layout.offsets[r.key]), number(r.size)) for r in requests}
    assert layout.offsets.keys() == places.keys()
    assert total % ALIGNMENT == 0
    for offset, size in places.values():
        assert offset % ALIGNMENT == 0
        assert offset >= 0
        assert size == 0 or offset + size <= total
    for a, b in combinations(requests, 2):
        (begin_a, size_a), (begin_b, size_b) = places[a.key], places[b.key]
        alive_together = a.first <= b.last and b.first <= a.last
        overlap = begin_a < begin_b + size_b and begin_b < begin_a + size_a and size_a > 0 and size_b > 0
        if alive_together and overlap:
            assert may_take_over(a, b) or may_take_over(b, a)
            assert begin_a == begin_b


def open_sizes(dims: DimBuilder) -> list[Dim]:
    """Sizes of all kinds: numbers, zero, what is a multiple of the alignment anyway, sums and products."""
    axes = [dims.of(0, axis) for axis in range(INPUTS)]
    products = [dims.mul(axes[0], 4), dims.product((axes[1], axes[2], 3)), dims.product((axes[1], 16, axes[3], 4))]
    return [0, 1, 64, 1000, *axes, *products, dims.add(axes[0], axes[3]), dims.sub(axes[2], axes[2])]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[DimBuilder, list[Request]]:
    dims = DimBuilder()
    sizes = open_sizes(dims)
    few = draw(st.lists(st.sampled_from(sizes), min_size=1, max_size=3))  # equal sizes, so that there are take-overs
    requests = []
    for key in range(draw(st.integers(0, 24))):
        first = draw(st.integers(0, 12))
        last = first + draw(st.integers(0, 4))
        reuses = tuple(draw(st.lists(st.integers(0, 26), max_size=3)))
        requests.append(Request(key, draw(st.sampled_from(few)), first, last, reuses))
    return dims, requests


input_sizes = st.lists(st.one_of(st.integers(0, 5000), st.integers(0, 2)), min_size=INPUTS, max_size=INPUTS)


@given(graphs(), input_sizes, st.lists(input_sizes, min_size=1, max_size=4))
@settings(max_examples=300, deadline=None)
def test_values_that_are_alive_together_never_overlap(
    graph: tuple[DimBuilder, list[Request]], typical: list[int], others: list[list[int]]
) -> None:
    dims, requests = graph
    layout, peak = plan(requests, dims, typical)
    for inputs in (typical, *others):
        check(requests, layout, numbers(dims, inputs))
    assert peak >= lower_bound(requests, numbers(dims, typical))


def random_requests(random: Random, count: int, steps: int, longest: int, sizes: Sequence[Dim]) -> list[Request]:
    spans = [(first, first + random.randint(0, longest)) for first in random.choices(range(steps), k=count)]
    return [Request(key, random.choice(sizes), first, last) for key, (first, last) in enumerate(spans)]


@pytest.mark.parametrize(("count", "longest"), [(200, 4), (200, 40), (600, 600)])
def test_large_graphs_at_other_sizes(count: int, longest: int) -> None:
    """With the search, and, where too many pairs are alive together for it, without."""
    random = Random(count + longest)
    dims = DimBuilder()
    requests = random_requests(random, count, count, longest, open_sizes(dims))
    layout, _ = plan(requests, dims, [random.randint(1, 5000) for _ in range(INPUTS)])
    for _ in range(3):
        check(requests, layout, numbers(dims, [random.choice([0, 1, random.randint(2, 5000)]) for _ in range(INPUTS)]))


def least_peak(requests: Sequence[Request]) -> int:
    """The least that any layout takes, found by trying all.

    In a best layout that is pushed down, each value in order of offsets lies on the highest of those before it that are
    alive with it. So all orders in which offsets do not fall are tried, and given up where no better than the best.
    """
    best, bound = sum(aligned(plain(r.size)) for r in requests), lower_bound(requests, plain)

    def place(left: list[Request], placed: list[tuple[Request, int]], floor: int, peak: int) -> None:
        nonlocal best
        if not left:
            best = peak
        for request in left:
            ends = [end for other, end in placed if other.first <= request.last and request.first <= other.last]
            offset = max(ends, default=0)
            end = offset + aligned(plain(request.size))
            if best > bound and offset >= floor and max(peak, end) < best:
                rest = [other for other in left if other is not request]
                place(rest, [*placed, (request, end)], offset, max(peak, end))

    place(list(requests), [], 0, 0)
    return best


def full_graph(random: Random, count: int, units: int) -> list[Request]:
    """A graph with the same bytes alive in every step but the last ones: the hardest to fit."""
    alive: list[tuple[int, int]] = []
    spans: list[tuple[int, int, int]] = []
    step = 0
    while len(spans) + len(alive) < count:
        free = units - sum(size for size, _ in alive)
        while free > 0 and len(spans) + len(alive) < count:
            alive.append((random.randint(1, min(free, units // 2)), step))
            free -= alive[-1][0]
        dying = [value for value in alive if random.random() < 0.4]
        spans += [(size, first, step) for size, first in dying]
        alive = [value for value in alive if value not in dying]
        step += 1
    spans += [(size, first, step) for size, first in alive]
    return [Request(key, size * ALIGNMENT, first, last) for key, (size, first, last) in enumerate(spans)]


def small_graphs() -> Iterator[list[Request]]:
    random = Random(1)
    for _ in range(100):
        sizes = [ALIGNMENT * random.randint(1, 30) for _ in range(8)]
        yield random_requests(random, random.randint(2, 8), 8, 4, sizes)
        yield full_graph(random, random.randint(4, 8), random.randint(4, 24))


def test_small_graphs_against_an_exact_solver() -> None:
    """The least peak on 99 of 100, and never more than a quarter above it."""
    graphs = list(small_graphs())
    missed = 0
    for requests in graphs:
        peak, least = plan(requests, DimBuilder())[1], least_peak(requests)
        assert lower_bound(requests, plain) <= least <= peak <= 1.25 * least
        missed += peak > least
    assert missed <= 0.01 * len(graphs)


@pytest.mark.parametrize("seed", range(10))
def test_a_chain_takes_no_more_than_its_two_largest_neighbours(seed: int) -> None:
    """As in a feed-forward net: each value is read by the next step only."""
    random = Random(seed)
    dims = DimBuilder()
    sizes = [dims.mul(dims.of(0, axis), 4) for axis in range(INPUTS)] + [random.randint(1, 20_000) for _ in range(4)]
    requests = [Request(key, random.choice(sizes), key, key + 1) for key in range(60)]
    inputs = [random.randint(1, 5000) for _ in range(INPUTS)]
    number = numbers(dims, inputs)
    widest = max(aligned(number(a.size)) + aligned(number(b.size)) for a, b in pairwise(requests))
    assert lower_bound(requests, number) == widest
    assert plan(requests, dims, inputs)[1] == widest


def encoder(dims: DimBuilder, layers: int) -> list[Request]:
    """The values of a transformer's encoder with open batch and length, some computed in place."""
    batch, length = dims.of(0, 0), dims.of(0, 1)
    hidden, wide = dims.product((batch, length, 256, 4)), dims.product((batch, length, 1024, 4))
    scores = dims.product((batch, 8, length, length, 4))
    steps: list[tuple[Dim, tuple[int, ...]]] = [(hidden, ())]
    for _ in range(layers):
        x = len(steps) - 1
        steps += [(hidden, (x,)), (hidden, (x + 1,)), (hidden, (x + 1,)), (hidden, (x + 1,))]  # norm, q, k, v
        steps += [(scores, (x + 2, x + 3)), (scores, (x + 5,)), (hidden, (x + 6, x + 4)), (hidden, (x + 7, x))]
        steps += [(hidden, (x + 8,)), (wide, (x + 9,)), (wide, (x + 10,)), (hidden, (x + 11, x + 8))]
    last = {used: step for step, (_, reads) in enumerate(steps) for used in reads}
    in_place = {step for step in range(len(steps)) if step % 12 in (6, 11)}  # softmax, and the wide product's tail
    return [
        Request(step, size, step, last.get(step, step), reads if step in in_place else ())
        for step, (size, reads) in enumerate(steps)
    ]


def test_an_encoder_takes_its_busiest_step_and_few_instructions() -> None:
    """Equal layers give equal offsets, which are recorded once: a new length costs the same at any depth."""
    for layers in (4, 8, 16):
        dims = DimBuilder()
        requests = encoder(dims, layers)
        before = len(dims.ops)
        _, peak = plan(requests, dims, (1, 128))
        assert peak == lower_bound(requests, numbers(dims, (1, 128)))
        assert len(dims.ops) - before <= 30


@pytest.mark.parametrize("longest", [3, 20, 200])
def test_few_instructions_even_when_no_two_sizes_are_equal(longest: int) -> None:
    """Two to round a size, one for the end, and at most two a value for the highest of what lies right below:
    who can see whom in such a picture is a planar graph."""
    dims = DimBuilder()
    sizes = [dims.of(0, axis) for axis in range(200)]
    random = Random(longest)
    requests = [Request(key, size, key, key + random.randint(0, longest)) for key, size in enumerate(sizes)]
    plan(requests, dims, [random.randint(1, 100_000) for _ in sizes])
    assert len(dims.ops) - len(sizes) <= 5 * len(requests)


def test_values_that_are_all_alive_together_are_stacked_without_a_choice() -> None:
    """Each lies on the one below, though it can see those further down in some of its steps: no max is needed."""
    dims = DimBuilder()
    spans = [(0, 2), (1, 3), (0, 3), (2, 4), (2, 2)]
    requests = [Request(key, dims.of(0, key), first, last) for key, (first, last) in enumerate(spans)]
    plan(requests, dims, [300, 200, 1000, 50, 700])
    assert [op.op for op in dims.ops if op.op == "max"] == []
    assert [op.op for op in dims.ops].count("add") == len(spans) - 1


def test_in_place_a_chain_takes_one_place() -> None:
    dims = DimBuilder()
    size = dims.of(0, 0)
    requests = [Request(key, size, key, key + 1, (key - 1,)) for key in range(5)]
    layout, peak = plan(requests, dims, [1000])
    assert set(layout.offsets.values()) == {0}
    assert peak == lower_bound(requests, numbers(dims, [1000])) == aligned(1000)


def test_a_value_is_taken_over_once() -> None:
    """Two results of one step want the same memory; the one with less choice gets it, the other finds its own."""
    a, b = Request(0, 64, 0, 2), Request(1, 64, 1, 2)
    choosy, other = Request(2, 64, 2, 3, (0,)), Request(3, 64, 2, 3, (0, 1))
    layout, peak = plan([a, b, other, choosy], DimBuilder())
    assert layout.offsets[2] == layout.offsets[0]
    assert layout.offsets[3] == layout.offsets[1]
    assert peak == 128


@pytest.mark.parametrize("last", [2, 3])
def test_two_results_do_not_take_over_the_same_value(last: int) -> None:
    """Not even where nobody reads the first, so that it ends in the step in which it begins."""
    requests = [Request(0, 64, 0, 2), Request(1, 64, 2, last, (0,)), Request(2, 64, 2, last, (0,))]
    layout, peak = plan(requests, DimBuilder())
    check(requests, layout, plain)
    assert peak == 128


@pytest.mark.parametrize(
    "old",
    [
        pytest.param(Request(0, 128, 0, 1), id="another size"),
        pytest.param(Request(0, 64, 0, 2), id="read later"),
        pytest.param(Request(0, 64, 1, 1), id="written by the same step"),
    ],
)
def test_what_cannot_be_taken_over_is_left_alone(old: Request) -> None:
    requests = [old, Request(1, 64, 1, 3, (0, 99))]
    layout, peak = plan(requests, DimBuilder())
    check(requests, layout, plain)
    assert layout.offsets[0] != layout.offsets[1]
    assert peak == aligned(plain(old.size)) + 64


def test_nothing_to_lay_out() -> None:
    dims = DimBuilder()
    assert plan([], dims) == (Layout({}, 0), 0)
    assert lower_bound([], plain) == 0
    assert not dims.ops


def test_numbers_stay_numbers() -> None:
    dims = DimBuilder()
    layout, _ = plan([Request(0, 100, 0, 1), Request(1, 30, 1, 2), Request(2, 0, 0, 2)], dims)
    assert (layout.offsets, layout.total) in (({0: 0, 1: 128, 2: 0}, 192), ({0: 64, 1: 0, 2: 0}, 192))
    assert not dims.ops


def test_a_size_that_is_zero_at_the_sample_has_a_place_elsewhere() -> None:
    dims = DimBuilder()
    requests = [Request(key, dims.of(0, key), 0, 1) for key in range(3)]
    layout, peak = plan(requests, dims, [0, 0, 0])
    assert peak == 0
    check(requests, layout, numbers(dims, [100, 1, 70]))
    assert numbers(dims, [100, 1, 70])(layout.total) == 128 + 64 + 128


def test_products_with_a_multiple_of_the_alignment_are_not_rounded() -> None:
    dims = DimBuilder()
    rows = dims.of(0, 0)
    request = Request(0, dims.product((rows, 16, dims.of(0, 1), 4)), 0, 1)
    before = len(dims.ops)
    assert plan([request], dims, (1, 1))[0] == Layout({0: 0}, request.size)
    assert len(dims.ops) == before
    assert plan([Request(0, dims.product((rows, 8, 4)), 0, 1)], dims, (1, 1))[1] == 64


def test_requests_with_one_key_are_one_value() -> None:
    requests = [Request(0, 64, 0, 1), Request(1, 64, 2, 2), Request(0, 64, 3, 4)]
    layout, peak = plan(requests, DimBuilder())
    assert peak == 128
    assert layout.offsets[0] != layout.offsets[1]
    with pytest.raises(ValueError, match="value 0 has two sizes: 64 and 65"):
        plan([Request(0, 64, 0, 1), Request(0, 65, 0, 1)], DimBuilder())


def test_a_value_cannot_end_before_it_begins() -> None:
    with pytest.raises(ValueError, match="value 7 is written in step 3 and read last in step 2"):
        plan([Request(7, 64, 3, 2)], DimBuilder())


@pytest.mark.parametrize("seed", range(6))
def test_values_in_lanes_never_overlap(seed: int) -> None:
    random = Random(seed)
    requests = random_requests(random, 60, 40, 1 + 5 * seed, [0, 1, 64, 640, 5000])
    taken = Request(60, requests[0].size, requests[0].last, requests[0].last + 3, (requests[0].key,))
    layout = plan_lanes([*requests, taken], plan(requests, DimBuilder())[1])
    assert layout is not None
    check([*requests, taken], layout, plain)


def test_values_lie_around_the_centres_of_two_lanes() -> None:
    """Of a chain: what one thread writes of any of them, the first half, lies below a centre."""
    sizes = [800, 4800, 1200, 640, 1800, 64]
    requests = [Request(key, 64 * size, key, key + 1) for key, size in enumerate(sizes)]
    layout = plan_lanes(requests, plan(requests, DimBuilder())[1])
    assert layout is not None
    assert layout.total == 64 * (1200 + 4800 + 600)  # 1800 in the lane of 1200
    centres = [plain(layout.offsets[r.key]) + plain(r.size) // 2 for r in requests]
    assert centres[::2] == [centres[0]] * 3
    assert centres[1::2] == [centres[1]] * 3


def test_no_lanes_where_sizes_are_open_or_much_memory_would_be_lost() -> None:
    dims = DimBuilder()
    assert plan_lanes([Request(0, dims.of(0, 0), 0, 1)], 64) is None
    large = 100 << 20  # a lane for each, though the second and third would fit into the first
    requests = [Request(0, large, 0, 0), Request(1, large // 2, 1, 2), Request(2, large // 2, 2, 3)]
    assert plan(requests, DimBuilder())[1] == large
    assert plan_lanes(requests, large) is None
