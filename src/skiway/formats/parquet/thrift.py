"""Reads Thrift's compact protocol, in which Parquet files have their footer and the headers of their pages.

Numbers, booleans, bytes, structs and lists are read. Floating-point numbers are skipped, and are None.
"""

from __future__ import annotations

from typing import Any

__all__ = ["read_struct", "varint"]


def read_struct(data: bytes, at: int = 0) -> tuple[dict[int, Any], int]:
    """The fields of the struct at this byte, by number, and the byte after it; `IndexError` if the data ends within it."""
    return _struct(data, at)


def _struct(data: bytes, at: int) -> tuple[dict[int, Any], int]:
    found: dict[int, Any] = {}
    number = 0
    while head := data[at]:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _integer(data, at)
        kind = head & 15
        found[number], at = (kind == 1, at) if kind in (1, 2) else _value(data, at, kind)
    return found, at + 1


def _value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    match kind:
        case 1 | 2 | 3:
            return data[at], at + 1
        case 4 | 5 | 6:
            return _integer(data, at)
        case 7:
            return None, _within(data, at + 8)
        case 8:
            size, at = varint(data, at)
            end = _within(data, at + size)
            return data[at:end], end
        case 9 | 10:
            return _list(data, at)
        case 12:
            return _struct(data, at)
        case _:
            raise ValueError(f"unexpected type {kind}")


def _list(data: bytes, at: int) -> tuple[list[Any], int]:
    head, at = data[at], at + 1
    size, kind = head >> 4, head & 15
    if size == 15:
        size, at = varint(data, at)
    found = []
    for _ in range(size):
        value, at = _value(data, at, kind)
        found.append(value)
    return found, at


def _within(data: bytes, end: int) -> int:
    if end > len(data):
        raise IndexError(end)
    return end


def _integer(data: bytes, at: int) -> tuple[int, int]:
    number, at = varint(data, at)
    return (number >> 1) ^ -(number & 1), at


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode an unsigned integer of at most 64 bits; return it, and the place after it."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
        if shift > 63:
            raise ValueError("a number has more than 64 bits")
