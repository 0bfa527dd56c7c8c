"""The forms in which constant matrices are packed for kernels, beside panels of their own elements.

bf16           pairs of rows, rounded to bf16, side by side in 32-bit words
bytes          fours of rows of bytes in 32-bit words
summed bytes   the same, and in front of each panel the sums of its columns: 128 times where the bytes are unsigned,
               -128 times where they are signed
f32            elements of f16 or bf16, widened
winograd       the rows of 3×3 kernels, g[9 · C, N], as G g Gᵀ, [16 · C, N]
3 winograd     the same for as many kernels one behind the other, g[3 · 9 · C, N]; any count up to MOST_KERNELS
2 groups, ...  as many matrices that lie side by side: a panel has the same columns of all, [K, groups, width]
"""

from __future__ import annotations

# How many rows lie in a word, by form.
WORDS = {"bf16": 2, "bytes": 4, "summed bytes": 4}
SUMMED = "summed bytes"
WIDENED = "f32"
# How many 3×3 kernels lie one behind the other, by form.
MOST_KERNELS = 16
WINOGRAD = {f"{count} winograd" if count > 1 else "winograd": count for count in range(1, MOST_KERNELS + 1)}
# How many matrices lie side by side, by form.
GROUPS = {f"{count} groups": count for count in range(2, 17)}


def grouped(count: int) -> str:
    """The form for as many matrices."""
    return "" if count == 1 else f"{count} groups"


def transformed(kernels: int) -> str:
    """The form for as many 3×3 kernels."""
    return "winograd" if kernels == 1 else f"{kernels} winograd"
