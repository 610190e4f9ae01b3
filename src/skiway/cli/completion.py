"""Completion in shells: the scripts for bash, zsh and fish, and the names that the server knows.

The script asks `skiway` itself for the words that fit, with the line so far in environment variables. Completion never
fails and never asks questions: without a server, or without access, there are no names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from skiway.client import Metastore

__all__ = ["NAMES", "REQUEST", "TIMEOUT_S", "Shell", "completer", "prepare", "script"]

REQUEST: Final = "_SKIWAY_COMPLETE"
"""The environment variable with which a script asks for words."""
TIMEOUT_S: Final = 3.0
MAX_NAMES: Final = 500


class Shell(StrEnum):
    """A shell with completion."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def script(shell: Shell) -> str:
    """The script that switches completion on in a shell."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    found: str = get_completion_script(prog_name="skiway", complete_var=REQUEST, shell=shell.value)
    return found


def prepare() -> None:
    """Let the command line answer requests for words, if this is one."""
    if REQUEST in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()


Names = Callable[["Metastore", str], Iterable[str]]


def completer(names: Names, connect: Callable[[Any], Metastore]) -> Callable[[Any, str], list[str]]:
    """A completion with names that the server knows; none if it cannot be asked. `connect` gets the context of click."""

    def complete(ctx: Any, incomplete: str) -> list[str]:
        try:
            with connect(ctx) as lake:
                found = (name for name in names(lake, incomplete) if name.startswith(incomplete))
                return list(islice(found, MAX_NAMES))
        except Exception:  # noqa: BLE001 - an error would end up in the line that the user types
            return []

    return complete


def _catalogs(lake: Metastore, start: str) -> Iterator[str]:  # noqa: ARG001
    return (each.name for each in lake.catalogs())


def _namespaces(lake: Metastore, start: str) -> Iterator[str]:
    """The namespaces that begin with the typed text, and those that contain the typed name."""
    catalog, dot, _ = start.partition(".")
    for name in _catalogs(lake, start):
        if name == catalog if dot else name.startswith(catalog):
            found = (str(each) for each in lake.namespaces(name, recursive=True))
            yield from (each for each in found if each.startswith(start) or start.startswith(f"{each}."))


def _catalogs_and_namespaces(lake: Metastore, start: str) -> Iterator[str]:
    yield from _catalogs(lake, start)
    yield from _namespaces(lake, start)


def _tables(lake: Metastore, start: str) -> Iterator[str]:
    return (f"{each}.{table.name}" for each in _namespaces(lake, start) for table in lake.tables(each))


def _views(lake: Metastore, start: str) -> Iterator[str]:
    return (f"{each}.{view.name}" for each in _namespaces(lake, start) for view in lake.views(each))


def _objects(lake: Metastore, start: str) -> Iterator[str]:
    yield from _catalogs_and_namespaces(lake, start)
    yield from _tables(lake, start)


NAMES: Final[Mapping[str, Names]] = {
    "CATALOG": _catalogs,
    "[CATALOG]...": _catalogs,
    "NAMESPACE": _catalogs_and_namespaces,
    "TABLE": _tables,
    "VIEW": _views,
    "OBJECT": _objects,
    "CONNECTOR": lambda lake, _: (each.name for each in lake.connectors()),
    "RULE": lambda lake, _: (each.name for each in lake.rules()),
    "WEBHOOK": lambda lake, _: (each.name for each in lake.webhooks()),
    "PIPELINE": lambda lake, _: (each.name for each in lake.pipelines()),
    "POLICY": lambda lake, _: (each.name for each in lake.policies()),
    "JOB": lambda lake, _: (each.id for each in islice(lake.jobs(), MAX_NAMES)),
}
"""The names that complete an argument, by what it is called in the help."""
