"""SHA-256, and what computing it loads."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import pytest

from tierup.digests import sha256


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_digests_are_those_of_hashlib(size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    assert sha256(memoryview(data)[:size]).hexdigest() == hashlib.sha256(data[:size]).hexdigest()


def loaded_after(expression: str) -> str:
    """What a process has computed, and whether it loaded hashlib for that."""
    code = f"import sys; from tierup.digests import sha256; print({expression}, 'hashlib' in sys.modules)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_little_data_is_hashed_without_openssl() -> None:
    made = loaded_after("sha256(b'a' * 1000).hexdigest()")
    assert made == f"{hashlib.sha256(b'a' * 1000).hexdigest()} False"


def test_parts_add_up_in_either() -> None:
    text = "(lambda h: (h.update(b'b' * 9), h.hexdigest())[1])(sha256(b'a' * {}, ahead_bytes={}))"
    for count, ahead, loads in ((1000, 9, "False"), (1 << 20, 9, "True"), (1000, 1 << 20, "True")):
        expected = hashlib.sha256(b"a" * count + b"b" * 9).hexdigest()
        assert loaded_after(text.format(count, ahead)) == f"{expected} {loads}"
