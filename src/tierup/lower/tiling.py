"""How many rows and columns of sums are kept in registers at a time."""

from __future__ import annotations

from collections.abc import Iterator

from tierup.ir.types import Dim

MANY_ROWS = 64  # of results that threads divide among them
CACHED_BYTES = 512 * 1024  # of a right side that rows come back to: half of the second cache
# Vectors in a panel -> the most rows of a tile: with the panel and a broadcast they fill the 32 registers. One and a
# half are three half vectors, which machines compute in half the time; less than one is for groups of few columns.
_ROWS = {3: 8, 4: 6, 2: 12, 1: 16, 1.5: 8, 0.5: 16, 0.25: 16}
_LEAST_LANES = 4  # machines add up less than that no faster
_LEFT_ROWS = (4, 2, 1)  # of a row of results whose length is open
_LATENCY = 4  # cycles until a sum can be added to again
# Of products: vectors in a panel -> rows in a full tile; about 24 sums leave registers for the panel and broadcasts.
TILES = {3: 8, 4: 6, 2: 8, 1: 8}
_OPEN_VECTORS = 2  # for columns known only in the call, which may be few


def tiling(count: Dim, columns: int, lanes: int, *, whole: bool = False) -> tuple[int, tuple[int, ...]]:
    """Columns of a panel, and rows of the tiles that a row of results is divided into: what takes the least time.

    Tiles are as equal as can be: of 14 rows two of 7, not 8, 4 and 2. `whole`: panels divide the columns (`divides`).
    """
    options = []
    for vectors, width in _widths(lanes):
        if whole and columns % width:
            continue
        most = _ROWS[vectors]
        panels = -(-columns // width)
        tiles = divided(count, most) if isinstance(count, int) else (most, *(r for r in _LEFT_ROWS if r < most))
        full = isinstance(count, int) and count // tiles[0]
        cycles = _cycles(tiles[0], vectors) * full if full else _cycles(most, vectors) / most
        if full and len(tiles) > 1:
            cycles += _cycles(tiles[-1], vectors)
        options.append((panels * cycles, width, tiles))
    _, width, tiles = min(options, key=lambda option: option[0])
    return width, tiles


def divides(columns: int, lanes: int) -> bool:
    """Whether there are panels that divide as many columns."""
    return any(columns % width == 0 for _, width in _widths(lanes))


def _widths(lanes: int) -> Iterator[tuple[float, int]]:
    """What panels may have: vectors, and so many columns."""
    for vectors in _ROWS:
        width = int(vectors * lanes)
        if width == vectors * lanes and (vectors >= 1 or width >= _LEAST_LANES):
            yield vectors, width


def panel_vectors(columns: Dim, lanes: int, threads: int) -> int:
    """Of a product's panels: the width that leaves the busiest thread the least to do, the best tile first among
    equals."""
    if not isinstance(columns, int):
        return _OPEN_VECTORS

    def busiest(vectors: int) -> int:
        panels = -(-columns // (vectors * lanes))
        return -(-panels // threads) * vectors

    return min(TILES, key=busiest)


def divided(count: int, most: int) -> tuple[int, ...]:
    """Rows of tiles: as many as fit of the first, then one of what is left."""
    rows = -(-count // -(-count // most)) if count else 1
    return (rows, count % rows) if count % rows else (rows,)


def _cycles(rows: int, vectors: float) -> float:
    """Of one step of a sum: multiplying, waiting for the sums before, loading the panel from the second cache."""
    return max(rows * vectors, _LATENCY, 2 * vectors, vectors + rows / 2)
