"""Keeps NumPy's own threads still while reference functions run: the run time owns the cores.

NumPy's BLAS has its own pool, one thread for each core. It is set to one thread while at least one reference function
runs anywhere in the process, and back afterwards. A product's bits depend on that number, so every caller's thread has
to get the same.
"""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import Any


class OneBlasThread:
    """A context that any number of threads may be in at once, each of them once.

    An interrupt can arrive in the middle of any line here. Whatever it leaves behind, the next function that this
    thread runs puts right: threads are remembered by name, not counted.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler or a destructor may call a model while this thread is in here
        self._inside: set[int] = set()
        self._libraries: Any = None
        self._before: list[tuple[Any, int]] = []
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """A forked child has none of the threads that were inside."""
        self._lock = threading.RLock()
        if self._inside:
            self._inside.clear()
            self._restore()

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._limit()
            self._inside.add(threading.get_ident())

    def keep(self) -> None:
        """Leave NumPy one thread for good: this process has nobody else's arrays to compute with."""
        with self._lock:
            self._limit()
            self._before = []

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._inside.discard(threading.get_ident())
            if not self._inside:
                self._restore()

    def _limit(self) -> None:
        if self._libraries is None:
            from threadpoolctl import ThreadpoolController  # late: it looks at every loaded library

            self._libraries = ThreadpoolController().select(user_api="blas").lib_controllers
        if not self._before:  # otherwise the last restore was interrupted
            threads = ((library, library.get_num_threads()) for library in self._libraries)
            self._before = [(library, count) for library, count in threads if count != 1]
        for library, _ in self._before:
            _set_threads(library, 1)

    def _restore(self) -> None:
        for library, threads in self._before:
            _set_threads(library, threads)
        self._before = []


def _set_threads(library: Any, threads: int) -> None:
    """Set a library's threads, whichever thread set them last.

    Newer versions of threadpoolctl let a single thread change OpenBLAS's process-wide number and ignore all
    others. Here the first to come limits and the last to leave restores, and these are rarely the same.
    """
    release = getattr(library, "clear_controlling_thread", lambda force: None)
    release(force=True)
    library.set_num_threads(threads)
    release(force=True)


ONE_BLAS_THREAD = OneBlasThread()  # one for the process, since NumPy's pool is one for the process
