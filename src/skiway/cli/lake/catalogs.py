"""`skiway catalogs`, `skiway branches`, `skiway namespaces` and `skiway views`; how DuckDB attaches catalogs, and search in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skiway.cli.command import Call, command, confirm, group
from skiway.cli.lake.resources import commands_for, state_of
from skiway.cli.options import Description, Parent, Yes
from skiway.errors import NotFound
from skiway.foundation.causes import suggestion
from skiway.foundation.resources import CATALOG, DESCRIPTION, NAMESPACE, PROPERTIES, PROTECTION
from skiway.presentation.tables import picked, row_count

if TYPE_CHECKING:
    from skiway.client.metastore import Catalog, Metastore, Namespace, SearchHit, View
    from skiway.client.metastore.catalogs import Branch, BranchChange

views_app = group("views", "Manage views: queries with a name, which clients read like tables.")
app = group("catalogs", None)

ViewName = Annotated[str, typer.Argument(metavar="VIEW", help="Full name, such as lake.sales.totals.")]


def _shown(_: Call, container: Catalog | Namespace) -> dict[str, Any]:
    """A catalog or a namespace in the output."""
    facts = picked(container, "id", "description", "properties")
    return {"name": str(container), **facts, **state_of(container)}


def _catalog(call: Call, catalog: Catalog) -> dict[str, Any]:
    guards = picked(catalog, "protected", "mergers", "required_rules") if catalog.protected else {}
    return {**_shown(call, catalog), **guards}


FIELDS = (DESCRIPTION, PROPERTIES)
catalogs_app = commands_for(CATALOG, shown=_catalog, but=("list",), fields=(*FIELDS, *PROTECTION))
namespaces_app = commands_for(NAMESPACE, shown=_shown, but=("list",), fields=FIELDS)


@command(catalogs_app, "list")
def list_catalogs(call: Call) -> None:
    """List the catalogs of the account."""
    records = (_catalog(call, catalog) for catalog in call.lake.catalogs())
    empty = "there are no catalogs; create one with: skiway catalogs create lake"
    call.print_rows(records, CATALOG.columns, empty=empty)


@command(namespaces_app, "list")
def list_namespaces(
    call: Call,
    parent: Annotated[
        str | None,
        typer.Argument(metavar="CATALOG", help="Catalog or namespace to list; all catalogs by default."),
    ] = None,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Include namespaces at all levels.")] = False,
) -> None:
    """List namespaces."""
    parents = [parent] if parent else [str(catalog) for catalog in call.lake.catalogs()]
    records = (_shown(call, child) for name in parents for child in call.lake.namespaces(name, recursive=recursive))
    call.print_rows(records, NAMESPACE.columns, empty="there are no namespaces here")


def namespaces_in(lake: Metastore, parent: str | None) -> Iterator[str | Namespace]:
    """Yield a namespace, all namespaces of a catalog, or those of all catalogs."""
    from skiway.client.metastore.calls import segments

    if parent is None:
        for catalog in lake.catalogs():
            yield from namespaces_in(lake, str(catalog))
    elif len(segments(parent, resource="catalog or namespace")) > 1:
        yield parent
    else:
        yield from lake.namespaces(parent, recursive=True)


# -- views -------------------------------------------------------------------------------------------------------------


def _view(view: View) -> dict[str, Any]:
    """A view in the output."""
    message = view.message
    return {
        "name": str(view),
        **picked(view, "id", "sql"),
        "description": view.description or None,
        "columns": [f"{column.name} {column.logical_type}" for column in message.output_columns],
        "reads": [".".join([table.catalog, *table.path, table.name]) for table in message.base_relations],
        "rights": view.rights,
        "definer": message.definer.subject or None,
        "damage": view.damage or None,
    }


@command(views_app, "list")
def list_views(call: Call, parent: Parent = None) -> None:
    """List views and what they read."""
    records = (_view(view) for namespace in namespaces_in(call.lake, parent) for view in call.lake.views(namespace))
    call.print_rows(
        records, ["name", "reads", "description"], empty="there are no views here; create one with skiway views create"
    )


@command(views_app, "get")
def get_view(call: Call, name: ViewName) -> None:
    """Show a view, with its SQL and its columns."""
    call.print_record(_view(call.lake.views.get(name)))


@command(views_app, "create")
def create_view(
    call: Call,
    name: ViewName,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="The query, such as 'SELECT id FROM lake.sales.people'.")],
    replace: Annotated[bool, typer.Option("--replace", help="Replace a view of this name.")] = False,
    dialect: Annotated[str, typer.Option(metavar="NAME", help="The dialect of the SQL, such as spark.")] = "duckdb",
    rights: Annotated[
        str,
        typer.Option(
            metavar="RIGHTS",
            help="Read the tables with the rights of the reader (invoker) or of the creator (definer).",
        ),
    ] = "invoker",
    description: Description = None,
) -> None:
    """Create a view, after the server has checked its query.

    Names without a schema in the query are those of the view's own namespace.
    """
    named = {"replace": replace, "dialect": dialect, "comment": description, "rights": rights}
    done = call.function(name, "create_view", sql, **named)
    call.print_result(f"{done['action']} view {name}", _view(call.lake.views.get(name)))


@command(views_app, "delete")
def delete_view(call: Call, name: ViewName, yes: Yes = False) -> None:
    """Delete a view."""
    confirm(f"Delete view {name}?", yes=yes)
    call.function(name, "drop_view")
    call.print_result(f"deleted view {name}", {"name": name})


# -- DuckDB and search -------------------------------------------------------------------------------------------------


@command(app, "attach")
def attach(
    call: Call,
    catalogs: Annotated[
        list[str] | None, typer.Argument(metavar="[CATALOG]...", help="Catalogs; by default all that you can see.")
    ] = None,
    show_token: Annotated[bool, typer.Option("--show-token", help="Print your token in the statements.")] = False,
) -> None:
    """Print the statements that attach catalogs in DuckDB.

    Without --show-token, insert your token yourself.
    """
    from skiway.airport.wire.duckdb_sql import attach_statement, secret_statement  # which imports pyarrow

    visible = [str(each) for each in call.lake.catalogs()]
    for name in catalogs or ():
        if name not in visible:
            hint = suggestion(name, visible)
            raise NotFound(f"there is no catalog {name}{f'; {hint}' if hint else ''}")
    location = call.location
    statements = ["INSTALL airport FROM community;", "LOAD airport;"]
    if (token := call.access_token) is not None:
        statements.append(secret_statement(location, token if show_token else None))
    statements += (attach_statement(name, location) for name in catalogs or visible)
    if call.is_for_people:
        typer.echo("\n".join(statements))
    else:
        call.print_rows([{"statement": text} for text in statements], ["statement"], empty="")


def _hit(hit: SearchHit) -> dict[str, Any]:
    """A search result in the output."""
    from skiway.client.metastore import dotted

    match = hit.object
    return {
        "name": dotted(match.path),
        "kind": match.kind,
        "found_in": hit.found_in,
        "format": match.format,
        "rows": row_count(match.rows, is_bound=match.rows_are_bound),
        **picked(match, "size_bytes", "comment", "id", "rows_are_bound"),
        "damage": match.damage or None,
    }


@command(app, "search")
def search(
    call: Call,
    words: Annotated[list[str], typer.Argument(metavar="WORD", help="Each word must occur.")],
    limit: Annotated[int, typer.Option("--limit", metavar="NUMBER", min=1, max=100, help="How many results.")] = 20,
) -> None:
    """Search names, columns, comments and tags of catalogs, namespaces, tables and views; the best results first."""
    text = " ".join(words)
    hits = call.lake.search(text, limit=limit)
    call.print_rows(
        map(_hit, hits),
        ["name", "kind", "found_in", "rows", "comment"],
        empty=f"nothing that you can see matches {text!r}: try fewer or shorter words",
    )
    if hits.incomplete is not None:
        typer.echo(hits.incomplete.reason, err=True)


# -- branches ----------------------------------------------------------------------------------------------------------

branches_app = group("branches", "Try changes of a catalog on a branch, compare them, and publish all of them at once.")

BranchName = Annotated[str, typer.Argument(metavar="BRANCH", help="The catalog and the branch, such as lake@dev.")]
Conflicts = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="An object in conflict, such as sales.people.")
]

_BRANCH_COLUMNS = ["name", "state", "is_tag", "owner", "created_at"]
_LIFE = ("changed_at", "changed", "changed_on_main", "own_files", "own_bytes")
_CHANGES = ["kind", "name", "action", "on_main", "plan", "conflict", "rows_on_main", "rows_on_branch"]


@command(branches_app, "create")
def create_branch(
    call: Call,
    name: BranchName,
    tag: Annotated[bool, typer.Option("--tag", help="Create a tag, which cannot be changed.")] = False,
    description: Annotated[str, typer.Option(help="Description for users.")] = "",
) -> None:
    """Create a branch of a catalog as it is now. It copies no data."""
    made = call.lake.branches.create(name, description=description, is_tag=tag)
    call.print_result(f"created branch {name}; attach it in DuckDB as the catalog '{name}'", _branch(name, made))


@command(branches_app, "list")
def list_branches(
    call: Call,
    catalog: Annotated[str, typer.Argument(metavar="CATALOG", help="The catalog; by default all.")] = "",
    details: Annotated[
        bool,
        typer.Option(
            "--details", help="Show the last change, how far they are from main, and the size of their files."
        ),
    ] = False,
) -> None:
    """List branches and tags."""
    parents = [catalog] if catalog else [each.name for each in call.lake.catalogs()]
    records = (
        _branch(f"{parent}@{each.name}", each)
        for parent in parents
        for each in call.lake.branches(parent, details=details)
    )
    columns = [*_BRANCH_COLUMNS, *(_LIFE if details else ())]
    call.print_rows(records, columns, empty="there are no branches")


@command(branches_app, "get")
def get_branch(call: Call, name: BranchName) -> None:
    """Show a branch."""
    call.print_record(_branch(name, call.lake.branches.get(name)))


@command(branches_app, "diff")
def diff_branch(
    call: Call,
    name: BranchName,
    statistics: Annotated[
        bool, typer.Option("--statistics", help="Compare the statistics of the columns of changed tables.")
    ] = False,
    rows: Annotated[
        str | None, typer.Option(metavar="TABLE", help="Compare the rows of this table, such as s.t.")
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="A column of the key that identifies rows, with --rows; can be repeated."),
    ] = None,
) -> None:
    """Show what a branch has changed, and which changes are in conflict with main."""
    if rows is not None:
        catalog, _, _ = name.rpartition("@")
        named = {"key": list(key)} if key else {}
        with call.airport(catalog) as lake:
            found = lake.call("skiway.diff_rows", name, rows, named=named).read_all()
        call.print_rows(found.to_pylist(), found.column_names, empty="both sides have the same rows")
        return
    changes = call.lake.branches.diff(name, statistics=statistics)
    if not statistics:
        _print_changes(call, changes)
    elif call.is_for_people:
        found = ({"table": change.name, **column} for change in changes for column in _columns(change))
        call.print_rows(found, _STATISTICS, empty="the branch has changed no tables")
    else:
        records = ({**_change(each), "columns": _columns(each)} for each in changes)
        call.print_rows(records, [*_CHANGES, "columns"], empty="the branch has changed nothing")


_FIGURES = ("nulls", "distinct", "min", "max", "quantiles")
_STATISTICS = ["table", "column", *(f"{name}_on_{side}" for name in _FIGURES for side in ("main", "branch"))]


def _columns(change: BranchChange) -> list[dict[str, Any]]:
    """The statistics of the columns of a table, side by side."""
    from skiway.presentation.tables import ColumnProfile

    found = []
    for column in change.columns:
        record: dict[str, Any] = {"column": column.name}
        for side in ("main", "branch"):
            known = ColumnProfile.of(getattr(column, side), "") if column.HasField(side) else None
            distinct = None if known is None or known.distinct is None else known.distinct.value
            values = (
                (None,) * 5 if known is None else (known.nulls, distinct, known.min, known.max, known.quantiles or None)
            )
            record |= {f"{name}_on_{side}": value for name, value in zip(_FIGURES, values, strict=True)}
        found.append(record)
    return found


@command(branches_app, "merge")
def merge_branch(
    call: Call,
    name: BranchName,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what a merge would do.")] = False,
    ours: Conflicts = None,
    theirs: Conflicts = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RULE", help="A quality rule that must pass on the branch, or * for all; can be repeated."
        ),
    ] = None,
) -> None:
    """Publish all changes of a branch on main at once, or none.

    An object in conflict stays as it is on main with --ours, and becomes as it is on the branch with --theirs.
    """
    done = call.lake.branches.merge(name, dry_run=dry_run, ours=ours or (), theirs=theirs or (), rules=rule or ())
    if dry_run:
        _print_changes(call, list(done.changes))
        for check in done.checks:
            found = ", ".join(filter(None, (check.observed, check.message)))
            typer.echo(f"rule {check.rule} {check.status}: {found}", err=True)
        return
    count = len(done.changes)
    call.print_result(f"merged {count} change{'' if count == 1 else 's'} of branch {name}", _branch(name, done.branch))


@command(branches_app, "delete")
def delete_branch(call: Call, name: BranchName) -> None:
    """Delete a branch. What only it has is deleted later, because queries may still read it."""
    gone = call.lake.branches.delete(name)
    call.print_result(f"deleted branch {name}", _branch(name, gone))


def _branch(name: str, branch: Branch) -> Mapping[str, Any]:
    """A branch in the output, with the name that other commands take."""
    facts = picked(branch, "state", "is_tag", "description", "owner", "created_at", "merged_by")
    checks = [picked(each, "rule", "table", "status", "observed") for each in branch.checks]
    life = picked(branch.life, *_LIFE) | {"changed_at": branch.life.changed_at.ToDatetime(UTC)} if branch.life else {}
    return {"name": name, **facts, **life, **({"checks": checks} if checks else {}), "damage": branch.damage or None}


def _print_changes(call: Call, changes: list[BranchChange]) -> None:
    call.print_rows(map(_change, changes), _CHANGES, empty="the branch has changed nothing")


def _change(change: BranchChange) -> dict[str, Any]:
    return picked(change, *_CHANGES, "previous_name", "rows_added", "rows_removed")
