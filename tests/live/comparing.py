"""Runs cases on plain DuckDB and over Airport, and says where the outcomes differ.

Many cases share a client process, because starting one takes most of a second. If a process dies, the case it died in is
run again in a process of its own: the outcome of a case never depends on the cases before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from live.cases import Case, Step
from live.clients import Outcome, Session

__all__ = ["Difference", "differences", "run_cases"]

Open = Callable[[Sequence[str]], Session]
"""Opens a session that has the catalog attached as `db`, with settings."""

Outcomes = dict[str, list[Outcome]]
"""The outcomes of the steps of each case. They end early where the client does."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What a statement of a case does differently from plain DuckDB."""

    case: str
    target: str
    sql: str
    expected: str
    found: str

    def __str__(self) -> str:
        return (
            f"{self.case} on {self.target}\n  {self.sql}\n  plain DuckDB: {self.expected}\n  over Airport: {self.found}"
        )


def run_cases(cases: Iterable[Case], open_session: Open, *, attach: str | None = None) -> Outcomes:
    """Run all cases, those with the same settings in one process if none of them ends it.

    `attach` is the statement that attaches the target; None is plain DuckDB.
    """
    outcomes: Outcomes = {}
    for settings, group in groupby(sorted(cases, key=lambda each: each.settings), key=lambda each: each.settings):
        _run_together(list(group), lambda settings=settings: open_session(settings), attach, outcomes)  # type: ignore[misc]
    return outcomes


def _run_together(
    cases: list[Case], open_session: Callable[[], Session], attach: str | None, outcomes: Outcomes
) -> None:
    waiting = list(reversed(cases))
    while waiting:
        with open_session() as session:
            first = len(waiting)
            while waiting:
                case = waiting[-1]
                outcomes[case.name] = found = _run(case, session, attach, attempt=int(case.name in outcomes))
                if found[-1].ended and len(waiting) != first:
                    break  # run it again, first in a new process
                waiting.pop()
                if found[-1].ended:
                    break


def _run(case: Case, session: Session, attach: str | None, attempt: int) -> list[Outcome]:
    schema = f"{_schema(case)}{attempt or ''}"
    variables = {"s": f"db.{schema}", "schema": schema, "attach": attach or ""}
    outcomes = [session.run(f"CREATE SCHEMA {variables['s']}")]
    assert outcomes[0].status == "ok" or outcomes[0].ended, outcomes[0].message
    for step in case.steps:
        if outcomes[-1].ended:
            break
        outcomes.append(session.run(_statement(step, variables, plain=attach is None)))
        if step.save and outcomes[-1].rows:
            variables[step.save] = outcomes[-1].rows[0][0] or ""
    return outcomes


def _schema(case: Case) -> str:
    return "case_" + "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in case.name.lower())


def _statement(step: Step, variables: dict[str, str], *, plain: bool) -> str:
    sql = step.plain if plain and step.plain is not None else step.sql
    for name, value in variables.items():  # not str.format: SQL has braces of its own
        sql = sql.replace(f"{{{name}}}", value)
    return sql


# -- comparing ---------------------------------------------------------------------------------------------------------


def differences(case: Case, target: str, expected: list[Outcome], found: list[Outcome]) -> list[Difference]:
    """Where the outcomes differ. After a step that fails in only one place, the rest is a consequence and not compared."""
    result = []
    for step, there, here in zip((Step("CREATE SCHEMA {s}"), *case.steps), expected, found, strict=False):
        if there.status != "ok" or here.status != "ok":
            if there.status == here.status == "error":
                continue
            return [*result, Difference(case.name, target, step.sql, _show(there), _show(here))]
        if step.compare == "all":
            result += [Difference(case.name, target, step.sql, *shown) for shown in _different(step, there, here)]
    return result


def _different(step: Step, expected: Outcome, found: Outcome) -> Iterator[tuple[str, str]]:
    """How two results differ: in their columns, their types, or their rows."""
    if expected.names != found.names:
        yield f"columns {expected.names}", f"columns {found.names}"
        return
    if expected.types != found.types:
        yield f"types {', '.join(expected.types)}", f"types {', '.join(found.types)}"
    ordered = "order by" in step.sql.lower()
    rows, others = (_rows(each, ordered) for each in (expected, found))
    if rows != others:
        yield _first_rows(rows, others)


def _show(outcome: Outcome) -> str:
    if outcome.status == "ok":
        return f"ok, {len(outcome.rows)} rows" if outcome.names else "ok"
    return f"{outcome.status}: {_shorten(' '.join(outcome.message.split()))}"


def _rows(outcome: Outcome, ordered: bool) -> list[list[str | None]]:
    return (
        outcome.rows
        if ordered
        else sorted(outcome.rows, key=lambda row: [(value is None, value or "") for value in row])
    )


def _first_rows(expected: list[list[str | None]], found: list[list[str | None]]) -> tuple[str, str]:
    if len(expected) != len(found):
        return f"{len(expected)} rows", f"{len(found)} rows: {_shorten(str(found[:3]))}"
    index = next(i for i, pair in enumerate(zip(expected, found, strict=True)) if pair[0] != pair[1])
    return f"row {index} is {_shorten(str(expected[index]))}", f"row {index} is {_shorten(str(found[index]))}"


def _shorten(text: str, length: int = 300) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
