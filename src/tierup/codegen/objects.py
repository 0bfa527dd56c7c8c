"""Tile programs and LLVM IR text -> object code -> machine code that can be loaded.

`build` gives plain bytes that a cache may keep: images where `image.py` makes them, which are loaded without LLVM;
elsewhere objects, which LLVM loads. Loaded objects live as long as their `Loaded` does. LLVM compiles one thing at a
time in a process.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from msgspec import Struct
from msgspec.structs import replace

from tierup.codegen.elf import undefined
from tierup.codegen.image import images, runs_images
from tierup.codegen.llvm.emit import emit_llvm
from tierup.codegen.target import Target
from tierup.lower.tile import TileProgram

ENTRY = "kernel"  # the symbol of a built object; programs of one plan may have one name

_LOCK = threading.Lock()  # LLVM's contexts are not for several threads at once
# Emitting an object takes 1.1 ms before the first function (LLVM 22). All kernels of an object share its constants, and
# each image has its own copy of them: with 8 kernels both stay small.
_BATCH = 8


@cache
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@cache
def leave_addresses() -> None:
    """Have LLVM leave addresses as the emitter wrote them. It holds for the whole process, so only a process that is
    ours alone may ask for it.

    Loop strength reduction takes a quarter of the time that code generation takes, and kernels run no faster for it:
    encoders, convolutions in all types and recurrent models took the same within noise without it.
    """
    llvm.set_option("", "-disable-lsr")


@cache
def _machine(target: Target) -> Any:
    _initialize()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=3, reloc="pic", codemodel="small"
    )


def build(programs: Sequence[TileProgram], target: Target) -> list[bytes]:
    """Machine code for each program, in order: images or, where there are none, objects with the symbol `ENTRY`."""
    if not runs_images(target):
        return [compile_object(emit_llvm(replace(program, name=ENTRY), target), target) for program in programs]
    batches = (programs[start : start + _BATCH] for start in range(0, len(programs), _BATCH))
    return [image for batch in batches for image in _build_images(batch, target)]


def _build_images(programs: Sequence[TileProgram], target: Target) -> list[bytes]:
    names = [f"{ENTRY}{number}" for number in range(len(programs))]
    texts = [emit_llvm(replace(program, name=name), target) for program, name in zip(programs, names, strict=True)]
    code = _compile(texts, target)
    try:
        found = images(code)
    except ValueError:
        if len(programs) == 1:
            raise
        # A jump table, for one, is only understood where it can mean one function.
        return [image for program in programs for image in _build_images([program], target)]
    return [found[name] for name in names]


def compile_object(text: str, target: Target) -> bytes:
    """Object code for a module; the emitter's text goes to code generation as it is, without IR passes."""
    return _compile([text], target)


def _compile(texts: Sequence[str], target: Target) -> bytes:
    """One object for several modules."""
    with _LOCK:
        module, *others = (_parse(text, target) for text in texts)
        for other in others:
            module.link_in(other)
        code: bytes = _machine(target).emit_object(module)
        return code


def assembly(text: str, target: Target) -> str:
    """The same code as assembly, for people."""
    with _LOCK:
        source: str = _machine(target).emit_assembly(_parse(text, target))
        return source


def _parse(text: str, target: Target) -> Any:
    _initialize()
    module = llvm.parse_assembly(text)
    module.triple = target.triple
    module.data_layout = str(_machine(target).target_data)
    module.verify()
    return module


class Loaded(Struct):
    """Code in memory. Keep it until the last caller has left."""

    address: int
    _library: Any


@cache
def _jit() -> Any:
    _initialize()
    return llvm.create_lljit_compiler()


_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,200}")


def load_object(code: bytes, symbol: str, library: str) -> Loaded:
    """Load object code into this process; `library` must be a name not used before."""
    if not _SYMBOL.fullmatch(symbol):
        raise ValueError(f"'{symbol[:40]}' is no symbol of ours")
    missing = [name for name in undefined(code) if name != "_GLOBAL_OFFSET_TABLE_"]
    if missing:
        raise ValueError(f"kernel {symbol} calls {missing[0]}, but a kernel calls nothing")
    with _LOCK:
        tracker = llvm.JITLibraryBuilder().add_object_img(code).export_symbol(symbol).link(_jit(), library)
        return Loaded(tracker[symbol], tracker)
