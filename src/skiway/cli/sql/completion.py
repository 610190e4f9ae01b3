"""Completion at the prompt: Tab offers keywords, and the names of catalogs, tables, columns and functions that fit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from skiway.cli.sql.modes import MODES

if TYPE_CHECKING:
    from skiway.duckdb.session import Session

COMMANDS: Final = (".help", ".mode", ".quit", ".schema", ".tables", ".timer")
SYSTEM_SCHEMA: Final = "skiway"
DELIMITERS: Final = " \t\n()[],;=<>+-*/%'"
KEYWORDS: Final = "SELECT keyword_name FROM duckdb_keywords()"
WORD: Final = re.compile(r'"(?:[^"]|"")*"|\w+')


@dataclass(frozen=True, slots=True)
class KnownTable:
    """A table or view of the lake, or a table function, which has no columns here. Names are as SQL needs them."""

    schema: str
    name: str
    columns: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Names:
    """What there is: the catalog and schema of names without them, the names of catalogs, tables, and keywords."""

    catalog: str
    schema: str | None
    catalogs: Sequence[str]
    tables: Sequence[KnownTable]
    keywords: Sequence[str]

    def completions(self, text: str, word: str) -> list[str]:
        """Return what the word at the end of a statement can become; `text` is the statement without it."""
        if text.startswith(".") or (not text and word.startswith(".")):
            offered = list(self._of_command(text.split()))
        else:
            offered = [
                *self._paths(word),
                *self._columns(text, word),
                *(self._keywords(word) if "." not in word else ()),
            ]
        wanted = word.lower()
        return sorted({each for each in offered if each.lower().startswith(wanted)})

    def _of_command(self, words: Sequence[str]) -> Iterable[str]:
        match words:
            case []:
                return COMMANDS
            case [".mode"]:
                return [each.value for each in MODES]
            case [".timer"]:
                return ["on", "off"]
            case [".schema" | ".tables"]:
                return [f"{each.schema}.{each.name}" for each in self.tables if each.columns]
        return ()

    def _paths(self, word: str) -> Iterator[str]:
        """Yield names with as many parts as the word has."""
        depth = word.count(".")
        if depth == 0:
            yield from self.catalogs
        for table in self.tables:
            if depth == 0:
                yield table.schema
                if self.schema is not None and table.schema.lower() == self.schema.lower():
                    yield table.name
            elif depth == 1:
                yield f"{table.schema}.{table.name}"
                yield f"{self.catalog}.{table.schema}"
            elif depth == 2:
                yield f"{self.catalog}.{table.schema}.{table.name}"

    def _columns(self, text: str, word: str) -> Iterator[str]:
        """Yield the columns of the tables that the statement names so far, or of all that are not those of the system."""
        qualifier, dot, _ = word.rpartition(".")
        schemas = {each.schema.lower() for each in self.tables}
        if dot and qualifier.lower().removeprefix(f"{self.catalog.lower()}.") in {*schemas, self.catalog.lower()}:
            return
        written = {each.lower() for each in WORD.findall(text)}
        named = [each for each in self.tables if each.name.lower() in written]
        named = named or [each for each in self.tables if each.schema != SYSTEM_SCHEMA]
        yield from (f"{qualifier}{dot}{column}" for table in named for column in table.columns)

    def _keywords(self, word: str) -> Iterable[str]:
        return self.keywords if word[:1].islower() else [each.upper() for each in self.keywords]


def known_names(session: Session) -> Names:
    """Return the names of a catalog as the last statement has listed them, or else as they are now."""
    from skiway.duckdb.statements import shown_columns, shown_name

    schemas = session.client(session.catalog).schemas()
    tables = [
        KnownTable(
            shown_name(schema.name), shown_name(table.name), [shown_name(each.name) for each in shown_columns(table)]
        )
        for schema in schemas
        for table in schema.tables
    ]
    functions = {(schema.name, each.name) for schema in schemas for each in schema.functions}
    tables += [KnownTable(shown_name(schema), f"{shown_name(name)}(") for schema, name in functions]
    keywords = [name for (name,) in session.duckdb.execute(KEYWORDS).fetchall()]
    catalogs = [shown_name(each) for each in session.catalog_names()]
    return Names(session.catalog, session.schema, catalogs, tables, keywords)
