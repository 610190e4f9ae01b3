"""How a view looks to a caller: as it is, as policies show it, or with the reason why it cannot be read."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

import pyarrow as pa

from skiway.airport import ColumnStatistics, HasStatistics, ScanOptions, Table
from skiway.errors import SkiwayError, Unavailable
from skiway.lake.context import Context
from skiway.lake.definer_views import DefinerView
from skiway.lake.policies import RestrictedRows, masked_columns, with_optional
from skiway.lake.views import LakeView
from skiway.metastore.records.damage import damaged_error
from skiway.metastore.records.policies import Restriction
from skiway.metastore.resources.view_dialects import view_sql
from skiway.model import v1
from skiway.sql import Find, SqlView, simple_view

__all__ = ["BrokenView", "RestrictedView", "ViewTable", "readable_view", "view_table"]


class _Statistics(HasStatistics):
    """A simple view, which has the statistics of its table."""

    is_listed = False

    @abstractmethod
    def statistics_of(self, column: str, duckdb_type: str) -> ColumnStatistics:
        """The statistics of a column."""

    def column_statistics(self, column: str, duckdb_type: str) -> ColumnStatistics:
        """The statistics of a column; in a listing, only that there are some."""
        return ColumnStatistics(has_not_null=False) if self.is_listed else self.statistics_of(column, duckdb_type)


class SimpleLakeView(LakeView, _Statistics):
    """A view with statistics and the rights of its reader."""


class SimpleDefinerView(DefinerView, _Statistics):
    """A view with statistics and the rights of its definer."""


def readable_view(
    context: Context, record: v1.View, place: tuple[str, str], find: Find, *, listing: bool = False
) -> LakeView | DefinerView:
    """The view with the rights that were declared for it."""
    is_definers = record.rights == v1.VR_DEFINER
    if simple_view(view_sql(record, place[0])) is None:
        return (DefinerView if is_definers else LakeView)(context, record, place, find)
    view = (SimpleDefinerView if is_definers else SimpleLakeView)(context, record, place, find)
    view.is_listed = listing
    return view


class RestrictedView(Table):
    """A view of which policies hide rows or values. Queries read it like a table, so that they meet only what is left."""

    def __init__(
        self, context: Context, record: v1.View, place: tuple[str, str], find: Find, restriction: Restriction
    ) -> None:
        self.name, self.comment = record.display_name, record.description
        self._context, self._place, self._restriction = context, place, restriction
        self._find = find
        self._view = readable_view(context, record, place, find)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the view."""
        return with_optional(self._view.schema, masked_columns(self._restriction, self._view.schema))

    def scan(self, options: ScanOptions) -> Iterator[pa.RecordBatch]:
        """Run the query, and then what policies leave of its rows."""
        self._context.callers.require("view.read", self._view.record)
        found = RestrictedRows(
            self._context,
            self._restriction,
            self._view,
            (*self._place, self.name),
            self._view.schema,
            self._find,
        )
        return found.rows(options)


class BrokenView(Table, SqlView):
    """The place of a view in a listing that cannot be read, with the reason."""

    schema = pa.schema({"error": pa.string()})

    def __init__(self, name: str, reason: SkiwayError) -> None:
        self.name, self.comment = name, f"cannot be read: {reason.message}"
        self._reason = reason

    @property
    def sql(self) -> str:
        """Raise the reason."""
        raise self._reason

    def scan(self, options: ScanOptions) -> pa.Table:  # noqa: ARG002
        """Raise the reason."""
        raise self._reason


ViewTable = LakeView | DefinerView | RestrictedView | BrokenView


def view_table(
    context: Context, record: v1.View, place: tuple[str, str], find: Find, *, bind: bool, listing: bool = False
) -> ViewTable:
    """A view as a table; if it cannot be read, one that tells why. Only with `bind`, its columns are determined."""
    if record.damage:
        return BrokenView(
            record.display_name, damaged_error("view", f"{place[1]}.{record.display_name}", record.damage)
        )
    view: LakeView | DefinerView | RestrictedView
    try:
        restriction = context.callers.restriction(record)
        if restriction is not None:
            view = RestrictedView(context, record, place, find, restriction)
        else:
            view = readable_view(context, record, place, find, listing=listing)
        if bind or isinstance(view, RestrictedView):
            view.schema  # noqa: B018 - raises the reason
        else:
            view.sql  # noqa: B018 - raises the reason
    except SkiwayError as error:
        if error.key == "sql.busy" or isinstance(error, Unavailable):
            raise  # listings are cached, and a view must not look broken because the server is busy
        return BrokenView(record.display_name, error)
    return view
