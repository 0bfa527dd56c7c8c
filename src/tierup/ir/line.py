"""One line of our texts as tokens, read from left to right: what the parsers of graphs and tile programs share."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import NoReturn, TypeVar

END = ("end", "")
_Item = TypeVar("_Item")


class Line:
    """The tokens of one line. A token's kind is the name of the group of `pattern` that matched it."""

    def __init__(self, number: int, text: str, pattern: re.Pattern[str]) -> None:
        self.number, self.tokens, self.at = number, list[tuple[str, str]](), 0
        position, text = 0, text.rstrip()
        for found in pattern.finditer(text):
            if found.start() != position:
                break
            kind = found.lastgroup or ""
            self.tokens.append((kind, found[kind or 0]))
            position = found.end()
        if position < len(text):
            self.fail(f"'{text[position : position + 20]}' cannot be read")

    def fail(self, reason: str) -> NoReturn:
        raise ValueError(f"line {self.number}: {reason}")

    @property
    def next(self) -> tuple[str, str]:
        return self.tokens[self.at] if self.at < len(self.tokens) else END

    def expected(self, what: str) -> NoReturn:
        found = self.next[1][:40]
        self.fail(f"expected {what}, found '{found}'" if found else f"expected {what}, but the line ends")

    def take(self, *kinds: str) -> str:
        """The next token, which must be of one of these kinds."""
        kind, text = self.next
        if kind not in kinds:
            self.expected(f"a {' or a '.join(kinds)}")
        self.at += 1
        return text

    def accept(self, text: str) -> bool:
        """Step over `text` if it comes next."""
        kind, found = self.next
        if found != text or kind not in ("sign", "word"):
            return False
        self.at += 1
        return True

    def expect(self, text: str) -> None:
        if not self.accept(text):
            self.expected(f"'{text}'")

    def separated(self, item: Callable[[], _Item]) -> tuple[_Item, ...]:
        """One or more items between commas."""
        items = [item()]
        while self.accept(","):
            items.append(item())
        return tuple(items)

    def until(self, close: str, item: Callable[[], _Item]) -> tuple[_Item, ...]:
        """Any number of items between commas, up to `close`."""
        if self.accept(close):
            return ()
        items = self.separated(item)
        self.expect(close)
        return items

    def end(self) -> None:
        if self.next is not END:
            self.fail(f"'{self.next[1][:40]}' is too much")

    def json(self, text: str) -> str:
        try:
            return str(json.loads(text, strict=False))
        except ValueError:
            self.fail(f"{text[:40]} is no JSON string")

    def number_of(self, digits: str) -> int:
        try:
            return int(digits)
        except ValueError:  # Python reads no number of thousands of digits
            self.fail(f"'{digits[:20]}' is no number")
