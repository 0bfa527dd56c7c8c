"""The plan cache: what loading a model computed, so that the next load computes nothing.

An entry is one file, `<bytes of the model>-<key>.plan`, with large derived arrays beside it in files that are named by
their content. The key is a digest of named parts, of which the model's content is one. Where a plan with functions for
signatures takes another one's place, that one is set aside as `….before`, and comes back if the new one does not last.
Entries are untrusted: the folder and the files must be ours alone, a digest covers each of them, and records are
decoded into bounded types. Whatever does not fit is a miss, counted and logged, and is written anew.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress

import msgspec

from tierup.digests import sha256
from tierup.errors import StoreError
from tierup.ir.facts import Aim, Fact
from tierup.logs import logger
from tierup.private import check_private, make_private, open_own, read_own, write_whole
from tierup.store.records import ARRAYS, MODEL, EntryRecord, FileRecord, PlanRecord, VariantRecord
from tierup.store.source import Source, fingerprint, fingerprint_file
from tierup.store.weights import Placed, StoredWeights

MAX_ENTRY_BYTES = 1 << 28
MAX_ARRAYS_BYTES = 1 << 32
MAX_FOLDER_BYTES = 4 << 30
MAX_ENTRIES = 512
_MAGIC = b"tierup plan 1\n"
_ARRAYS, _BEFORE = ".arrays", ".before"
_DIGEST_BYTES = 32

Signatures = tuple[tuple[tuple[int, ...], ...], ...]


class Entry:
    """An entry that was found: its record, and its weights over the files that they lie in."""

    def __init__(self, record: EntryRecord, weights: StoredWeights) -> None:
        self.record, self.weights = record, weights


class Kept(msgspec.Struct, frozen=True):
    """An entry as people look at it; `parts` is what it was made for."""

    model: str
    parts: dict[str, str]
    kernels: int
    signatures: Signatures
    size_bytes: int
    used_s: float
    facts: tuple[Fact, ...] = ()
    strays: Signatures = ()


class Plans:
    """The folder of entries."""

    def __init__(self, cache_dir: str, threads: int = 1) -> None:
        self.folder = os.path.join(cache_dir, "plans")
        self._threads = threads

    def find(self, source: Source, parts: Mapping[str, str]) -> Entry | None:
        """The entry of this model under these parts; None if there is none, or none that can be trusted."""
        if not self._has_size(source.size_bytes):
            return None  # most misses end here, without a look at the model's content
        path = self.folder
        try:
            check_private(self.folder)
            parts = self.full_parts(source, parts)
            path = self._path(source, parts)
            record = _read(path)
            if record.parts != parts:
                raise StoreError("it was made for something else")
            entry = self.open(source, record)
            names = (record.arrays.name,) if record.arrays is not None else ()
            for used in (path, *(os.path.join(self.folder, name) for name in names)):
                with suppress(OSError):
                    os.utime(used)  # what was used last is evicted last
            return entry
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors, ours OSErrors
            log_ignored(path, error)
            return None

    def open(self, source: Source, record: EntryRecord) -> Entry:
        """A record with the files that its weights lie in, opened by the rules of each and found to be what they were.

        StoreError or another OSError says what is wrong with one; ValueError that a location is none.
        """
        files = {MODEL: source.view()}
        for number, external in enumerate(record.external, start=MODEL + 1):
            from tierup.frontends.onnx.external import open_inside

            if source.folder is None:
                raise StoreError("it refers to external data, but the model was not loaded from a path")
            files[number] = self._same(external, *open_inside(source.folder, external.name))
        if record.arrays is not None:
            name = record.arrays.name
            if os.path.basename(name) != name or not name.endswith(_ARRAYS):
                raise StoreError(f"its arrays lie in '{name[:80]}', which is no file beside it")
            files[ARRAYS] = self._same(record.arrays, *open_own(os.path.join(self.folder, name)))
        return Entry(record, StoredWeights(record.weights, files))

    def full_parts(self, source: Source, parts: Mapping[str, str]) -> dict[str, str]:
        """The parts of a key, the model's content among them."""
        return {**parts, "model": source.fingerprint(self._threads)}

    def complete(
        self,
        record: EntryRecord,
        source: Source,
        parts: Mapping[str, str] | None,
        external: Mapping[str, memoryview],
        placed: Placed,
    ) -> EntryRecord:
        """A record that also says which files it needs, and with the parts given, what it was made of. Derived arrays
        are stored now."""
        if placed.arrays_bytes > MAX_ARRAYS_BYTES:
            raise StoreError(f"the plan has {placed.arrays_bytes} bytes of derived weights, which is too much to keep")
        made_of = {} if parts is None else self.full_parts(source, parts)
        found = tuple(self._external(source, location, view) for location, view in external.items())
        arrays = self._save_arrays(placed) if placed.arrays else None
        return msgspec.structs.replace(record, parts=made_of, external=found, arrays=arrays)

    def write(self, source: Source, record: EntryRecord) -> None:
        """Keep a complete record; but of a forced tier, whose kernels nobody proved, not in the place of one whose
        kernels were. StoreError or another OSError if that is not possible."""
        make_private(self.folder)
        path = self._path(source, record.parts)
        with suppress(OSError, ValueError, RecursionError):
            if not record.plan.proved and _read(path).plan.proved:
                return
        if record.plan.aim != Aim():
            _set_aside(path, record.plan.aim)
        _write(path, record)
        self.evict()

    def take_back(self, source: Source, parts: Mapping[str, str], gone: Aim, before: Aim | None) -> None:
        """A plan that was made for `gone` did not last: the entry of what answers now, which is the one that was made
        for `before`, takes its place. None: no plan answers, so there is no entry. `parts` are all of them.
        """
        path = self._path(source, parts)
        with suppress(OSError, ValueError, RecursionError):
            if _read(path).plan.aim != gone:
                return  # it is not there yet, or another process has a plan that lasts
            if before is not None and _kept_before(path) == before:
                os.replace(_before(path), path)
            else:
                os.unlink(path)

    def keep_variants(
        self, source: Source, parts: Mapping[str, str], aim: Aim, variants: Collection[VariantRecord]
    ) -> None:
        """Of the plan that was made for this keep these variants only. `parts` are all of them."""
        path = self._path(source, parts)
        with suppress(OSError, ValueError, RecursionError):
            record = _read(path)
            if record.plan.aim == aim:
                _write(path, msgspec.structs.replace(record, plan=_with_variants(record.plan, variants)))

    def take_out(self, source: Source, parts: Mapping[str, str], kernels: Collection[str]) -> None:
        """Remove the model's entries that have one of these kernels, by their keys; one that has none of them stays, or
        comes back. `parts` are all of them."""
        path = self._path(source, parts)
        for kept in (path, _before(path)):
            with suppress(OSError, ValueError, RecursionError):
                if not {kernel.key for kernel in _read(kept).plan.kernels}.isdisjoint(kernels):
                    os.unlink(kept)
        if not os.path.exists(path):
            with suppress(OSError):
                os.replace(_before(path), path)

    def entries(self) -> list[Kept]:
        """What is stored, the last used first. Damaged entries are left out."""
        found = []
        for name, status in self._files():
            with suppress(OSError, ValueError, RecursionError):
                record = _read(os.path.join(self.folder, name))
                plan, parts = record.plan, record.parts
                size, used_s = status.st_size, status.st_mtime
                aims = plan.facts, plan.strays
                found.append(Kept(record.about.name, parts, len(plan.kernels), plan.signatures, size, used_s, *aims))
        return sorted(found, key=lambda kept: -kept.used_s)

    def verify(self) -> int:
        """Read every entry, and remove those that are damaged: how many there were."""
        damaged = 0
        for name, _ in self._files():
            try:
                _read(os.path.join(self.folder, name))
            except FileNotFoundError:
                continue
            except (OSError, ValueError, RecursionError):
                damaged += self._unlink(name)
        return damaged

    def clear(self) -> int:
        """Remove every entry and what lies beside it: how many entries there were."""
        for name, _ in self._files((_ARRAYS, _BEFORE)):
            self._unlink(name)
        return sum(self._unlink(name) for name, _ in self._files())

    def _files(self, endings: tuple[str, ...] = (".plan",)) -> list[tuple[str, os.stat_result]]:
        try:
            check_private(self.folder)
            with os.scandir(self.folder) as found:
                return [(file.name, file.stat()) for file in found if file.name.endswith(endings)]
        except OSError:
            return []

    def _unlink(self, name: str) -> int:
        try:
            os.unlink(os.path.join(self.folder, name))
        except OSError:
            return 0
        return 1

    def evict(self) -> None:
        """Remove what was not used for longest, until the folder is within its limits."""
        found = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    found.append((status.st_mtime_ns, status.st_size, entry.path))
        found.sort(reverse=True)
        total = 0
        for number, (_, size, path) in enumerate(found):
            total += size
            if total > MAX_FOLDER_BYTES or number >= MAX_ENTRIES:
                with suppress(OSError):
                    os.unlink(path)

    def _has_size(self, size_bytes: int) -> bool:
        prefix = f"{size_bytes:x}-"
        try:
            return any(name.startswith(prefix) and name.endswith(".plan") for name in os.listdir(self.folder))
        except OSError:
            return False

    def _path(self, source: Source, parts: Mapping[str, str]) -> str:
        key = sha256(msgspec.json.encode(sorted(parts.items()))).hexdigest()[:40]
        return os.path.join(self.folder, f"{source.size_bytes:x}-{key}.plan")

    def _save_arrays(self, placed: Placed) -> FileRecord:
        """Named by content, so that the arrays of another plan of the same model stay as they are."""
        make_private(self.folder)
        path = os.path.join(self.folder, f"{os.getpid()}-{id(placed)}.new")
        write_whole(path, placed.pieces())
        descriptor, size = open_own(path)
        try:
            content = fingerprint_file(descriptor, size, self._threads)
        finally:
            os.close(descriptor)
        name = f"{content[:40]}{_ARRAYS}"
        os.replace(path, os.path.join(self.folder, name))
        return FileRecord(name, size, content)

    def _external(self, source: Source, location: str, view: memoryview) -> FileRecord:
        """An external file by the content that was imported, unless it was written to since."""
        assert source.folder is not None  # the front end refuses external data without a folder
        if os.stat(os.path.join(source.folder, location)).st_mtime_ns >= source.opened_ns:
            raise StoreError(f"external file '{location}' was changed while it was in use")
        content = fingerprint(lambda offset, room: view[offset : offset + len(room)], len(view), self._threads)
        if isinstance(view.obj, mmap.mmap):
            view.obj.madvise(mmap.MADV_DONTNEED)
        return FileRecord(location, len(view), content)

    def _same(self, expected: FileRecord, descriptor: int, size_bytes: int) -> memoryview:
        """An open file, mapped, if its content is the expected one."""
        try:
            if size_bytes != expected.size_bytes:
                raise StoreError(f"'{expected.name}' has {size_bytes} bytes instead of {expected.size_bytes}")
            if fingerprint_file(descriptor, size_bytes, self._threads) != expected.fingerprint:
                raise StoreError(f"'{expected.name}' has other content than it had")
            return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)) if size_bytes else memoryview(b"")
        finally:
            os.close(descriptor)


def log_ignored(entry: str, error: Exception) -> None:
    """Say that an entry was of no use."""
    logger(__name__).warning("ignored the plan entry %s: %s", entry, error)


def _before(path: str) -> str:
    """Where the entry lies whose place another one took."""
    return path.removesuffix(".plan") + _BEFORE


def _kept_before(path: str) -> Aim | None:
    """What the entry that is set aside was made for; None if there is none."""
    try:
        return _read(_before(path)).plan.aim
    except (OSError, ValueError, RecursionError):
        return None


def _set_aside(path: str, aim: Aim) -> None:
    """Keep the entry that is there, unless it was made for the same as the one that takes its place."""
    with suppress(OSError, ValueError, RecursionError):
        if _read(path).plan.aim == aim:
            return
        with suppress(FileNotFoundError):
            os.unlink(_before(path))
        os.link(path, _before(path))


def _with_variants(plan: PlanRecord, variants: Collection[VariantRecord]) -> PlanRecord:
    """A plan with some of its variants, and the kernels that are left, which get other numbers."""
    places = {(variant.slot, variant.key) for variant in variants}
    left = [variant for variant in plan.variants if (variant.slot, variant.key) in places]
    used = {variant.kernel for variant in left}
    kept = [number for number in range(len(plan.kernels)) if number < plan.slots or number in used]
    numbers = {number: new for new, number in enumerate(kept)}
    return msgspec.structs.replace(
        plan,
        kernels=tuple(plan.kernels[number] for number in kept),
        errors=tuple((numbers[number], error) for number, error in plan.errors if number in numbers),
        variants=tuple(msgspec.structs.replace(variant, kernel=numbers[variant.kernel]) for variant in left),
    )


def _write(path: str, record: EntryRecord) -> None:
    payload = msgspec.msgpack.encode(record)
    if len(payload) > MAX_ENTRY_BYTES - len(_MAGIC) - _DIGEST_BYTES:
        raise StoreError(f"the plan takes {len(payload)} bytes, which is too much to keep")
    write_whole(path, (_MAGIC, sha256(payload).digest(), payload))


def _read(path: str) -> EntryRecord:
    return _decode(read_own(path, MAX_ENTRY_BYTES))


def _decode(data: bytes) -> EntryRecord:
    start = len(_MAGIC) + _DIGEST_BYTES
    payload = memoryview(data)[start:]
    if data[: len(_MAGIC)] != _MAGIC or sha256(payload).digest() != data[len(_MAGIC) : start]:
        raise StoreError("it is damaged, or of another format")
    return msgspec.msgpack.decode(payload, type=EntryRecord)


def cache_parts(precision: str) -> dict[str, str]:
    """What an entry depends on beside the model, by name, so that a miss can be explained."""
    from tierup import __version__

    return {"version": __version__, "sources": _sources(), "processor": _processor(), "precision": precision}


def _sources() -> str:
    """Names the planner and the emitter as they are installed: size and time of each of our files."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    seen = sorted(_stamps(root))
    return sha256(repr(seen).encode()).hexdigest()[:16]


def _stamps(folder: str) -> Iterator[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith((".py", ".so", ".json")):
                status = entry.stat()
                yield entry.path, status.st_size, status.st_mtime_ns
            elif entry.is_dir() and not entry.name.startswith("__"):
                yield from _stamps(entry.path)


def _processor() -> str:
    """Names the instruction set: machines that share a home folder do not share plans."""
    try:
        descriptor = os.open("/proc/cpuinfo", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return "unknown"
    try:
        text = os.read(descriptor, 1 << 13).decode(errors="replace")
    finally:
        os.close(descriptor)
    lines = text.split("\n\n", 1)[0].splitlines()
    known = [line for line in lines if line.startswith(("flags", "Features", "vendor_id", "CPU implementer"))]
    return sha256("\n".join((os.uname().machine, *known)).encode()).hexdigest()[:16]
