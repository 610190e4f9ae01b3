"""The tables of an upstream catalog, accessed with PyIceberg, and what its errors mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from skiway.errors import NotFound, PreconditionFailed, SkiwayError, Unsupported
from skiway.formats.files import Files, decoding, first_lines, unreadable
from skiway.formats.iceberg.metadata import validated
from skiway.formats.iceberg.table import IcebergTable
from skiway.formats.opening import SourceRequest
from skiway.formats.source import Namespace, Source, TableHandle, TableName
from skiway.security.source_access import location

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

__all__ = ["CatalogSource", "is_iceberg", "metadata_file_of", "read_table", "translated"]


class CatalogSource(Source):
    """The tables of a catalog, accessed with PyIceberg; connects on first use."""

    def __init__(self, request: SourceRequest, connect: Callable[[], Catalog]) -> None:
        self._request = request
        self._connect = connect
        self._connected: Catalog | None = None

    @property
    def _catalog(self) -> Catalog:
        if self._connected is None:
            self._connected = self._connect()
        return self._connected

    def namespaces(self) -> list[Namespace]:
        with translated(self._request.address):
            return sorted(self._below(()))

    def _below(self, parent: Namespace) -> Iterator[Namespace]:
        for found in self._catalog.list_namespaces(parent):
            name = tuple(found)
            if name != parent:
                yield name
                yield from self._below(name)

    def tables(self, namespace: Namespace) -> list[str]:
        with translated(self._request.address, ".".join(namespace)):
            return sorted(name[-1] for name in self._catalog.list_tables(namespace))

    def load(self, namespace: Namespace, table: str) -> TableHandle:
        from skiway.formats.iceberg.foreign_metadata import variants_in

        name = TableName(namespace, table)
        with translated(self._request.address, str(name)):
            found = self._catalog.load_table((*namespace, table))
        # A REST catalog may vend credentials for this table only.
        vended = {key: value for key, value in found.io.properties.items() if key.startswith("s3.")}
        vended.pop("s3.ambient-credentials", None)  # only the connector itself may ask for them
        files = self._request.files(vended)
        files.reach.check(location(found.metadata_location))
        with decoding(files, found.metadata_location):
            return IcebergTable(
                name,
                validated(found.metadata),
                metadata_location=found.metadata_location,
                files=files,
                variants=getattr(found, "variants", frozenset()) or variants_in(found.config),
            )

    def close(self) -> None:
        if self._connected is not None:
            self._connected.close()


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

    from skiway.formats.iceberg.file_io import ReadingIO
    from skiway.formats.iceberg.foreign_metadata import read_foreign_metadata

    class WithVariants(Table):
        variants: frozenset[int] = frozenset()

    with decoding(files, metadata):
        read = read_foreign_metadata(files, metadata)
    table = WithVariants(name, read.metadata, metadata, ReadingIO(files), catalog)
    table.variants = read.variants
    return table


@contextmanager
def translated(source: str, name: str = "") -> Iterator[None]:
    """Run a block in which PyIceberg's errors become ours; `name` is the table or namespace."""
    from pydantic import ValidationError
    from pyiceberg import exceptions
    from sqlalchemy.exc import SQLAlchemyError

    from requests import RequestException

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
