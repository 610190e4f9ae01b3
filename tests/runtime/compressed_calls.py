"""A gRPC client that sends compressed messages which libraries would not send: it writes the frames of HTTP/2 itself."""

from __future__ import annotations

import socket
import struct
import zlib
from collections.abc import Mapping

MIB = 1 << 20
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _GOAWAY = 0, 1, 4, 7
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1


def zeros(mebibytes: int) -> bytes:
    """So many mebibytes of zeros in the format of gzip: about 1 KiB for each of them."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    head = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    again = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)  # the state is the same after each of them
    checksum = 0
    for _ in range(mebibytes):
        checksum = zlib.crc32(bytes(MIB), checksum)
    end = b"\x03\x00" + struct.pack("<II", checksum, mebibytes * MIB)  # an empty last block
    return head + again * (mebibytes - 1) + end


def answer_to(address: str, method: str, compressed: bytes, headers: Mapping[str, str]) -> bytes:
    """Call a method with one message that is compressed with gzip; all that the server sends until the call ends.

    Servers send the names and values of most headers as plain text.
    """
    host, _, port = address.rpartition(":")
    sent = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": address,
        "content-type": "application/grpc",
        "te": "trailers",
        "grpc-encoding": "gzip",
        **headers,
    }
    block = b"".join(b"\0" + _text(name) + _text(value) for name, value in sent.items())
    message = b"\1" + struct.pack(">I", len(compressed)) + compressed
    assert len(message) < 65_535, "the client does not wait for room"
    with socket.create_connection((host, int(port)), timeout=200) as server:
        server.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, b"") + _frame(_HEADERS, _END_HEADERS, 1, block))
        for start in range(0, len(message), 16_384):
            part = message[start : start + 16_384]
            last = start + 16_384 >= len(message)
            server.sendall(_frame(_DATA, _END_STREAM if last else 0, 1, part))
        return _received(server)


def _received(server: socket.socket) -> bytes:
    received = b""
    with server.makefile("rb") as stream:
        while head := stream.read(9):
            size, kind, flags = int.from_bytes(head[:3]), head[3], head[4]
            payload = stream.read(size)
            if kind == _SETTINGS and not flags & _ACK:
                server.sendall(_frame(_SETTINGS, _ACK, 0, b""))
            elif kind in (_DATA, _HEADERS):
                received += payload
            if kind == _GOAWAY or (kind == _HEADERS and flags & _END_STREAM):
                break
    return received


def _text(text: str) -> bytes:
    assert len(text) < 127
    return bytes([len(text)]) + text.encode()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload
