"""Products on 32-bit words: two bf16 or four bytes that lie side by side are multiplied by one instruction.

bytes are multiplied unsigned by signed: where both are of one kind, the left side is moved by 128 into the other
range, Σ x · w = Σ (x ± 128) · w ∓ 128 · Σ w, and the sums of w's columns are packed in front of its panels.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from msgspec import Struct

from tierup.ir.types import DType
from tierup.lower.names import Names
from tierup.lower.tile import Fill, Load, Map, Statement, Tile
from tierup.plan.packing import SUMMED, WORDS

_FLIPS = -0x7F7F7F80  # 0x80808080: moves each byte of a word by 128
_BYTES = frozenset((DType.I8, DType.U8))


class Words(Struct, frozen=True):
    """How a product is computed on words: the map, how many elements a word has, the form of the packed side, whether
    that is the first argument, and whether the left side's bytes are moved by 128."""

    op: str
    group: int
    form: str
    swapped: bool = False
    moved: bool = False

    @property
    def ahead(self) -> int:
        """Rows in front of each panel: its sums."""
        return int(self.moved)

    def dot(self, names: Names, new: str, tile: Tile, left: Load, right: Load, old: str) -> Iterator[Statement]:
        """One step of a sum."""
        a = left.out
        if self.moved:
            flips, a = names.new("flips"), names.new("a")
            yield Fill(flips, Tile(DType.I32), _FLIPS)
            yield Map(a, left.type, "xor", (left.out, flips))
        yield Map(new, tile, self.op, (right.out, a, old) if self.swapped else (a, right.out, old))


def words_for(left: DType, right: DType, result: DType, dots: Set[str]) -> Words | None:
    """How to multiply these types on words; None where the machine has no instruction for it."""
    found = None
    if left is right is DType.BF16 and result is DType.F32:
        found = Words("dot_bf16", WORDS["bf16"], "bf16")
    elif {left, right} <= _BYTES:
        moved = left is right
        found = Words("dot_bytes", WORDS[SUMMED], SUMMED if moved else "bytes", right is DType.U8, moved)
    return found if found is not None and found.op in dots else None
