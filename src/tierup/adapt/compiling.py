"""Texts of tile programs -> machine code, in this process. Imports LLVM."""

from __future__ import annotations

from collections.abc import Sequence

from tierup.adapt.messages import Failure, failure
from tierup.codegen.objects import build
from tierup.codegen.target import Target
from tierup.lower.checked import CHECKED


def compile_texts(texts: Sequence[str], target: Target) -> list[bytes | Failure]:
    """Code for each program, or why there is none: one bad program costs the others nothing."""
    try:
        return list(build([CHECKED.program(text) for text in texts], target))
    except Exception as error:  # whatever emitter or LLVM raise is this program's failure
        if len(texts) == 1:
            return [failure(error)]
        return [result for text in texts for result in compile_texts([text], target)]
