"""Workers that crash, hang, lie or are left alone: no job is lost, nothing waits, nobody stays behind."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tierup.adapt.messages import Compile, Compiled, Failure
from tierup.adapt.workers import Workers, WorkersUnavailable
from tierup.codegen.target import AVX2
from tierup.store.versions import emitter_version

FAKE = Path(__file__).parent.parent / "adapt" / "fake_worker.py"


def fake(behaviour: str, **options: Any) -> Workers:
    return Workers((sys.executable, str(FAKE), emitter_version(), behaviour), **options)


@pytest.fixture
def started() -> Iterator[Any]:
    """Makes fake workers, and sends them home."""
    made: list[Workers] = []

    def start(behaviour: str, **options: Any) -> Workers:
        made.append(fake(behaviour, **options))
        return made[-1]

    yield start
    for workers in made:
        workers.rest()


def job(*texts: str) -> Compile:
    return Compile(texts, AVX2)


def pids(workers: Workers) -> list[int]:
    return [worker.process.pid for worker in workers._all]


def gone(watch: int, timeout_s: float = 20) -> bool:
    """Whether the process behind a pidfd ends in time."""
    poll = select.poll()
    poll.register(watch, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def test_a_worker_steps_back_once_and_for_all(started: Any) -> None:
    """So a job that presses gets another one, and does not wait for one that may not get on."""
    workers = started("good")
    workers.run([job("a")], at_most=1, presses=True)
    (pressing,) = pids(workers)
    assert os.sched_getscheduler(pressing) == os.SCHED_OTHER
    workers.run([job("b")], at_most=1)
    assert pids(workers) == [pressing]
    assert {os.sched_getscheduler(int(thread)) for thread in os.listdir(f"/proc/{pressing}/task")} == {os.SCHED_IDLE}
    ended = os.pidfd_open(pressing)
    workers.run([job("c")], at_most=1, presses=lambda: True)
    (other,) = pids(workers)
    assert (other != pressing, os.sched_getscheduler(other), gone(ended)) == (True, os.SCHED_OTHER, True)
    assert workers.lost == 0


def test_a_job_that_comes_to_press_leaves_a_worker_that_hardly_gets_on(started: Any, tmp_path: Path) -> None:
    marker = tmp_path / "begun"
    workers = started(f"starve:{marker}")
    assert workers.run([job("a")], at_most=1, presses=marker.exists) == [Compiled((b"a",))]
    (other,) = pids(workers)
    assert os.sched_getscheduler(other) == os.SCHED_OTHER
    assert workers.lost == 1


def test_a_job_is_begun_before_anybody_asks_for_it(started: Any) -> None:
    workers = started("good")
    workers.prepare(job("a"))
    (first,) = pids(workers)
    workers.prepare(job("b"))
    assert pids(workers) == [first]  # one at a time
    assert workers.run([job("c")], at_most=1, presses=True) == [Compiled((b"c",))]  # it does not wait for it
    told: list[Any] = []
    found = workers.run([job("d"), job("a")], at_most=1, presses=True, told=lambda job, spent: told.append(job))
    assert found == [Compiled((b"d",)), Compiled((b"a",))]
    assert first in pids(workers)
    assert len(told) in (0, 2)  # as workers say
    assert started("stillborn").run([], at_most=1) == []
    Workers(("/does/not/exist",)).prepare(job("a"))  # what comes of that is told to whoever has a job


def test_a_job_begun_in_vain_is_forgotten(started: Any) -> None:
    workers = started("good")
    workers.prepare(job("a"))
    workers.rest()
    assert workers.running == 0
    assert workers.run([job("a")], at_most=1) == [Compiled((b"a",))]


def test_a_job_begun_before_anybody_asks_may_fail(started: Any, tmp_path: Path) -> None:
    workers = started(f"crash:{tmp_path / 'marker'}")
    workers.prepare(job("a"))
    assert workers.run([job("a")], at_most=1) == [Compiled((b"a",))]
    assert workers.lost == 1


def test_replies_come_in_the_order_of_the_jobs(started: Any) -> None:
    workers = started("good")
    jobs = [job(*(f"{number}.{part}" for part in range(number % 3 + 1))) for number in range(20)]
    replies = workers.run(jobs, at_most=3)
    assert replies == [Compiled(tuple(text.encode() for text in job.programs)) for job in jobs]
    assert workers.running <= 3
    before = pids(workers)
    assert workers.run(jobs[:1], at_most=3) == replies[:1]
    assert pids(workers) == before  # they are used again
    assert workers.lost == 0
    assert workers.run([], at_most=3) == []


def test_long_messages_travel_both_ways(started: Any) -> None:
    text = "x" * (3 << 20)
    assert started("good").run([job(text), job(text, text)], at_most=2)[1] == Compiled((text.encode(), text.encode()))


@pytest.mark.parametrize("behaviour", ["crash", "quit", "garbage", "huge", "short", "again"])
def test_a_bad_worker_is_replaced_and_its_job_done(started: Any, behaviour: str, tmp_path: Path) -> None:
    workers = started(f"{behaviour}:{tmp_path / 'marker'}")
    assert workers.run([job("a", "b")], at_most=1) == [Compiled((b"a", b"b"))]
    assert workers.lost == 1


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("crash", "a worker was ended by SIGSEGV, twice"),
        ("quit", "a worker ended with status 7, twice"),
        ("garbage", "no reply"),
        ("huge", "no reply"),
        ("short", "answers another question"),
    ],
)
def test_a_job_that_fails_twice_has_failed(started: Any, behaviour: str, reason: str) -> None:
    workers = started(behaviour)
    replies = workers.run([job("a"), job("b")], at_most=2)
    assert all(isinstance(reply, Failure) and reason in reply.reason for reply in replies)
    assert workers.lost == 4
    assert workers.running == 0


def test_a_job_that_crashes_its_worker_costs_no_other(started: Any) -> None:
    workers = started("picky")
    replies = workers.run([job("good"), job("bad"), job("fine")], at_most=1)
    assert replies[0] == Compiled((b"good",))
    assert isinstance(replies[1], Failure)
    assert replies[2] == Compiled((b"fine",))


@pytest.mark.parametrize("behaviour", ["hang", "deaf"])
def test_a_hanging_worker_is_killed(started: Any, behaviour: str) -> None:
    workers = started(behaviour)
    text = "x" * (2 << 20)  # more than fits into the channel: a deaf worker takes only part of it
    (reply,) = workers.run([job(text)], at_most=1, limit_s=0.2)
    assert reply == Failure("it took longer than 0.2 s")
    assert workers.running == 0


def test_others_finish_beside_a_hanging_worker(started: Any) -> None:
    replies = started("slow").run([job("slow"), *(job(str(n)) for n in range(5))], at_most=2, limit_s=1)
    assert isinstance(replies[0], Failure)
    assert replies[1:] == [Compiled((str(n).encode(),)) for n in range(5)]


@pytest.mark.parametrize("behaviour", ["stillborn", "outdated"])
def test_workers_that_do_not_start(started: Any, behaviour: str) -> None:
    workers = started(behaviour)
    for _ in range(2):
        with pytest.raises(WorkersUnavailable, match=r"ended with status 3|another version"):
            workers.run([job("a")], at_most=2)
    assert workers.running == 0


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(WorkersUnavailable, match="no worker could be started"):
        Workers(("/does/not/exist",)).run([job("a")], at_most=1)


def test_threads_share_the_workers(started: Any) -> None:
    workers = started("good")
    results: dict[int, Any] = {}

    def work(number: int) -> None:
        results[number] = workers.run([job(f"{number}.{k}") for k in range(5)], at_most=2)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for number in range(6):
        assert results[number] == [Compiled((f"{number}.{k}".encode(),)) for k in range(5)]
    assert workers.running <= 2


def test_idle_workers_are_let_go(started: Any) -> None:
    workers = started("good", idle_s=0.01)
    watches: list[int] = []
    original = workers._give_back

    def give_back(worker: Any) -> None:
        watches.append(os.pidfd_open(worker.process.pid))
        original(worker)

    workers._give_back = give_back
    workers.run([job("a"), job("b")], at_most=2)
    assert watches
    assert all(gone(watch) for watch in watches)
    assert workers.run([job("c")], at_most=2) == [Compiled((b"c",))]


def test_a_worker_that_died_while_idle_is_no_loss(started: Any) -> None:
    workers = started("good")
    workers.run([job("a")], at_most=1)
    (worker,) = workers._all
    watch = os.pidfd_open(worker.process.pid)
    os.kill(worker.process.pid, 9)
    assert gone(watch)
    assert workers.run([job("b")], at_most=1) == [Compiled((b"b",))]


HEAD = """
import os, sys, threading
from tests.faults.test_workers import fake, job, pids, Workers
from tierup.adapt.messages import Compiled
"""


def script(body: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", HEAD + body], stdin=pipe, stdout=pipe, stderr=pipe, text=True)


BUSY = """
workers = fake("hang")
threading.Thread(target=workers.run, args=([job("a")],), kwargs={"at_most": 1}, daemon=True).start()
while not any(worker.ready for worker in list(workers._all)): pass
"""
IDLE = """
workers = fake("good")
workers.run([job("a")], at_most=1)
"""


@pytest.mark.parametrize("state", [BUSY, IDLE], ids=("busy", "idle"))
@pytest.mark.parametrize("heir", ["", "if os.fork() == 0: os.read(0, 1); os._exit(0)\n"])
def test_workers_end_with_a_killed_parent(state: str, heir: str) -> None:
    """Also where a forked child of the parent lives on."""
    with script(f"{state}{heir}print(*pids(workers), flush=True)\nos.read(0, 1)") as parent:
        assert parent.stdout is not None
        watch = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
        assert gone(watch)


def test_a_worker_that_cannot_watch_ends_by_its_own_clock() -> None:
    """The real worker's timer works without any thread of Python's."""
    body = "import tierup.adapt.worker as worker, socket\n"
    body += "worker.watch_parent = lambda *_: None\n"
    body += "worker._ANSWERS[worker.Compile] = lambda job: exec('while True: pass')\n"
    body += "from tierup.adapt.messages import *\nfrom tierup.codegen.target import AVX2\n"
    body += "ours, theirs = socket.socketpair()\n"
    body += "ours.sendall(pack(Request(Compile(('a',), AVX2), 0.2)))\nworker.work(theirs.detach(), 0)\n"
    done = subprocess.run([sys.executable, "-c", body], check=False, capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGPROF, done.stderr


@pytest.mark.parametrize("state", [BUSY, IDLE], ids=("busy", "idle"))
def test_the_process_ends_at_once(state: str) -> None:
    parent = script(f"{state}print(*pids(workers), flush=True)\nos.read(0, 1)")
    assert parent.stdout is not None
    watch = os.pidfd_open(int(parent.stdout.readline()))
    out, error = parent.communicate(timeout=20)
    assert (parent.returncode, out, error) == (0, "", "")
    assert gone(watch)


def test_a_forked_child_has_workers_of_its_own() -> None:
    body = """
workers = fake("good")
workers.run([job("a"), job("b")], at_most=2)
ours = set(pids(workers))
child = os.fork()
if child == 0:
    fine = workers.running == 0 and workers.run([job("c")], at_most=2) == [Compiled((b"c",))]
    os._exit(0 if fine and not ours & set(pids(workers)) else 3)
assert os.waitpid(child, 0)[1] == 0
assert workers.run([job("d")], at_most=2) == [Compiled((b"d",))]
assert set(pids(workers)) == ours and workers.lost == 0
print("fine")
"""
    out, error = script(body).communicate(timeout=60)
    assert out == "fine\n", error


def test_a_fork_while_a_job_runs() -> None:
    body = f"""{BUSY}
child = os.fork()
if child == 0:
    workers._command = workers._command[:-1] + ("good",)
    os._exit(0 if workers.run([job("c")], at_most=1) == [Compiled((b"c",))] else 3)
assert os.waitpid(child, 0)[1] == 0
assert all(worker.process.poll() is None for worker in workers._all)
print("fine")
"""
    out, error = script(body).communicate(timeout=60)
    assert out == "fine\n", error
