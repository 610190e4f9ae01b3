"""Exact figures for quality rules: Spark queries over the rows of a snapshot.

Tasks of Spark read the rows with the reader of the table format, only the columns that a rule needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count as count_from
from math import ceil
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from skiway.formats import Snapshot, TableHandle, data_files
from skiway.formats.schemas import Leaf, leaves
from skiway.metastore.quality.facts import column_types, type_of
from skiway.metastore.quality.verdicts import ColumnFacts, Interval, KeyFacts, TableFacts
from skiway.metastore.records.realm import columns_of
from skiway.metastore.statistics.bounds import bound
from skiway.model import v1
from skiway.spark_jobs.profile.figures import typed
from skiway.spark_jobs.profile.values import kind_of, texts, value_kind
from skiway.spark_jobs.session import PINNED, separate_session
from skiway.spark_jobs.summaries.files import converted
from skiway.spark_jobs.tasks import in_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SORTED_VALUES: Final = 20_000
"""How many values are sorted at most to find one of them."""

_SAMPLED_VALUES: Final = 1_000


def measure(
    spark: Callable[[], SparkSession],
    handle: TableHandle,
    snapshot: Snapshot,
    table: v1.Table,
    checks: Sequence[v1.RuleCheck],
) -> TableFacts:
    """Exact facts for these rules, from the rows of the snapshot, which is the current one. Rules use the present names of columns."""
    wanted = dict.fromkeys(name for check in checks for name in columns_of(check))
    by_name = {leaf.path[0]: leaf for leaf in leaves(handle.schema.arrow) if len(leaf.path) == 1}
    columns = {name: by_name[name] for name in wanted if name in by_name and value_kind(by_name[name].type) is not None}
    with separate_session(spark(), PINNED) as session:
        # All rules read the same values. Spark writes to disk what does not fit into its memory.
        values = _frame(session, handle, snapshot, list(columns.values())).persist()
        try:
            return _Rows(values, columns, table).facts(checks)
        finally:
            values.unpersist()


def _frame(spark: SparkSession, handle: TableHandle, snapshot: Snapshot, columns: Sequence[Leaf]) -> DataFrame:
    """The values of the columns in all rows as v0, v1, ... Dates and times are numbers."""
    from pyspark.sql.pandas.types import from_arrow_schema

    files, whole = data_files(handle.files(snapshot)), handle.schema.arrow
    parts = [files.slice(number, 1) for number in range(files.num_rows)]
    names = [leaf.path[0] for leaf in columns] or whole.names[:1]
    kinds = [kind_of(leaf) for leaf in columns]
    types = [_plain_type(kind.type) for kind in kinds]
    values = pa.schema({f"v{place}": of for place, of in enumerate(types)} or {"nothing": pa.bool_()})

    def read(some: pa.Table) -> Iterator[pa.RecordBatch]:
        for rows in handle.read(snapshot, columns=names, files=some, schema=whole):
            arrays = [
                _decoded(converted(rows.column(name), of, kind.unit))
                for name, kind, of in zip(names, kinds, types, strict=False)
            ]
            yield pa.RecordBatch.from_arrays(arrays or [pa.nulls(len(rows), pa.bool_())], schema=values)

    return in_tasks(spark, parts, read, from_arrow_schema(values), are_small=True)


def _plain_type(of: pa.DataType) -> pa.DataType:
    """The type in which values are compared: dates as numbers of days, timestamps as numbers of microseconds."""
    return pa.int64() if pa.types.is_timestamp(of) else pa.int32() if pa.types.is_date(of) else of


def _decoded(values: pa.Array) -> pa.Array:
    return values.dictionary_decode() if isinstance(values, pa.DictionaryArray) else values


@dataclass(frozen=True, slots=True)
class _Rows:
    """All rows: the values of the columns, as v0, v1, ..."""

    values: DataFrame
    columns: dict[str, Leaf]
    table: v1.Table

    def facts(self, checks: Sequence[v1.RuleCheck]) -> TableFacts:
        """The exact facts that the rules need."""
        count = self.values.count()
        found: dict[str, dict[str, Any]] = {name: {} for name in self.columns}
        keys: dict[tuple[str, ...], KeyFacts] = {}
        for check in checks:
            names = columns_of(check)
            if any(name not in self.columns for name in names):
                continue
            match check.WhichOneof("check"):
                case "null_share":
                    share = self._frame(names[0]).where("v0 IS NULL").count() / count if count else 0.0
                    found[names[0]]["null_share"] = Interval(share, share)
                case "distinct_count":
                    number = self._values(names[0]).distinct().count()
                    found[names[0]]["distinct"] = Interval(number, number)
                case "range":
                    found[names[0]] |= self._range(names[0])
                case "quantile":
                    found[names[0]] |= self._quantile(names[0], check.quantile.quantile, found[names[0]])
                case "allowed_values":
                    found[names[0]] |= self._some_values(names[0], len(check.allowed_values.values) + 1)
                case "unique":
                    keys[names] = self._key(names)
        types = column_types(self.table.schema_json)
        columns = {
            name: ColumnFacts(kind, **figures)
            for name, figures in found.items()
            if (kind := type_of(types.get(name, ""))) is not None
        }
        return TableFacts(types, rows=Interval(count, count), columns=columns, keys=keys)

    def _frame(self, *names: str) -> DataFrame:
        """The values of some columns, as v0, v1, ..."""
        places = [list(self.columns).index(name) for name in names]
        return self.values.selectExpr(*(f"v{place} AS v{number}" for number, place in enumerate(places)))

    def _values(self, name: str) -> DataFrame:
        return self._frame(name).where("v0 IS NOT NULL")

    def _numbers(self, name: str) -> DataFrame:
        """The values that have an order: all but NULL and NaN."""
        values = self._values(name)
        return values.where("NOT isnan(v0)") if kind_of(self.columns[name]).has_nan else values

    def _texts(self, name: str, frame: DataFrame) -> list[str | None]:
        """The values of the first column in canonical form."""
        leaf = self.columns[name]
        values = typed(frame.toArrow().column(0).combine_chunks().cast(kind_of(leaf).type), leaf.type)
        found: list[str | None] = texts(values, leaf.type).to_pylist()
        return found

    def _parsed(self, name: str, frame: DataFrame) -> list[Any]:
        kind = type_of(column_types(self.table.schema_json)[name])
        assert kind is not None
        return [bound(kind, text).value for text in self._texts(name, frame) if text is not None]

    def _range(self, name: str) -> dict[str, Any]:
        ends = self._numbers(name).selectExpr("explode(array(min(v0), max(v0))) AS value")
        found = self._parsed(name, ends)
        if not found:
            return {"distinct": Interval(0, 0)}
        low, high = found
        return {"least": Interval(low, low), "most": Interval(high, high)}

    def _quantile(self, name: str, rank: float, before: dict[str, Any]) -> dict[str, Any]:
        """The smallest value whose rank is at least the given one."""
        numbers = self._numbers(name)
        count = numbers.count()
        if not count:
            return {"distinct": Interval(0, 0)}
        place = max(ceil(rank * count), 1)
        (value,) = self._parsed(name, _at_place(numbers, count, place))
        return {"quantiles": {**before.get("quantiles", {}), rank: value}}

    def _some_values(self, name: str, most: int) -> dict[str, Any]:
        """Up to `most` different values. NaN has no text, so it is shown by name."""
        found = self._texts(name, self._values(name).distinct().limit(most))
        return {"values": [text if text is not None else "NaN" for text in found], "is_complete": len(found) < most}

    def _key(self, names: Sequence[str]) -> KeyFacts:
        frame = self._frame(*names)
        complete = " AND ".join(f"{v} IS NOT NULL" for v in frame.columns)
        repeated = frame.where(complete).groupBy(*frame.columns).count().where("count > 1").count()
        return KeyFacts(repeated, frame.where(f"NOT ({complete})").count())


def _at_place(values: DataFrame, count: int, place: int) -> DataFrame:
    """The value at a place in the order of all values, counted from 1.

    To sort and skip values, Spark would keep all that are below the place in memory. So while there are too many, two values
    of a random sample narrow them down, and all values are only compared with these, and counted.
    """
    from pyspark.sql import functions as f

    key = f.col("v0")
    for seed in count_from(0):
        if count <= _SORTED_VALUES:
            break
        sampled = values.sample(_SAMPLED_VALUES / count, seed).select(key).limit(2 * _SAMPLED_VALUES)
        pivots = sorted(row.v0 for row in sampled.collect())
        if not pivots:
            continue
        middle, margin = place / count * len(pivots), 2 * len(pivots) ** 0.5
        low = pivots[max(0, int(middle - margin))]
        high = pivots[min(len(pivots) - 1, int(middle + margin))]
        conditions = key < f.lit(low), key == f.lit(low), key < f.lit(high), key == f.lit(high)
        (row,) = values.select(*(f.count_if(each).alias(f"n{n}") for n, each in enumerate(conditions))).collect()
        below_low, at_low, below_high, at_high = row
        if below_low < place <= below_low + at_low:
            return values.where(key == f.lit(low)).limit(1)
        if below_high < place <= below_high + at_high:
            return values.where(key == f.lit(high)).limit(1)
        if place <= below_low:
            values, count = values.where(key < f.lit(low)), below_low
        elif place <= below_high:
            values = values.where((key > f.lit(low)) & (key < f.lit(high)))
            count, place = below_high - below_low - at_low, place - below_low - at_low
        else:
            values, count = values.where(key > f.lit(high)), count - below_high - at_high
            place -= below_high + at_high
    return values.sort(key).offset(place - 1).limit(1)
