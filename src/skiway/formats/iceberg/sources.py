"""Sources of Iceberg tables: REST catalogs, SQL catalogs, folders, and single metadata files.

`CatalogSource` has the tables of an upstream catalog that PyIceberg accesses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from skiway.errors import Conflict, InvalidArgument, NotFound, PreconditionFailed, SkiwayError, Unsupported
from skiway.formats.files import Files, Found, decoding, first_lines, unreadable
from skiway.formats.iceberg import lib
from skiway.formats.iceberg.metadata import validated
from skiway.formats.iceberg.table import IcebergTable
from skiway.formats.opening import FolderLayout, SourceRequest, is_metadata_file, open_folders, table_folder
from skiway.formats.source import Namespace, Source, TableHandle, TableName
from skiway.foundation import extras
from skiway.security.source_access import Location, location, web_address
from skiway.security.source_access.connections import guard_session
from skiway.security.source_access.databases import POSTGRESQL, SQLITE, checked_database, sqlite_file

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table
    from pyiceberg.typedef import Properties
    from requests import Session


class CatalogSource(Source):
    """The tables of a catalog, accessed with PyIceberg; connects on first use.

    `errors` is for blocks in which errors of the catalog's client become those of PyIceberg.
    """

    def __init__(
        self,
        request: SourceRequest,
        connect: Callable[[], Catalog],
        errors: Callable[[str], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._request, self._connect, self._errors = request, connect, errors
        self._connected: Catalog | None = None

    @property
    def _catalog(self) -> Catalog:
        if self._connected is None:
            self._connected = self._connect()
        return self._connected

    def namespaces(self) -> list[Namespace]:
        with self._translated():
            return sorted(self._below(()))

    def _below(self, parent: Namespace) -> Iterator[Namespace]:
        for found in self._catalog.list_namespaces(parent):
            name = tuple(found)
            if name != parent:
                yield name
                yield from self._below(name)

    def tables(self, namespace: Namespace) -> list[str]:
        with self._translated(".".join(namespace)):
            return sorted(name[-1] for name in self._catalog.list_tables(namespace))

    def load(self, namespace: Namespace, table: str) -> TableHandle:
        name = TableName(namespace, table)
        with self._translated(str(name)):
            found = self._catalog.load_table((*namespace, table))
        # A REST catalog may vend credentials for this table only.
        vended = {key: value for key, value in found.io.properties.items() if key.startswith("s3.")}
        vended.pop("s3.ambient-credentials", None)  # only the connector itself may ask for them
        files = self._request.files(vended)
        files.reach.check(location(found.metadata_location))
        with decoding(files, found.metadata_location):
            return IcebergTable(
                name,
                validated(lib.metadata_files.kept_metadata(found)),
                metadata_location=found.metadata_location,
                files=files,
            )

    def close(self) -> None:
        if self._connected is not None:
            self._connected.close()

    @contextmanager
    def _translated(self, name: str = "") -> Iterator[None]:
        with translated(self._request.address, name), self._errors(self._request.address):
            yield


def metadata_file_of(name: tuple[str, ...], parameters: Mapping[str, str], *, service: str, kind: str = "") -> str:
    """The metadata file of a table, from its parameters in a catalog like Hive's; raises if the table has another format.

    `service` names the catalog in errors, and `kind` is what the catalog calls the table.
    """
    table = ".".join(name)
    if not is_iceberg(parameters):
        found = f"table_type {parameters.get('table_type') or 'not set'}"
        raise Unsupported(
            f"{table!r} in {service} is not an Iceberg table, but {f'of type {kind} with' if kind else 'has'} {found}; connectors of "
            "kind parquet and delta mirror the files of other tables",
            key="table.feature",
            table=table,
            feature="table_type",
        )
    metadata = parameters.get("metadata_location", "")
    if not metadata:
        raise PreconditionFailed(
            f"table {table!r} has no metadata_location in {service}; let its engine commit once more, or drop it",
            key="file.missing",
            table=table,
        )
    return metadata


def is_iceberg(parameters: Mapping[str, str]) -> bool:
    """Whether the parameters of a table in a catalog like Hive's say that it is an Iceberg table."""
    return parameters.get("table_type", "").lower() == "iceberg"


def read_table(files: Files, catalog: Catalog, name: tuple[str, ...], metadata: str) -> Table:
    """Read a table of `catalog` from its metadata file. `files` checks the location of the file."""
    from pyiceberg.table import Table

    with decoding(files, metadata):
        read = lib.metadata_files.table_metadata(files, metadata)
    return Table(name, read, metadata, lib.metadata_files.ReadingIO(files), catalog)


@contextmanager
def translated(source: str, name: str = "") -> Iterator[None]:
    """Run a block in which PyIceberg's errors become ours; `name` is the table or namespace."""
    from pydantic import ValidationError
    from pyiceberg import exceptions
    from requests import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except SkiwayError:
        raise
    except (exceptions.NoSuchTableError, exceptions.NoSuchIcebergTableError, exceptions.NoSuchNamespaceError) as error:
        raise NotFound(
            f"source {source!r} has no {name!r}; list its namespaces and tables", key="table.not_found"
        ) from error
    except (exceptions.UnauthorizedError, exceptions.ForbiddenError, exceptions.OAuthError) as error:
        raise PreconditionFailed(
            f"source {source!r} rejected the credentials; check the credentials of the connector",
            key="source.credentials",
            detail=first_lines(error),
        ) from error
    except (ValidationError, exceptions.ValidationError) as error:
        raise Unsupported(
            f"table {name!r} of source {source!r} has unsupported metadata, such as a type of a newer version of Iceberg",
            key="table.feature",
            detail=first_lines(error),
            table=name,
            feature="metadata",
        ) from error
    except (RequestException, SQLAlchemyError, exceptions.RESTError, OSError) as error:
        raise unreadable(f"source {source!r}", error) from error
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        StopIteration,
    ) as error:  # how PyIceberg fails on damaged metadata
        raise PreconditionFailed(
            f"the response of source {source!r} about {name!r} is invalid; fix it there",
            key="file.corrupt",
            detail=f"{type(error).__name__}: {first_lines(error)}",
        ) from error


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
    usual = "sql" if request.uri.startswith(_SQL) else "filesystem"
    usual = "rest" if request.uri.startswith(("http:", "https:")) else usual
    opener = _OPENERS.get(request.options.get("iceberg.source", "") or usual)
    if opener is None:
        raise Unsupported(
            f"unknown iceberg.source {request.options['iceberg.source']!r}; use one of {', '.join(_OPENERS)}",
            key="source.kind",
        )
    return opener(request)


def _open_rest(request: SourceRequest) -> Source:
    address = web_address(request.uri)

    def connect() -> Catalog:
        from pyiceberg.catalog.rest import RestCatalog
        from pyiceberg.typedef import EMPTY_DICT

        class Guarded(RestCatalog):
            def _config_headers(self, session: Session) -> None:
                """Guard the session; this is called first, before a token is requested."""
                guard_session(session, request.access)
                session.hooks["response"].append(lib.metadata_files.keep_metadata)
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
    single = TableName((), table_folder(request.root).name) if is_metadata_file(request.root) else None
    return open_folders(request, _IcebergFolders(request.files()), single=single)


_OPENERS: Final[dict[str, Callable[[SourceRequest], Source]]] = {
    "rest": _open_rest,
    "sql": _open_sql,
    "filesystem": _open_files,
}


class _IcebergFolders(FolderLayout):
    """A folder that contains a folder `metadata` with metadata files is a table."""

    def is_table(self, folder: Location, folders: list[Location], files: list[Found]) -> bool:  # noqa: ARG002
        inner = folder / "metadata"
        return inner in folders and any(_version(file) is not None for file in self.files.children(inner)[1])

    def open(self, name: TableName, place: Location) -> TableHandle:
        metadata = place if ".metadata.json" in place.name else self._newest(name, place / "metadata")
        with decoding(self.files, str(metadata)), translated(str(place), str(name)):
            read = lib.metadata_files.table_metadata(self.files, str(metadata))
            return IcebergTable(name, validated(read), metadata_location=str(metadata), files=self.files)

    def _newest(self, name: TableName, folder: Location) -> Location:
        """The current metadata file: the version in the hint or the ones following it, else the highest version."""
        by_version: dict[int, list[Found]] = {}
        for file in self.files.children(folder)[1]:
            if (version := _version(file)) is not None:
                by_version.setdefault(version, []).append(file)
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
        if self.files.find(hint) is None:
            return None
        text = self.files.read(hint).decode(errors="replace").strip()
        if not text.isdecimal():
            raise PreconditionFailed(
                f"{hint!r} does not contain a version number; correct it, or delete it", key="file.corrupt", file=hint
            )
        return int(text)


def _version(file: Found) -> int | None:
    found = _METADATA.fullmatch(file.location.name)
    return None if found is None else int(found[1] or found[2])
