"""What keys say of our emitter and of LLVM."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import llvmlite
import pytest

import tierup
from tierup.store import versions

SOURCE = Path(tierup.__file__).parent


def test_llvm_is_named_without_being_imported() -> None:
    assert versions.llvm_version().startswith(f"llvmlite {llvmlite.__version__} ")
    body = "import sys\nfrom tierup.store.versions import *\nllvm_version(), emitter_version()\n"
    body += "print([name for name in sys.modules if 'llvm' in name or name == 'importlib.metadata'])"
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


def test_any_change_of_the_sources_shows(tmp_path: Path) -> None:
    for folder in ("codegen", "lower"):
        shutil.copytree(SOURCE / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    folders = ("codegen", "codegen/llvm", "lower")
    before = versions.digest_sources(folders, tmp_path)
    assert before == versions.digest_sources(folders, tmp_path)
    emitter = tmp_path / "codegen" / "llvm" / "emit.py"
    emitter.write_text(emitter.read_text() + "#")
    changed = versions.digest_sources(folders, tmp_path)
    emitter.rename(emitter.with_name("emitter.py"))
    assert len({before, changed, versions.digest_sources(folders, tmp_path)}) == 3


def test_a_package_without_sources_has_no_version(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        versions.digest_sources(("codegen",), tmp_path)


def test_the_emitter_is_all_that_it_imports() -> None:
    """Of our own modules, the emitter reads only folders whose sources are in the digest, and the types of values."""
    used = {
        name
        for path in (SOURCE / "codegen").rglob("*.py")
        for entry in ast.walk(ast.parse(path.read_text()))
        if isinstance(entry, ast.ImportFrom) and entry.module and entry.module.startswith("tierup.")
        for name in [".".join(entry.module.split(".")[1:3])]
    }
    assert {name for name in used if name.split(".")[0] not in ("codegen", "lower")} <= {"ir.types", "profile.identity"}
