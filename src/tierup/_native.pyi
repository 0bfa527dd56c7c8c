"""The native hot path. `docs/native-program.md` defines what a program is."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

class Code:
    """Machine code in memory that is executable and not writable. It stays loaded as long as this lives."""

    def __init__(self, images: list[bytes]) -> None:
        """Images begin with their first instruction and run wherever they lie, on a border of 64 bytes.

        ValueError if one is empty or all are more than 1 GiB; OSError if the system gives no such memory.
        """

    @property
    def addresses(self) -> list[int]:
        """Where each image begins."""

    @property
    def bytes(self) -> int:
        """How much memory they take together."""

class Program:
    """An immutable program with its call-outs and constants, and the slots that kernels go live in."""

    def __init__(
        self,
        functions: list[Any],
        callouts: list[Callable[..., tuple[Any, ...]]],
        constants: list[Any],
        slots: int = 0,
        facts: list[tuple[int, bytes]] = [],
    ) -> None:
        """A function is (n_values, n_dims, inputs, outputs, dim_code, steps). A fact is (input, element):
        all elements of the input have these bytes. ValueError says what is malformed."""

    def publish(self, kernels: dict[int, tuple[int, object]]) -> None:
        """{slot: (address, what keeps the code loaded)}; address 0 empties a slot. All of them go live together."""

    number: int
    """No other program of this process has it."""

    def kernel_addresses(self) -> list[int]:
        """The kernel in each slot; 0 where there is none."""

    def add_variants(
        self, variants: Sequence[tuple[int, int, Sequence[int], int, object, int, int, int]]
    ) -> list[tuple[int, tuple[int, ...], int]]:
        """(slot, first, key, address, what keeps the code loaded, range, grain, scratch) of each: kernels that answer
        instead of the open one where a step's sizes, from the first on, and its range are the key. All of them go live
        together; where a slot has no room for more, the one that was used least goes. Returns (slot, key, uses) of
        those."""

    def remove_variants(self, variants: Sequence[tuple[int, Sequence[int]]]) -> int:
        """Take the variants with these slots and keys out, all together: how many there were."""

    def exchange_variants(self) -> None:
        """Set all variants aside, so that the open kernels answer; or let those that were set aside answer again."""

    def variants(self) -> list[tuple[int, tuple[int, ...], int, int]]:
        """(slot, key, address, how often it was used) of each."""

    def miss_variants(self, share: float, seed: int = 0) -> None:
        """Pass over so many of the variants that fit, drawn at random. For tests."""

    def time_kernels(self, on: bool) -> None:
        """Begin to time every kernel step of calls that start from now on, from zero; or stop."""

    def kernel_times(self) -> list[tuple[int, int, int, int]]:
        """(function, step, calls, nanoseconds) of the kernel steps that were timed."""

class Runner:
    """What users call. Subclasses override `convert_feeds` and may alias `call_dict` or `call_list` as `run`."""

    def __init__(self, inputs: list[tuple[str, int, list[int] | None, bool]], outputs: list[str]) -> None:
        """Inputs are (name, dtype code, shape, required).

        A dtype code of -1 takes any object, -2 any that `convert_feeds` lets through, a shape of None any rank. In a
        shape, -1 is open, and -2 - k is open with the name k: sizes with one name agree within a call. An input that is
        not required may be left out: its register is empty then.
        """

    def __call__(self, **feeds: Any) -> dict[str, Any]: ...
    def call_dict(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """{output name: value}"""

    def call_list(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """The outputs named, or all of them, in a list."""

    def convert_feeds(self, feeds: Any) -> dict[str, Any]:
        """Called for inputs that do not fit as they are (and when there is no program): converts them or raises."""

    program: Program | None
    """The program that calls run; a call that runs keeps the one it started with."""

    def notice_after(self, calls: int) -> None:
        """Call `notice_calls` once, when so many further calls were answered; 0: not at all."""

    def answer_otherwise(self, feeds: dict[str, Any], reason: str, program: int) -> tuple[Any, ...] | None:
        """Called with a call that the program of this number cannot answer, and why. The outputs, or None: then that is
        what is raised."""

    def notice_calls(self) -> None:
        """Called at the end of a call that `notice_after` asked for; does nothing itself."""

    def set_rival(self, program: Program | None, share: float = 0.5, seed: int = 0) -> None:
        """Let another program answer this share of the calls, drawn at random; None: no call any more."""

    @property
    def rival_calls(self) -> int:
        """How many calls a rival has answered."""

    def hold_calls(self, seconds: float) -> None:
        """Let calls wait before a program is chosen for them, but no longer than so many seconds from now on; 0: no
        longer at all."""

    @property
    def held_calls(self) -> int:
        """How many calls have waited."""

    def times(self) -> list[tuple[tuple[tuple[int, ...] | None, ...], int, int]]:
        """(signature, number of the program, nanoseconds) of the last calls that were timed, the oldest first.

        While there is a rival, every call is timed; otherwise those of long calls, and some of the short ones.
        """

    @property
    def timed(self) -> int:
        """How many calls were timed."""

    def set_watching(self, on: bool) -> None:
        """Whether to watch a call closely now and then; from the beginning, none is."""

    def watch_closely(self, calls: int) -> None:
        """Watch the next calls one after the other, whatever that costs; not if calls are not watched at all."""

    def set_timing(self, on: bool) -> None:
        """Whether to time calls, which is so from the beginning."""

    def analyse_calls(self) -> None:
        """Called at the end of a call when there is enough to take with `take_watched`; does nothing itself."""

    def take_watched(self) -> list[tuple[Any, ...]]:
        """The calls that were watched since the last time, the oldest first; the first ones may be gone.

        (signature, number of the program, nanoseconds it took, nanoseconds for watching it, regions, inputs) of each.
        A region is (slot, runs, nanoseconds of them all, counts, runs that were counted), with the counts of
        `prepare_counters`. An input is None if it is no tensor, or (whether it is as in the call that was watched
        before, what `statistics` gives).
        """

    def set_analysis_ns(self, nanoseconds: float) -> None:
        """What a call that was watched costs whoever takes it: fewer are watched if it is more."""

    @property
    def watch_gap(self) -> int:
        """After how many calls the next one is watched."""

    @property
    def watched_dropped(self) -> int:
        """How many calls were watched for nothing, since nobody took them in time."""

    def sample_after(self, calls: int) -> None:
        """Call `sample_call` once, when so many further calls were answered; 0: not at all."""

    def sample_call(self, feeds: dict[str, Any], outputs: dict[str, Any], program: int) -> None:
        """Called at the end of a call that `sample_after` asked for, with what goes to the caller and the number of
        the program that answered; does nothing itself."""

    def always_convert(self) -> None:
        """Pass the inputs of every call through `convert_feeds`, which may set another program for them."""

    def signatures(self) -> list[tuple[tuple[tuple[int, ...] | None, ...], int]]:
        """(the shape of each input, None where it is no tensor or left out; calls) of what came lately, bounded."""

    @property
    def calls(self) -> int:
        """How many calls were made."""

def statistics(array: Any) -> tuple[bool, int, int, int, int, float, float, int]:
    """(whether the others are known, elements, how many were looked at, of those: zeros, NaN and infinities, the
    least and the largest finite number; a hash). Of complex numbers and narrow floats only elements and hash."""

def prepare_counters() -> list[str]:
    """The hardware counters that are counted for regions from now on; trying them takes up to a millisecond."""

def set_dtypes(dtypes: dict[int, np.dtype[Any]]) -> None:
    """The NumPy type of each ONNX type code. To be called before the first call."""

def set_call_error(type: type[Exception]) -> None:
    """The error that a call ends with if its inputs do not fit the program."""

def set_threads(threads: int) -> None:
    """How many threads kernels use, for the whole process."""

def threads() -> int:
    """How many threads kernels use."""

def hold_pool() -> None:
    """Keep the pool of threads as a call does, once: kernels run on the caller's thread alone until it is let go."""

def let_pool_go() -> None:
    """The end of `hold_pool`."""

def core_uses(cores: int) -> list[int]:
    """How often calls of this process began, and threads of its pool took jobs, on each of the first so many cores."""

def begin_rests(least_share: float) -> None:
    """From now on this thread rests for 0.1 ms after every 2 ms of a core, or every 0.5 ms where it lately waited for
    one, unless it got less than this share of a core.

    So that a process at idle priority gets no more than idle time."""

def end_rests() -> None:
    """It rests no more."""

def multiply(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any], result: np.ndarray[Any, Any]) -> None:
    """result = left @ right: matrices of f32, on this thread. The left side is dense, and so are rows of the right side
    and of the result; ValueError otherwise. Both sides may begin at any address."""

def trim_heap() -> None:
    """Give the system back what was freed. Others wait for that if they allocate: half a millisecond for some MiB."""

class HugePages:
    """Memory aside, in huge pages of 2 MiB that are backed one by one, as they are needed."""

    def __init__(self, pages: int) -> None: ...
    def take_place_of(self, address: int) -> int:
        """Put the next page in the place of what lies from an address on, with what that holds, once a thread behind
        others has filled it. 0, or the number of what is wrong. Others may read there all the time; nobody may
        write."""

    def give_back(self) -> None:
        """What is left goes back to the system. Waits for the thread that fills pages, which is behind others."""

    @property
    def filling_s(self) -> float:
        """Seconds of a core that filling took so far."""

def machine_fma_gflops(cpus: list[int]) -> tuple[float, float]:
    """The f32 FMA peak of one thread on each CPU, and the share of the cores it got."""

def machine_read_gbytes_per_s(cpus: list[int], bytes_each: int) -> tuple[float, float]:
    """How fast one thread on each CPU reads a working set of its own, and the share of the cores it got."""

def machine_fork_join_us(threads: int) -> tuple[float, float, float]:
    """The latency of a parallel loop, workers spinning and parked (zeros if alone), and the share of the cores."""

def machine_counter_errors() -> list[tuple[str, int]]:
    """(name, errno) of each hardware counter; 0 if it counts, ENODATA if it opens but does not count."""

def machine_vector_isa() -> str:
    """The vectors that were measured."""

def machine_hypervisor() -> str:
    """CPUID's name for the hypervisor; empty if there is none."""
