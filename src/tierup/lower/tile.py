"""The tile program: loops over named axes, and operations on the tiles that one step of each loop covers.

A tile's axes are names of loops around it; along each it has as many elements as that loop's step. Operations meet by
axis name: adding a tile over (i) to one over (i, j) repeats the first along j. Sizes and strides are numbers or `Arg`s,
the int64 arguments of a call, so one program serves every size; the last step of a loop may be ragged, and then loads
read nothing and stores write nothing beyond the extent. Addresses are affine: an offset plus, for each axis, the
element's position times a stride; a stride of 0 repeats, so broadcasting and transposing cost nothing. Integer tiles
may be added to them, each times a stride: lookups, gathers and scatters. Such integers are data: `check` ends the call
where one is out of range.

    program softmax_rows(x: f32 in, y: f32 out) sizes 2 vector j {
      grid i < s0 step 1
      %least : f32[i, j] = fill -inf
      for j < s1 step 64 carry %m = %least {
        %v : f32[i, j] = load x[i * s1 + j] else -inf
        %n : f32[i, j] = max %m, %v
        yield %n
      } -> %ms
      %top : f32[i] = reduce max %ms over j
      …
    }

Names of values are unique in a program. All loops over one axis name have one step, so that a tile keeps its size
where it leaves its loop as a result, or is the initial value of what a loop carries. `reduce` and `dot` leave out what
lies beyond the edge of a loop around them; outside that loop they take the whole tile. f16 and bf16 exist in memory
only: they are read as f32 and written from f32.

Register blocking follows from the steps: the LLVM emitter keeps every tile in registers. Packing and prefetching are
the emitter's and the planner's business.
"""

from __future__ import annotations

from functools import cached_property

from msgspec import Struct, field

from tierup.ir.types import DType


class Arg(Struct, frozen=True):
    """The k-th size argument of a call."""

    index: int

    def __repr__(self) -> str:
        return f"s{self.index}"


Size = int | Arg


class Buffer(Struct, frozen=True):
    """Memory that a call passes: elements of one dtype. `mode` is "in", "out" or "scratch": one for each thread, which
    all scratch buffers of a program share; denormals of bf16 may be zero in it, as `dot_bf16` takes them."""

    name: str
    dtype: DType
    mode: str = "in"


class Tile(Struct, frozen=True):
    """The type of a value: element dtype and axes, outermost first. No axes: a single element."""

    dtype: DType
    axes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"{self.dtype.value}[{', '.join(self.axes)}]"


class Index(Struct, frozen=True):
    """An affine address in elements: offset + Σ position(axis) · stride.

    `axes` names loops around the access. Those that are axes of the tile run over its elements; the others count by
    their loop's current position alone. `starts` are for packed panels: the named axes' positions count with these
    strides instead, and only the elements of one step lie by the stride in `axes`.
    """

    axes: tuple[tuple[str, Size], ...] = ()
    offset: Size = 0
    starts: tuple[tuple[str, Size], ...] = ()


class Fill(Struct, frozen=True):
    """Every element is `value` (a Python float, int or bool), or a size, converted from i64."""

    out: str
    type: Tile
    value: float | Arg


class Load(Struct, frozen=True):
    """Elements of a buffer, converted to the tile's dtype. Beyond a ragged edge the tile holds `other`.

    `at` are (name, stride) of i32 and i64 tiles whose axes are among the tile's: each element's address has its
    element of theirs, times the stride, added to what `index` says.
    """

    out: str
    type: Tile
    buffer: str
    index: Index
    other: float = 0.0
    at: tuple[tuple[str, Size], ...] = ()


class Position(Struct, frozen=True):
    """The position along one axis of a loop around it, as i32 or i64. The tile has this axis alone."""

    out: str
    type: Tile
    axis: str


class Map(Struct, frozen=True):
    """`op` on each element; inputs meet by axis name. The ops are those of `MAPS`."""

    out: str
    type: Tile
    op: str
    args: tuple[str, ...]


class Convert(Struct, frozen=True):
    """To the tile's dtype: floats to nearest even, floats to integers as `core.cast` says."""

    out: str
    type: Tile
    arg: str


class Reduce(Struct, frozen=True):
    """`op` (sum, prod, max, min, and, or) over one axis of a tile."""

    out: str
    type: Tile
    op: str
    arg: str
    axis: str


class Dot(Struct, frozen=True):
    """acc + Σ over `axis` of a · b; both have the axis, the result has not."""

    out: str
    type: Tile
    a: str
    b: str
    acc: str
    axis: str


class Store(Struct, frozen=True):
    """Write a tile, converted to the buffer's dtype. Elements beyond a ragged edge are not written.

    `at` is as in `Load`. Where it gives two elements one place, it is open which of them stays. With `flush`, denormals
    become zero as they are rounded to bf16.
    """

    buffer: str
    index: Index
    arg: str
    at: tuple[tuple[str, Size], ...] = ()
    flush: bool = False


class Check(Struct, frozen=True):
    """End the call as failed unless 0 ≤ v < `extent` for every element v of an i32 or i64 tile.

    What lies beyond a ragged edge of a loop around it is not looked at.
    """

    arg: str
    extent: Size


class Loop(Struct, frozen=True):
    """A serial loop: position `axis` runs from `begin` to `extent` by `step`. `exact`: the last step is never ragged.

    `carried` are (name inside, initial value); the body's last values, `yields`, come back in the next round, and
    `results` name them afterwards. In a ragged last round, carried elements beyond the edge keep what they were.
    `when` names a bool without axes: unless it holds, the loop makes no round. Only loops whose last step is never
    ragged have one. `sums` are names inside of floats that the rounds only add to: every `block` rounds they begin
    anew at 0, and what they came to is added to what was before, so that long sums are as good as their parts. A ragged
    round adds to the whole.
    """

    axis: str
    extent: Size
    step: int
    body: tuple[Statement, ...]
    carried: tuple[tuple[str, str], ...] = ()
    yields: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    begin: Size = 0
    exact: bool = False
    when: str = ""
    sums: tuple[str, ...] = ()
    block: int = 0


Statement = Fill | Load | Position | Map | Convert | Reduce | Dot | Store | Check | Loop


class Grid(Struct, frozen=True):
    """One dimension of the parallel iteration space; steps of all dimensions, flattened, are what threads divide."""

    axis: str
    extent: Size
    step: int


class TileProgram(Struct, frozen=True, dict=True):
    """One kernel. `vector` names the axes whose elements lie side by side in registers; of several in a tile, the last.

    Where two tiles that meet do not have the same one, elements are moved one by one: that is slow.
    """

    name: str
    buffers: tuple[Buffer, ...]
    n_sizes: int
    grid: tuple[Grid, ...]
    body: tuple[Statement, ...]
    vector: tuple[str, ...] = field(default=())

    @cached_property
    def text(self) -> str:
        """What tells it from others, and travels in its place."""
        from tierup.lower.text import print_program  # text.py knows programs, not the reverse

        return print_program(self)

    def __repr__(self) -> str:
        return self.text


# Number of arguments of each map. Comparisons give bool; `select` takes a bool first; `fma` is a · b + c rounded once.
# `WORD_DOTS` take two i32 and give what their last argument is.
MAPS = {
    "neg": 1, "abs": 1, "not": 1, "floor": 1, "ceil": 1, "round": 1, "sqrt": 1, "exp": 1, "expm1": 1, "log": 1,
    "log1p": 1, "sin": 1, "cos": 1, "tan": 1, "asin": 1, "acos": 1, "atan": 1, "sinh": 1, "cosh": 1, "tanh": 1,
    "asinh": 1, "acosh": 1, "atanh": 1, "erf": 1, "add": 2, "sub": 2, "mul": 2, "div": 2, "min": 2, "max": 2, "and": 2,
    "or": 2, "xor": 2, "shl": 2, "shr": 2, "mod": 2, "fmod": 2, "pow": 2, "eq": 2, "lt": 2, "le": 2, "select": 3,
    "fma": 3, "dot_bf16": 3, "dot_bytes": 3,
}  # fmt: skip
# Products of what lies side by side in 32-bit words, added to the last argument: two bf16 in each of two words, with
# denormals taken as zero; four unsigned bytes in the first word by four signed ones in the second, modulo 2^32.
WORD_DOTS = {"dot_bf16": DType.F32, "dot_bytes": DType.I32}
COMPARISONS = ("eq", "lt", "le")
REDUCTIONS = ("sum", "prod", "max", "min", "and", "or")
