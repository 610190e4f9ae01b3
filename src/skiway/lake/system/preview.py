"""The function `seen_by`: what another caller sees of a table, also under a policy that does not exist yet."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from google.protobuf.json_format import Parse, ParseError

from skiway.airport import ScanOptions, Table, TableFunction
from skiway.errors import InvalidArgument, NotFound, PermissionDenied
from skiway.lake.context import Context
from skiway.lake.policies import PolicyChecks
from skiway.lake.reading.table import LakeTable
from skiway.lake.system.effects import parameters_of, table_name
from skiway.metastore.records.policies import CallerPolicies, Subject
from skiway.model import v1
from skiway.sql import Find

MAX_ROWS: Final = 100


class SeenByFunction(TableFunction):
    """`seen_by(table, caller)`: the first rows of a table, as policies show them to a caller."""

    name = "seen_by"
    comment = (
        "Returns the first rows of a table as a caller sees them: seen_by('s.t', 'ann', roles => 'analyst'). "
        "With draft, also under a policy that does not exist yet."
    )
    parameters = parameters_of("name text, caller text, roles? text, groups? text, draft? text")

    def __init__(self, context: Context, catalog: str, find: Find) -> None:
        self._context, self._catalog, self._find = context, catalog, find

    def schema_for(self, arguments: Mapping[str, pa.Scalar]) -> pa.Schema:
        """The columns of the table."""
        shown = self._table({name: value.as_py() for name, value in arguments.items()}).schema
        return pa.schema([field.with_nullable(True) for field in shown])

    def execute(self, arguments: Mapping[str, pa.Scalar], options: ScanOptions) -> Iterator[pa.RecordBatch]:
        """The rows that are left, with the values that are left."""
        given: dict[str, Any] = {name: value.as_py() for name, value in arguments.items()}
        table, callers = self._table(given), self._context.callers
        policies = self._policies(given, table)
        wanted = table.schema.names if options.columns is None else options.columns
        schema = pa.schema([table.schema.field(name).with_nullable(True) for name in wanted])

        def rows() -> Iterator[pa.RecordBatch]:
            seen = self._find(self._catalog, *self._place(given))
            assert isinstance(seen, LakeTable), "it was one a moment ago"
            left = MAX_ROWS
            for batch in seen.scan(ScanOptions(columns=wanted)):
                shown = batch[:left]
                yield pa.RecordBatch.from_arrays([shown.column(name) for name in wanted], schema=schema)
                left -= min(left, batch.num_rows)
                if not left:
                    return

        # The rights of the viewer, the policies of the other caller: the name is unlike all others, so nothing is kept under it.
        return callers.seeing_as(f"{policies.subject.name}\0{uuid.uuid4()}", policies, rows)

    def _place(self, given: Mapping[str, Any]) -> tuple[str, str]:
        named = table_name(given["name"] or "", self._catalog, self.name)
        return named.db, named.name

    def _table(self, given: Mapping[str, Any]) -> LakeTable:
        """The table, if the viewer manages policies and no policy restricts the table for the viewer."""
        callers = self._context.callers
        callers.require("policy.manage")
        callers.refuse_query_tokens("see what others see")
        table: Table | None = self._find(self._catalog, *self._place(given))
        if not isinstance(table, LakeTable):
            raise NotFound(f"there is no table {given['name']!r}, or it is a view: name a table", key="table")
        callers.require("table.read", table.known.record)
        if not callers.own_realm().administers or callers.restriction(table.known.record) is not None:
            raise PermissionDenied(
                "only administrators whom no policy restricts can see a table as somebody else", key="policy.preview"
            )
        return table

    def _policies(self, given: Mapping[str, Any], table: LakeTable) -> CallerPolicies:
        realm, draft = self._context.callers.own_realm(), (given["draft"] or "").strip()
        drafts = []
        if draft:
            try:
                drafts.append(Parse(draft, v1.Policy()))
            except ParseError as error:
                raise InvalidArgument(f"draft is not a policy as JSON: {error}", key="policy.draft") from error
            PolicyChecks(self._context.queries)(drafts[0], [table.known.record])
        roles, groups = (
            frozenset(filter(None, map(str.strip, (given[name] or "").split(",")))) for name in ("roles", "groups")
        )
        subject = Subject((given["caller"] or "").strip(), roles, groups)
        return CallerPolicies(lambda: realm.stores, realm.account_id, subject, drafts=drafts)
