"""Answers of a server as its clients may find them.

The server's own messages (`airport.wire.payloads`) say `bytes` where bytes belong. A client must be laxer: DuckDB's
takes MessagePack `str` and `bin` alike, so servers in some languages send either. Such members are `Binary` here.
"""

from __future__ import annotations

from typing import Final

import msgspec

from skiway.airport.wire.payloads import Binary, VersionInfo

__all__ = ["ContentsAnswer", "ObjectAnswer", "RootAnswer", "SchemaAnswer"]

NIL: Final = Binary(b"\xc0")


class ContentsAnswer(msgspec.Struct, frozen=True):
    """Where the objects of a schema are."""

    sha256: str = ""
    url: str | None = None
    serialized: Binary = NIL


class SchemaAnswer(msgspec.Struct, frozen=True):
    """One schema in `list_schemas`."""

    name: str
    contents: ContentsAnswer
    description: str = ""
    tags: dict[str, str] = {}


class RootAnswer(msgspec.Struct, frozen=True):
    """Answer of `list_schemas`, inside an envelope."""

    schemas: list[SchemaAnswer]
    version_info: VersionInfo
    contents: ContentsAnswer = ContentsAnswer()


class ObjectAnswer(msgspec.Struct, frozen=True):
    """`app_metadata` of a FlightInfo, as far as it is of use here."""

    type: str
    catalog: str
    schema: str
    name: str
    comment: str | None = None
    input_schema: Binary = NIL
    description: str | None = None
