"""Thrift's compact protocol: what is encoded is read, truncated data is recognized, and nothing else is accepted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skiway.formats.readers.encodings import read_struct, varint

INTEGERS = st.integers(-(2**63), 2**63 - 1)
VALUES = st.recursive(
    st.one_of(INTEGERS, st.booleans(), st.binary(max_size=200), st.lists(INTEGERS, max_size=40)),
    lambda inner: st.dictionaries(st.integers(1, 40), inner, max_size=4),
    max_leaves=8,
)
STRUCTS = st.dictionaries(st.integers(1, 40) | st.integers(100, 5000), VALUES, max_size=6)


def unsigned(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def zigzag(number: int) -> bytes:
    return unsigned(number * 2 if number >= 0 else -number * 2 - 1)


def encoded(value: Any) -> tuple[int, bytes]:
    """The type of a value, and its bytes."""
    match value:
        case bool():
            return (1 if value else 2), b""
        case int():
            return 6, zigzag(value)
        case bytes():
            return 8, unsigned(len(value)) + value
        case list():
            head = bytes([len(value) << 4 | 6]) if len(value) < 15 else b"\xf6" + unsigned(len(value))
            return 9, head + b"".join(zigzag(each) for each in value)
        case dict():
            return 12, struct(value)
    raise TypeError(value)


def struct(fields: dict[int, Any]) -> bytes:
    out, last = b"", 0
    for number, value in sorted(fields.items()):
        kind, data = encoded(value)
        near = number - last <= 15
        out += bytes([(number - last) << 4 | kind]) if near else bytes([kind]) + zigzag(number)
        out += data
        last = number
    return out + b"\0"


@settings(max_examples=40, deadline=None)
@given(STRUCTS, st.binary(max_size=3), st.binary(max_size=3))
def test_encoded_structs_are_read(fields: dict[int, Any], before: bytes, after: bytes) -> None:
    data = struct(fields)
    assert read_struct(before + data + after, len(before)) == (fields, len(before) + len(data))


@settings(max_examples=25, deadline=None)
@given(STRUCTS)
def test_struct_that_ends_too_early_is_recognized(fields: dict[int, Any]) -> None:
    data = struct(fields)
    for end in range(max(0, len(data) - 40), len(data)):
        with pytest.raises(IndexError):
            read_struct(data[:end])


def test_floating_point_numbers_are_skipped() -> None:
    assert read_struct(b"\x17" + b"12345678" + b"\x16\x06\x00") == ({1: None, 2: 3}, 12)
    with pytest.raises(IndexError):
        read_struct(b"\x17" + b"1234567")


def test_lists_of_booleans_have_a_byte_for_each() -> None:
    assert read_struct(b"\x19\x31\x01\x02\x01\x15\x02\x00") == ({1: [1, 2, 1], 2: 1}, 8)
    assert read_struct(b"\x1a\x23\x05\x07\x00") == ({1: [5, 7]}, 5), "a set of bytes"


@pytest.mark.parametrize("kind", [11, 13, 14, 15])
def test_other_types_are_rejected(kind: int) -> None:
    with pytest.raises(ValueError, match=f"unexpected type {kind}"):
        read_struct(bytes([0x10 | kind, 0, 0, 0]))


@pytest.mark.parametrize("number", [0, 1, 127, 128, 16_383, 16_384, 2**63, 2**64 - 1])
def test_numbers_have_up_to_64_bits(number: int) -> None:
    data = unsigned(number)
    assert varint(b"\xff" + data + b"\x01", 1) == (number, 1 + len(data))


def test_longer_numbers_are_rejected() -> None:
    with pytest.raises(ValueError, match="more than 64 bits"):
        varint(b"\x80" * 10 + b"\x01", 0)
