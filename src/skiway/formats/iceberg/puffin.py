"""Puffin files, which hold sketches of columns and deletion vectors: blobs, followed by a footer that describes them."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from skiway import __version__

__all__ = ["Blob", "Puffin", "puffin_file"]

_MAGIC: Final = b"PFA1"
_NO_FLAGS: Final = b"\0\0\0\0"


@dataclass(frozen=True, slots=True)
class Blob:
    """A blob. `fields` are the ids of the columns that it is about; it belongs to no snapshot if `snapshot_id` is -1."""

    type: str
    data: bytes
    fields: Sequence[int]
    snapshot_id: int = -1
    sequence_number: int = -1
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Puffin:
    """A Puffin file, the size of its footer, and the description of its blobs for the metadata of the table."""

    data: bytes
    footer_size: int
    blobs: list[dict[str, Any]]


def puffin_file(blobs: Iterable[Blob]) -> Puffin:
    """A file with these blobs, uncompressed and in this order."""
    data, described = bytearray(_MAGIC), []
    for blob in blobs:
        described.append(
            {
                "type": blob.type,
                "fields": list(blob.fields),
                "snapshot-id": blob.snapshot_id,
                "sequence-number": blob.sequence_number,
                "offset": len(data),
                "length": len(blob.data),
                "properties": dict(blob.properties),
            }
        )
        data += blob.data
    footer = _footer(described)
    return Puffin(bytes(data + footer), len(footer), described)


def _footer(blobs: list[dict[str, Any]]) -> bytes:
    payload = json.dumps({"blobs": blobs, "properties": {"created-by": f"Skiway {__version__}"}}).encode()
    return b"".join((_MAGIC, payload, struct.pack("<i", len(payload)), _NO_FLAGS, _MAGIC))
