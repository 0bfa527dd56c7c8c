"""External data: tensors whose bytes lie in files beside the model.

A location is untrusted. It must name a regular file inside the model's folder, reached without symbolic links, with
one name only, and long enough. Files are opened component by component relative to the folder, so that nothing can be
exchanged between the check and the use.
"""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path

from tierup.errors import ModelError
from tierup.frontends.onnx.places import Places


class ExternalFiles:
    """The data files of one model, each mapped once."""

    def __init__(self, folder: Path | None, places: Places | None = None) -> None:
        self._folder, self._places = folder, places
        self.files: dict[str, memoryview] = {}  # by location, as far as they were read

    def read(self, tensor: str, location: str, offset: int, length: int | None) -> memoryview:
        """Bytes [offset, offset + length) of `location`, or up to its end; `tensor` is named in errors."""
        data = self._open(tensor, location)
        end = len(data) if length is None else offset + length
        if offset < 0 or (length is not None and length < 0) or offset > len(data) or end > len(data):
            raise ModelError(
                f"tensor '{tensor}' wants bytes {offset} to {end} of external file '{location}', "
                f"which has {len(data)} bytes"
            )
        return data[offset:end]

    def _open(self, tensor: str, location: str) -> memoryview:
        if location not in self.files:
            if self._folder is None:
                raise ModelError(
                    f"tensor '{tensor}' lies in external file '{location}', but the model was not loaded from a path; "
                    "give load() the path of the .onnx file"
                )
            try:
                self.files[location] = _map_inside(self._folder, location, self._places)
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
                raise ModelError(f"external file '{location}' of tensor '{tensor}' is refused: {reason}") from error
        return self.files[location]


def _map_inside(folder: Path, location: str, places: Places | None) -> memoryview:
    """`location` below `folder`, mapped read-only. ValueError says what is wrong with it."""
    descriptor, size = open_inside(folder, location)
    try:
        view = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)) if size else memoryview(b"")
        if places is not None:
            places.add(view, os.fstat(descriptor))
        return view
    finally:
        os.close(descriptor)


def open_inside(folder: str | os.PathLike[str], location: str) -> tuple[int, int]:
    """Descriptor and size of the file `location` below `folder`. ValueError or OSError says what is wrong with it."""
    if not location or "\0" in location or "\\" in location:
        raise ValueError("the location is not a file name")
    parts = [part for part in location.split("/") if part not in ("", ".")]
    if location.startswith("/") or ".." in parts or not parts:
        raise ValueError("it must be a relative path inside the model's folder")
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            inner = _open_at(directory, part, os.O_DIRECTORY)
            os.close(directory)
            directory = inner
        descriptor = _open_at(directory, parts[-1], os.O_NONBLOCK)
    finally:
        os.close(directory)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a regular file")
        if status.st_nlink != 1:
            raise ValueError("it is a hard link, which may lead outside the model's folder")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, status.st_size


def _open_at(directory: int, name: str, flags: int) -> int:
    if stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
        raise ValueError(f"'{name}' is a symbolic link")
    return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=directory)
