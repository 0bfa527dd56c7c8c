"""Which results of a tile program may lie where one of its inputs lies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tierup.lower.tile import Load, Loop, Statement, Store, TileProgram


def in_place(program: TileProgram) -> list[tuple[str, str]]:
    """Pairs (input, output) of buffers that may be one.

    Every load reads an element once, and stores write none before its loads. If each load of the input is followed by a
    store of the output to the same place, and no such store stands before it, then what it reads was not written
    before: stores that came earlier went elsewhere.
    """
    dtypes = {buffer.name: buffer.dtype for buffer in program.buffers}
    modes = {buffer.name: buffer.mode for buffer in program.buffers}
    accesses = list(_accesses(program.body))
    pairs = []
    for source in (name for name, mode in modes.items() if mode == "in"):
        for target in (name for name, mode in modes.items() if mode == "out"):
            if dtypes[source] is dtypes[target] and _follows(accesses, source, target):
                pairs.append((source, target))
    return pairs


def _accesses(body: Sequence[Statement]) -> Iterator[Load | Store]:
    """Loads and stores in the order of the program."""
    for statement in body:
        if isinstance(statement, Load | Store):
            yield statement
        elif isinstance(statement, Loop):
            yield from _accesses(statement.body)


def _follows(accesses: Sequence[Load | Store], source: str, target: str) -> bool:
    stores = [(n, a) for n, a in enumerate(accesses) if isinstance(a, Store) and a.buffer == target]
    loads = [(n, a) for n, a in enumerate(accesses) if isinstance(a, Load) and a.buffer == source]
    return bool(loads) and all(not load.at and _is_next(n, load, stores) for n, load in loads)


def _is_next(number: int, load: Load, stores: Sequence[tuple[int, Store]]) -> bool:
    """Whether the first store to the place of a load comes after it."""
    same = [at for at, store in stores if store.index == load.index and not store.at]
    return bool(same) and min(same) > number
