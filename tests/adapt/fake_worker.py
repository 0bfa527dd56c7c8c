"""A worker that misbehaves: `fake_worker.py EMITTER BEHAVIOUR CHANNEL PARENT PRIORITY`.

A behaviour may name a file, after a colon: the first process misbehaves and makes it, those that find it are good.
A good one gives each program's own text back as its code.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

from tierup.adapt.messages import Compiled, Ready, pack, receive
from tierup.adapt.watch import watch_parent


def main() -> None:
    behaviour, _, marker = sys.argv[2].partition(":")
    channel = socket.socket(fileno=int(sys.argv[3]))
    if marker:
        try:
            Path(marker).touch(exist_ok=False)
        except FileExistsError:
            behaviour = "good"
    if behaviour == "stillborn":
        sys.exit(3)
    watch_parent(channel, int(sys.argv[4]))
    channel.sendall(pack(Ready("0" * 64 if behaviour == "outdated" else sys.argv[1])))
    if behaviour == "deaf":
        spin()
    for request in receive(channel):
        texts = request.job.programs
        if behaviour == "crash" or (behaviour == "picky" and "bad" in texts):
            os.kill(os.getpid(), signal.SIGSEGV)
        elif behaviour == "quit":
            sys.exit(7)
        elif behaviour == "hang" or (behaviour == "slow" and "slow" in texts):
            spin()
        elif behaviour == "starve":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif behaviour == "garbage":
            channel.sendall(b"\x05\0\0\0hello")
        elif behaviour == "huge":
            channel.sendall(b"\xff\xff\xff\xff")
        elif behaviour == "short":
            channel.sendall(pack(Compiled((b"x",) * (len(texts) - 1))))
        elif behaviour == "again":
            channel.sendall(pack(Ready(sys.argv[1])))
        else:
            channel.sendall(pack(Compiled(tuple(text.encode() for text in texts))))


def spin() -> None:
    while True:
        pass


if __name__ == "__main__":
    main()
