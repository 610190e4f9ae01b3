"""The options of the data source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from skiway.client import AirportClient, BoundScan, Predicate, TlsOptions
from skiway.errors import InvalidArgument

__all__ = ["Options"]

KNOWN: Final = (
    "location",
    "table",
    "path",
    "token",
    "tokenfile",
    "rootcertificates",
    "columns",
    "versionasof",
    "timestampasof",
)


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
        )

    def client(self) -> AirportClient:
        """A new client."""
        tls = TlsOptions(root_certificates=self.root_certificates) if self.root_certificates else None
        return AirportClient(self.location, token=self.token, tls=tls)

    def bind(self, client: AirportClient, where: Predicate | None = None) -> BoundScan:
        """Prepare the scan."""
        return client.bind(
            self.table, columns=self.columns, where=where, at_version=self.version, at_timestamp=self.timestamp
        )


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
