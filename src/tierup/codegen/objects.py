"""LLVM IR text -> object code -> a callable address.

Object code is plain bytes that a cache may keep. Loaded code lives as long as its `Loaded` does. LLVM compiles one
thing at a time in a process.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from tierup.codegen.elf import undefined
from tierup.codegen.target import Target

_LOCK = threading.Lock()  # LLVM's contexts are not for several threads at once


@cache
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@cache
def _machine(target: Target) -> Any:
    _initialize()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=3, reloc="pic", codemodel="small"
    )


def compile_object(text: str, target: Target) -> bytes:
    """Object code for a module; the emitter's text goes to code generation as it is, without IR passes."""
    with _LOCK:
        module = _parse(text, target)
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


@dataclass
class Loaded:
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
