"""How the channels of a convolution of every channel by itself are divided: in tiles, and in blocks of the grid."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from tierup.ir.types import Dim
from tierup.lower.convolution import Step
from tierup.lower.tile import Loop, Statement
from tierup.lower.windows import Spot


class Channels(Struct, frozen=True):
    """`count` channels in tiles of `width` along the axis j.

    Where tiles divide them, the grid goes over blocks of `block` channels along the axis b, with a loop over tiles
    inside; otherwise it goes over tiles, the last of them ragged, and `block` is 0.
    """

    count: int
    width: int
    block: int

    @classmethod
    def divided(cls, count: int, width: int, most: int) -> Channels:
        """With at most as many tiles in a block."""
        return cls(count, width, 0 if count % width else width * _divisor(count // width, most))

    @property
    def at_once(self) -> int:
        """How many one step of the grid takes."""
        return self.block or self.width

    @property
    def step(self) -> Step:
        """The axis of the grid."""
        return ("b" if self.block else "j", self.count, self.at_once)

    def apart(self, stride: Dim) -> list[tuple[str, Dim]]:
        """What addresses add for a channel, where channels lie so far apart."""
        return [("j", stride), ("b", stride)] if self.block else [("j", stride)]

    def inside(self, spot: Spot) -> Spot:
        """The place of a tile of results, of the block that the grid is at."""
        if not self.block:
            return spot
        index, columns = (replace(at, axes=(*at.axes, ("b", 1))) for at in (spot.index, spot.columns))
        return replace(spot, index=index, columns=columns)

    def each(self, body: Sequence[Statement]) -> list[Statement]:
        """Statements on a tile, for all tiles of the step."""
        return [Loop("j", self.block, self.width, tuple(body))] if self.block else list(body)


def _divisor(number: int, most: int) -> int:
    """The largest divisor that is not above `most`."""
    return max(each for each in range(1, most + 1) if number % each == 0)
