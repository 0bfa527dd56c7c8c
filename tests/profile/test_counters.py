"""Every errno that perf_event_open gives becomes a sentence; none becomes a counter."""

import errno
from pathlib import Path

import pytest
from tests.profile.fakes import write_tree

from tierup.profile.counters import explain_counters

PARANOID = "proc/sys/kernel/perf_event_paranoid"


@pytest.mark.parametrize(
    ("error", "files", "words"),
    [
        (errno.ENOENT, {}, "offers no such counter"),
        (errno.EOPNOTSUPP, {}, "offers no such counter"),
        (errno.ENOSYS, {}, "built without perf events"),
        (errno.ENODATA, {}, "does not count"),
        (errno.EACCES, {PARANOID: "4\n"}, "kernel.perf_event_paranoid=4 forbids it"),
        (errno.EPERM, {PARANOID: "3\n"}, "kernel.perf_event_paranoid=3 forbids it"),
        (errno.EPERM, {PARANOID: "1\n"}, "seccomp"),
        (errno.EACCES, {}, "does not tell"),
        (errno.EACCES, {PARANOID: "rubbish"}, "does not tell"),
        (errno.EMFILE, {}, "Too many open files"),
    ],
)
def test_a_refusal_is_explained(tmp_path: Path, error: int, files: dict[str, str], words: str) -> None:
    (counter,) = explain_counters([("cycles", error)], write_tree(tmp_path, files))
    assert counter.unavailable is not None
    assert words in counter.unavailable


def test_a_counter_that_counts_is_available(tmp_path: Path) -> None:
    (counter,) = explain_counters([("cycles", 0)], tmp_path)
    assert (counter.name, counter.unavailable) == ("cycles", None)
