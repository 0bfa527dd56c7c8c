"""What code is made for: the machine as the emitter sees it."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from tierup.profile.identity import Identity


class Target(Struct, frozen=True):
    """An instruction set. `triple`, `cpu` and `features` are LLVM's words; everything else follows from the bits."""

    name: str
    triple: str
    cpu: str
    features: str
    vector_bits: int

    @property
    def dots(self) -> frozenset[str]:
        """The products of words (`lower.tile.WORD_DOTS`) that are one instruction."""
        return frozenset(op for op, feature in _DOT_FEATURES.items() if feature in self.features.split(","))

    @property
    def lanes(self) -> int:
        """f32 elements in one vector; wider and narrower elements use as many lanes."""
        return self.vector_bits // 32

    @property
    def x86(self) -> bool:
        return self.triple.startswith("x86_64")

    @property
    def avx512(self) -> bool:
        return "+avx512f" in self.features.split(",")


_X86 = "x86_64-unknown-linux-gnu"
_AVX2 = "+sse4.2,+avx,+avx2,+fma,+f16c,+bmi,+bmi2"
_AVX512 = _AVX2 + ",+avx512f,+avx512bw,+avx512cd,+avx512dq,+avx512vl,-prefer-256-bit"

AVX2 = Target("avx2", _X86, "x86-64-v3", _AVX2, 256)
# LLVM prefers 256-bit registers on some of these machines; here the width is chosen, not guessed.
AVX512 = Target("avx512", _X86, "x86-64-v4", _AVX512, 512)
NEON = Target("neon", "aarch64-unknown-linux-gnu", "generic", "+neon", 128)

_DOT_FEATURES = {"dot_bytes": "+avx512vnni", "dot_bf16": "+avx512bf16"}
# Ours -> what a machine says of itself. Each that it has is a target of its own.
_OPTIONAL = {"vnni": ("avx512_vnni", ",+avx512vnni"), "bf16": ("avx512_bf16", ",+avx512bf16")}

_NEEDS_AVX512 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "fma", "f16c", "bmi2"}
_NEEDS_AVX2 = {"avx2", "fma", "f16c", "bmi2"}


def target_of(identity: Identity) -> Target | None:
    """The best of our targets that this machine can run; None where it has no fused multiply-add of vectors."""
    features = set(identity.features)
    if identity.architecture == "aarch64":
        return NEON
    if features >= _NEEDS_AVX512:
        return _with_dots(features)
    return AVX2 if features >= _NEEDS_AVX2 else None


def _with_dots(features: set[str]) -> Target:
    """AVX-512 with those products of words that the machine has instructions for."""
    found = {name: flag for name, (feature, flag) in _OPTIONAL.items() if feature in features}
    name = "-".join((AVX512.name, *found))
    return replace(AVX512, name=name, features=AVX512.features + "".join(found.values()))
