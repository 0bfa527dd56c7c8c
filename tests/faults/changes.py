"""Ways to break a kernel after it was built. Machine code is x86-64's."""

from __future__ import annotations

from collections.abc import Callable

RETURN = bytes.fromhex("31c0c3")  # xor eax, eax; ret
Change = Callable[[bytes, int], bytes]  # code and the position of the buffer that is written -> other code


def returns_at_once(code: bytes, result: int) -> bytes:
    """Writes nothing."""
    return RETURN + code[len(RETURN) :]


def writes_nan(code: bytes, result: int) -> bytes:
    """push rdi; call the kernel; pop rdi; mov rax, [rdi + 8 · result]; mov dword [rax], NaN; xor eax, eax; ret"""
    call = b"\x57\xe8" + (64 - 6).to_bytes(4, "little")
    return _before(
        call + bytes.fromhex("5f488b47") + bytes([8 * result]) + bytes.fromhex("c7000000c07f") + RETURN, code
    )


def writes_far(code: bytes, result: int) -> bytes:
    """mov rax, [rdi]; mov dword [rax - 16], 0: before the first buffer."""
    return _before(bytes.fromhex("488b07c740f000000000"), code)


def crashes(code: bytes, result: int) -> bytes:
    """ud2"""
    return bytes.fromhex("0f0b") + code[2:]


def hangs(code: bytes, result: int) -> bytes:
    """jmp to itself"""
    return bytes.fromhex("ebfe") + code[2:]


def leaks(code: bytes, result: int) -> bytes:
    """mmap(NULL, 1 MiB, read | write, private | anonymous, -1, 0), with what the kernel is given saved around it."""
    saved, restored = bytes.fromhex("5756525141504151"), bytes.fromhex("41594158595a5e5f")
    call = (
        bytes.fromhex("31ff")  # xor edi, edi
        + bytes.fromhex("be00001000")  # mov esi, 1 MiB
        + bytes.fromhex("ba03000000")  # mov edx, PROT_READ | PROT_WRITE
        + bytes.fromhex("41ba22000000")  # mov r10d, MAP_PRIVATE | MAP_ANONYMOUS
        + bytes.fromhex("49c7c0ffffffff")  # mov r8, -1
        + bytes.fromhex("4531c9")  # xor r9d, r9d
        + bytes.fromhex("b8090000000f05")  # mov eax, 9; syscall
    )
    return _before(saved + call + restored, code)


def is_slow(code: bytes, result: int) -> bytes:
    """mov eax, 1,000,000; dec eax; jnz: some tenths of a millisecond in each piece of each kernel."""
    return _before(bytes.fromhex("b840420f00ffc875fc"), code)


def is_very_slow(code: bytes, result: int) -> bytes:
    """The same 10,000,000 times: some milliseconds."""
    return _before(bytes.fromhex("b880969800ffc875fc"), code)


def _before(prefix: bytes, code: bytes) -> bytes:
    """Run something first. What the code refers to stays as far away as it was, and on its border."""
    assert len(prefix) <= 64
    return prefix.ljust(64, b"\x90") + code


KERNELS: tuple[Change, ...] = (returns_at_once, writes_nan, writes_far, crashes, hangs, leaks, is_slow)
