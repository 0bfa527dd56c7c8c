"""Built machine code -> kernels in a program's slots.

LLVM is imported only where something must be compiled here, or where objects have to be linked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING

from tierup import _native
from tierup.events import Displaced

if TYPE_CHECKING:  # kernels that are built are loaded without what programs consist of, and what they are built with
    from tierup.codegen.target import Target
    from tierup.lower.tile import TileProgram
    from tierup.plan.program import Variant as PlanVariant
    from tierup.store.records import VariantRecord

    Variant = PlanVariant | VariantRecord

Build = Callable[[Sequence["TileProgram"], "Target"], Sequence[bytes]]

_LIBRARIES = count()  # every loaded object is a library with a name of its own


def publish(
    program: _native.Program, programs: Sequence[TileProgram], target: Target, build: Build | None = None
) -> None:
    """Build the kernels of all slots, in this process unless `build` does it elsewhere, and make them live."""
    publish_code(program, (build or _build_here)(programs, target), target)


def publish_code(
    program: _native.Program,
    codes: Sequence[bytes],
    target: Target,
    variants: Sequence[Variant] = (),
) -> list[Displaced]:
    """Make kernels that are built live: one for each slot, then those of variants. Returns the variants that found no
    room."""
    return publish_loaded(program, load_code(codes, target), variants)


def publish_loaded(
    program: _native.Program, kernels: Sequence[tuple[int, object]], variants: Sequence[Variant] = ()
) -> list[Displaced]:
    """The same for kernels that are loaded, as (address, what keeps it loaded)."""
    program.publish(dict(enumerate(kernels[: len(program.kernel_addresses())])))
    rows = [(v.slot, v.first, v.key, *kernels[v.kernel], v.range, v.grain, v.scratch) for v in reversed(variants)]
    return [Displaced(*gone) for gone in program.add_variants(rows)]


def load_code(codes: Sequence[bytes], target: Target) -> list[tuple[int, object]]:
    """The address of each kernel, and what keeps it loaded. `codes` are as `codegen.objects.build` gives them."""
    from tierup.codegen.image import runs_images

    if not codes:
        return []
    if not runs_images(target):
        return [_load_object(code) for code in codes]
    loaded = _native.Code(list(codes))
    return [(address, loaded) for address in loaded.addresses]


def _load_object(code: bytes) -> tuple[int, object]:
    from tierup.codegen.objects import ENTRY, load_object

    loaded = load_object(code, ENTRY, f"kernel{next(_LIBRARIES)}")
    return loaded.address, loaded


def _build_here(programs: Sequence[TileProgram], target: Target) -> list[bytes]:
    from tierup.codegen.objects import build

    return build(programs, target)
