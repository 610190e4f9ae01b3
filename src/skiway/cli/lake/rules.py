"""`skiway rules`: the commands of all resources, and those for checks and their results."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from skiway.cli.command import Call, command, progress
from skiway.cli.lake.jobs import PARTIAL, interruptible
from skiway.cli.lake.resources import commands_for
from skiway.cli.lake.setup import SetupFile, make_changes, read_text
from skiway.cli.options import Description, TableName, Yes, duration
from skiway.cli.rendering import fields_of
from skiway.foundation.resources import RULE

if TYPE_CHECKING:
    from skiway.client.metastore import Rule


def _shown(call: Call, rule: Rule, table: str | None = None) -> dict[str, Any]:
    """A rule with the name of its table and its newest result."""
    found = dict(fields_of(rule))
    result = found.pop("result")
    names = ("status", "method", "observed", "message", "snapshot_id", "checked_at", "job_id")
    newest = dict.fromkeys(names) if result is None else fields_of(result)
    status = "never checked" if result is None else result.status
    return {**found, "table": table or call.name_of("table", rule.table_id), **newest, "status": status}


app = commands_for(RULE, shown=_shown, but=("list", "create"))

UNKNOWN: Final = PARTIAL
"""The exit code if no rule failed, but some could not be decided."""

RuleName = Annotated[str, typer.Argument(metavar="RULE", help="The name of a rule.")]


Kind = StrEnum(
    "Kind",
    [
        "row_count",
        "null_share",
        "distinct_count",
        "range",
        "quantile",
        "freshness",
        "allowed_values",
        "unique",
        "schema",
    ],
)
Severity = StrEnum("Severity", ["error", "warning"])


@command(app, "list")
def list_rules(
    call: Call,
    table: Annotated[str | None, typer.Argument(metavar="[TABLE]", help="Only the rules of this table.")] = None,
) -> None:
    """List rules with their newest results."""
    call.print_rows(_records(call, call.lake.rules(table)), RULE.columns, empty="there are no rules")


@command(app, "results")
def results(call: Call, name: RuleName) -> None:
    """List the stored results of a rule, newest first."""
    columns = ["checked_at", "status", "method", "observed", "message"]
    call.print_rows(call.lake.rules.results(name), columns, empty="the rule was never checked")


@command(app, "create")
def create(
    call: Call,
    name: RuleName,
    table: TableName,
    of_kind: Annotated[str, typer.Argument(metavar="KIND", help=f"{', '.join(Kind)}.")],
    columns: Annotated[
        list[str], typer.Option("--column", metavar="NAME", help="A column; several for the key of unique.")
    ] = [],  # noqa: B006 - typer copies it
    least: Annotated[str | None, typer.Option("--min", metavar="VALUE", help="The least count or value.")] = None,
    most: Annotated[
        str | None, typer.Option("--max", metavar="VALUE", help="The largest count, value or share.")
    ] = None,
    max_decrease: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Of the rows since the previous snapshot, such as 0.1.")
    ] = None,
    max_increase: Annotated[float | None, typer.Option(metavar="SHARE", help="Likewise.")] = None,
    quantile: Annotated[float | None, typer.Option(metavar="SHARE", help="Of quantile: 0.5 is the median.")] = None,
    max_age: Annotated[str | None, typer.Option(metavar="DURATION", help="Of freshness, such as 1h or 1d.")] = None,
    values: Annotated[list[str], typer.Option("--value", metavar="VALUE", help="A value of allowed_values.")] = [],  # noqa: B006
    allow_added: Annotated[bool, typer.Option(help="Of schema: other columns may exist.")] = False,
    severity: Annotated[Severity, typer.Option(help="A warning does not make check fail.")] = Severity.error,
    estimates_only: Annotated[
        bool, typer.Option("--estimates-only", help="Never read rows, even if statistics do not decide.")
    ] = False,
    description: Description = None,
) -> None:
    """Create a rule about a table.

    A rule is checked after each profile of the table, and with `skiway rules check`. A rule of kind schema expects the columns
    that the table has now.
    """
    kind = _kind(of_kind)
    counted = kind in (Kind.row_count, Kind.distinct_count)
    limits = {"min": least, "max": most}
    given: dict[str, Any] = {
        **{
            key: _number(kind, key, text, int if counted else float) for key, text in limits.items() if text is not None
        },
        "max_decrease": max_decrease,
        "max_increase": max_increase,
        "quantile": quantile,
        "max_age": max_age,
        "values": values or None,
        "allow_added": allow_added or None,
    }
    if columns:
        given["columns" if kind is Kind.unique else "column"] = _columns(kind, columns)
    made = call.lake.rules.create(
        name,
        table,
        kind.value,
        {key: value for key, value in given.items() if value is not None},
        severity="warning" if severity is Severity.warning else "error",
        estimates_only=estimates_only,
        description=description,
    )
    call.print_result(f"created rule {name}", _shown(call, made, table))


@command(app, "apply")
def apply(
    call: Call,
    file: SetupFile,
    delete: Annotated[bool, typer.Option("--delete", help="Delete rules that the file does not declare.")] = False,
    yes: Yes = False,
) -> None:
    """Create and change rules as a file declares them.

    The file has the section `rules` of a setup file. An error ends the command; run it again to make the rest of the changes.
    """
    from skiway import setup

    loaded = setup.only(setup.checked(setup.read(*read_text(file))), "rules")
    with progress("reading the rules"):
        actual = setup.read_rules(call.lake, {each.table for each in loaded.setup.rules or ()})
    made = setup.make_plan(loaded, actual, delete=delete)
    make_changes(call, call.lake, loaded, made, yes=yes)


@command(app, "check")
def check(
    call: Call,
    table: Annotated[
        str | None, typer.Argument(metavar="[TABLE]", help="Check the rules of this table; of all tables by default.")
    ] = None,
    rules: Annotated[
        list[str], typer.Option("--rule", metavar="RULE", help="Check only this rule; can be repeated.")
    ] = [],  # noqa: B006
    estimates_only: Annotated[
        bool, typer.Option("--estimates-only", help="Do not read rows for rules that statistics do not decide.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings and unknown results fail, too.")] = False,
    wait: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="How long to wait for jobs that read rows; forever by default."),
    ] = None,
) -> None:
    """Check rules now, and wait for jobs that read rows.

    The exit code is 1 if a rule of severity error failed, 3 if none failed but some are unknown, and 0 if all passed. Rules of
    severity warning do not change it.
    """
    chosen = [each for each in call.lake.rules(table) if not rules or each.name in rules]
    missing = [name for name in rules if name not in {each.name for each in chosen}]
    if missing:
        where = f"of table {table}" if table else "that you can see"
        raise typer.BadParameter(f"there is no rule {missing[0]!r} {where}", param_hint="--rule")
    timeout_s = None if wait is None else duration(wait, "--wait").total_seconds()
    found = list(_checked(call, chosen, estimates_only=estimates_only, timeout_s=timeout_s))
    columns = ["name", "table", "severity", "status", "method", "observed", "message"]
    call.print_rows(_records(call, found), columns, empty="there are no rules to check")
    _exit(found, strict=strict)


def _checked(call: Call, chosen: Iterable[Rule], *, estimates_only: bool, timeout_s: float | None) -> Iterable[Rule]:
    from skiway.client.metastore import Id

    by_table: dict[str, list[Id]] = {}
    for rule in chosen:
        by_table.setdefault(str(rule.table_id), []).append(rule.id)
    for table_id, ids in by_table.items():
        table = Id(table_id)
        made = call.lake.rules.check(table, ids, estimates_only=estimates_only)
        if made.job is None:
            yield from made.rules
            continue
        typer.echo(f"job {made.job.id} reads rows of {call.name_of('table', table)}", err=True)
        with interruptible(made.job, "see its results with `skiway rules list`"):
            job = call.lake.rules.wait(table, made.job, timeout_s=timeout_s)
        if job.state != "succeeded":
            typer.echo(f"job {job.id} {job.state}: {job.message.message}", err=True)
        yield from (call.lake.rules.get(each) for each in ids)


def _exit(found: Iterable[Rule], *, strict: bool) -> None:
    counted = [each.result.status if each.result else "unknown" for each in found if strict or each.severity == "error"]
    if "failed" in counted or (strict and "unknown" in counted):
        raise typer.Exit(1)
    if "unknown" in counted:
        raise typer.Exit(UNKNOWN)


def _columns(kind: Kind, columns: list[str]) -> list[str] | str:
    if kind is Kind.unique:
        return columns
    if len(columns) > 1:
        raise typer.BadParameter(f"a rule of kind {kind} is about one column", param_hint="--column")
    return columns[0]


def _number(kind: Kind, key: str, text: str, of: type[int] | type[float]) -> int | float | str:
    """The value of a limit: a number for counts and shares, and text for values of columns."""
    if kind in (Kind.range, Kind.quantile):
        return text
    try:
        return of(text)
    except ValueError:
        wanted = "a whole number" if of is int else "a number"
        raise typer.BadParameter(f"{text!r} is not {wanted}", param_hint=f"--{key}") from None


def _records(call: Call, found: Iterable[Rule]) -> Iterable[dict[str, Any]]:
    names: dict[str, str] = {}
    for rule in found:
        if rule.table_id not in names:
            names[rule.table_id] = call.name_of("table", rule.table_id)
        yield _shown(call, rule, names[rule.table_id])


def _kind(text: str) -> Kind:
    try:
        return Kind(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(Kind)}", param_hint="KIND") from None
