"""Threads, forks, the end of the process, the garbage collector."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from tests.runtime.programs import F32, calling, copying, program, runner, tensor
from tests.runtime.test_programs import address, kernel_program, scaling, scan

from tierup import _native
from tierup.plan.program import Assembler, StepCode


@pytest.fixture
def two_threads() -> Any:
    before = _native.threads()
    _native.set_threads(2)
    yield
    _native.set_threads(before)


def script(body: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own, with the helpers of these tests at hand."""
    head = "import os, sys, threading, time\nimport numpy as np\nfrom tests.runtime.programs import *\n"
    head += "from tests.runtime.test_processes import kernel_model\n"
    command = [sys.executable, "-c", head + body]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=timeout_s)


def kernel_model() -> Any:
    """A model whose kernel is cut into pieces for two threads."""
    _native.set_threads(2)
    loaded, kernel = kernel_program(), scaling(2.0)
    loaded.publish({0: (address(kernel), kernel)})
    return runner([tensor("x", [-1])], ["y"], loaded)


def test_set_threads(two_threads: Any) -> None:
    assert _native.threads() == 2
    _native.set_threads(0)
    assert _native.threads() == 1


def test_many_threads_call_one_model(two_threads: Any) -> None:
    models = [kernel_model(), scan(), calling(lambda x: (x * 2,), dtype=F32)]
    wrong: list[Any] = []

    def work(seed: int) -> None:
        for i in range(60):
            x = np.full(64, seed * 100 + i, np.float32)
            if not np.array_equal(models[0](x=x)["y"], x * 2):
                wrong.append((seed, i))
            rows = x.reshape(8, 8)
            if models[1](x=rows)["y"].shape != (8, 8):
                wrong.append((seed, i))
            if not np.array_equal(models[2](x0=x)["y0"], x * 2):
                wrong.append((seed, i))

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []
    assert models[0].calls == 240


def test_a_program_is_swapped_while_calls_run() -> None:
    def constant(number: float) -> _native.Program:
        code = Assembler("constant", 2)
        code.emit(StepCode.CONSTANT, 0, 0)
        code.emit(StepCode.CALLOUT, 0, [0], [1])
        return program((code, (), (0, 1)), callouts=[lambda x: (x + 0,)], constants=[np.float32([number])])

    model = runner([], ["a", "b"], constant(0))
    stop, torn = threading.Event(), []

    def work() -> None:
        while not stop.is_set():
            result = model()
            if result["a"] != result["b"]:
                torn.append(result)

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    for i in range(200):
        model.program = constant(i)
    stop.set()
    for worker in workers:
        worker.join()
    assert torn == []


def test_a_forked_child_answers() -> None:
    done = script("""
model, x = kernel_model(), np.arange(100, dtype=np.float32)
model(x=x)
stop = False
def busy():
    while not stop: model(x=x)
other = threading.Thread(target=busy); other.start()
for _ in range(5):
    child = os.fork()
    if child == 0:
        ok = all(np.array_equal(model(x=x)["y"], x * 2) for _ in range(5))
        os._exit(0 if ok else 3)
    assert os.waitpid(child, 0)[1] == 0
stop = True
other.join()
assert np.array_equal(model(x=x)["y"], x * 2)
print("fine")
""")
    assert done.stdout == "fine\n", done.stderr


def test_the_process_ends_while_workers_spin() -> None:
    for end in ("", "sys.exit(0)", "import atexit; atexit.register(lambda: model(x=x))"):
        done = script(f"model, x = kernel_model(), np.ones(100, np.float32)\nmodel(x=x)\nprint('fine')\n{end}")
        assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")


def test_the_process_ends_while_daemon_threads_call() -> None:
    body = """
model, x = copying(), np.ones(1 << 20, np.float32)  # long enough for the GIL to be let go
calling = threading.Barrier(4)
def work():
    model(x=x)
    calling.wait()
    while True: model(x=x)
for _ in range(3): threading.Thread(target=work, daemon=True).start()
calling.wait()
print("fine")
"""
    for _ in range(3):
        done = script(body)
        assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")


def test_the_process_ends_while_daemon_threads_are_in_functions_without_the_gil() -> None:
    """Such a thread used to end the process with SIGABRT: some climbs ended in one as their process did."""
    body = """
from tierup import _native
def work():
    while True: _native.trim_heap()
for _ in range(3): threading.Thread(target=work, daemon=True).start()
time.sleep(0.05)
print("fine")
"""
    for _ in range(3):
        done = script(body)
        assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")


def test_idle_workers_use_no_cpu() -> None:
    done = script("""
model, x = kernel_model(), np.ones(100, np.float32)
for _ in range(20): model(x=x)
time.sleep(0.05)  # past the spin
before = time.process_time()
time.sleep(0.5)
print(time.process_time() - before)
""")
    assert float(done.stdout) < 0.1, done.stderr


def test_dropped_models_are_freed_at_once() -> None:
    model = copying()
    gone = weakref.ref(model)
    gc.disable()
    try:
        del model
        assert gone() is None
    finally:
        gc.enable()


def test_models_in_cycles_are_collected() -> None:
    class Held:
        """Something with a weak reference to it."""

    def build() -> weakref.ref[Held]:
        held, model = Held(), calling(lambda x: (x,))

        def callout(x: Any) -> tuple[Any]:
            return (x, model, held)[:1]

        code = Assembler("constant", 2)
        code.emit(StepCode.CALLOUT, 0, [0], [1])
        model.program = program((code, (0,), (1,)), callouts=[callout], constants=[[model, held]], slots=1)
        model.program.publish({0: (0, [model, held])})
        model.myself = model
        assert model(x0=1) == {"y0": 1}
        return weakref.ref(held)

    gone = build()
    gc.collect()
    assert gone() is None


def test_references_are_given_back() -> None:
    x = np.ones(3, np.float32)
    before = sys.getrefcount(x)
    copy, call = copying(), calling(lambda x: (x,), dtype=F32)
    for _ in range(10):
        copy(x=x)
        call(x0=x)
        copy.call_list(None, {"x": x})
    assert sys.getrefcount(x) == before


def test_results_do_not_leak() -> None:
    model = copying()
    x = np.ones(1 << 18, np.float32)
    model(x=x)
    before = _resident_bytes()
    for _ in range(300):
        model(x=x)
    assert _resident_bytes() - before < 100 * x.nbytes


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
