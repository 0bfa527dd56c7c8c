"""A worker ends with its parent."""

from __future__ import annotations

import os
import select
import socket
import threading
from contextlib import suppress


def watch_parent(channel: socket.socket, parent: int) -> None:
    """End this process when `parent` closes its end of the channel or is gone, whatever is being done then.

    A thread waits for it, which costs nothing. PR_SET_PDEATHSIG would not do: it fires when the *thread* ends that
    started us.
    """
    threading.Thread(target=_end_with, args=(channel, parent), daemon=True).start()


def _end_with(channel: socket.socket, parent: int) -> None:
    watched = select.poll()
    watched.register(channel, select.POLLRDHUP)
    with suppress(OSError):  # an old kernel, or already gone
        watched.register(os.pidfd_open(parent), select.POLLIN)
    if os.getppid() == parent:
        watched.poll()
    os._exit(0)
