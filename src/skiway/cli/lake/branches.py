"""`skiway branches`: branches of the lake, which are catalogs with changes of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skiway.cli.command import Call, command
from skiway.cli.rendering import fields_of

if TYPE_CHECKING:
    from skiway.client.metastore.branches import Branch, BranchChange

app = typer.Typer(
    help="Try changes of a catalog on a branch, compare them, and publish all of them at once.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(metavar="BRANCH", help="The catalog and the branch, such as lake@dev.")]
Names = Annotated[list[str] | None, typer.Option(metavar="NAME", help="An object in conflict, such as sales.people.")]

_COLUMNS = ["name", "state", "is_tag", "owner", "created_at"]
_CHANGES = ["kind", "name", "action", "on_main", "plan", "conflict", "rows_on_main", "rows_on_branch"]


@command(app, "create")
def create(
    call: Call,
    name: Name,
    tag: Annotated[bool, typer.Option("--tag", help="Create a tag, which cannot be changed.")] = False,
    description: Annotated[str, typer.Option(help="Description for users.")] = "",
) -> None:
    """Create a branch of a catalog as it is now. It copies no data."""
    made = call.lake.branches.create(name, description=description, is_tag=tag)
    call.print_result(f"created branch {name}; attach it in DuckDB as the catalog '{name}'", _shown(made))


@command(app, "list")
def list_(
    call: Call, catalog: Annotated[str, typer.Argument(metavar="CATALOG", help="The catalog; by default all.")] = ""
) -> None:
    """List branches and tags."""
    call.print_rows(call.lake.branches(catalog), _COLUMNS, empty="there are no branches")


@command(app, "get")
def get(call: Call, name: Name) -> None:
    """Show a branch."""
    call.print_record(_shown(call.lake.branches.get(name)))


@command(app, "diff")
def diff(call: Call, name: Name) -> None:
    """Show what a branch has changed, and which changes are in conflict with main."""
    _print(call, call.lake.branches.diff(name))


@command(app, "merge")
def merge(
    call: Call,
    name: Name,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what a merge would do.")] = False,
    ours: Names = None,
    theirs: Names = None,
) -> None:
    """Publish all changes of a branch on main at once, or none.

    An object in conflict stays as it is on main with --ours, and becomes as it is on the branch with --theirs.
    """
    done = call.lake.branches.merge(name, dry_run=dry_run, ours=ours or (), theirs=theirs or ())
    if dry_run:
        _print(call, list(done.changes))
        return
    count = len(done.changes)
    call.print_result(f"merged {count} change{'' if count == 1 else 's'} of branch {name}", _shown(done.branch))


@command(app, "delete")
def delete(call: Call, name: Name) -> None:
    """Delete a branch. What only it has is deleted later, because queries may still read it."""
    gone = call.lake.branches.delete(name)
    call.print_result(f"deleted branch {name}", _shown(gone))


def _shown(branch: Branch) -> Mapping[str, Any]:
    return fields_of(branch)


def _print(call: Call, changes: list[BranchChange]) -> None:
    call.print_rows(changes, _CHANGES, empty="the branch has changed nothing")
