"""Messages between a server and its workers: a JSON header and tables as Arrow IPC streams, each with its length in front.

A worker runs foreign SQL, so its messages are not trusted: lengths are limited and tables are validated.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Callable, Mapping
from typing import IO, Any, Final

import pyarrow as pa

__all__ = [
    "FILES_AT_ONCE",
    "KEPT",
    "OUT_OF_MEMORY",
    "READY",
    "SEND_FILES",
    "TooLarge",
    "decode_table",
    "encode_table",
    "exactly",
    "file_identity",
    "read_message",
    "read_until",
    "write_message",
]

FILES_AT_ONCE: Final = 100
"""How many open files are sent in one message; the system allows 253."""

READY: Final = b"R"
"""What a process that runs queries writes when it has started."""

KEPT: Final = b"K"
"""The process has the files and views of the query from the last one."""

SEND_FILES: Final = b"F"
"""The process needs the files of the query."""

OUT_OF_MEMORY: Final = 80
"""The exit code of a process that had too little memory to go on."""

_SIZE: Final = 8
_READ_BYTES: Final = 1 << 20
_HEADER_BYTES: Final = 16 * 1024 * 1024


class TooLarge(ValueError):
    """A message is larger than its reader accepts."""


def encode_table(table: pa.Table) -> pa.Buffer:
    """A table as an IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def decode_table(data: bytes) -> pa.Table:
    """The table in an IPC stream, which must be valid."""
    with pa.ipc.open_stream(data) as reader:
        table = reader.read_all()
    table.validate(full=True)
    return table


def write_message(to: IO[bytes], header: Mapping[str, Any], parts: list[pa.Buffer]) -> None:
    """Write a message; `parts` are encoded tables."""
    for part in (json.dumps(header).encode(), len(parts).to_bytes(_SIZE, "little"), *parts):
        to.write(len(part).to_bytes(_SIZE, "little"))
        to.write(part)
    to.flush()


def exactly(file: IO[bytes], size: int) -> bytes:
    """Read as many bytes from a file; `EOFError` if it ends before."""
    data = file.read(size)
    if len(data) < size:
        raise EOFError
    return data


def read_until(descriptor: int, size: int, deadline: float) -> bytes:
    """Read as many bytes from a pipe; `EOFError` if it ends before, `TimeoutError` at the deadline."""
    data = bytearray()
    while len(data) < size:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError
        part = os.read(descriptor, min(_READ_BYTES, size - len(data)))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def read_message(read: Callable[[int], bytes], max_bytes: int) -> tuple[dict[str, Any], list[bytes]]:
    """Read a message with a function that returns exactly as many bytes as asked for, or raises `EOFError`."""
    header = json.loads(read(_length(read, _HEADER_BYTES)))
    count = int.from_bytes(read(_length(read, _SIZE)), "little")
    parts: list[bytes] = []
    for _ in range(count):
        size = _length(read, max_bytes)
        max_bytes -= size
        parts.append(read(size))
    return header, parts


def _length(read: Callable[[int], bytes], limit: int) -> int:
    size = int.from_bytes(read(_SIZE), "little")
    if size > limit:
        raise TooLarge(f"{size} bytes, more than {limit}")
    return size


def file_identity(descriptor: int) -> list[int]:
    """What identifies the contents of an open file."""
    found = os.fstat(descriptor)
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns]
