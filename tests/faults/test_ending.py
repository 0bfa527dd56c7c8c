"""Processes that end, and calls that are told to, in the middle of things."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

LOADING = """
import os, signal, threading
import numpy as np
import tierup
from onnx import TensorProto
from onnx.helper import make_graph, make_node
from tests.security.models import model, node, value
X = np.ones(2, np.float32)
"""

CALLING_DAEMONS = """
loaded = tierup.load(model([node("Add", ["x", "x"], [f"y{i}"]) for i in range(20)], outputs=[value("y19")]))
started = threading.Barrier(4)
def work():
    loaded(x=X)
    started.wait()
    while True:
        loaded(x=X)
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
started.wait()
"""

ENDLESS_LOOP = """
trip = [value("n", [], TensorProto.INT64)] if "BOUND" else []
ins = [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL), value("a")]
body = make_graph([node("Identity", ["go"], ["on"]), node("Identity", ["a"], ["b"])], "body", ins,
                  [value("on", [], TensorProto.BOOL), value("b")])
loaded = tierup.load(model([make_node("Loop", ["n" if trip else "", "", "x"], ["y"], body=body)], [*trip, value("x")]))
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs these tests may have it ignored
inside = threading.Event()
class Announced:
    def __array__(self, dtype=None, copy=None):
        inside.set()
        return X
def interrupt():
    inside.wait()  # it takes the GIL to come back from here, while the loop runs
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    loaded.run({"x": Announced(), **({"n": np.array(2**63 - 1)} if trip else {})})
except KeyboardInterrupt:
    print("interrupted")
"""


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LOADING + code], capture_output=True, text=True, timeout=60, check=False, cwd=os.getcwd()
    )


def test_daemon_threads_call_while_the_process_exits() -> None:
    """Python ends them by unwinding their stacks, which must not destroy what native code holds without the GIL."""
    done = run_python(CALLING_DAEMONS)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("bound", ["", "n"], ids=["while", "for"])
def test_an_endless_loop_without_call_outs_can_be_interrupted(bound: str) -> None:
    done = run_python(ENDLESS_LOOP.replace("BOUND", bound))
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


CLOSING_DESTRUCTOR = """
import tierup._native as native
class Callout:
    def __call__(self):
        return ()
    def __del__(self):
        assert runner.program is None
        try:
            runner()
        except RuntimeError as error:
            print("refused")
runner = native.Runner([], [])
native.set_call_error(RuntimeError)
runner.program = native.Program([(0, 0, [], [], [], [[3, 0, 0, 0]])], [Callout()], [])
runner()
runner.program = None
"""


def test_what_dies_with_a_program_does_not_find_it() -> None:
    done = run_python(CLOSING_DESTRUCTOR)
    assert (done.returncode, done.stdout, done.stderr) == (0, "refused\n", "")


CLOSING_NAMES = """
session = tierup.InferenceSession(model([node("Add", ["x", "x"], ["y"])]).SerializeToString())
class Names:
    def __iter__(self):
        session.close()
        return iter(["y"])
print(session.run(Names(), {"x": X}))
"""


def test_a_session_is_closed_while_a_call_reads_its_arguments() -> None:
    done = run_python(CLOSING_NAMES)
    assert (done.returncode, done.stdout) == (0, "[array([2., 2.], dtype=float32)]\n")


def test_a_runner_that_was_never_initialised_says_so() -> None:
    from tierup import _native

    runner = _native.Runner.__new__(_native.Runner)
    for call in (runner, lambda: runner.call_dict({}), lambda: runner.call_list(None, {})):
        with pytest.raises(RuntimeError, match="__init__"):
            call()
