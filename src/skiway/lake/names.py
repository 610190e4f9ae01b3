r"""Namespaces as DuckDB sees them: one schema name for each path.

("sales", "eu")     sales.eu
("v1.2", "a\b")     v1\.2.a\\b
("main",)           main_       the client lists a schema `main`, but cannot look into it
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from skiway.errors import InvalidArgument

__all__ = ["SYSTEM_SCHEMA", "namespace_path", "schema_name"]

SYSTEM_SCHEMA: Final = "skiway"

_MAIN: Final = re.compile(r"main_*", re.IGNORECASE)
_PART: Final = re.compile(r"(?:[^.\\]|\\[.\\])+")


def schema_name(path: Sequence[str]) -> str:
    r"""The schema that a namespace shows as; no two have the same.

    >>> schema_name(["sales", "v1.2"])
    'sales.v1\\.2'
    """
    name = ".".join(segment.replace("\\", "\\\\").replace(".", "\\.") for segment in path)
    return f"{name}_" if _MAIN.fullmatch(name) else name


def namespace_path(name: str) -> tuple[str, ...]:
    r"""The namespace that shows as the schema `name`.

    >>> namespace_path("sales.v1\\.2")
    ('sales', 'v1.2')
    """
    plain = name[:-1] if _MAIN.fullmatch(name) and name.endswith("_") else name
    parts = _PART.findall(plain)
    if not parts or ".".join(parts) != plain:
        raise InvalidArgument(
            f"schema {name!r} is no path of namespaces: write a.b for b in a, with a backslash before a dot or a backslash "
            "that is part of a name",
            key="schema.name",
        )
    return tuple(re.sub(r"\\(.)", r"\1", part) for part in parts)
