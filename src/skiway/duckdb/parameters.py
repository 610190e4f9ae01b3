"""Parameters of statements, written into the text as SQL: a statement may run here, on the server, or in parts on both."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any, Final
from uuid import UUID

from skiway.airport.wire.duckdb_sql import text_literal
from skiway.errors import InvalidArgument

PLACEHOLDER: Final = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/|(\$\w*\$).*?\1|(?P<next>\?)|\$(?P<name>\w+)""", re.DOTALL
)
"""A placeholder, or what may contain a question mark or a dollar that is none."""

Parameters = Sequence[Any] | Mapping[str, Any]


def with_parameters(text: str, parameters: Parameters | None) -> str:
    """Replace the placeholders `?`, `$1` and `$name`; values of a mapping have names."""
    if parameters is None:
        return text
    values = parameters if isinstance(parameters, Mapping) else dict(enumerate(parameters, start=1))
    names = {str(name): value for name, value in values.items()}
    used: set[str] = set()
    number = 0

    def written(found: re.Match[str]) -> str:
        nonlocal number
        if found["next"]:
            number += 1
        name = str(number) if found["next"] else found["name"]
        if name is None:
            return found[0]
        if name not in names:
            raise InvalidArgument(f"there is no value for parameter {name}: {len(names)} were given")
        used.add(name)
        return literal(names[name])

    result = PLACEHOLDER.sub(written, text)
    if unused := names.keys() - used:
        raise InvalidArgument(f"the SQL has no placeholder for parameter {', '.join(sorted(unused))}")
    return result


def literal(value: Any) -> str:
    """Return a Python value as SQL."""
    match value:
        case None:
            return "NULL"
        case bool():
            return "true" if value else "false"
        case int():
            return f"({value})" if value < 0 else str(value)
        case float():
            return f"CAST('{value!r}' AS DOUBLE)" if not isfinite(value) else f"CAST({value!r} AS DOUBLE)"
        case Decimal():
            return f"({value:f})"
        case str():
            return text_literal(value)
        case bytes():
            return f"unhex('{value.hex()}')"
        case datetime():
            return f"CAST('{value.isoformat(' ')}' AS {'TIMESTAMP' if value.tzinfo is None else 'TIMESTAMPTZ'})"
        case date() | UUID():
            return f"CAST('{value}' AS {type(value).__name__.upper()})"
        case time():
            return f"CAST('{value.isoformat()}' AS {'TIME' if value.tzinfo is None else 'TIMETZ'})"
        case timedelta():
            microseconds = value // timedelta(microseconds=1)
            return f"to_microseconds({microseconds})"
        case Mapping():
            return f"{{{', '.join(f'{text_literal(str(name))}: {literal(item)}' for name, item in value.items())}}}"
        case list() | tuple():
            return f"[{', '.join(map(literal, value))}]"
    raise InvalidArgument(f"{value!r} ({type(value).__name__}) cannot be a parameter: convert it to a type of Python")
