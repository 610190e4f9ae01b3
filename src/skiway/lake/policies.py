"""The rows of a table or view that policies leave for a caller, and the checks of policies before they are stored.

The policies run in the sandbox as a query of their own, over the original rows, before anything of the caller's statement
does: neither its filters nor its expressions ever meet a row or a value that policies hide, so no error and no count can tell
about them. What a policy's own expression reports about a value is logged, and not shown to the caller.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa

from skiway.airport import ScanOptions, Statement, Table, filters
from skiway.airport.conversion import to_column
from skiway.airport.tables import find_rowid_column
from skiway.airport.wire.duckdb_sql import castable_type, identifier
from skiway.errors import Cancelled, Conflict, InvalidArgument, PermissionDenied, SkiwayError
from skiway.formats.schemas import field_id
from skiway.lake.context import Context
from skiway.lake.reading.columns import ROWID, columns_of
from skiway.lake.reading.scans import ScannedTable
from skiway.metastore.records.policies import Restriction, Subject, column_matches
from skiway.metastore.resources.policies import Relation
from skiway.model import v1
from skiway.sandbox.relations import Expression
from skiway.sql import Find, Query, QueryEngine, including
from skiway.sql.queries import MERGE_ROWID

log = logging.getLogger("skiway.policies")

_INTEGERS: Final = {
    "TINYINT": 127,
    "SMALLINT": 32_767,
    "INTEGER": 2_147_483_647,
    "BIGINT": 9_223_372_036_854_775_807,
    "UTINYINT": 255,
    "USMALLINT": 65_535,
    "UINTEGER": 4_294_967_295,
    "UBIGINT": 9_223_372_036_854_775_807,
}


_ABOUT_THE_CALL: Final = ("policy.", "query.", "snapshot.", "sql.", "table.changed", "transaction.", "view.")
"""The keys of errors that tell about the call, and not about rows or files."""


def may_be_shown(error: SkiwayError) -> bool:
    """Whether an error may be shown to callers who must not see all rows: its message quotes no values and names no files."""
    if isinstance(error, PermissionDenied | Cancelled) or error.key == "table":
        return True
    return error.key != "sql.invalid" and error.key.startswith(_ABOUT_THE_CALL)


def masked_columns(restriction: Restriction, columns: pa.Schema) -> Mapping[str, v1.Policy]:
    """The policies that mask columns, by the names of these."""
    found = ((field.name, restriction.mask_of(field.name, field_id(field))) for field in columns)
    return {name: policy for name, policy in found if policy is not None}


def with_optional(schema: pa.Schema, masked: Mapping[str, v1.Policy]) -> pa.Schema:
    """The schema in which masked columns may be NULL."""
    return pa.schema([field.with_nullable(True) if field.name in masked else field for field in schema])


class ConcealedChange(Statement):
    """UPDATE or DELETE of a caller who does not see all values. Its commit reads files, and errors about these are not shown."""

    def __init__(self, statement: Statement, policed: RestrictedRows) -> None:
        self._statement, self._policed = statement, policed

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        """Take rows. Errors are about what the caller has sent."""
        return self._statement.apply(rows)

    def commit(self) -> int:
        """Commit the change, and return the number of rows."""
        try:
            return self._statement.commit()
        except SkiwayError as error:
            if isinstance(error, Conflict) or may_be_shown(error):
                raise
            raise self._policed.concealed(error) from None

    def abort(self) -> None:
        """Discard the change."""
        self._statement.abort()


def pruning_filter(options: ScanOptions, restriction: Restriction, masked: Mapping[str, v1.Policy]) -> filters.Filter:
    """The conditions of a caller that may decide which files are read, because that tells nothing that policies hide.

    How long a scan takes tells which files were read. Their statistics include hidden rows, so under a row filter there are
    no such conditions. Otherwise they are those over columns without a mask. A mask with an expression may fail for some
    rows: then every scan that reads the column has to fail, whichever files it needs.
    """
    condition = options.filter
    needed = set(masked if options.columns is None else options.columns) | condition.columns
    if restriction.filters or any(masked[name].mask.kind == v1.MK_EXPRESSION for name in needed & masked.keys()):
        return filters.Filter()
    return filters.Filter(
        tuple(
            predicate for predicate in condition.predicates if filters.Filter((predicate,)).columns.isdisjoint(masked)
        )
    )


def _finds_nothing(*_: str) -> None:
    """Nothing, because a table reads no others."""


@dataclass(frozen=True, slots=True)
class RestrictedRows:
    """Reads a table or view as its policies show it. `base` has the original rows, and `columns` their field ids.

    `find` looks up what `base` reads, if it is a view.
    """

    context: Context
    restriction: Restriction
    base: Table
    name: tuple[str, str, str]
    columns: pa.Schema
    find: Find = _finds_nothing

    def rows(self, options: ScanOptions) -> Iterator[pa.RecordBatch]:
        """The rows and columns of a scan. Row ids are numbers without a meaning, unless `base` has them as a column."""
        if self.restriction.missing:
            raise self._unusable(self.restriction.missing)
        schema = with_optional(self.base.schema, self.masked)
        shown_as = {MERGE_ROWID: ROWID} if MERGE_ROWID in schema.names else {}
        names = [shown_as.get(name, name) for name in schema.names] if options.columns is None else options.columns
        wanted = [MERGE_ROWID if name in shown_as.values() else name for name in names]
        needed = {*wanted, *(options.filter.columns if options.filter else ())}
        numbered = find_rowid_column(schema)
        rowid = None if numbered is None else schema.names[numbered]
        own = [name for name in schema.names if name != rowid]
        read = [name for name in own if name in needed] or own[:1]  # rows without columns are counted
        shown = pa.schema([schema.field(name) for name in read])
        condition = filters.to_arrow(options.filter, shown) if options.filter else None
        seen = 0
        for batch in self._run(self._query(read)):
            rows = pa.RecordBatch.from_arrays(
                [to_column(column, field) for column, field in zip(batch.columns, shown, strict=True)], schema=shown
            )
            if condition is not None:  # these rows are visible, so the caller may learn everything about them
                rows = rows.filter(condition)
            if rowid is not None and rowid in wanted:
                numbers = pa.array(np.arange(seen, seen + rows.num_rows), pa.int64())
                rows = rows.append_column(rowid, numbers)
            seen += rows.num_rows
            yield rows.select(wanted).rename_columns(list(names))

    @property
    def masked(self) -> Mapping[str, v1.Policy]:
        """The policies that mask columns, by the names of these."""
        return masked_columns(self.restriction, self.columns)

    def concealed(self, error: SkiwayError) -> SkiwayError:
        """An error of the same kind without its reason, which is logged."""
        self._log(error)
        return type(error)(
            f"{self.restriction.name} cannot be read, for a reason that may tell about hidden values: ask an administrator, "
            "who finds it in the log of the server",
            key=error.key,
        )

    def check_update(self, names: Collection[str]) -> None:
        """Raise unless the caller may change these columns: it sees their values, and no mask depends on them."""
        masks = {name: each.mask for name, each in self.masked.items()}
        texts = sorted({mask.expression for mask in masks.values() if mask.kind == v1.MK_EXPRESSION})
        read = {name.casefold() for each in self._compiled(texts) for name in each.columns}
        ids = {self.restriction.columns[name] for name in self.restriction.columns if name.casefold() in read}
        for field in self.columns:
            if field.name in names and (field.name in masks or field.name.casefold() in read or field_id(field) in ids):
                raise self.restriction.refused(
                    f"column {field.name!r} cannot be changed: ask a caller without this policy"
                )

    def _query(self, read: Sequence[str]) -> str:
        masked = {name: policy for name, policy in self.masked.items() if name in read}
        texts = [each.row_filter.predicate for each in self.restriction.filters]
        own = {name: each.mask.expression for name, each in masked.items() if each.mask.kind == v1.MK_EXPRESSION}
        compiled = self._compiled([*texts, *own.values()])
        conditions, masks = compiled[: len(texts)], dict(zip(own, compiled[len(texts) :], strict=True))
        for each in compiled:
            self._check_columns(each)
        shown = [self._column(self.base.schema.field(name), masked.get(name), masks.get(name)) for name in read]
        where = " AND ".join(f"({condition.sql})" for condition in conditions) or "TRUE"
        base = ".".join(map(identifier, self.name))
        return f"SELECT {', '.join(shown)} FROM (SELECT * FROM {base} WHERE {where}) AS visible"  # noqa: S608 - made by DuckDB

    def _compiled(self, texts: Sequence[str]) -> Sequence[Expression]:
        try:
            return self.context.queries.expressions(texts, self.context.callers.claims, owner=self._account_id)
        except InvalidArgument as error:
            raise self._unusable("an expression is not valid any more", error) from error

    def _check_columns(self, expression: Expression) -> None:
        """Raise unless the columns that an expression reads are those that now have these names.

        A client may know older columns, or read an older snapshot, in which other columns had these names.
        """
        now = {name.casefold(): number for name, number in self.restriction.columns.items()}
        then = {field.name.casefold(): field_id(field) for field in self.columns}
        for name in expression.columns:
            known = now.get(name.casefold())
            if known is not None and known > 0 and then.get(name.casefold()) != known:
                raise self._unusable(f"column {name!r} is another one in the state of the table that you read")

    def _column(self, field: pa.Field, policy: v1.Policy | None, expression: Expression | None) -> str:
        name = identifier(field.name)
        if policy is None:
            return name
        kind = castable_type(field)
        if expression is not None:
            return f"CAST({expression.sql} AS {kind}) AS {name}"
        return f"CAST({self._built_in(policy.mask.kind, name, kind)} AS {kind}) AS {name}"

    def _built_in(self, mask: int, column: str, kind: str) -> str:
        """The expression that replaces a column: NULL if the mask does not support its type."""
        hashed = f"sha256('{self._key}' || {column})"
        if mask == v1.MK_HASH and kind == "VARCHAR":
            return hashed
        if mask == v1.MK_HASH and kind == "BLOB":
            return f"unhex(sha256('{self._key}' || hex({column})))"
        if mask == v1.MK_HASH and kind == "UUID":
            return f"{hashed}[1:32]"
        if mask == v1.MK_HASH and kind in _INTEGERS:
            return f"CAST('0x' || {hashed}[1:15] AS BIGINT) % {_INTEGERS[kind]}"
        if mask == v1.MK_PARTIAL and kind == "VARCHAR":
            hidden = f"repeat('*', length({column}) - 4) || right({column}, 4)"
            return f"CASE WHEN length({column}) < 8 THEN repeat('*', length({column})) ELSE {hidden} END"
        return "NULL"

    @property
    def _account_id(self) -> str:
        return self.context.callers.principal.account_id

    @property
    def _key(self) -> str:
        """The key of the mask `hash` in the account. It keeps callers from computing the hashes of likely values."""
        key = self.context.key[:64]
        return blake2b(self._account_id.encode(), key=key, digest_size=16, person=b"skiway mask").hexdigest()

    def _run(self, sql: str) -> Iterator[pa.RecordBatch]:
        find = including(self.find, self.name, self.base)
        query = Query(sql, find, catalog=self.name[0], owner=self._account_id)
        try:
            yield from self.context.queries.rows(query)
        except SkiwayError as error:
            if may_be_shown(error):
                raise
            if error.key == "sql.invalid":
                raise self._unusable("an expression failed", error) from None  # the cause may quote a value
            raise self.concealed(error) from None

    def _unusable(self, reason: str, cause: Exception | None = None) -> PermissionDenied:
        if cause is not None:
            self._log(cause)
        return self.restriction.unusable(reason)

    def _log(self, cause: Exception) -> None:
        names = ", ".join(self.restriction.policies)
        log.warning("policies %s on %s failed: %s", names, self.restriction.name, cause)


_NAME: Final = ("checked", "main_", "rows")


class PolicyChecks:
    """Compiles the expressions of a policy, and binds them to the columns of tables and views, which reads no rows."""

    def __init__(self, engine: QueryEngine) -> None:
        self._engine = engine

    def __call__(self, policy: v1.Policy, relations: Sequence[Relation]) -> Sequence[str]:
        """The columns that the policy reads; `InvalidArgument` if an expression is not valid."""
        text = policy.row_filter.predicate if policy.HasField("row_filter") else policy.mask.expression
        if not text:
            return []
        try:
            (expression,) = self._engine.expressions([text], Subject().values)
            for on in relations:
                schema = self._columns(on)
                if schema is not None:
                    self._bind(policy, expression, schema)
        except SkiwayError as error:
            if error.key != "sql.invalid":
                raise
            raise InvalidArgument(
                f"the expression {text[:200]!r} cannot be used in policy {policy.display_name}: {error.message}",
                key="policy.expression",
            ) from error
        return expression.columns

    def _columns(self, on: Relation) -> pa.Schema | None:
        """The columns of a table or view; None if they are not known."""
        if isinstance(on, v1.Table):
            try:
                return columns_of(on.schema_json).announced
            except ValueError:
                return None
        if not on.output_columns:
            return None
        nulls = ", ".join(
            f"CAST(NULL AS {column.logical_type}) AS {identifier(column.name)}" for column in on.output_columns
        )
        return self._engine.columns(Query(f"SELECT {nulls}", lambda *_: None, catalog=_NAME[0]))

    def _bind(self, policy: v1.Policy, expression: Expression, schema: pa.Schema) -> None:
        if policy.HasField("row_filter"):
            shown = [f"CAST(({expression.sql}) AS BOOLEAN)"]
        else:
            masked = [field for field in schema if column_matches(policy.mask.columns, field.name)]
            shown = [f"CAST({expression.sql} AS {kind})" for kind in sorted(set(map(castable_type, masked)))]
        text = f"SELECT {', '.join(chain(shown, ['1']))} FROM {'.'.join(map(identifier, _NAME))}"  # noqa: S608 - quoted
        self._engine.columns(Query(text, lambda *_: ScannedTable("rows", schema, lambda _: ()), catalog=_NAME[0]))
