"""Random changes of valid input: of bytes, text, JSON, MessagePack and protobuf messages.

All randomness comes from the `Random` of the caller, so that a seed always gives the same input.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from random import Random
from typing import Any

import msgspec
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from skiway.airport.wire.protocol import binary, packed

NUMBERS: Sequence[int] = (
    *(0, 1, -1, 2, 7, 127, 128, 255, 256, 32767, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32),
    *(2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1, -(2**31)),
)
FLOATS: Sequence[float] = (0.0, -0.0, 0.5, -1.5, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf"))
TEXTS: Sequence[str] = (
    *(
        "",
        " ",
        ".",
        "..",
        "/",
        "\\",
        "'",
        '"',
        "%",
        "%00",
        "a.b",
        "a/b",
        "main",
        "skiway",
        "rowid",
        "null",
        "true",
        "-1",
    ),
    *("é", "ß", "İ", "日本", "🦆", "\u202e", "\ufeff", "a\nb", "a\tb", "\x00", "a\x00b", "\x7f", "\ud7ff", "x" * 300),
    *("1'; DROP TABLE t; --", "(1)", "1 + 1", "now()", "$1", "{}", "[]", "[1", "0", "00", "1e5", "+1", "1.5", "NaN"),
    *("2024-01-01", "2024-13-45", "9999-12-31 23:59:59", "infinity", "00000000-0000-0000-0000-000000000000"),
    *("file:///etc/passwd", "s3://bucket/key", "http://169.254.169.254/", "a" * 5000),
)


def changed_bytes(data: bytes, chance: Random) -> bytes:
    """The bytes with one to four local changes: flipped, cut, repeated, inserted, or overwritten with a special number."""
    spoiled = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        place = chance.randrange(len(spoiled) + 1)
        match chance.randrange(6):
            case 0 if place < len(spoiled):
                spoiled[place] ^= 1 << chance.randrange(8)
            case 1:
                del spoiled[place:]
            case 2:
                del spoiled[place : place + chance.choice((1, 2, 4, 8, 64))]
            case 3:
                spoiled[place:place] = spoiled[place : place + chance.choice((1, 4, 16, 256))]
            case 4:
                size = chance.choice((1, 2, 4, 8))
                number = chance.choice(NUMBERS) % (1 << 8 * size)
                spoiled[place : place + size] = number.to_bytes(size, chance.choice(("little", "big")))
            case _:
                spoiled[place:place] = chance.randbytes(chance.choice((1, 2, 8, 40)))
    return bytes(spoiled)


def any_text(chance: Random, names: Sequence[str] = ()) -> str:
    """A special text, or one of the names that mean something to the target."""
    return chance.choice(names) if names and chance.random() < 0.6 else chance.choice(TEXTS)


def changed_text(text: str, chance: Random, names: Sequence[str] = ()) -> str:
    """Another text, or this one with a part cut out, repeated or inserted."""
    if not text or chance.random() < 0.5:
        return any_text(chance, names)
    start, end = sorted((chance.randrange(len(text) + 1), chance.randrange(len(text) + 1)))
    match chance.randrange(4):
        case 0:
            return text[:start] + text[end:]
        case 1:
            return text[:start] + text[start:end] * 2 + text[end:]
        case 2:
            return text[:start] + any_text(chance, names) + text[start:]
        case _:
            return text.swapcase()


def any_value(chance: Random, names: Sequence[str] = (), *, depth: int = 2) -> Any:
    """A value that JSON and MessagePack can express."""
    kind = chance.randrange(9 if depth else 7)
    if kind < 2:
        return any_text(chance, names)
    if kind < 4:
        return chance.choice(NUMBERS)
    if kind < 7:
        return chance.choice((None, True, False, *FLOATS, [], {}))
    inner = [any_value(chance, names, depth=depth - 1) for _ in range(chance.randrange(4))]
    return inner if kind == 7 else {any_text(chance, names): each for each in inner}


def parts_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to all parts of a value of dicts and lists, without the value itself."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*path, key)
        yield from parts_of(value[key], (*path, key))


def changed_value(
    value: Any, chance: Random, names: Sequence[str] = (), *, leaf: Callable[[Any], Any] | None = None
) -> Any:
    """The value with one to three parts replaced, removed, repeated or swapped with another part.

    `leaf` changes a part in a way that fits its content; it returns None where it knows none.
    """
    changed = copy.deepcopy(value)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        paths = list(parts_of(changed))
        if not paths:
            return any_value(chance, names)
        *way, last = chance.choice(paths)
        holder = _at(changed, way)
        match chance.randrange(8):
            case 0 if isinstance(holder, dict):
                del holder[last]
            case 1 if isinstance(holder, list):
                holder.insert(last, copy.deepcopy(holder[last]))
            case 2:
                holder[last] = copy.deepcopy(_at(changed, chance.choice(paths)))
            case 3 if isinstance(holder, dict):
                holder[changed_text(str(last), chance, names)] = holder[last]
            case 4 | 5 if leaf is not None and (fitting := leaf(holder[last])) is not None:
                holder[last] = fitting
            case 6 if isinstance(holder[last], str):
                holder[last] = changed_text(holder[last], chance, names)
            case _:
                holder[last] = any_value(chance, names)
    return changed


def _at(value: Any, path: Sequence[Any]) -> Any:
    for step in path:
        value = value[step]
    return value


# -- MessagePack ------------------------------------------------------------------------------------------------------


def unpacked(data: bytes) -> Any:
    """A MessagePack value as Python's. Text that is not UTF-8, as DuckDB sends for binary members, becomes bytes."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError):
        return msgspec.msgpack.decode(data)
    with suppress(msgspec.DecodeError, UnicodeDecodeError):
        members = msgspec.msgpack.decode(data, type=dict[str, msgspec.Raw])
        return {name: unpacked(bytes(part)) for name, part in members.items()}
    with suppress(msgspec.DecodeError, UnicodeDecodeError):
        return [unpacked(bytes(part)) for part in msgspec.msgpack.decode(data, type=list[msgspec.Raw])]
    return binary(msgspec.Raw(data))


def repacked(value: Any, *, bytes_as_text: bool = True) -> bytes:
    """The value in MessagePack, with bytes as text, as DuckDB sends them. Numbers beyond 64 bits are cut."""
    return msgspec.msgpack.encode(_packable(value, bytes_as_text))


def _packable(value: Any, bytes_as_text: bool) -> Any:
    match value:
        case dict():
            return {_utf8(name): _packable(part, bytes_as_text) for name, part in value.items()}
        case list():
            return [_packable(part, bytes_as_text) for part in value]
        case bytes() if bytes_as_text:
            return packed(value)
        case str():
            return _utf8(value)
        case bool():
            return value
        case int():
            return max(-(2**63), min(value, 2**64 - 1))
    return value


def _utf8(value: Any) -> Any:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


# -- protobuf ---------------------------------------------------------------------------------------------------------

_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: 32,
    FieldDescriptor.CPPTYPE_INT64: 64,
    FieldDescriptor.CPPTYPE_UINT32: -32,
    FieldDescriptor.CPPTYPE_UINT64: -64,
}


def changed_message(message: Any, chance: Random, names: Sequence[str] = ()) -> Any:
    """A copy of the message with one to three fields set, cleared or repeated, at any depth."""
    changed = copy.deepcopy(message)
    for _ in range(chance.choice((1, 1, 2, 3))):
        _change_field(changed, chance, names, depth=4)
    return changed


def _change_field(message: Any, chance: Random, names: Sequence[str], *, depth: int) -> None:
    fields = message.DESCRIPTOR.fields
    if not fields:
        return
    present = [field for field, _ in message.ListFields()]
    field = chance.choice(present) if present and chance.random() < 0.6 else chance.choice(fields)
    if chance.random() < 0.15:
        message.ClearField(field.name)
        return
    value = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        _change_map(value, field, chance, names)
    elif field.is_repeated:
        _change_repeated(value, field, chance, names, depth=depth)
    elif field.message_type is not None:
        if depth and isinstance(value, Message):
            value.SetInParent()
            _change_field(value, chance, names, depth=depth - 1)
    else:
        setattr(message, field.name, _scalar(field, chance, names, value))


def _change_map(value: Any, field: FieldDescriptor, chance: Random, names: Sequence[str]) -> None:
    assert field.message_type is not None
    key_field, value_field = field.message_type.fields
    key = _scalar(key_field, chance, names, next(iter(value), None))
    if value_field.message_type is None:
        value[key] = _scalar(value_field, chance, names, None)
    else:
        _change_field(value[key], chance, names, depth=1)


def _change_repeated(value: Any, field: FieldDescriptor, chance: Random, names: Sequence[str], *, depth: int) -> None:
    if value and chance.random() < 0.3:
        del value[chance.randrange(len(value))]
    elif field.message_type is not None:
        element = chance.choice(value) if value and chance.random() < 0.6 else value.add()
        if depth:
            _change_field(element, chance, names, depth=depth - 1)
    else:
        value.extend(_scalar(field, chance, names, None) for _ in range(chance.choice((1, 1, 2, 40))))


def _scalar(field: FieldDescriptor, chance: Random, names: Sequence[str], before: Any) -> Any:
    """A value of the field's type."""
    if field.type == FieldDescriptor.TYPE_BYTES:
        return changed_bytes(before or b"", chance)
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            text = changed_text(before, chance, names) if isinstance(before, str) else any_text(chance, names)
            return _as_json(text, chance) if text[:1] in "{[" else text
        case FieldDescriptor.CPPTYPE_BOOL:
            return chance.random() < 0.5
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return chance.choice((0.0, 0.5, -1.5, float("nan"), float("inf")))
        case FieldDescriptor.CPPTYPE_ENUM:
            assert field.enum_type is not None
            return chance.choice((*(value.number for value in field.enum_type.values), 999, -1))
    bits = _INTEGERS[field.cpp_type]
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if bits > 0 else (0, (1 << -bits) - 1)
    return chance.choice([number for number in NUMBERS if low <= number <= high])


def _as_json(text: str, chance: Random) -> str:
    """The text with a changed part if it is JSON."""
    try:
        return json.dumps(changed_value(json.loads(text), chance))
    except ValueError:
        return text
