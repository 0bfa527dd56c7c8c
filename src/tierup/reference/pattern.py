"""Regular expressions in linear time: RE2's promise, which Python's `re` does not give.

Python's own parser reads the pattern; its tree becomes a program of a few instructions (split, jump, check, character)
that is run for all alternatives at once, character by character, as Thompson's and Pike's machines do. What cannot be
matched that way (back references, look-around) is refused, as RE2 refuses it. Character classes are ASCII, as in RE2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from re import _constants as sre  # type: ignore[attr-defined]  # typeshed leaves the parser's modules out
from re import _parser  # type: ignore[attr-defined]
from typing import Any

_PROGRAM_LIMIT = 10_000  # instructions; (x{1000}){1000} would have a million
Test = Callable[[str], bool]
Instruction = tuple[str, Any]  # ("char", test), ("at", check), ("jump", target), ("split", targets), ("end", None)

_POSIX = {
    "alpha": "a-zA-Z", "digit": "0-9", "alnum": "0-9A-Za-z", "upper": "A-Z", "lower": "a-z", "space": r"\s\x0b",
    "blank": r" \t", "punct": r"!-/:-@\[-`{-~", "xdigit": "0-9A-Fa-f", "word": r"\w", "cntrl": r"\x00-\x1f\x7f",
    "print": " -~", "graph": "!-~", "ascii": r"\x00-\x7f",
}  # fmt: skip


def _word(c: str) -> bool:
    return c.isascii() and (c.isalnum() or c == "_")


_CATEGORIES: dict[Any, Test] = {
    sre.CATEGORY_DIGIT: lambda c: c in "0123456789",
    sre.CATEGORY_NOT_DIGIT: lambda c: c not in "0123456789",
    sre.CATEGORY_SPACE: lambda c: c in "\t\n\f\r ",
    sre.CATEGORY_NOT_SPACE: lambda c: c not in "\t\n\f\r ",
    sre.CATEGORY_WORD: _word,
    sre.CATEGORY_NOT_WORD: lambda c: not _word(c),
}
# What holds between two characters; "" stands for the end of the text on either side.
_CHECKS: dict[Any, Callable[[str, str], bool]] = {
    sre.AT_BEGINNING: lambda before, after: not before,
    sre.AT_BEGINNING_STRING: lambda before, after: not before,
    sre.AT_END: lambda before, after: not after,
    sre.AT_END_STRING: lambda before, after: not after,
    sre.AT_BOUNDARY: lambda before, after: _inside(before) != _inside(after),
    sre.AT_NON_BOUNDARY: lambda before, after: _inside(before) == _inside(after),
}
_LINE_CHECKS: dict[Any, Callable[[str, str], bool]] = {
    sre.AT_BEGINNING: lambda before, after: before in ("", "\n"),
    sre.AT_END: lambda before, after: after in ("", "\n"),
}


def _inside(c: str) -> bool:
    return bool(c) and _word(c)


@lru_cache(maxsize=64)
def compile_pattern(pattern: str) -> Test:
    """A function that says whether a whole text matches."""
    source = re.sub(r"\[:(\w+):\]", lambda m: _POSIX.get(m[1], m[0]), pattern).replace(r"\z", r"\Z")
    try:
        tree = _parser.parse(source, re.ASCII)
    except re.error as error:
        raise ValueError(f"the pattern '{pattern}' cannot be read: {error}") from None
    program: list[Instruction] = []
    _emit(tree, tree.state.flags, program)
    program.append(("end", None))
    return lambda text: _matches(program, text)


def _emit(tree: Iterable[tuple[Any, Any]], flags: int, program: list[Instruction]) -> None:
    for op, argument in tree:
        if len(program) > _PROGRAM_LIMIT:
            raise ValueError(f"the pattern needs more than {_PROGRAM_LIMIT} steps")
        if op is sre.SUBPATTERN:
            _, added, removed, inner = argument
            _emit(inner, (flags | added) & ~removed, program)
        elif op is sre.BRANCH:
            _emit_branch(argument[1], flags, program)
        elif op in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            least, most, inner = argument
            _emit_repeat(least, most, inner, flags, program)
        elif op is sre.AT:
            lines = _LINE_CHECKS if flags & re.MULTILINE else _CHECKS
            program.append(("at", lines.get(argument, _CHECKS[argument])))
        else:
            program.append(("char", _test(op, argument, flags)))


def _emit_branch(branches: list[Any], flags: int, program: list[Instruction]) -> None:
    split = len(program)
    program.append(("split", ()))
    starts, jumps = [], []
    for branch in branches:
        starts.append(len(program))
        _emit(branch, flags, program)
        jumps.append(len(program))
        program.append(("jump", 0))
    program[split] = ("split", tuple(starts))
    for jump in jumps:
        program[jump] = ("jump", len(program))


def _emit_repeat(least: int, most: int, tree: Any, flags: int, program: list[Instruction]) -> None:
    """x{2,4} as x x (x (x)?)?; x{2,} as x x x*. Greedy or lazy is the same when the whole text must match."""
    for _ in range(least):
        _emit(tree, flags, program)
        if len(program) > _PROGRAM_LIMIT:
            raise ValueError(f"the pattern needs more than {_PROGRAM_LIMIT} steps")
    if most is sre.MAXREPEAT:
        split = len(program)
        program.append(("split", ()))
        _emit(tree, flags, program)
        program.append(("jump", split))
        program[split] = ("split", (split + 1, len(program)))
        return
    splits = []
    for _ in range(most - least):
        splits.append(len(program))
        program.append(("split", ()))
        _emit(tree, flags, program)
    for split in splits:
        program[split] = ("split", (split + 1, len(program)))


def _test(op: Any, argument: Any, flags: int) -> Test:
    plain = _plain_test(op, argument, flags)
    if not flags & re.IGNORECASE:
        return plain
    if op is sre.NOT_LITERAL:
        return lambda c: plain(c.lower()) and plain(c.upper())
    return lambda c: plain(c) or plain(c.lower()) or plain(c.upper())


def _plain_test(op: Any, argument: Any, flags: int) -> Test:
    if op is sre.LITERAL:
        return lambda c: c == chr(argument)
    if op is sre.NOT_LITERAL:
        return lambda c: c != chr(argument)
    if op is sre.ANY:
        return (lambda c: True) if flags & re.DOTALL else (lambda c: c != "\n")
    if op is sre.RANGE:
        return lambda c: len(c) == 1 and argument[0] <= ord(c) <= argument[1]
    if op is sre.CATEGORY:
        return _CATEGORIES[argument]
    if op is sre.IN:
        negated = argument[0][0] is sre.NEGATE
        tests = [_test(kind, value, flags) for kind, value in argument[negated:]]
        return lambda c: any(test(c) for test in tests) != negated
    raise ValueError(f"the pattern uses {str(op).lower()}, which RE2's syntax does not have")


def _matches(program: list[Instruction], text: str) -> bool:
    states = _closure(program, (0,), "", text[:1])
    for i, c in enumerate(text):
        nexts = [state + 1 for state in states if program[state][0] == "char" and program[state][1](c)]
        if not nexts:
            return False
        states = _closure(program, nexts, c, text[i + 1 : i + 2])
    return len(program) - 1 in states


def _closure(program: list[Instruction], states: Iterable[int], before: str, after: str) -> set[int]:
    """Every state that is reached between two characters."""
    seen: set[int] = set()
    pending = list(states)
    while pending:
        state = pending.pop()
        if state in seen:
            continue
        seen.add(state)
        kind, argument = program[state]
        if kind == "jump":
            pending.append(argument)
        elif kind == "split":
            pending.extend(argument)
        elif kind == "at" and argument(before, after):
            pending.append(state + 1)
    return seen
