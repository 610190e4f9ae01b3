"""`skiway search`: tables and everything else by words in names, columns, comments and tags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from skiway.cli.command import Call, command, group
from skiway.presentation.sizes import row_count

if TYPE_CHECKING:
    from skiway.client.metastore import SearchHit

__all__ = ["app"]

app = group("search", None)


@dataclass(frozen=True, slots=True)
class HitRecord:
    """A result in the output."""

    name: str
    kind: str
    found_in: str
    format: str
    rows: int | None
    size_bytes: int | None
    comment: str
    id: str
    damage: str | None = None
    rows_are_bound: bool = False

    @classmethod
    def of(cls, hit: SearchHit) -> HitRecord:
        """Convert a result of the client."""
        from skiway.client.metastore import dotted

        found = hit.object
        return cls(
            dotted(found.path),
            found.kind,
            hit.found_in,
            found.format,
            row_count(found.rows, is_bound=found.rows_are_bound),
            found.size_bytes,
            found.comment,
            str(found.id),
            found.damage or None,
            found.rows_are_bound,
        )


@command(app, "search")
def search(
    call: Call,
    words: Annotated[list[str], typer.Argument(metavar="WORD", help="Each word must occur.")],
    limit: Annotated[int, typer.Option("--limit", metavar="NUMBER", min=1, max=100, help="How many results.")] = 20,
) -> None:
    """Search names, columns, comments and tags of catalogs, namespaces, tables and views; the best results first."""
    text = " ".join(words)
    found = call.lake.search(text, limit=limit)
    call.print_rows(
        map(HitRecord.of, found),
        ["name", "kind", "found_in", "rows", "comment"],
        empty=f"nothing that you can see matches {text!r}: try fewer or shorter words",
    )
    if found.incomplete is not None:
        typer.echo(found.incomplete.reason, err=True)
