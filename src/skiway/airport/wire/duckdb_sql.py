"""DuckDB's names of Arrow types, and SQL identifiers, names with dots and literals."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from string import ascii_lowercase, ascii_uppercase
from typing import Any, Final

import pyarrow as pa

from skiway.errors import InvalidArgument

_PLAIN: Final[dict[str, str]] = {
    "null": "NULL",
    "bool": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "uint8": "UTINYINT",
    "uint16": "USMALLINT",
    "uint32": "UINTEGER",
    "uint64": "UBIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "large_string": "VARCHAR",
    "string_view": "VARCHAR",
    "binary": "BLOB",
    "large_binary": "BLOB",
    "binary_view": "BLOB",
    "date32[day]": "DATE",
    "date64[ms]": "DATE",
    "time32[s]": "TIME",
    "time32[ms]": "TIME",
    "time64[us]": "TIME",
    "time64[ns]": "TIME_NS",
    "month_day_nano_interval": "INTERVAL",
}
_TIMESTAMPS: Final = {"s": "TIMESTAMP_S", "ms": "TIMESTAMP_MS", "us": "TIMESTAMP", "ns": "TIMESTAMP_NS"}
_OPAQUE: Final = {
    "hugeint": "HUGEINT",
    "uhugeint": "UHUGEINT",
    "time_tz": "TIME WITH TIME ZONE",
    "bit": "BIT",
    "bignum": "BIGNUM",
}

_UNNAMED: Final = {"TIMESTAMP WITH TIME ZONE", "UUID"}  # which depend on more than the name of an Arrow type
TYPES_WITHOUT_PARAMETERS: Final = _UNNAMED | {*_PLAIN.values(), *_TIMESTAMPS.values(), *_OPAQUE.values()} - {"NULL"}


def extension_of(field: pa.Field) -> tuple[str, str]:
    """The name and metadata of the extension type of a field, even if pyarrow does not know the type; ("", "") for none."""
    metadata = field.metadata or {}
    if b"ARROW:extension:name" in metadata:
        name = metadata[b"ARROW:extension:name"].decode("utf-8", "replace")
        return name, metadata.get(b"ARROW:extension:metadata", b"").decode("utf-8", "replace")
    if isinstance(field.type, pa.BaseExtensionType):
        return field.type.extension_name, _extension_metadata(field.type)
    return "", ""


def _extension_metadata(data_type: pa.BaseExtensionType) -> str:
    if isinstance(data_type, pa.OpaqueType):
        return json.dumps({"type_name": data_type.type_name, "vendor_name": data_type.vendor_name})
    serialize = getattr(data_type, "__arrow_ext_serialize__", None)
    return serialize().decode("utf-8", "replace") if serialize else ""


def type_metadata(field: pa.Field) -> dict[bytes, bytes]:
    """The part of the metadata of a field that belongs to its type."""
    return {key: value for key, value in (field.metadata or {}).items() if key.startswith(b"ARROW:extension:")}


def storage_type(data_type: pa.DataType) -> pa.DataType:
    """The storage type of an extension type; other types unchanged."""
    return data_type.storage_type if isinstance(data_type, pa.BaseExtensionType) else data_type


def without_dictionaries(data_type: pa.DataType) -> pa.DataType:
    """The type of the same values without dictionary encoding, at any depth."""
    types = pa.types
    if types.is_dictionary(data_type):
        return without_dictionaries(data_type.value_type)
    if types.is_struct(data_type):
        return pa.struct([_plain(field) for field in data_type])
    if types.is_map(data_type):
        return pa.map_(_plain(data_type.key_field), _plain(data_type.item_field), data_type.keys_sorted)
    if types.is_fixed_size_list(data_type):
        return pa.list_(_plain(data_type.value_field), data_type.list_size)
    for is_kind, make in _LISTS:
        if is_kind(data_type):
            return make(_plain(data_type.value_field))
    return data_type


def with_plain_values(data_type: pa.DataType) -> pa.DataType:
    """The type of a column of a table, in which DuckDB's client resolves only a dictionary at the top."""
    if pa.types.is_dictionary(data_type):
        return pa.dictionary(data_type.index_type, without_dictionaries(data_type.value_type), data_type.ordered)
    return without_dictionaries(data_type)


def _plain(field: pa.Field) -> pa.Field:
    return field.with_type(without_dictionaries(field.type))


_LISTS: Final[tuple[tuple[Any, Any], ...]] = (
    (pa.types.is_list, pa.list_),
    (pa.types.is_large_list, pa.large_list),
    (pa.types.is_list_view, pa.list_view),
    (pa.types.is_large_list_view, pa.large_list_view),
)


def duckdb_type(field: pa.Field) -> str:
    """DuckDB's name of the type of a field, such as `DECIMAL(12,6)`; `InvalidArgument` if DuckDB does not support it."""
    return _type(field, quoted_name)


def castable_type(field: pa.Field) -> str:
    """The type of a field as DuckDB parses it, with all names in quotes. DuckDB shows some types as it cannot parse them."""
    return _type(field, identifier)


def _type(field: pa.Field, quote: Callable[[str], str]) -> str:
    """The name of a type, in which the names of fields are written by `quote`."""
    return _extension(*extension_of(field)) or _storage(storage_type(field.type), field.name, quote)


def _extension(name: str, metadata: str) -> str | None:
    match name:
        case "arrow.bool8":
            return "BOOLEAN"
        case "arrow.uuid":
            return "UUID"
        case "arrow.json":
            return "JSON"
        case "geoarrow.wkb":
            return "GEOMETRY"
        case "arrow.opaque":
            return _OPAQUE.get(_type_name(metadata))
        case _:
            return None


def _type_name(metadata: str) -> str:
    try:
        details = json.loads(metadata)
    except ValueError:
        return ""
    if not isinstance(details, dict) or details.get("vendor_name") != "DuckDB":
        return ""
    return str(details.get("type_name", ""))


def _storage(data_type: pa.DataType, name: str, quote: Callable[[str], str]) -> str:
    plain = _PLAIN.get(str(data_type))
    if plain:
        return plain
    types = pa.types
    if types.is_timestamp(data_type):
        return "TIMESTAMP WITH TIME ZONE" if data_type.tz else _TIMESTAMPS[data_type.unit]
    if types.is_decimal(data_type) and data_type.precision <= 38:
        return f"DECIMAL({data_type.precision},{data_type.scale})"
    if types.is_fixed_size_binary(data_type):
        return "BLOB"
    if types.is_duration(data_type) or types.is_interval(data_type):
        return "INTERVAL"
    if types.is_dictionary(data_type) or types.is_run_end_encoded(data_type):
        return _type(pa.field(name, data_type.value_type), quote)
    return _nested(data_type, name, quote)


def _nested(data_type: pa.DataType, name: str, quote: Callable[[str], str]) -> str:
    types = pa.types
    if types.is_map(data_type):
        return f"MAP({_type(data_type.key_field, quote)}, {_type(data_type.item_field, quote)})"
    if types.is_fixed_size_list(data_type):
        return f"{_type(data_type.value_field, quote)}[{data_type.list_size}]"
    if (
        types.is_list(data_type)
        or types.is_large_list(data_type)
        or types.is_list_view(data_type)
        or types.is_large_list_view(data_type)
    ):
        return f"{_type(data_type.value_field, quote)}[]"
    if types.is_struct(data_type) and data_type.num_fields:
        return f"STRUCT({_members(data_type, quote)})"
    if types.is_union(data_type) and data_type.mode == "sparse":
        return f"UNION({_members(data_type, quote)})"
    raise InvalidArgument(
        f"column {name!r} has Arrow type {data_type}, which DuckDB does not support; cast it to another type"
    )


def _members(data_type: pa.DataType, quote: Callable[[str], str]) -> str:
    fields = (data_type.field(i) for i in range(data_type.num_fields))
    return ", ".join(f"{quote(field.name)} {_type(field, quote)}" for field in fields)


def quoted_name(name: str) -> str:
    """The name of a field in a type name, quoted if necessary, as DuckDB does."""
    plain = _WORD.fullmatch(name) is not None and name.lower() not in _KEYWORDS
    return name if plain else '"' + name.replace('"', '""') + '"'


_WORD: Final = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_RESERVED: Final = """
    all analyse analyze and any array as asc asymmetric both case cast check collate column constraint create default
    deferrable desc describe distinct do else end except false fetch for foreign from group having in initially
    intersect into lambda lateral leading limit not null offset on only or order pivot pivot_longer pivot_wider placing
    primary qualify references returning select show some summarize symmetric table then to trailing true union unique
    unpivot using variadic when where window with
"""  # from duckdb_keywords()
_KEYWORDS: Final = frozenset(_RESERVED.split())


# -- SQL --------------------------------------------------------------------------------------------------------------


def identifier(name: str) -> str:
    """A quoted identifier."""
    return '"' + name.replace('"', '""') + '"'


def ascii_lower(name: str) -> str:
    """A name in the form in which DuckDB compares names: without the case of ASCII letters, and only of these."""
    return name.translate(_LOWER)


_LOWER: Final = str.maketrans(ascii_uppercase, ascii_lowercase)


def text_literal(text: str) -> str:
    """A VARCHAR literal."""
    if "\0" in text:  # SQL ends at a NUL character, so write the string as bytes
        return f"decode({blob_literal(text.encode())})"
    return "'" + text.replace("'", "''") + "'"


def attach_statement(catalog: str, location: str) -> str:
    """The statement that attaches a catalog, under its own name if that is a plain word."""
    alias = "" if quoted_name(catalog) == catalog else f"AS {identifier(catalog)} "
    return f"ATTACH {text_literal(catalog)} {alias}(TYPE airport, LOCATION {text_literal(location)});"


def secret_statement(location: str, token: str | None = None, *, persistent_name: str = "") -> str:
    """The statement that stores a token for all calls to a server; without a token, it has a placeholder.

    With a name, the secret outlives the session, and replaces the one of that name.
    """
    secret = f"OR REPLACE PERSISTENT SECRET {identifier(persistent_name)}" if persistent_name else "SECRET"
    return f"CREATE {secret} (TYPE airport, auth_token {text_literal(token or '…')}, SCOPE {text_literal(location)});"


def blob_literal(data: bytes) -> str:
    """A BLOB literal with every byte escaped."""
    return "'" + "".join(f"\\x{byte:02X}" for byte in data) + "'::BLOB"


FILE_READERS: Final = frozenset(
    {"read_parquet", "parquet_scan", "read_csv", "read_csv_auto", "read_json", "read_json_auto", "read_ndjson"}
    | {"read_text", "read_blob", "iceberg_scan", "delta_scan"}
)
"""The table functions of DuckDB that read files. They work when a client calls them without a binder."""


_PART: Final = re.compile(r'(?:\s*"(?P<quoted>(?:[^"]|"")*)"\s*|(?P<plain>[^."]*))(?P<end>\.|$)')


def split_name(text: str) -> list[str] | None:
    """Split a name at the dots outside of double quotes; None if a quote is misplaced.

    >>> split_name('lake."eu.west".people')
    ['lake', 'eu.west', 'people']
    """
    parts: list[str] = []
    position, more = 0, True
    while more:
        part = _PART.match(text, position)
        if part is None:
            return None
        quoted = part["quoted"]
        parts.append(part["plain"] if quoted is None else quoted.replace('""', '"'))
        position, more = part.end(), part["end"] == "."
    return parts
