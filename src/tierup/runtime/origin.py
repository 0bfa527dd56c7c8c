"""Where a model came from, imported when somebody asks for its graph.

A warm start never asks. Tier 0 does, and so do reports of every detail, and a call that a plan's guard turns away.
"""

from __future__ import annotations

import mmap
import threading
from typing import TYPE_CHECKING, Any

from tierup.errors import ModelError, TierupError
from tierup.store.source import open_source

if TYPE_CHECKING:
    from collections.abc import Callable

    from tierup.frontends.onnx import Imported


class Origin:
    """A model's path, bytes or proto. `source` is None where its content cannot be named, so that nothing is cached."""

    def __init__(self, given: Any, load: Callable[[], Imported] | None = None) -> None:
        """`load` imports it where that is not just reading it."""
        self.source = open_source(given)
        self._given = given
        self._load = load
        self._closed = False
        self._imported: Imported | None = None
        self._lock = threading.Lock()

    def reopen(self) -> None:
        """Take the model as it is now; until it is imported, nothing hangs on what it was."""
        self.source = open_source(self._given)

    def imported(self) -> Imported:
        """The model as imported: what is wrong with it is a ModelError."""
        with self._lock:
            if self._imported is None:
                if self._closed:
                    raise TierupError("the model is closed")
                self._check()
                self._imported = self._read() if self._load is None else self._load()
            return self._imported

    def _read(self) -> Imported:
        from tierup.frontends.onnx import load_onnx

        return load_onnx(self._given)

    def _check(self) -> None:
        if self.source is not None:
            try:
                self.source.check()
            except OSError as error:
                raise ModelError(f"the model cannot be read again: {error}") from error

    def forget(self) -> None:
        """Let go of the import, and of the pages it touched, if it can be made again."""
        with self._lock:
            if self.source is None or self._imported is None:
                return
            _release_pages(self._imported)
            self._imported = None

    def release_pages(self) -> None:
        """Let go of the pages that the import touched; whoever reads them gets them again."""
        with self._lock:
            if self._imported is not None:
                _release_pages(self._imported)

    def close(self) -> None:
        """Let go of everything."""
        with self._lock:
            self._closed, self._given, self._imported = True, None, None


def _release_pages(imported: Imported) -> None:
    for view in imported.files.values():
        if isinstance(view.obj, mmap.mmap):
            view.obj.madvise(mmap.MADV_DONTNEED)
