"""What rounds and traffic share: the settings of a benchmark, its folder, and the way to a contender's process."""

from __future__ import annotations

import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import Struct

from tierup.bench.answers import compare, read_answers
from tierup.bench.contenders import Contender, Settings
from tierup.bench.draw import write_sets
from tierup.bench.process import Job, Lost, Memory, Process, Start
from tierup.bench.record import OURS, Cache, Entry, MemoryUse, Record, best_peer, missing
from tierup.config import Config
from tierup.ir.types import Array
from tierup.profile.busy import busy_cpu_s
from tierup.profile.machine import identify

TIMES, ANSWERS, ORDER = "times.npy", "answers.npz", "order.npy"  # in the folder that is shared with contenders


class Options(Struct, frozen=True, kw_only=True):
    """How to measure. `quantised`: the model rounds what it computes to steps, so that answers may differ by some.
    `say` is told what is being done; nothing else is printed."""

    model: Path
    contenders: Sequence[Contender]
    source: str = ""
    quantised: bool = False
    rounds: int = 9
    seconds: float = 0.5
    starts: int = 3
    settle_s: float = 60.0
    say: Callable[[str], None] = lambda text: None


class Bench:
    """A benchmark that is under way: its entries so far, its folder, and how much other work disturbed it."""

    def __init__(self, options: Options, folder: Path, sets: Sequence[Mapping[str, Array]]) -> None:
        self.options = options
        self.folder = folder
        self.sets = len(sets)
        self.threads = Config().threads or 1
        self.inputs = {name: f"{array.dtype}{list(array.shape)}" for name, array in sets[0].items()}
        self.entries: dict[str, Entry] = {}
        self._busy_s, self._own_s, self._passed_s = 0.0, 0.0, 0.0
        write_sets(folder, sets)

    def present(self) -> list[Contender]:
        """The contenders that can be measured; the others get an entry that says why not."""
        found = []
        for contender in self.options.contenders:
            why = contender.absence(self.options.source)
            if why is None:
                found.append(contender)
            else:
                self.entries[contender.name] = missing(contender, why)
        return found

    def job(self, contender: Contender, settings: Settings, **changes: Any) -> Job:
        job = Job(
            contender=contender.name,
            model=str(self.options.model),
            folder=str(self.folder),
            sets=self.sets,
            threads=self.threads,
            settings=settings,
            source=self.options.source if contender.needs_source else "",
        )
        return msgspec.structs.replace(job, **changes)

    def warm_cache(self, contender: Contender) -> str:
        """The folder that a contender keeps between its processes, if it must be told one."""
        return self.filled_cache(contender) if contender.cache == "told" else ""

    def filled_cache(self, contender: Contender) -> str:
        """The folder of this benchmark that a contender keeps between its processes, if it can be told one."""
        folder = self.folder / f"cache-{contender.name}"
        return str(folder) if folder.is_dir() else self._new_cache(contender, folder)

    def empty_cache(self, contender: Contender) -> str:
        """A new folder."""
        folder = Path(tempfile.mkdtemp(prefix=f"cold-{contender.name}-", dir=self.folder)) / "cache"
        return self._new_cache(contender, folder)

    def _new_cache(self, contender: Contender, folder: Path) -> str:
        """Tierup finds in it what is known of the machine, as on one where it ran other models."""
        folder.mkdir(mode=0o700)  # nobody keeps anything where others may write
        data_dir = Config().data_dir
        if contender.name == OURS and data_dir is not None and (data_dir / "machines").is_dir():
            shutil.copytree(data_dir / "machines", folder / "machines")
        return str(folder)

    def times(self, name: str) -> Array:
        """Nanoseconds of calls, as a contender wrote them."""
        try:
            times: Array = np.load(self.folder / name, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise Lost(f"its times cannot be read: {error}") from None
        if times.dtype != np.int64 or times.ndim != 1 or not times.size or times.min() < 0:
            raise Lost("its times are no times")
        return times

    @contextmanager
    def watched(self, process: Process) -> Iterator[None]:
        """Takes note of what else the machine did meanwhile."""
        busy, own, began = busy_cpu_s(), process.cpu_s(), time.monotonic()
        yield
        self._busy_s += busy_cpu_s() - busy
        self._own_s += process.cpu_s() - own
        self._passed_s += time.monotonic() - began

    def memory(self, process: Process, start: Start) -> MemoryUse | None:
        memory = process.ask("memory", Memory)
        if not memory.peak_bytes or not start.bare_bytes:
            return None
        return MemoryUse(
            peak_bytes=memory.peak_bytes - start.bare_bytes,
            resident_bytes=memory.resident_bytes,
            import_bytes=start.bare_bytes,
            workers_peak_bytes=process.workers_peak_bytes,
        )

    def answers(self) -> list[Array]:
        """The answers that the contender wrote which was asked last."""
        try:
            return read_answers(self.folder / ANSWERS)
        except ValueError as error:
            raise Lost(f"its answers cannot be read: {error}") from None

    def compare_answers(self, answers: Mapping[str, list[Array]]) -> None:
        """Fills in how the answers of those that were measured compare."""
        figures = {name: entry.figures for name, entry in self.entries.items() if entry.figures is not None}
        found = {name: answers[name] for name in figures}
        precisions = {name: self.entries[name].precision for name in figures}
        for name, agreement in compare(found, precisions, self.options.quantised).items():
            figures[name].answers = agreement

    def record(self, kind: Literal["rounds", "traffic"], cache: Cache | None = None) -> Record:
        entries = [self.entries[contender.name] for contender in self.options.contenders]
        ratio, why = best_peer(entries)
        identity = identify()
        others_s = max(0.0, self._busy_s - self._own_s)
        return Record(
            kind=kind,
            cache=cache,
            model=str(self.options.model),
            inputs=self.inputs,
            machine=f"{identity.name} family {identity.family} model {identity.model}",
            threads=self.threads,
            python=platform.python_version(),
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            rounds=self.options.rounds,
            seconds=self.options.seconds if kind == "rounds" else None,
            entries=entries,
            ratio=ratio,
            why_no_ratio=why,
            others_share=others_s / (self._passed_s * identity.cpus_online) if self._passed_s else 0.0,
        )
