"""The files of managed tables, as PyIceberg asks for them."""

from __future__ import annotations

import io
from typing import Any

from pyiceberg.io import InputFile, OutputFile, OutputStream

from skiway.formats.iceberg_io import ReadingIO
from skiway.formats.iceberg_warehouse import TableFiles

__all__ = ["WritingIO"]


class WritingIO(ReadingIO):
    """Lets PyIceberg write small files into a table's folder: manifests and metadata."""

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

    def create(self, overwrite: bool = False) -> OutputStream:  # noqa: ARG002 - names are never used twice
        return _Buffered(self._files, self.location)


class _Buffered(io.BytesIO):
    """A small file that is written as a whole when it is closed."""

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
