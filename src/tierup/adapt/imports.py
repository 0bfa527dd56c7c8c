"""The model that a worker had to do with last, imported once: it plans a model, tries the plan, and checks answers."""

from __future__ import annotations

from tierup.frontends.onnx import Imported, load_onnx


class LastImport:
    """Keeps one import, which is the model in this file as long as the file has this stamp."""

    def __init__(self) -> None:
        self._kept: tuple[str, tuple[int, ...], Imported] | None = None

    def get(self, path: str, stamp: tuple[int, ...], *, lasts: bool = True) -> Imported:
        """The model in a file that has this stamp now; `lasts` as `load_onnx` has it."""
        if self._kept is not None and self._kept[:2] == (path, stamp):
            return self._kept[2]
        self._kept = None  # before another one is read
        imported = load_onnx(path, lasts=lasts)
        if not any(imported.files):  # what lies in other files has no stamp here
            self._kept = path, stamp, imported
        return imported


LAST_IMPORT = LastImport()  # one for the process
