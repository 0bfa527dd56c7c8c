"""A contender's process: it answers, stands still, fails and hangs, and nothing is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tierup.bench import process as process_module
from tierup.bench.process import Done, Job, Lost, Memory, Process

START = '{"numpy_ns": 1, "read_ns": 2, "imported_ns": 3, "loaded_ns": 4, "answered_ns": 5, "bare_bytes": 6}'
Fake = Callable[[str], Job]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """A worker with this body, in which `say` replies."""

    def make(body: str) -> Job:
        script = tmp_path / "fake.py"
        script.write_text(f"import os, sys\ndef say(text): print(text, flush=True)\nSTART = '{START}'\n{body}\n")
        monkeypatch.setattr(process_module, "WORKER", script)
        return Job(contender="onnxruntime", model="m.onnx", folder=str(tmp_path), sets=1, threads=1)

    return make


def state(pid: int) -> str:
    """The kernel's letter: R runs, S sleeps, T is stopped, X is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def wait_for(pid: int, letters: str) -> None:
    """Signals are delivered soon, not at once."""
    end = time.monotonic() + 30
    while state(pid) not in letters:
        assert time.monotonic() < end, f"process {pid} is {state(pid)}, not {letters}"


def test_commands_and_replies(fake: Fake) -> None:
    job = fake("say(START)\nfor line in sys.stdin: say('{\"peak_bytes\": 7}')")
    with Process(job) as process:
        assert process.start().answered_ns == 5
        assert process.ask("memory", Memory) == Memory(peak_bytes=7)


def test_a_paused_process_stands_still_with_its_children_until_it_is_resumed(fake: Fake) -> None:
    job = fake(
        "import subprocess\nchild = subprocess.Popen([sys.executable, '-c', 'while True: pass'])\nsay(START)\n"
        "for line in sys.stdin: say('{\"peak_bytes\": %d}' % child.pid)"
    )
    with Process(job) as process:
        process.start()
        child = process.ask("memory", Memory).peak_bytes
        process.pause()
        wait_for(child, "T")
        process.resume()
        wait_for(child, "RS")
        process.pause()
    wait_for(child, "XZ")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("os.kill(os.getpid(), 11)", "it was ended by SIGSEGV"),
        ("sys.stderr.write('first\\nno such library\\n'); sys.exit(3)", "it exited with code 3: no such library"),
        ('say(\'{"error": "ValueError: no model"}\')', "^ValueError: no model$"),
        ("say('nonsense')", "its reply cannot be read"),
        ("say('{}')", "its reply cannot be read"),
        ("say('x' * (1 << 21))", "longer than"),
        ("import time; time.sleep(600)", "did not answer within"),
        ("say(START); sys.stdin.readline(); os.abort()", "it was ended by SIGABRT"),
    ],
)
def test_what_goes_wrong_is_a_sentence(fake: Fake, body: str, message: str) -> None:
    def start_and_ask(process: Process) -> None:
        process.start()
        process.ask("memory", Memory)

    with Process(fake(body), timeout_s=2) as process, pytest.raises(Lost, match=message):
        start_and_ask(process)


def test_a_contender_that_is_gone_before_it_is_asked(fake: Fake) -> None:
    with Process(fake("say(START)")) as process:
        process.start()
        with pytest.raises(Lost, match="it exited with code 0"):
            process.ask("round", Done)


def test_stopped_contenders_do_not_outlive_a_killed_parent(fake: Fake, tmp_path: Path) -> None:
    job = fake(
        f"import runpy; runpy.run_path({str(process_module.WORKER)!r})['end_with_parent']()\n"
        "open(sys.argv[0] + '.pid', 'w').write(str(os.getpid()))\nsay(START)\nsys.stdin.read()"
    )
    script = (
        "import os, signal, sys; from pathlib import Path\n"
        "from tierup.bench import process as p\n"
        f"p.WORKER = Path({str(process_module.WORKER)!r})\n"
        f"one = p.Process(p.Job(contender='x', model='m', folder={job.folder!r}, sets=1, threads=1))\n"
        "one.start(); one.pause(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    pid = int((tmp_path / "fake.py.pid").read_text())
    try:
        wait_for(pid, "XZ")
    finally:
        if state(pid) == "T":
            os.kill(pid, signal.SIGKILL)


def test_the_real_worker_loads_nothing_of_tierup_for_others() -> None:
    script = f"import runpy, sys; runpy.run_path({str(process_module.WORKER)!r}); assert 'tierup' not in sys.modules"
    assert subprocess.run([sys.executable, "-P", "-c", script], check=False, timeout=60).returncode == 0


def test_times_that_are_no_times_are_refused(tmp_path: Path) -> None:
    from tierup.bench.bench import Bench, Options

    bench = Bench(Options(model=tmp_path, contenders=[]), tmp_path, [{"x": np.zeros(1)}])
    for rubbish in (np.array([1.5]), np.array([], np.int64), np.array([[1]]), np.array([-1])):
        np.save(tmp_path / "times.npy", rubbish)
        with pytest.raises(Lost, match="no times"):
            bench.times("times.npy")
    (tmp_path / "times.npy").write_bytes(b"")
    with pytest.raises(Lost, match="cannot be read"):
        bench.times("times.npy")
