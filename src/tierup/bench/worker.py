"""One contender in a process of its own: imports its library, loads a model, answers, and runs what its parent asks.

It is run as a file, `python -P worker.py JOB`, and imports nothing of Tierup: a package that every contender imports
would count for Tierup's start and against all others'. JOB is one JSON object (see `process.Job`); commands come as
lines of JSON on standard input, replies leave as lines of JSON on what was standard output.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

NUMPY_NS = time.monotonic_ns()
sys.dont_write_bytecode = False  # as for any installed package: nobody compiles its modules at every start
Call = Callable[..., Any]
WARM_UP_SHARE = 0.2  # of a round, before anything is recorded: the process was stopped and its caches are cold
LEAST_CALLS = 3
PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>
TRAFFIC_SAMPLES = 8  # answers kept for comparison


class Library:
    """What this process measures. `prepare` turns a set of inputs, outside the clock, into what a call takes."""

    package = ""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.threads = int(job["settings"].get("threads", job["threads"]))

    def load(self) -> Call:
        """Loads the model; gives what answers a call, with as little Python around it as there can be."""
        raise NotImplementedError

    def prepare(self, feeds: dict[str, Any]) -> Any:
        return feeds

    def items(self, answer: Any) -> list[Any]:
        """The outputs in the model's order."""
        return list(answer)

    def settle(self, timeout_s: float) -> dict[str, Any]:
        """Waits until nothing is left to improve; gives what the contender says about itself."""
        return {"settled": True}


class Tierup(Library):
    package = "tierup.session"
    precision = "f32"

    def load(self) -> Call:
        import tierup

        folders = dict.fromkeys(("cache_dir", "data_dir"), self.job["cache"]) if self.job["cache"] else {}
        self.config = tierup.Config(threads=self.threads, precision=self.precision, **folders)
        self.model = tierup.load(self.job["model"], config=self.config)
        call: Call = self.model.run
        return call

    def items(self, answer: Any) -> list[Any]:
        return list(answer.values())

    def settle(self, timeout_s: float) -> dict[str, Any]:
        report = self.model.settle(timeout_s).to_dict()
        settings = {name: getattr(self.config, name) for name in ("threads", "precision", "adapt", "force_tier")}
        kept = {name: report.get(name) for name in ("settled", "tier", "kernels", "counters")}
        return {**kept, "config": settings}


class TierupBf16(Tierup):
    precision = "bf16"


class OnnxRuntime(Library):
    package = "onnxruntime"

    def load(self) -> Call:
        onnxruntime = importlib.import_module("onnxruntime")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.intra_op_num_threads = self.threads
        self.session = onnxruntime.InferenceSession(self.job["model"], options, providers=["CPUExecutionProvider"])
        return partial(self.session.run, None)


class OnnxRuntimeBound(OnnxRuntime):
    """Inputs bound beforehand, outputs left in ONNX Runtime's memory: what is left when no array goes in or out."""

    def load(self) -> Call:
        super().load()
        return self._run

    def _run(self, binding: Any) -> Any:
        self.session.run_with_iobinding(binding)
        return binding

    def prepare(self, feeds: dict[str, Any]) -> Any:
        binding = self.session.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        for output in self.session.get_outputs():
            binding.bind_output(output.name)
        return binding

    def items(self, answer: Any) -> list[Any]:
        return list(answer.copy_outputs_to_cpu())


class OpenVino(Library):
    package = "openvino"
    precision = "f32"

    def load(self) -> Call:
        openvino = importlib.import_module("openvino")
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": self.threads,
            # By itself, OpenVINO takes bf16 where the processor has it, and 8-bit products where weights have 8 bits.
            "INFERENCE_PRECISION_HINT": self.precision,
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        }
        if self.job["cache"]:
            settings["CACHE_DIR"] = self.job["cache"]
        self.compiled = openvino.Core().compile_model(self.job["model"], "CPU", settings)
        return partial(self.compiled.create_infer_request().infer, share_inputs=True, share_outputs=True)

    def items(self, answer: Any) -> list[Any]:
        return [answer[output] for output in self.compiled.outputs]


class OpenVinoBf16(OpenVino):
    precision = "bf16"


class Torch(Library):
    """The module that the model was exported from, built again from its source."""

    package = "torch"

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__(job)
        self.torch = importlib.import_module("torch")
        path, _, self.name = job["source"].rpartition(":")
        spec = importlib.util.spec_from_file_location("tierup_bench_source", path)
        if spec is None or spec.loader is None:
            raise ImportError(f"'{path}' is no Python file")
        self.source = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.source)

    def load(self) -> Call:
        self.torch.set_num_threads(self.threads)
        self.torch.set_grad_enabled(False)
        self.torch.manual_seed(0)
        table = getattr(self.source, "MODELS", {})
        built = (table[self.name] if self.name in table else getattr(self.source, self.name))()
        self.module = (built[0] if isinstance(built, tuple) else built).eval()
        return self._call(self.module)

    def _call(self, forward: Call) -> Call:
        return lambda tensors: forward(*tensors)

    def prepare(self, feeds: dict[str, Any]) -> Any:
        return [self.torch.from_numpy(array) for array in feeds.values()]

    def items(self, answer: Any) -> list[Any]:
        if isinstance(answer, self.torch.Tensor):
            return [answer.numpy()]
        values = answer.values() if isinstance(answer, dict) else answer
        return [value.numpy() for value in values]


class TorchCompile(Torch):
    def load(self) -> Call:
        super().load()
        inductor = importlib.import_module("torch._inductor.config")
        for name in ("freezing", "max_autotune", "cpp_wrapper"):
            setattr(inductor, name, bool(self.job["settings"].get(name)))
        if self.job["cold"]:
            inductor.force_disable_caches = True  # type: ignore[attr-defined]
        return self._call(self.torch.compile(self.module, dynamic=self.job["dynamic"]))


LIBRARIES: dict[str, type[Library]] = {
    "tierup": Tierup,
    "tierup-bf16": TierupBf16,
    "onnxruntime": OnnxRuntime,
    "onnxruntime-bound": OnnxRuntimeBound,
    "openvino": OpenVino,
    "openvino-bf16": OpenVinoBf16,
    "torch-eager": Torch,
    "torch-compile": TorchCompile,
}


def timed(call: Call, prepared: Sequence[Any], first: int, seconds: float, least: int) -> list[int]:
    """Nanoseconds of each call, over the prepared sets in turn from `first` on, until `seconds` have passed."""
    clock, count, index = time.perf_counter_ns, len(prepared), first
    times: list[int] = []
    end = clock() + int(seconds * 1e9)
    while True:
        item = prepared[index % count]
        began = clock()
        call(item)
        ended = clock()
        times.append(ended - began)
        index += 1
        if ended >= end and len(times) >= least:
            return times


def replayed(
    library: Library, call: Call, prepared: Sequence[Any], order: Sequence[int]
) -> tuple[list[int], list[Any]]:
    """Nanoseconds of each call of the traffic, and the arrays of some answers, evenly spaced."""
    clock = time.perf_counter_ns
    kept = {round(position) for position in np.linspace(0, len(order) - 1, min(TRAFFIC_SAMPLES, len(order)))}
    times: list[int] = []
    samples: list[Any] = []
    for position, index in enumerate(order):
        item = prepared[index]
        began = clock()
        answer = call(item)
        times.append(clock() - began)
        if position in kept:
            samples += arrays(library.items(answer))
        del answer
    return times, samples


def arrays(items: Sequence[Any]) -> list[Any]:
    """Copies of all tensors in the outputs, in order; text as NumPy's own strings, so that a file can hold it."""
    found: list[Any] = []
    for item in items:
        if isinstance(item, list | tuple):
            found += arrays(item)
        elif isinstance(item, dict):
            found += arrays([item[key] for key in sorted(item)])
        elif item is not None:
            array = np.array(item)
            found.append(array.astype(str) if array.dtype.kind == "O" else array)
    return found


def aligned(array: Any) -> Any:
    """The array at a 64-byte border, as every library likes it best; text as Python's strings."""
    if array.dtype.kind == "U":
        return array.astype(object)
    memory = np.empty(array.nbytes + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    result = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    result[...] = array
    return result


def read_sets(folder: Path, count: int) -> list[dict[str, Any]]:
    sets = []
    for index in range(count):
        with np.load(folder / f"{index}.npz", allow_pickle=False) as stored:
            sets.append({name: aligned(stored[name]) for name in stored.files})
    return sets


def memory_bytes() -> dict[str, int]:
    """Highest and present resident memory of this process; empty where the kernel does not say."""
    wanted = {"VmHWM:": "peak_bytes", "VmRSS:": "resident_bytes"}
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return {}
    fields = (line.split() for line in lines)
    return {wanted[f[0]]: int(f[1]) * 1024 for f in fields if len(f) == 3 and f[0] in wanted}


class Server:
    """The library with its model, and the commands that a parent may give it; each gives its reply."""

    def __init__(self, job: dict[str, Any]) -> None:
        """Starts as a user's program would; `start` says when it reached which stage, on the system's clock."""
        self.folder = Path(job["folder"])
        sets = read_sets(self.folder, job["sets"])
        read_ns = time.monotonic_ns()
        library_type = LIBRARIES[job["contender"]]
        importlib.import_module(library_type.package)
        self.library = library_type(job)
        imported_ns, bare = time.monotonic_ns(), memory_bytes()
        self.call = self.library.load()
        self.prepared = [self.library.prepare(sets[0])]
        loaded_ns = time.monotonic_ns()
        self.call(self.prepared[0])
        self.start = {
            "numpy_ns": NUMPY_NS,
            "read_ns": read_ns,
            "imported_ns": imported_ns,
            "loaded_ns": loaded_ns,
            "answered_ns": time.monotonic_ns(),
            "bare_bytes": bare.get("peak_bytes", 0),
        }
        self.prepared += [self.library.prepare(feeds) for feeds in sets[1:]]
        self.position = 0

    def settle(self, timeout_s: float) -> dict[str, Any]:
        for item in self.prepared:
            self.call(item)
        began = time.monotonic()
        return {"details": self.library.settle(timeout_s), "seconds": time.monotonic() - began}

    def round(self, seconds: float, times: str) -> dict[str, Any]:
        """Calls for so many seconds, after some that are not recorded; each round goes on where the last stopped."""
        self.position += len(timed(self.call, self.prepared, self.position, seconds * WARM_UP_SHARE, 1))
        found = timed(self.call, self.prepared, self.position, seconds, LEAST_CALLS)
        self.position += len(found)
        np.save(self.folder / times, np.array(found, np.int64), allow_pickle=False)
        return {}

    def replay(self, order: str, times: str, answers: str) -> dict[str, Any]:
        """The traffic. Its first call was the process's first answer."""
        wanted = np.load(self.folder / order, allow_pickle=False).tolist()
        found, samples = replayed(self.library, self.call, self.prepared, wanted[1:])
        first_ns = self.start["answered_ns"] - self.start["loaded_ns"]
        np.save(self.folder / times, np.array([first_ns, *found], np.int64), allow_pickle=False)
        np.savez(self.folder / answers, *samples)
        return {}

    def answer(self, answers: str) -> dict[str, Any]:
        np.savez(self.folder / answers, *arrays(self.library.items(self.call(self.prepared[0]))))
        return {}

    def memory(self) -> dict[str, Any]:
        return dict(memory_bytes())


def serve(job: dict[str, Any], reply: Callable[[dict[str, Any]], None]) -> None:
    """Says when the first answer was there, and then does what it is told until told no more."""
    server = Server(job)
    reply(server.start)
    commands: dict[str, Callable[..., dict[str, Any]]] = {
        "settle": server.settle,
        "round": server.round,
        "replay": server.replay,
        "answer": server.answer,
        "memory": server.memory,
    }
    for line in sys.stdin.buffer:
        command = json.loads(line)
        reply(commands[command.pop("do")](**command))


def end_with_parent() -> None:
    """A parent that is killed cannot end this process, which may be stopped at that time: then the kernel does it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    end_with_parent()
    # Libraries may write to standard output: replies leave on a descriptor that only this function knows.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def reply(message: dict[str, Any]) -> None:
        replies.write(json.dumps(message).encode() + b"\n")
        replies.flush()

    try:
        serve(json.loads(sys.argv[1]), reply)
    except Exception as error:  # the parent reports it as this contender's failure
        reply({"error": f"{type(error).__name__}: {error}"[:2000]})


if __name__ == "__main__":
    main()
