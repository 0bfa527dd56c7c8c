"""The machine's fingerprint: its identity and what was measured on it, kept as one file a machine.

In: the data folder (from Config). Out: a `Machine`. It is measured once, by `tierup doctor` or in the background, and
read afterwards; `<data folder>/machines/<key>.json` belongs to one hardware identity. A file that is not what we would
have written is ignored, logged and counted, and measured again. No caller but `load_or_measure` ever waits.

`python -m tierup.profile.machine DATA_DIR` measures at idle priority; `measure_in_background` starts it.
"""

import contextlib
import fcntl
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Literal, cast

import msgspec

from tierup.errors import StoreError
from tierup.private import check_private, read_own, write_whole
from tierup.profile.busy import busy_cpu_s
from tierup.profile.identity import Identity, allowed_cpus
from tierup.profile.identity import identify as identify_from
from tierup.profile.measured import QUIET, Measured, NativeMachine, measure_rates

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 1 << 16  # a record has about 4 KB
LOCK_WAIT_S = 30.0
QUIET_TRIES = 3
QUIET_WAITS = 600  # seconds in which a second without other work may come


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine and what it can do. `version` counts the ways of measuring: others' figures do not compare."""

    version: Literal[1]
    identity: Identity
    measured: Measured

    @property
    def key(self) -> str:
        """Names the hardware, not the figures."""
        return self.identity.key


def native_machine() -> NativeMachine:
    """The native measurements; loaded here, so that reading a stored record does not need them."""
    from tierup import _native

    return cast(NativeMachine, _native)


def identify() -> Identity:
    """The quick part, without any timing: a few milliseconds."""
    return identify_from(hypervisor_signature=native_machine().machine_hypervisor)


def measure(identity: Identity | None = None) -> Machine:
    """Measures this machine now: about a second on all of its cores."""
    identity = identity or identify()
    return Machine(1, identity, measure_rates(identity, native_machine(), allowed_cpus()))


class Machines:
    """The folder of machine records. `ignored` says why each unfit file was passed over."""

    def __init__(self, data_dir: Path) -> None:
        self.folder = data_dir / "machines"
        self.ignored: list[str] = []

    def path(self, identity: Identity) -> Path:
        return self.folder / f"{identity.key}.json"

    def load(self, identity: Identity) -> Machine | None:
        """The record of this hardware; None if there is none, or none that can be trusted."""
        path = self.path(identity)
        try:
            check_private(self.folder)
            machine = msgspec.json.decode(read_own(str(path), MAX_FILE_BYTES), type=Machine)
            if machine.key != identity.key:
                raise StoreError("it describes another machine")
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors, ours OSErrors
            self.ignored.append(f"{path}: {error}")
            log.warning("ignored the machine record %s: %s", path, error)
            return None
        return machine

    def save(self, machine: Machine) -> None:
        """Writes the record beside its place and moves it there: readers see the old one or the new one."""
        self._make_folder()
        content = msgspec.json.format(msgspec.json.encode(machine), indent=2)
        write_whole(str(self.path(machine.identity)), [content])

    @contextlib.contextmanager
    def measuring(self, wait_s: float) -> Iterator[bool]:
        """Holds the right to measure, which one process has at a time; yields False if it was not free in time.

        The kernel drops the lock with its process, so that a killed one leaves nothing behind.
        """
        self._make_folder()
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(self.folder / ".lock", flags, 0o600)
        try:
            yield _lock(handle, time.monotonic() + wait_s)
        finally:
            os.close(handle)

    def _make_folder(self) -> None:
        for folder in (self.folder.parent, self.folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_private(self.folder)


def load_or_measure(
    data_dir: Path,
    *,
    remeasure: bool = False,
    machines: Machines | None = None,
    identity: Identity | None = None,
    measure: Callable[[Identity], Machine] = measure,
) -> Machine:
    """The stored record of this machine, or a fresh one. Waits for another process that is just measuring.

    Raises StoreError if that one does not finish, or if nothing can be stored in the folder.
    """
    machines = machines or Machines(data_dir)
    identity = identity or identify()
    stored = None if remeasure else machines.load(identity)
    if stored:
        return stored
    try:
        with machines.measuring(LOCK_WAIT_S) as free:
            if not free:
                raise StoreError(f"another process has been measuring this machine for {LOCK_WAIT_S:.0f} s; try again")
            stored = None if remeasure else machines.load(identity)  # it may have been that one's
            machine = stored or measure(identity)
            if not stored:
                machines.save(machine)
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"the machine record cannot be stored in {machines.folder}: {error}") from error
    return machine


def measure_in_background(data_dir: Path) -> threading.Thread:
    """Sees to it that this machine is measured, if it was not yet (or not quietly). Returns at once.

    The work is done by a process of its own, at idle priority, once nobody else wants the processors: it takes all of
    them for a second or two. The thread that watches it is a daemon: the interpreter never waits for it.
    """
    # Identified here: a daemon that dies in an import as the interpreter ends keeps Python's import lock for ever.
    thread = threading.Thread(target=_watch, args=(data_dir, identify()), name="tierup-machine", daemon=True)
    thread.start()
    return thread


@cache
def measure_once(data_dir: Path) -> None:
    """`measure_in_background`, at most once in a process for each folder."""
    measure_in_background(data_dir)


def _watch(data_dir: Path, identity: Identity) -> None:
    """Starts the measuring process when it is needed, and logs if it fails."""
    try:
        machines = Machines(data_dir)
        for _ in range(QUIET_TRIES):
            stored = machines.load(identity)
            if (stored and stored.measured.is_quiet) or not wait_for_quiet():
                return
            # -P: a file of the user's in the current folder must not be taken for one of our modules.
            command = [sys.executable, "-P", "-m", "tierup.profile.machine", str(data_dir.absolute())]
            null = subprocess.DEVNULL
            # In our own session: Linux shares out processors among sessions first, whatever a priority says.
            code = subprocess.Popen(command, stdin=null, stdout=null, stderr=null, process_group=0).wait()
            if code:
                log.warning("measuring the machine in the background ended with code %d; see `tierup doctor`", code)
                return
    except Exception:  # a fingerprint is never worth more than the program that it runs in
        log.warning("measuring the machine in the background failed", exc_info=True)


def wait_for_quiet(
    busy_s: Callable[[], float] = busy_cpu_s, sleep: Callable[[float], None] = time.sleep, tries: int = QUIET_WAITS
) -> bool:
    """Wait until the processors were left alone for a second; False if that does not come."""
    cpus = os.cpu_count() or 1
    for _ in range(tries):
        before_s = busy_s()
        sleep(1.0)
        if busy_s() - before_s < (1 - QUIET) * cpus:
            return True
    return False


def measure_now(machines: Machines, identity: Identity, measure: Callable[[Identity], Machine] = measure) -> None:
    """Measures and stores, if that was not done quietly yet. The quietest record stays. Does nothing while another
    process measures."""
    with machines.measuring(wait_s=0) as free:
        if not free:
            return
        stored = machines.load(identity)
        if stored and stored.measured.is_quiet:
            return
        machine = measure(identity)
        if not stored or machine.measured.quiet_share > stored.measured.quiet_share:
            machines.save(machine)


def main(data_dir: str) -> None:
    """The background process."""
    _yield_to_all_others()
    measure_now(Machines(Path(data_dir)), identify())


def _yield_to_all_others() -> None:
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError:
        os.nice(19)


def _lock(handle: int, deadline_s: float) -> bool:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(0.05)


if __name__ == "__main__":
    main(sys.argv[1])
