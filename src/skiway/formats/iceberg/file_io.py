"""PyIceberg's FileIO on top of `Files`, which checks every location: read-only for sources, writable for managed tables."""

from __future__ import annotations

import io
from typing import Any, NoReturn

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream

from skiway.errors import Unsupported
from skiway.formats.files import Files
from skiway.formats.iceberg.warehouse import TableFiles

__all__ = ["ReadingIO", "WritingIO"]


class ReadingIO(FileIO):
    """Lets PyIceberg read the files that a source may read."""

    def __init__(self, files: Files) -> None:
        super().__init__()
        self.files = files

    def new_input(self, location: str) -> InputFile:
        return _Input(location, self.files)

    def new_output(self, location: str) -> NoReturn:
        raise Unsupported(f"file {location!r} cannot be written: external tables are read-only")

    def delete(self, location: Any) -> NoReturn:
        raise Unsupported(f"file {location!r} cannot be deleted: external tables are read-only")


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


class WritingIO(ReadingIO):
    """Lets PyIceberg also write manifests and metadata files into the folder of a table."""

    files: TableFiles

    def new_output(self, location: str) -> OutputFile:  # type: ignore[override]
        return _Output(location, self.files)


class _Output(OutputFile):
    def __init__(self, location: str, files: TableFiles) -> None:
        super().__init__(location)
        self._files = files

    def __len__(self) -> int:
        return len(self.to_input_file())

    def exists(self) -> bool:
        return self._files.find(self.location) is not None

    def to_input_file(self) -> InputFile:
        return ReadingIO(self._files).new_input(self.location)

    def create(self, overwrite: bool = False) -> OutputStream:  # noqa: ARG002 - names are unique
        return _Buffered(self._files, self.location)


class _Buffered(io.BytesIO):
    """A small file that is written when it is closed."""

    def __init__(self, files: TableFiles, uri: str) -> None:
        super().__init__()
        self._files, self._uri = files, uri

    def close(self) -> None:
        if not self.closed:
            self._files.write(self._uri, self.getvalue())
        super().close()

    def __exit__(self, *failure: Any) -> None:
        if failure[0] is None:
            self.close()
        else:
            super().close()
