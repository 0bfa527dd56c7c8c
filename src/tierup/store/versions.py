"""What compiled code depends on beside its program: our own emitter, and LLVM. Both are read without importing them."""

from __future__ import annotations

import importlib.util
import os
import re
from functools import cache
from pathlib import Path

from tierup.digests import sha256

_ROOT = Path(__file__).parent.parent
_EMITTER = ("codegen", "codegen/llvm", "lower")
_VERSION = re.compile(r"version_version = '([^']{1,100})'\s+version_full = '([^']{0,100})'")


def digest_sources(folders: tuple[str, ...], root: Path = _ROOT) -> str:
    """A digest over the modules in these folders of the package; FileNotFoundError if a folder has none.

    Sources rather than a number that somebody has to raise: nobody can forget to, and whoever works on the emitter
    never runs the code of an hour ago. It takes 0.9 ms, once in a process.
    """
    digest = sha256()
    for folder in folders:
        names = sorted(name for name in os.listdir(root / folder) if name.endswith((".py", ".pyc")))
        if not names:
            raise FileNotFoundError(f"{root / folder} has no modules")
        for name in names:
            content = (root / folder / name).read_bytes()
            digest.update(f"{folder}/{name} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()


@cache
def emitter_version() -> str:
    """Changes whenever one tile program may become other machine code. What lowers regions to programs is in it too,
    for the modules that both need; it changes no program without changing its text."""
    return digest_sources(_EMITTER)


@cache
def llvm_version() -> str:
    """The version of llvmlite, which contains LLVM. Asking its metadata would take 20 ms, importing it 40."""
    found = importlib.util.find_spec("llvmlite")
    if found is None or found.origin is None:
        return "none"
    text = (Path(found.origin).parent / "_version.py").read_text(encoding="utf-8", errors="replace")
    match = _VERSION.search(text)
    return " ".join(("llvmlite", *match.groups())).strip() if match else f"llvmlite {sha256(text.encode()).hexdigest()}"
