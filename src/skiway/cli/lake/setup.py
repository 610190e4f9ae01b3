"""`skiway setup`: the configuration of an account as a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from skiway.cli.command import DEFAULT_ACCOUNT, Call, command, confirm, group, progress
from skiway.cli.options import Yes
from skiway.cli.output import counted, has_colors
from skiway.errors import InvalidArgument
from skiway.presentation.tables import picked

if TYPE_CHECKING:
    from skiway.client import Metastore
    from skiway.setup import Change, Loaded, Plan

app = group(
    "setup",
    "Keep catalogs, connectors, views, policies, rules and grants of the account in a file: configuration as code.",
)

STDIN: Final = "-"
MATCHES: Final = "the server matches the file"
CHANGES: Final = 2
"""The exit code of `plan` if there are changes."""
MARKS: Final = {"create": ("+", "\x1b[32m"), "update": ("~", "\x1b[33m"), "delete": ("-", "\x1b[31m")}
RESET: Final = "\x1b[0m"

SetupFile = Annotated[str, typer.Argument(metavar="FILE", help="YAML file; - for standard input.")]
Delete = Annotated[bool, typer.Option("--delete", help="Delete what the file does not declare.")]
SendCredentials = Annotated[
    bool, typer.Option("--send-credentials", help="Send the credentials of all connectors again, after a rotation.")
]


def change_record(change: Change) -> dict[str, Any]:
    """A change of a plan in the output. `waits_for` is a table that does not exist before a sync."""
    return {
        **picked(change, "action", "kind", "name"),
        "line": change.line or None,
        "waits_for": " ".join(change.waits_for) if change.waits_for else None,
        "fields": change.fields,
        "missed": _missed(change),
    }


def make_changes(call: Call, lake: Metastore, loaded: Loaded, made: Plan, *, yes: bool, sync: bool = False) -> None:
    """Make the changes of a plan, and report each; programs get all of them at the end."""
    from skiway import setup

    def report(text: str) -> None:
        typer.echo(text, err=not call.is_for_people)

    records = list(map(change_record, made.changes))
    if deleted := sum(change.action == "delete" for change in made.changes):
        confirm(f"Delete {deleted} objects that the file does not declare?", yes=yes)
    setup.apply(lake, made, loaded.setup, report=report, sync=sync)
    if call.is_for_people:
        typer.echo(f"made {counted(len(records), 'change')}" if made else MATCHES)
    else:
        call.print_rows(records, ["action", "kind", "name"], empty=MATCHES)


@command(app, "export")
def export(
    call: Call,
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="File to write; standard output by default.")] = STDIN,
) -> None:
    """Write the configuration of the account to a file.

    It has references to environment variables in the place of credentials. --output has no effect: the file is YAML.
    """
    from skiway import setup

    with progress("reading the configuration"):
        text = setup.write(setup.export(call.lake, account=call.account or DEFAULT_ACCOUNT))
    if file == STDIN:
        sys.stdout.write(text)
        return
    try:
        Path(file).expanduser().write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidArgument(f"cannot write {file}: {error.strerror}") from None
    typer.echo(f"wrote {file}", err=True)


@command(app, "plan")
def plan(call: Call, file: SetupFile, delete: Delete = False, send_credentials: SendCredentials = False) -> None:
    """Show the changes that apply would make.

    Nothing is changed, and no secret is read. The exit code is 0 if the server matches the file, and 2 if there are
    changes.
    """
    _, made = _plan(call, file, delete=delete, send_credentials=send_credentials)
    _show(call, made)
    if made:
        sys.stdout.flush()
        raise typer.Exit(CHANGES)


@command(app, "apply")
def apply(
    call: Call,
    file: SetupFile,
    delete: Delete = False,
    send_credentials: SendCredentials = False,
    sync: Annotated[
        bool, typer.Option("--sync", help="Sync connectors if the file refers to tables that they have not mirrored.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Make the server match a file.

    Each change is shown when it is made. An error ends the command; run it again to make the rest of the changes.
    """
    loaded, made = _plan(call, file, delete=delete, send_credentials=send_credentials)
    make_changes(call, call.metastore(timeout_s=None), loaded, made, yes=yes, sync=sync)


def _plan(call: Call, file: str, *, delete: bool, send_credentials: bool) -> tuple[Loaded, Plan]:
    from skiway import setup

    loaded = setup.checked(setup.read(*read_text(file)))
    with progress("reading the configuration"):
        actual = setup.read_actual(call.lake, account=call.account or DEFAULT_ACCOUNT)
    return loaded, setup.make_plan(loaded, actual, delete=delete, send_credentials=send_credentials)


def read_text(file: str) -> tuple[str, str]:
    """Return the text of a file or of standard input, and its name in messages."""
    if file == STDIN:
        return sys.stdin.read(), "standard input"
    try:
        return Path(file).expanduser().read_text(encoding="utf-8"), file
    except OSError as error:
        raise InvalidArgument(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidArgument(f"{file} is not a text file in UTF-8: save it in UTF-8") from None


def _show(call: Call, made: Plan) -> None:
    if not call.is_for_people:
        records = map(change_record, made.changes)
        call.print_rows(records, ["action", "kind", "name", "waits_for"], empty=MATCHES)
        return
    for change in made.changes:
        sys.stdout.writelines(f"{line}\n" for line in _lines(change))
    if made.kept:
        names = ", ".join(f"{each.kind} {each.name}" for each in made.kept[:10])
        more = f" and {len(made.kept) - 10} more" if len(made.kept) > 10 else ""
        typer.echo(f"not in the file, and kept: {names}{more}", err=True)
    if not made:
        typer.echo(MATCHES)
        return
    counts = {action: sum(each.action == action for each in made.changes) for action in MARKS}
    parts = [f"{count} to {action}" for action, count in counts.items() if count]
    typer.echo(f"{counted(len(made.changes), 'change')}: {', '.join(parts)}")


def _lines(change: Change) -> Iterator[str]:
    """A change for people: one line for the object, and one for each value."""
    mark, color = MARKS[change.action]
    is_colored = sys.stdout.isatty() and has_colors()
    waits = f" (after a sync mirrors {' '.join(change.waits_for)})" if change.waits_for else ""
    title = f"{mark} {change.kind} {_visible(change.name)}".rstrip()
    yield f"{color}{title}{RESET}{waits}" if is_colored else f"{title}{waits}"
    for each in change.fields:
        if change.action == "create":
            if each.field != "name":
                yield f"    {each.field}: {_value(each.after)}"
        else:
            yield f"    {each.field}: {_value(each.before)} -> {_value(each.after)}"
    yield from (f"    {_visible(each)}" for each in _missed(change))


def _missed(change: Change) -> list[str]:
    """Which changes of its source a connector will not copy, if the plan changes the copy."""
    from skiway.client.metastore.connectors import missed_by_copies

    copy = getattr(change.desired, "copy", None)
    if change.kind != "connector" or change.action == "delete" or not copy or not change.changed & {"copy", "uri"}:
        return []
    tables = {
        name: (own.mode or copy.mode or "", own.cursor_column or copy.cursor_column)
        for name, own in [("", copy), *copy.tables.items()]
    }
    return missed_by_copies(change.desired.kind, change.desired.uri, tables, changes=copy.changes)


def _value(value: Any) -> str:
    return "(none)" if value is None else _visible(json.dumps(value, ensure_ascii=False))


def _visible(text: str) -> str:
    """A text without control characters, which could change the terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
