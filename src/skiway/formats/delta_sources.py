"""Where tables of Delta are found: a table's folder, or a folder of tables."""

from __future__ import annotations

from skiway.errors import NotFound, Unsupported
from skiway.formats.delta import DeltaTable
from skiway.formats.files import Files, Found
from skiway.formats.folders import FolderSource
from skiway.formats.locations import Location
from skiway.formats.request import SourceRequest
from skiway.formats.source import Source, TableHandle, TableName

__all__ = ["open_delta"]


def open_delta(request: SourceRequest) -> Source:
    """The tables at and below `request.uri`."""
    asked = request.options.get("delta.source", "filesystem")
    if asked != "filesystem":
        raise Unsupported(
            f"delta.source {asked!r} is not supported; give the folder of the tables, with 'filesystem'",
            key="source.kind",
        )
    files = request.files()
    if not any(files.children(request.root)):
        raise NotFound(
            f"there is nothing at {str(request.root)!r}; check the address of the source", key="source.not_found"
        )
    return FolderSource(files, request.root, _DeltaFolders(files), as_table=request.as_table)


class _DeltaFolders:
    """A table is a folder with a log."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def is_table(self, folder: Location, folders: list[Location], files: list[Found]) -> bool:  # noqa: ARG002
        return folder / "_delta_log" in folders

    def is_table_file(self, file: Found) -> bool:  # noqa: ARG002
        return False

    def open(self, name: TableName, place: Location) -> TableHandle:
        return DeltaTable(name, place, self._files)
