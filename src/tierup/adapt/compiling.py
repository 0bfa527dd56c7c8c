"""Texts of tile programs -> machine code, in this process. Imports LLVM."""

from __future__ import annotations

from collections.abc import Sequence

from tierup.adapt.messages import Failure, failure
from tierup.codegen.objects import build
from tierup.codegen.target import Target
from tierup.lower.parse import parse_program
from tierup.lower.verify import verify


def compile_texts(texts: Sequence[str], target: Target) -> list[bytes | Failure]:
    """Code for each program, or why there is none: one bad program costs the others nothing."""
    try:
        programs = [parse_program(text) for text in texts]
        for program in programs:
            verify(program)
        return list(build(programs, target))
    except Exception as error:  # whatever emitter or LLVM raise is this program's failure
        if len(texts) == 1:
            return [failure(error)]
        return [result for text in texts for result in compile_texts([text], target)]
