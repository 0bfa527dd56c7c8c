"""Threads behind calls: turns are short while they work, and as they were afterwards."""

from __future__ import annotations

import subprocess
import sys

import pytest

WORK = """
import os, sys, threading
from tierup.adapt.behind import TURN_S, start_behind

usual = sys.getswitchinterval()
begun, ends = threading.Barrier(3), [threading.Event(), threading.Event()]

def work(end):
    begun.wait(20)
    end.wait(20)

def finish():
    for end in ends:
        end.set()
    for thread in threading.enumerate():
        if thread.name == "tierup-test":
            thread.join(20)

for end in ends:
    start_behind(lambda end=end: work(end), "tierup-test")
begun.wait(20)
"""
CASES = {
    "turns are short while somebody works": """
assert sys.getswitchinterval() == TURN_S
ends[0].set()
assert sys.getswitchinterval() == TURN_S
finish()
assert sys.getswitchinterval() == usual
""",
    "what somebody chose meanwhile stays": """
sys.setswitchinterval(0.003)
finish()
assert sys.getswitchinterval() == 0.003
""",
    "a forked child has the usual turns": """
child = os.fork()
if child == 0:
    os._exit(0 if sys.getswitchinterval() == usual else 1)
finish()
assert os.waitpid(child, 0)[1] == 0
""",
}


@pytest.mark.parametrize("name", CASES)
def test_turns(name: str) -> None:
    """In a process of its own, where no other thread of ours works."""
    done = subprocess.run([sys.executable, "-c", WORK + CASES[name]], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
