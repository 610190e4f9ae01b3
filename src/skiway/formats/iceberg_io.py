"""The files of a source, as PyIceberg asks for them. Read only."""

from __future__ import annotations

from typing import Any, NoReturn

from pyiceberg.io import FileIO, InputFile, InputStream

from skiway.errors import Unsupported
from skiway.formats.files import Files

__all__ = ["ReadingIO"]


class ReadingIO(FileIO):
    """Lets PyIceberg read what the source may."""

    def __init__(self, files: Files) -> None:
        super().__init__()
        self.files = files

    def new_input(self, location: str) -> InputFile:
        return _Input(location, self.files)

    def new_output(self, location: str) -> NoReturn:
        raise Unsupported(f"file {location!r} cannot be written: tables of others are only read")

    def delete(self, location: Any) -> NoReturn:
        raise Unsupported(f"file {location!r} cannot be deleted: tables of others are only read")


class _Input(InputFile):
    def __init__(self, location: str, files: Files) -> None:
        super().__init__(location)
        self._files = files

    def __len__(self) -> int:
        with self._files.open(self.location) as file:
            return int(file.size())

    def exists(self) -> bool:
        return len(self) >= 0

    def open(self, seekable: bool = True) -> InputStream:  # noqa: ARG002
        opened: InputStream = self._files.open(self.location)
        return opened
