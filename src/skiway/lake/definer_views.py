"""Views with definer rights: they show their readers what their definer may read.

The rights are those that the definer has when the view is read: its grants, the policies that restrict it, and the permissions of
the roles that it had when it defined the view. The objects are those that the view read when its definer saved it.

Conditions of the reader are applied to the rows of the view, never below its query, so that they cannot probe rows that the view
hides. Errors of the query may quote values, so only the definer sees them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import cached_property
from typing import Final, TypeVar

import pyarrow as pa

from skiway.airport import ColumnStatistics, ScanOptions, Table, filters
from skiway.errors import InvalidArgument, NotFound, PermissionDenied, SkiwayError
from skiway.lake.context import Context
from skiway.lake.policies import may_be_shown
from skiway.lake.views import LakeView
from skiway.metastore.resources.definers import BoundNames
from skiway.model import v1
from skiway.security import Principal, Roles
from skiway.sql import Find

__all__ = ["DefinerView"]

T = TypeVar("T")

log = logging.getLogger("skiway.lake")

_MAX_DEPTH: Final = 8
"""How deeply views with definer rights may be nested: each takes a worker of its own."""

_reading: ContextVar[tuple[str, ...]] = ContextVar("skiway_definer_views", default=())
"""The ids of the views that the current thread reads, from outer to inner."""


class DefinerView(Table):
    """A view that reads its tables with the rights of its definer. Queries read it like a table."""

    def __init__(self, context: Context, record: v1.View, place: tuple[str, str], find: Find) -> None:
        self.name, self.comment = record.display_name, record.description
        self.record = record
        self._context, self._place = context, place
        self._view = LakeView(context, record, place, find)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the view."""
        (found,) = self._as_definer(lambda: iter([self._view.schema]))
        return found

    @property
    def sql(self) -> str:
        """The query, in DuckDB's dialect."""
        return self._view.sql

    def scan(self, options: ScanOptions) -> Iterator[pa.RecordBatch]:
        """Run the query with the rights of the definer, and then apply the conditions of the reader."""
        self._context.callers.require("view.read", self.record)
        wanted = self.schema.names if options.columns is None else list(options.columns)
        needed = {*wanted, *(options.filter.columns if options.filter else ())}
        read = [name for name in self.schema.names if name in needed]
        shown = pa.schema([self.schema.field(name) for name in read])
        condition = filters.to_arrow(options.filter, shown) if options.filter else None
        for batch in self._as_definer(lambda: self._view.scan(ScanOptions(columns=read))):
            rows = batch
            if condition is not None:
                kept = pa.Table.from_batches([batch]).filter(condition).combine_chunks().to_batches()
                rows = kept[0] if kept else batch.slice(0, 0)
            yield rows.select(wanted)

    def statistics_of(self, column: str, duckdb_type: str) -> ColumnStatistics:
        """The statistics of a simple view, as far as its definer may know them."""
        self._context.callers.require("view.read", self.record)
        (found,) = self._as_definer(lambda: iter([self._view.statistics_of(column, duckdb_type)]))
        return found

    def _as_definer(self, rows: Callable[[], Iterator[T]]) -> Iterator[T]:
        path = _reading.get()
        if self.record.resource_id.id in path:
            raise InvalidArgument(f"view {self.name!r} reads itself", key="view.cycle")
        if len(path) >= _MAX_DEPTH:
            raise InvalidArgument(
                f"views are nested more than {_MAX_DEPTH} deep: {self.name} is the last", key="view.depth"
            )

        def inside() -> Iterator[T]:
            _reading.set((*path, self.record.resource_id.id))  # in the context of the definer
            return rows()

        try:
            bound = BoundNames(self.record, self._place)
            yield from self._context.callers.acting_as(self._definer, bound, inside)
        except (PermissionDenied, NotFound) as error:
            raise PermissionDenied(
                f"view {self.name!r} has the rights of its definer, {self.record.definer.subject!r}, who may not read "
                "everything that it reads: ask for the rights, or replace the view",
                key="view.definer",
            ) from error
        except SkiwayError as error:
            if may_be_shown(error) or self._context.callers.authenticated.subject == self.record.definer.subject:
                raise
            log.warning("view %s of %s cannot be read: %s", self.name, self.record.definer.subject, error)
            raise type(error)(
                f"view {self.name!r} cannot be read, for a reason that may tell about more than it shows: ask its definer, "
                f"{self.record.definer.subject!r}",
                key="view.definer",
            ) from None

    @property
    def _definer(self) -> Principal:
        definer = self.record.definer
        roles = frozenset(definer.roles)
        return Principal(
            definer.subject,
            self._context.callers.authenticated.account_id,
            roles,
            Roles().permissions(roles),
            groups=frozenset(definer.groups),
            claims=json.loads(definer.claims_json or "{}"),
        )
