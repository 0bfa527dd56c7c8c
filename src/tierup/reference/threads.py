"""Keeps NumPy's own threads still while reference functions run: the run time owns the cores.

NumPy's BLAS has its own pool, one thread for each core. It is set to one thread while at least one reference function
runs anywhere in the process, and back afterwards.
"""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import Any


class OneBlasThread:
    """A context that any number of threads may be in at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._controller: Any = None
        self._limit: Any = None
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """A forked child has none of the threads that were inside."""
        self._lock = threading.Lock()
        if self._inside:
            self._inside = 0
            self._limit.restore_original_limits()

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                if self._controller is None:
                    from threadpoolctl import ThreadpoolController  # late: it looks at every loaded library

                    self._controller = ThreadpoolController().select(user_api="blas")
                self._limit = self._controller.limit(limits=1)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._limit.restore_original_limits()


ONE_BLAS_THREAD = OneBlasThread()  # one for the process, since NumPy's pool is one for the process
