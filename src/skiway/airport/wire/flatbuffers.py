"""Reads the tables of flatbuffers, which the headers of Arrow IPC messages are.

Positions are bytes from the start of the data. Reading never fails: what is outside of the data reads as 0, so callers
check what they get.
"""

from __future__ import annotations

__all__ = ["field", "integer", "reference"]


def integer(data: bytes, position: int, size: int) -> int:
    """The integer of `size` bytes at a position; only one of eight bytes is signed."""
    return int.from_bytes(data[position : position + size], "little", signed=size == 8)


def field(data: bytes, table: int, number: int) -> int:
    """The position of a field of a table; 0 if the field is missing."""
    vtable = table - int.from_bytes(data[table : table + 4], "little", signed=True)
    entry = 4 + 2 * number
    offset = integer(data, vtable + entry, 2) if entry < integer(data, vtable, 2) else 0
    return table + offset if offset else 0


def reference(data: bytes, table: int, number: int) -> int:
    """The position of the table or vector that a field refers to; 0 if the field is missing."""
    place = field(data, table, number)
    return place + integer(data, place, 4) if place else 0
