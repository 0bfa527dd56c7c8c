"""Rows regions in the making: which nodes can share one domain, and how their axes are matched.

A group has named axes. A node of the group runs over some of them; along the others its result repeats. Two groups
become one where what one reads of the other lies exactly where the other computes it, at each point of one domain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import prod

from msgspec import Struct

from tierup.ir.graph import ValueId
from tierup.ir.types import Dim
from tierup.plan.sources import Linear, Read, reads
from tierup.plan.spaces import Space

Axis = int
_ELSEWHERE = "an element is needed at another point of the loops than where it is computed"
_FEW = 16  # elements of a row that are written one by one: fewer may have other rows along the lanes
_MOST_NODES = 160  # of a region: what is fused beyond that gains nothing, and takes long to compile


class Member(Struct, frozen=True):
    """A node, or a part of one, in a rows region; `made` is the value that others of the region may use.

    `sizes_from` are values that sizes are read from, before the region runs.
    """

    key: int
    node: int
    part: int
    space: Space
    made: ValueId | None
    sizes_from: frozenset[ValueId]
    alone: bool = False  # it reads bits that lie in memory

    def reads(self) -> Iterator[Read]:
        for source in self.space.arguments:
            yield from reads(source)


class Group(Struct):
    """Members with the group's axis of each of their own axes, None where that has one element."""

    members: dict[int, Member]
    places: dict[int, tuple[Axis | None, ...]]
    extents: dict[Axis, Dim]  # in the order of the domain
    reduced: frozenset[Axis]
    made: dict[ValueId, int]

    def address(self, key: int, linear: Linear) -> dict[Axis, Dim]:
        """The strides of a member's linear form along the group's axes, those of 0 left out."""
        pairs = zip(self.places[key], linear.strides, strict=True)
        return {axis: stride for axis, stride in pairs if axis is not None and stride != 0}

    def axes_of(self, key: int) -> set[Axis]:
        """The axes that a member's result has."""
        return set(self.address(key, self.members[key].space.result))

    def covered(self, key: int) -> set[Axis]:
        """The axes that a member runs over."""
        return {axis for axis in self.places[key] if axis is not None}


def single(member: Member, fresh: Callable[[], Axis]) -> Group:
    """A group of one. Axes of one element are left out, unless they are reduced."""
    space = member.space
    places: list[Axis | None] = []
    extents: dict[Axis, Dim] = {}
    for number, extent in enumerate(space.extents):
        places.append(fresh() if extent != 1 or number in space.reduced else None)
        if places[-1] is not None:
            extents[places[-1]] = extent
    reduced = frozenset(axis for axis in (places[number] for number in space.reduced) if axis is not None)
    made = {} if member.made is None else {member.made: member.key}
    return Group({member.key: member}, {member.key: tuple(places)}, extents, reduced, made)


def joined(before: Group, after: Group, is_stored: Callable[[ValueId, Iterable[int]], bool]) -> Group | str:
    """One group of two, where something in `after` uses what `before` makes; or why they stay two.

    `is_stored` says whether a value is needed outside of some members.
    """
    if len(before.members) + len(after.members) > _MOST_NODES:
        return f"the region would have more than {_MOST_NODES} nodes"
    if any(member.alone for group in (before, after) for member in group.members.values()):
        return "bits are read as they lie in memory"
    same = _matched(before, after)
    if isinstance(same, str):
        return same
    names = {axis: same.get(axis, axis) for axis in after.extents}
    reduced = {names[axis] for axis in after.reduced}
    if before.reduced and reduced and before.reduced != reduced:
        return "their reductions go over different axes"
    places = {key: tuple(None if axis is None else names[axis] for axis in own) for key, own in after.places.items()}
    union = Group(
        {**before.members, **after.members},
        {**before.places, **places},
        _ordered(before, after, names),
        frozenset(before.reduced | reduced),
        {**before.made, **after.made},
    )
    if not _agrees(union):
        return _ELSEWHERE
    if _is_turned(union, is_stored):
        return "rows that are reduced would be written element by element, far apart from each other"
    return union if _is_cheap(union, is_stored) else "something would be computed or written more than once"


def _ordered(before: Group, after: Group, names: dict[Axis, Axis]) -> dict[Axis, Dim]:
    """The axes of both, in the order of what has more of them, or of the one that has reductions, or of the later."""
    later = {names[axis]: extent for axis, extent in after.extents.items()}
    first, second = (later, before.extents)
    if len(before.extents) > len(later) or (len(before.extents) == len(later) and before.reduced):
        first, second = second, first
    missing = {axis: extent for axis, extent in second.items() if axis not in first}
    return {**missing, **first}


def _matched(before: Group, after: Group) -> dict[Axis, Axis] | str:
    """For axes of `after` the same axis of `before`; or why what is used does not lie where it is made."""
    same: dict[Axis, Axis] = {}
    for key, member in after.members.items():
        for read in member.reads():
            if read.base in before.made:
                pairs = _pairs(before, before.made[read.base], after, key, read)
                if pairs is None:
                    return _ELSEWHERE
                for axis, other in pairs.items():
                    if same.setdefault(axis, other) != other:
                        return _ELSEWHERE
    if len(set(same.values())) < len(same):
        return _ELSEWHERE
    whole = _with_reduced(before, after, same)
    return "what follows the reduction runs along other axes than it reduced" if whole is None else whole


def _pairs(before: Group, maker: int, after: Group, reader: int, read: Read) -> dict[Axis, Axis] | None:
    """Axes along which one reads what the other makes."""
    wanted, made = after.address(reader, read.at), before.address(maker, before.members[maker].space.result)
    if read.terms or read.at.offset != 0 or len(wanted) != len(made):
        return None
    by_place = {(stride, before.extents[axis]): axis for axis, stride in made.items()}
    pairs = {axis: by_place.get((stride, after.extents[axis])) for axis, stride in wanted.items()}
    found = {axis: other for axis, other in pairs.items() if other is not None}
    return found if len(found) == len(wanted) else None


def _with_reduced(before: Group, after: Group, same: dict[Axis, Axis]) -> dict[Axis, Axis] | None:
    """With what runs along a row again after a reduction of it: axes of equal extent, in order."""
    reduced = [axis for axis in before.extents if axis in before.reduced and axis not in same.values()]
    new = [axis for axis in after.extents if axis not in same]
    if not reduced or not new:
        return same
    if [before.extents[axis] for axis in reduced] != [after.extents[axis] for axis in new]:
        return None
    return {**same, **dict(zip(new, reduced, strict=True))}


def _agrees(group: Group) -> bool:
    """Whether everything that a member uses of another is made at the same point."""
    written = {m.space.target for m in group.members.values() if m.made is None}
    for key, member in group.members.items():
        if not member.sizes_from.isdisjoint(written) or not member.sizes_from.isdisjoint(group.made):
            return False
        for read in member.reads():
            if read.base in written:
                return False
            maker = group.made.get(read.base)
            if maker is None:
                continue
            made = group.members[maker].space.result
            if read.terms or read.at.offset != 0 or group.address(key, read.at) != group.address(maker, made):
                return False
    return True


def _is_cheap(group: Group, is_stored: Callable[[ValueId, Iterable[int]], bool]) -> bool:
    """Whether nothing is written twice, and nothing computed again but what a row has one of."""
    kept = [axis for axis in group.extents if axis not in group.reduced]
    for key, member in group.members.items():
        axes, over = group.axes_of(key), group.covered(key)
        if member.space.reduced and (not over.issuperset(group.extents) or not axes.issuperset(kept)):
            return False
        along = axes & group.reduced
        if member.made is None or is_stored(member.made, group.members):
            if not axes.issuperset(kept) or along not in (set(), group.reduced):
                return False
        elif not axes.issuperset(kept) and (along if group.reduced else kept[-1] in axes):
            return False
    return True


def _is_turned(group: Group, is_stored: Callable[[ValueId, Iterable[int]], bool]) -> bool:
    """Whether rows that are reduced and lie side by side in memory are also written with other axes side by side: a
    row at a time, that goes element by element. Rows are written as they come instead, and turned over by a region that
    takes squares of them: 0.22 ns an element for both, instead of 0.6."""
    extents = [group.extents[axis] for axis in group.reduced]
    if not extents or prod(extent if isinstance(extent, int) else _FEW for extent in extents) < _FEW:
        return False
    external = (
        (key, read.at)
        for key, member in group.members.items()
        for read in member.reads()
        if read.base not in group.made and not read.terms
    )
    if not any(_side_by_side(group, key, at) & group.reduced for key, at in external):
        return False
    for key, member in group.members.items():
        axes = group.axes_of(key)
        written = member.made is None or is_stored(member.made, group.members)
        if written and axes >= group.reduced and _side_by_side(group, key, member.space.result) - group.reduced:
            return True
    return False


def _side_by_side(group: Group, key: int, linear: Linear) -> set[Axis]:
    """The axes along which elements are neighbours."""
    return {axis for axis, stride in group.address(key, linear).items() if stride == 1}
