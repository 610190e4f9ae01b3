"""CREATE VIEW, DROP VIEW and MERGE, which functions of the lake run: the server reads the tables that they name."""

from __future__ import annotations

from typing import Any, Final

import sqlglot
from sqlglot import exp

from skiway.duckdb.engine import Result, Statement, count_rows, quoted
from skiway.duckdb.rewriting import parse, with_replacements
from skiway.duckdb.scans import LakeName
from skiway.duckdb.session import Session
from skiway.errors import Unsupported

MERGE_FORM: Final = "write MERGE INTO table [AS] alias USING source [AS] alias ON condition WHEN …"
COUNTED: Final = ("inserted", "updated", "deleted")


def create_view(session: Session, statement: exp.Create, text: str) -> Result:
    """CREATE [OR REPLACE] VIEW [IF NOT EXISTS] … AS."""
    if isinstance(statement.this, exp.Schema):
        raise Unsupported("a view takes its columns from its query: name them there, as in SELECT x AS a")
    client, name = session.target(statement.this)
    session.refresh(client)
    if statement.args.get("exists") and session.exists(name):
        return Result("create", message=f"view {name.shown} already exists")
    query = text[next(token.end + 1 for token in _tokens(text) if token.text.upper() == "AS") :]
    named = {"replace": bool(statement.args.get("replace"))}
    client.call(("skiway", "create_view"), _path(name), _qualified(session, query), named=named).read_all()
    return Result("create", message=f"created view {name.shown}")


def drop_view(session: Session, statement: exp.Drop) -> Result:
    """DROP VIEW [IF EXISTS]."""
    client, name = session.target(statement.this or statement.args["tables"][0])
    named = {"if_exists": bool(statement.args.get("exists"))}
    client.call(("skiway", "drop_view"), _path(name), named=named).read_all()
    return Result("drop", message=f"dropped view {name.shown}")


def merge(session: Session, given: Statement) -> Result:
    """MERGE INTO … USING … ON … WHEN …, as one change of the table."""
    text, parts = given.text, _parts_of_merge(given.text)
    target, source = (_table(text[start:end]) for start, end in parts[:2])
    if not isinstance(target, exp.Table):
        raise Unsupported(f"MERGE cannot change {target.sql('duckdb')}: {MERGE_FORM}")
    client, name = session.target(target)
    session.refresh(client)
    session.table(client, name)
    aliases = {target.alias_or_name.lower(): "target", source.alias_or_name.lower(): "source"}
    on, clauses = (_renamed(text[start:end], aliases) for start, end in parts[2:])
    rows = _qualified(session, f"SELECT * FROM {text[slice(*parts[1])]}")  # noqa: S608 - parsed
    done = client.call(("skiway", "merge"), _path(name), rows, on, named={"clauses": clauses}).read_all().to_pylist()[0]
    counts = {word: int(done[word]) for word in COUNTED}
    message = ", ".join(count_rows(word, counts[word]) for word in COUNTED if counts[word]) or "changed no row"
    return Result("merge", count=sum(counts.values()), message=message)


def _parts_of_merge(text: str) -> list[tuple[int, int]]:
    """Where the table, the source, the condition and the clauses begin and end."""
    marks: list[tuple[int, int]] = []
    for token in _tokens(text):
        if len(marks) < 4 and token.text.upper() == ("INTO", "USING", "ON", "WHEN")[len(marks)]:
            marks.append((token.start, token.end + 1))
    if len(marks) < 4:
        raise Unsupported(f"this MERGE is not supported: {MERGE_FORM}")
    (_, into), (using, source), (on, condition), (when, _) = marks
    return [(into, using), (source, on), (condition, when), (when, len(text))]


def _table(text: str) -> exp.Expr:
    found: exp.Expr = parse(f"FROM {text}").args["from_"].this
    if not found.alias_or_name:
        raise Unsupported(f"MERGE cannot use {text.strip()} without an alias: {MERGE_FORM}")
    return found


def _renamed(text: str, aliases: dict[str, str]) -> str:
    """An expression in which names of tables are replaced, where a dot follows."""
    tokens = sqlglot.tokenize(text, dialect="duckdb")
    replaced = [
        (token.start, token.end + 1, aliases[token.text.lower()])
        for before, token, after in zip([None, *tokens], tokens, tokens[1:], strict=False)
        if after.text == "." and token.text.lower() in aliases and (before is None or before.text != ".")
    ]
    return with_replacements(text, replaced).strip()


def _qualified(session: Session, query: str) -> str:
    """A query for the server, in which all tables have full names. It cannot read what only this process knows."""
    statement = parse(query)
    known = {each.alias_or_name.lower() for each in statement.find_all(exp.CTE)}
    of_lake = session.lake_tables(statement)
    for each in statement.find_all(exp.Table):
        is_known = isinstance(each.this, exp.Anonymous) or (not each.db and each.name.lower() in known)
        if not is_known and not any(each is node for node in of_lake):
            raise Unsupported(
                f"{each.sql('duckdb')} is not a table of the lake, and the server runs this query: write catalog.schema.table"
            )
    names = [each for each in of_lake if each.db or each.name.lower() not in known]
    replaced = [
        (each.parts[0].meta["start"], each.parts[-1].meta["end"] + 1, str(session.name(each))) for each in names
    ]
    return with_replacements(query, replaced).strip()


def _tokens(text: str) -> list[Any]:
    """The tokens that are in no parentheses."""
    depth, found = 0, []
    for token in sqlglot.tokenize(text, dialect="duckdb"):
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if not depth:
            found.append(token)
    return found


def _path(name: LakeName) -> str:
    return f"{quoted(name.schema)}.{quoted(name.table)}"
