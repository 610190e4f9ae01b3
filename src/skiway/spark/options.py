"""The options of the data source, and how its tasks start faster."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from zipimport import zipimporter

from skiway.client import AirportClient, BoundScan, Metastore, Predicate, TlsOptions
from skiway.client.connection import split_url
from skiway.client.metastore import Id, Retries
from skiway.errors import InvalidArgument, NotFound, Unsupported
from skiway.foundation.resources import namespace_path


def forget_archives() -> None:
    """Remove the finders of archives in PYTHONPATH, where Spark puts its own, from the cache of the import system.

    Spark begins each task with `importlib.invalidate_caches()`. Before Python 3.13, each finder of an archive then reads the
    directory of the archive again (issue 103200 of CPython). Spark's archives contain thousands of files and have a finder for
    each imported package, so this takes 0.15 s of CPU time: 73% of what Python used to read a million rows of two columns.
    Without finders there is nothing to read. An import that needs a finder creates it again, with the directory that is still
    in memory. Archives that an application adds are not in PYTHONPATH, and are read again.
    """
    unchanging = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter) and finder.archive in unchanging:
            sys.path_importer_cache.pop(path, None)


KNOWN: Final = (
    "location",
    "table",
    "path",
    "token",
    "tokenfile",
    "rootcertificates",
    "columns",
    "partitions",
    "versionasof",
    "timestampasof",
    "pushdown",
    "transactionseconds",
    "startingversion",
    "skipchanges",
)
DAY_S: Final = 24 * 3600
CALL_S: Final = 600.0
RETRIES: Final = 60  # for about two minutes


@dataclass(frozen=True)
class Options:
    """What to read, and where. A representation contains no token."""

    location: str
    table: str
    token: str | None = field(default=None, repr=False)
    root_certificates: str | None = None
    columns: tuple[str, ...] | None = None
    version: str | None = None
    timestamp: str | None = None
    transaction_seconds: int = DAY_S
    pushdown: bool = False
    starting_version: str | None = None
    skip_changes: bool = False
    partitions: int | None = None

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Options:
        """The options of a DataFrame reader, whose names are case-insensitive."""
        found = {name.lower(): value for name, value in given.items()}
        unknown = sorted(found.keys() - set(KNOWN))
        if unknown:
            raise InvalidArgument(f"the data source airport has no option {unknown[0]!r}: it has {', '.join(KNOWN)}")
        table = found.get("table") or found.get("path")
        if not found.get("location"):
            raise InvalidArgument(
                "the option location is missing: give the server and the catalog, such as grpc://127.0.0.1:50051/lake"
            )
        address, _, in_location = split_url(found["location"])
        if in_location:
            raise InvalidArgument(
                f"the location {address} contains a token, which Spark would show: give the option token or tokenFile"
            )
        if not table:
            raise InvalidArgument('the option table is missing: name a table, such as "shop.orders"')
        if "versionasof" in found and "timestampasof" in found:
            raise InvalidArgument("versionAsOf and timestampAsOf exclude each other: give one of them")
        return cls(
            found["location"],
            table,
            _token(found),
            found.get("rootcertificates"),
            _names(found["columns"]) if "columns" in found else None,
            found.get("versionasof"),
            found.get("timestampasof"),
            _positive("transactionSeconds", found.get("transactionseconds", str(DAY_S)), example=3600),
            _is_true("pushdown", found.get("pushdown", "false")),
            _starting_version(found.get("startingversion")),
            _is_true("skipChanges", found.get("skipchanges", "false")),
            _positive("partitions", found["partitions"], example=8) if "partitions" in found else None,
        )

    def check_writing(self) -> None:
        """Raise `InvalidArgument` if there are options that only reading has."""
        given = (
            ("columns", self.columns),
            ("partitions", self.partitions),
            ("versionAsOf", self.version),
            ("timestampAsOf", self.timestamp),
        )
        for name, value in given:
            if value is not None:
                raise InvalidArgument(f"the option {name} is for reading: remove it")

    def check_streaming(self) -> None:
        """Raise `InvalidArgument` if there are options that name a single snapshot to read."""
        for name, value in (("versionAsOf", self.version), ("timestampAsOf", self.timestamp)):
            if value is not None:
                raise InvalidArgument(f"the option {name} is for reading a single snapshot: remove it")

    def client(self) -> AirportClient:
        """A new client."""
        return AirportClient(self.location, token=self.token, tls=self._tls())

    def metastore(self) -> Metastore:
        """A new client of the metastore, at the same address. It is patient, because a server may be restarting."""
        address, _, _ = split_url(self.location)
        return Metastore(address, token=self.token, tls=self._tls(), timeout_s=CALL_S, retries=Retries(limit=RETRIES))

    def table_id(self, client: AirportClient, lake: Metastore) -> Id:
        """The id of the table in the metastore."""
        table = client.table(self.table)
        try:
            return Id(lake.tables.get((client.catalog, *namespace_path(table.schema_name), table.name)).id)
        except Unsupported:
            raise Unsupported(
                f"table {self.table} is not on a Skiway server: the data source airport writes and streams tables of "
                "Skiway servers only"
            ) from None
        except NotFound:
            raise Unsupported(
                f"{self.table} is a view or a system table: only tables can be written and streamed"
            ) from None

    def _tls(self) -> TlsOptions | None:
        return TlsOptions(root_certificates=self.root_certificates) if self.root_certificates else None

    def bind(self, client: AirportClient, where: Predicate | None = None) -> BoundScan:
        """Prepare the scan."""
        return client.bind(
            self.table, columns=self.columns, where=where, at_version=self.version, at_timestamp=self.timestamp
        )


def _is_true(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidArgument(f"the option {name} is {text[:100]!r}: give true or false")
    return text.lower() == "true"


def _starting_version(text: str | None) -> str | None:
    if text is not None and text != "latest" and not text.isdecimal():
        raise InvalidArgument(f"the option startingVersion is {text[:100]!r}: give the id of a snapshot, or latest")
    return text


def _positive(name: str, text: str, *, example: int) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise InvalidArgument(f"the option {name} is {text[:100]!r}: give a positive number, such as {example}")
    return int(text)


def _token(found: Mapping[str, str]) -> str | None:
    if "tokenfile" not in found:
        return found.get("token")
    if "token" in found:
        raise InvalidArgument("token and tokenFile exclude each other: give one of them")
    try:
        return Path(found["tokenfile"]).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"the file of the option tokenFile cannot be read: {error}") from None


def _names(text: str) -> tuple[str, ...]:
    """The names in the option `columns`. A JSON list is for names that contain commas."""
    if not text.lstrip().startswith("["):
        names = [name.strip() for name in text.split(",")]
    else:
        try:
            names = json.loads(text)
        except ValueError as error:
            raise InvalidArgument(f"the option columns is not a JSON list: {error}") from None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise InvalidArgument(f"the option columns is {text[:100]!r}: name at least one column, such as id, amount")
    return tuple(names)
