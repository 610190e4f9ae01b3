r"""The schema names by which DuckDB knows namespaces.

Each namespace path has one schema name:

("sales", "eu")     sales.eu
("v1.2", "a\b")     v1\.2.a\\b
("main",)           main_       DuckDB lists a schema `main`, but cannot look up tables in it
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from skiway.errors import InvalidArgument

__all__ = ["namespace_path", "schema_name"]

_MAIN: Final = re.compile(r"main_*", re.IGNORECASE)
_PART: Final = re.compile(r"(?:[^.\\]|\\[.\\])+")


def schema_name(path: Sequence[str]) -> str:
    r"""The schema name of a namespace, which is unique.

    >>> schema_name(["sales", "v1.2"])
    'sales.v1\\.2'
    """
    name = ".".join(segment.replace("\\", "\\\\").replace(".", "\\.") for segment in path)
    return f"{name}_" if _MAIN.fullmatch(name) else name


def namespace_path(name: str) -> tuple[str, ...]:
    r"""The path of the namespace with the schema name `name`.

    >>> namespace_path("sales.v1\\.2")
    ('sales', 'v1.2')
    """
    plain = name[:-1] if _MAIN.fullmatch(name) and name.endswith("_") else name
    parts = _PART.findall(plain)
    if not parts or ".".join(parts) != plain:
        raise InvalidArgument(
            f"{name!r} is not a schema name: write a.b for namespace b in a, and put a backslash before a dot or backslash "
            "that is part of a name",
            key="schema.name",
        )
    return tuple(re.sub(r"\\(.)", r"\1", part) for part in parts)
