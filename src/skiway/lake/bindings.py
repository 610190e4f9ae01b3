"""The binding of a table: the facts about it that a client sends back with every call, so that no server remembers them.

    3f2c…@4-9ab0        the id of the table and the id of its schema that the client knows
    3f2c…@4-9ab0@eJx…   the same for the client that created the table, with the columns whose types it chose

The second form also tells the INSERT of CREATE TABLE … AS from any other: see `skiway.lake.creating`.
"""

from __future__ import annotations

import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from skiway.errors import InvalidArgument

__all__ = ["Binding", "pack", "unpack"]

_MAX_BYTES: Final = 4 << 20  # a client sends the binding


@dataclass(frozen=True, slots=True)
class Binding:
    """What a client knows. `wanted` is None unless the client created the table."""

    table_id: str
    columns_id: str
    wanted: pa.Schema | None = None

    @staticmethod
    def split(text: str) -> tuple[str, str, str | None]:
        """The ids of the table and its schema in a text that a client sent, and the part of a client that created it."""
        table_id, _, rest = text.partition("@")
        columns_id, created, packed = rest.partition("@")
        return table_id, columns_id, packed if created else None

    @classmethod
    def parse(cls, text: str) -> Binding:
        """The binding in a text that a client sent."""
        table_id, columns_id, packed = cls.split(text)
        if packed is None:
            return cls(table_id, columns_id)
        try:
            wanted = pa.ipc.read_schema(pa.py_buffer(unpack(packed))) if packed else pa.schema([])
        except (ValueError, zlib.error, pa.ArrowException, OSError) as error:
            raise InvalidArgument(
                "the table's binding is not from this server: DETACH and ATTACH again", key="table.binding"
            ) from error
        return cls(table_id, columns_id, wanted)

    def __str__(self) -> str:
        text = f"{self.table_id}@{self.columns_id}"
        if self.wanted is None:
            return text
        return f"{text}@{pack(self.wanted.serialize().to_pybytes()) if len(self.wanted) else ''}"


def pack(data: bytes) -> str:
    """Bytes as short text that can be part of a path."""
    return urlsafe_b64encode(zlib.compress(data)).decode()


def unpack(text: str) -> bytes:
    """The bytes that `pack` made a text of, up to a limit."""
    return zlib.decompressobj().decompress(urlsafe_b64decode(text), _MAX_BYTES)
