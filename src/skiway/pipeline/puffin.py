"""Theta sketches of a snapshot as a Puffin file, in which engines look for the numbers of distinct values."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from skiway import __version__
from skiway.formats import TableSchema
from skiway.formats.schemas import leaves
from skiway.pipeline.sketches import THETA, estimate
from skiway.pipeline.values import value_kind

__all__ = ["Puffin", "written"]

_MAGIC: Final = b"PFA1"
_NO_FLAGS: Final = b"\0\0\0\0"


@dataclass(frozen=True, slots=True)
class Puffin:
    """The file, the size of its footer, and what a table's metadata has to say of its blobs."""

    data: bytes
    footer_size: int
    blobs: list[dict[str, Any]]


def written(sketches: Mapping[int, bytes], schema: TableSchema, *, snapshot_id: int, sequence_number: int) -> Puffin:
    """The sketches, by column id, of those columns whose values Iceberg hashes as we do."""
    data, blobs = bytearray(_MAGIC), []
    for leaf in leaves(schema.arrow):
        kind, sketch = value_kind(leaf.type), sketches.get(leaf.id)
        if sketch is None or kind is None or not kind.as_iceberg:
            continue
        blobs.append(
            {
                "type": THETA,
                "fields": [leaf.id],
                "snapshot-id": snapshot_id,
                "sequence-number": sequence_number,
                "offset": len(data),
                "length": len(sketch),
                "properties": {"ndv": str(round(estimate(sketch)))},
            }
        )
        data += sketch
    footer = _footer(blobs)
    return Puffin(bytes(data + footer), len(footer), blobs)


def _footer(blobs: list[dict[str, Any]]) -> bytes:
    payload = json.dumps({"blobs": blobs, "properties": {"created-by": f"Skiway {__version__}"}}).encode()
    return b"".join((_MAGIC, payload, struct.pack("<i", len(payload)), _NO_FLAGS, _MAGIC))
