"""Sources of Iceberg tables: REST catalogs, SQL catalogs, folders, and single metadata files."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from skiway import extras
from skiway.errors import Conflict, InvalidArgument, NotFound, PreconditionFailed, Unsupported
from skiway.formats.files import Files, Found, decoding
from skiway.formats.iceberg.catalog_source import CatalogSource, read_table, translated
from skiway.formats.iceberg.metadata import validated
from skiway.formats.iceberg.table import IcebergTable
from skiway.formats.opening import FolderSource, SourceRequest
from skiway.formats.source import Source, TableHandle, TableName
from skiway.security.source_access import Location, web_address
from skiway.security.source_access.databases import POSTGRESQL, SQLITE, checked_database, sqlite_file
from skiway.security.source_access.web_sessions import guard_session

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table
    from pyiceberg.typedef import Properties

    from requests import Session

__all__ = ["open_iceberg"]

_METADATA: Final = re.compile(r"(?:v(\d+)|(\d+)-.*)(?:\.gz)?\.metadata\.json(?:\.gz)?")
_IO: Final = "pyiceberg.io.pyarrow.PyArrowFileIO"
_SQL: Final = (SQLITE, *POSTGRESQL)
_REST_OPTIONS: Final = ("warehouse", "prefix", "rest.", "header.", "oauth2-server-uri", "scope", "s3.")
_REST_CREDENTIALS: Final = (*_REST_OPTIONS, "token", "credential", "audience", "resource", "client.")
_SIGNING_KEYS: Final = ("client.access-key-id", "client.secret-access-key")


def open_iceberg(request: SourceRequest) -> Source:
    """Open the source at `request.uri`.

    The option `iceberg.source` is `rest`, `sql` or `filesystem`; by default it depends on the address.
    """
    opener = _OPENERS.get(request.options.get("iceberg.source", "") or _guessed(request.uri))
    if opener is None:
        raise Unsupported(
            f"unknown iceberg.source {request.options['iceberg.source']!r}; use one of {', '.join(_OPENERS)}",
            key="source.kind",
        )
    return opener(request)


def _guessed(uri: str) -> str:
    if uri.startswith(("http:", "https:")):
        return "rest"
    return "sql" if uri.startswith(_SQL) else "filesystem"


def _open_rest(request: SourceRequest) -> Source:
    address = web_address(request.uri)

    def connect() -> Catalog:
        from pyiceberg.catalog.rest import RestCatalog
        from pyiceberg.typedef import EMPTY_DICT

        from skiway.formats.iceberg.foreign_metadata import translate_response

        class Guarded(RestCatalog):
            def _config_headers(self, session: Session) -> None:
                """Guard the session; this is called first, before a token is requested."""
                guard_session(session, request.access)
                session.hooks["response"].append(translate_response)
                super()._config_headers(session)

            def _init_sigv4(self, session: Session) -> None:
                """Sign requests with the keys of the source; the session stays guarded."""
                if not all(self.properties.get(key) for key in _SIGNING_KEYS) or self.properties.get(
                    "client.profile-name"
                ):
                    request.access.check_ambient("rest.sigv4-enabled without client.access-key-id")
                super()._init_sigv4(session)
                guard_session(session, request.access, signer=session.adapters.pop(self.uri), signed=self.uri)

            def _load_file_io(self, properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:
                """Always use PyArrow: the response of a catalog must not select the class to load."""
                return super()._load_file_io({**properties, "py-io-impl": _IO}, location)

        return Guarded(request.name, uri=address, **_rest_properties(request))

    return CatalogSource(request, connect)


def _rest_properties(request: SourceRequest) -> dict[str, str]:
    """The properties for PyIceberg: the options and credentials that it supports, and no other of its settings."""
    options = {key: value for key, value in request.options.items() if key.startswith(_REST_OPTIONS)}
    return options | {key: value for key, value in request.credentials.items() if key.startswith(_REST_CREDENTIALS)}


def _open_sql(request: SourceRequest) -> Source:
    if not request.uri.startswith(_SQL):
        raise InvalidArgument(
            "the address is not the URL of a SQL catalog; use sqlite:////path/catalog.db or postgresql://user@host/database",
            key="location.refused",
        )
    place = sqlite_file(request.uri) if request.uri.startswith(SQLITE) else None
    files = request.files()
    if place is not None:
        if files.find(str(place)) is None:
            raise NotFound(f"no SQLite catalog found at {str(place)!r}", key="source.not_found")
    else:
        extras.require("psycopg", extra="postgres", purpose="an Iceberg catalog in PostgreSQL")

    def connect() -> Catalog:
        from pyiceberg.catalog.sql import SqlCatalog

        class Guarded(SqlCatalog):
            def _convert_orm_to_iceberg(self, orm_table: Any) -> Table:
                name = (*self.identifier_to_tuple(orm_table.table_namespace), orm_table.table_name)
                return read_table(files, self, name, orm_table.metadata_location or "")

        name = request.options.get("catalog-name", "default")
        # An object, because the text of a URL cannot express an empty password.
        url: Any = checked_database(request.uri, request.access, password=request.credentials.get("password", ""))
        return Guarded(name, uri=url, warehouse=request.options.get("warehouse", ""), init_catalog_tables="false")

    return CatalogSource(request, connect)


def _open_files(request: SourceRequest) -> Source:
    files = request.files()
    root = request.root
    as_table = request.as_table
    if root.name.endswith((".metadata.json", ".metadata.json.gz")):
        folder = root.parent.parent if root.parent.name == "metadata" else root.parent
        as_table = as_table or TableName((), folder.name)
    elif not any(files.children(root)):
        raise NotFound(f"there is nothing at {str(root)!r}; check the address of the source", key="source.not_found")
    return FolderSource(files, root, _IcebergFolders(files), as_table=as_table)


_OPENERS: Final[dict[str, Callable[[SourceRequest], Source]]] = {
    "rest": _open_rest,
    "sql": _open_sql,
    "filesystem": _open_files,
}


class _IcebergFolders:
    """A folder that contains a folder `metadata` with metadata files is a table."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def is_table(self, folder: Location, folders: list[Location], files: list[Found]) -> bool:  # noqa: ARG002
        inner = folder / "metadata"
        return inner in folders and any(_version(each) is not None for each in self._files.children(inner)[1])

    def is_table_file(self, file: Found) -> bool:  # noqa: ARG002
        return False

    def open(self, name: TableName, place: Location) -> TableHandle:
        from skiway.formats.iceberg.foreign_metadata import read_foreign_metadata

        metadata = place if ".metadata.json" in place.name else self._newest(name, place / "metadata")
        with decoding(self._files, str(metadata)), translated(str(place), str(name)):
            read = read_foreign_metadata(self._files, str(metadata))
            return IcebergTable(
                name,
                validated(read.metadata),
                metadata_location=str(metadata),
                files=self._files,
                variants=read.variants,
            )

    def _newest(self, name: TableName, folder: Location) -> Location:
        """The current metadata file: the version in the hint or the ones following it, else the highest version."""
        found = [(version, each) for each in self._files.children(folder)[1] if (version := _version(each)) is not None]
        by_version: dict[int, list[Found]] = {}
        for version, each in found:
            by_version.setdefault(version, []).append(each)
        hinted = self._hint(folder)
        newest = max(by_version, default=None) if hinted is None else hinted
        while hinted is not None and newest is not None and newest + 1 in by_version:
            newest += 1
        if newest is None or newest not in by_version:
            raise NotFound(
                f"{str(folder)!r} has no metadata file of version {newest}, which its version hint refers to",
                key="table.not_found",
            )
        if len(by_version[newest]) > 1:
            names = ", ".join(each.location.name for each in by_version[newest])
            raise Conflict(
                f"table {str(name)!r} has several metadata files of version {newest} ({names}), and it is unknown which was "
                "committed; use one of them as the source, or connect to its catalog",
                key="table.ambiguous",
                table=str(name),
            )
        return by_version[newest][0].location

    def _hint(self, folder: Location) -> int | None:
        hint = str(folder / "version-hint.text")
        if self._files.find(hint) is None:
            return None
        text = self._files.read(hint).decode(errors="replace").strip()
        if not text.isdecimal():
            raise PreconditionFailed(
                f"{hint!r} does not contain a version number; correct it, or delete it", key="file.corrupt", file=hint
            )
        return int(text)


def _version(file: Found) -> int | None:
    found = _METADATA.fullmatch(file.location.name)
    return None if found is None else int(found[1] or found[2])
