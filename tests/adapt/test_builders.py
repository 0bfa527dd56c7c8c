"""Builders: kernels out of the cache or out of workers, the same bytes either way."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.codegen.test_image import HOST, call
from tests.faults.test_workers import fake
from tests.lower.samples import Sample, layer_norm_sample, matmul_sample, softmax_rows, softmax_sample

from tierup.adapt.builders import BuildError, Builders, Built, codes, split
from tierup.adapt.compiling import compile_texts
from tierup.adapt.messages import Failure
from tierup.adapt.workers import Workers
from tierup.codegen.target import AVX2, NEON
from tierup.lower.text import print_program
from tierup.lower.tile import TileProgram
from tierup.runtime.kernels import load_code
from tierup.store.objects import ObjectCache, object_key

BAD = "program broken() {\n  nonsense\n}\n"


def samples() -> list[Sample]:
    rows = [sample((5, 70), steps) for sample in (softmax_sample, layer_norm_sample) for steps in range(1, 6)]
    return [*rows, matmul_sample((5, 40, 7))]


def programs() -> list[TileProgram]:
    return [sample.program for sample in samples()]


def answers(kernels: list[bytes]) -> list[bytes]:
    """What the kernels of the samples compute."""
    results = []
    for sample, (address, _keep) in zip(samples(), load_code(kernels, HOST), strict=True):
        call(address, sample.program, sample.buffers, sample.sizes)
        results.append(sample.buffers[sample.out].tobytes())
    return results


@pytest.fixture
def cache(tmp_path: Path) -> ObjectCache:
    return ObjectCache(tmp_path / "objects")


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers()
    yield made
    made.rest()


def test_workers_build_what_this_process_builds(cache: ObjectCache, workers: Workers) -> None:
    """The same answers, to the last bit: the same code, but constants may lie elsewhere."""
    texts = [print_program(program) for program in programs()]
    builders = Builders(cache, 2, workers=workers)
    built = builders.compile(programs(), HOST)
    for there, here in zip(
        answers(codes(built)), answers(codes(Builders(None, 1).compile(programs(), HOST))), strict=True
    ):
        assert there == here
    assert workers.running == 2
    assert (builders.counters.builds, builders.counters.failures) == (len(texts), 0)
    assert [result.key for result in built if isinstance(result, Built)] == [object_key(t, HOST).digest for t in texts]


def test_what_was_built_is_found_again(cache: ObjectCache) -> None:
    texts = [print_program(program) for program in programs()]
    built = Builders(cache, 1).compile_texts(texts, AVX2, urgent=True)
    assert {result.cached for result in built if isinstance(result, Built)} == {False}
    builders = Builders(cache, 1)
    assert builders.compile_texts(texts, AVX2) == [
        Built(result.code, result.key, True) for result in built if isinstance(result, Built)
    ]
    assert builders.counters.builds == 0
    assert cache.counters.hits == len(texts)


def test_a_worker_is_modest(workers: Workers) -> None:
    """Idle priority, bounded memory, no streams of its parent's, no files but its channel."""
    assert codes(Builders(None, 2, workers=workers).compile([softmax_rows()], AVX2))
    (worker,) = workers._all
    pid = worker.process.pid
    assert os.sched_getscheduler(pid) == os.SCHED_IDLE
    assert os.getpriority(os.PRIO_PROCESS, pid) == 19
    assert resource.prlimit(pid, resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY
    assert resource.prlimit(pid, resource.RLIMIT_CORE) == (0, 0)
    assert [os.readlink(f"/proc/{pid}/fd/{stream}") for stream in range(3)] == ["/dev/null"] * 3
    assert os.getpgid(pid) == pid  # Ctrl-C is not for it


def test_a_worker_s_memory_is_bounded(tmp_path: Path) -> None:
    """What it allocates, not what it maps."""
    with open(tmp_path / "large", "wb") as file:
        file.truncate(1 << 33)
    body = """
import mmap, os, sys
from tierup.adapt import worker
worker._MEMORY_BYTES, os.sysconf = 64 << 20, lambda _: 0
worker._limit_memory()
with open(sys.argv[1], "rb") as file:
    print(len(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)))
try:
    bytearray(128 << 20)
except MemoryError:
    print("bounded")
"""
    command = [sys.executable, "-c", body, str(tmp_path / "large")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == f"{1 << 33}\nbounded\n", done.stderr


def test_equal_programs_are_built_once(cache: ObjectCache) -> None:
    builders = Builders(cache, 1)
    first, second, third = builders.compile([softmax_rows(), softmax_rows(2), softmax_rows()], AVX2, urgent=True)
    assert first == third != second
    assert builders.counters.builds == 2


def test_a_bad_program_costs_only_itself(workers: Workers, cache: ObjectCache) -> None:
    good = print_program(softmax_rows())
    for builders, urgent in ((Builders(cache, 2, workers=workers), False), (Builders(cache, 1), True)):
        built = builders.compile_texts([BAD, good, "", BAD], AVX2, urgent=urgent)
        assert isinstance(built[1], Built)
        failures = [result for result in built if isinstance(result, Failure)]
        assert len(failures) == 3
        assert "ValueError: " in failures[0].reason
        assert builders.counters.failures == 2
        with pytest.raises(BuildError, match="kernel 0 of 4 could not be built: "):
            codes(built)
    assert len(cache.entries()) == 1


def test_a_program_that_crashes_workers_costs_only_itself() -> None:
    workers = fake("picky")
    texts = ["bad", *(f"text {number}" for number in range(9))]
    built = Builders(None, 2, workers=workers).compile_texts(texts, AVX2)
    assert built[0] == Failure("a worker was ended by SIGSEGV, twice")
    assert codes(built[1:]) == [text.encode() for text in texts[1:]]
    workers.rest()


def test_without_workers_this_process_builds(caplog: pytest.LogCaptureFixture) -> None:
    builders = Builders(None, 2, workers=fake("stillborn"))
    assert codes(builders.compile([softmax_rows()], AVX2)) == compile_texts([print_program(softmax_rows())], AVX2)
    assert "kernels are built in this process: a worker ended with status 3" in caplog.text


@pytest.mark.parametrize(("threads", "chars"), [(2, 100), (1, 100_000)])
def test_small_urgent_work_starts_no_process(threads: int, chars: int, caplog: pytest.LogCaptureFixture) -> None:
    builders = Builders(None, threads, workers=Workers(("/does/not/exist",)))
    (built,) = builders.compile_texts(["#" * chars], AVX2, urgent=True)
    assert isinstance(built, Failure)  # it was looked at here
    assert "built in this process" not in caplog.text  # not for want of a worker


def test_large_urgent_work_goes_to_workers() -> None:
    workers = fake("good")
    text = "#" * 100_000
    builders = Builders(None, 2, workers=workers)
    assert codes(builders.compile_texts([text], AVX2, urgent=True)) == [text.encode()]
    assert codes(builders.compile_texts(["small"], AVX2, urgent=True)) == [b"small"]  # now that there is one
    workers.rest()


def test_other_machines_get_objects() -> None:
    (code,) = Builders(None, 1).build([softmax_rows()], NEON)
    assert code[:4] == b"\x7fELF"


def test_batches_are_few_and_balanced() -> None:
    texts = [f"{number:03}" + "x" * (number * number % 977) for number in range(60)]
    batches = split(texts, 2)
    assert sorted(text for batch in batches for text in batch) == sorted(texts)
    assert len(batches) == 8
    loads = [sum(map(len, batch)) for batch in batches]
    assert loads == sorted(loads, reverse=True)
    assert loads[0] - loads[-1] <= max(map(len, texts))
    assert [len(batch) for batch in split(["a", "b"], 4)] == [1, 1]
    assert split([], 2) == []


def test_a_warm_start_imports_no_compiler(cache: ObjectCache, tmp_path: Path) -> None:
    """Texts in, kernels live, and neither LLVM nor the emitter is imported."""
    texts = [print_program(program) for program in programs()]
    codes(Builders(cache, 1).compile_texts(texts, AVX2, urgent=True))
    (tmp_path / "texts").write_text("\0".join(texts))
    body = """
import sys
from pathlib import Path
from tierup import _native
from tierup.adapt.builders import Builders, codes
from tierup.codegen.target import AVX2
from tierup.runtime.kernels import publish_code
from tierup.store.objects import ObjectCache
builders = Builders(ObjectCache(Path(sys.argv[1]) / "objects"), 2)
texts = (Path(sys.argv[1]) / "texts").read_text().split("\\0")
program = _native.Program([(0, 0, [], [], [], [])], [], [], len(texts))
publish_code(program, codes(builders.compile_texts(texts, AVX2)), AVX2)
assert all(program.kernel_addresses())
print(builders.counters.builds, [n for n in sys.modules if "llvm" in n or n.startswith("tierup.lower")])
"""
    command = [sys.executable, "-c", body, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "0 []\n", done.stderr
