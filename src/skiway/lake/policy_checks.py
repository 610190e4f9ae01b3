"""Checks the expressions of policies before they are stored: over the columns of the tables and views that they name."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final

import pyarrow as pa

from skiway.airport import ScanOptions, Table
from skiway.airport.layouts import empty_rows
from skiway.airport.wire.duckdb_sql import castable_type, identifier
from skiway.errors import InvalidArgument, SkiwayError
from skiway.lake.columns import columns_of
from skiway.metastore.records.policies import Subject, column_matches
from skiway.metastore.resources.policies import Relation
from skiway.model import v1
from skiway.sandbox.relations import Expression
from skiway.sql import Query, QueryEngine

__all__ = ["PolicyChecks"]

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
        nulls = ", ".join(f"CAST(NULL AS {each.logical_type}) AS {identifier(each.name)}" for each in on.output_columns)
        return self._engine.columns(Query(f"SELECT {nulls}", lambda *_: None, catalog=_NAME[0]))

    def _bind(self, policy: v1.Policy, expression: Expression, schema: pa.Schema) -> None:
        if policy.HasField("row_filter"):
            shown = [f"CAST(({expression.sql}) AS BOOLEAN)"]
        else:
            masked = [field for field in schema if column_matches(policy.mask.columns, field.name)]
            shown = [f"CAST({expression.sql} AS {kind})" for kind in sorted(set(map(castable_type, masked)))]
        text = f"SELECT {', '.join(chain(shown, ['1']))} FROM {'.'.join(map(identifier, _NAME))}"  # noqa: S608 - quoted
        self._engine.columns(Query(text, lambda *_: _NoRows(schema), catalog=_NAME[0]))


class _NoRows(Table):
    name, comment = "rows", ""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    @property
    def schema(self) -> pa.Schema:
        """The columns to check expressions with."""
        return self._schema

    def scan(self, options: ScanOptions) -> pa.Table:  # noqa: ARG002
        """No rows."""
        return empty_rows(self._schema)
