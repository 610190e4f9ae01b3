"""Exact figures for quality rules: a Spark query over the rows of a snapshot.

Spark reads Parquet files directly, like a profile does. Files with deleted rows, in other formats, or without one of the columns are
read in this process by the reader of the table format, only the needed columns, and passed to Spark in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import count as count_from
from math import ceil
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.errors import PreconditionFailed, SkiwayError
from skiway.formats import Content, Snapshot, TableHandle
from skiway.formats.schemas import Leaf, leaves
from skiway.metastore.quality.facts import column_types, type_of
from skiway.metastore.quality.verdicts import ColumnFacts, Interval, KeyFacts, TableFacts
from skiway.metastore.records.realm import columns_of
from skiway.metastore.statistics.bounds import bound
from skiway.model import v1
from skiway.spark_jobs.profile.figures import typed
from skiway.spark_jobs.profile.job import USUAL, profile_session
from skiway.spark_jobs.profile.layouts import FileSchemas, Layout, file_schemas, layout_of
from skiway.spark_jobs.profile.scanning import Constants, Scan, opened_rows, rows_from_arrow
from skiway.spark_jobs.profile.values import texts, value_kind

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
    by_name = {".".join(leaf.path): leaf for leaf in leaves(handle.schema.arrow)}
    columns = [by_name[name] for name in wanted if name in by_name and value_kind(by_name[name].type) is not None]
    with profile_session(spark()) as session:
        rows = _Rows(_frame(session, handle, snapshot, columns), {leaf.path[0]: leaf for leaf in columns}, table)
        return rows.facts(checks)


def _frame(spark: SparkSession, handle: TableHandle, snapshot: Snapshot, columns: Sequence[Leaf]) -> DataFrame:
    """The values of the columns in all rows as v0, v1, ..."""
    data = handle.files(snapshot)
    data = data.filter(pc.field("content") == Content.DATA)
    whole = pc.and_(
        pc.fill_null(pc.equal(data["deleted_rows"], 0), False),
        pc.and_(
            pc.equal(data["format"], "parquet"), pc.equal(pc.fill_null(pc.list_value_length(data["deletes"]), 0), 0)
        ),
    )
    frames, others = [], data.filter(pc.invert(whole))
    for layout, files in _by_layout(data.filter(whole), columns, file_schemas(handle, snapshot), handle, snapshot):
        if layout is None:
            others = pa.concat_tables([others, files])
        else:
            frames.append(_read_by_spark(spark, handle, snapshot, layout, files, columns))
    if others.num_rows or not frames:
        schema = handle.schema.arrow
        names = [leaf.path[0] for leaf in columns] or schema.names[:1]
        rows = handle.read(snapshot, columns=names, files=others, schema=schema).read_all()
        frames.append(_in_memory(spark, rows, columns))
    return reduce(lambda one, other: one.unionAll(other), frames)


def _in_memory(spark: SparkSession, rows: pa.Table, columns: Sequence[Leaf]) -> DataFrame:
    if columns:
        return rows_from_arrow(spark, rows, columns)
    return spark.range(rows.num_rows).selectExpr()


def _by_layout(
    files: pa.Table, columns: Sequence[Leaf], schemas: FileSchemas, handle: TableHandle, snapshot: Snapshot
) -> Iterator[tuple[Layout | None, pa.Table]]:
    """Group files by layout, which is None if Spark does not find all columns in them or in their partition."""
    in_path = _in_path(handle, snapshot)

    def layout(path: str) -> Layout | None:
        try:
            found = layout_of(schemas(path), columns)
        except SkiwayError:
            return None
        known = {number for number, _ in found.found} | in_path
        return found if all(leaf.id in known for leaf in columns) and not found.refused else None

    layouts = [layout(path) for path in files["path"].to_pylist()]
    for one in dict.fromkeys(layouts):
        yield one, files.filter(pa.array([each == one for each in layouts], pa.bool_()))


def _in_path(handle: TableHandle, snapshot: Snapshot) -> set[int]:
    specs = handle.partition_specs_at(snapshot)
    return {field.source_id for spec in specs for field in spec.fields if field.transform == "identity"}


def _read_by_spark(
    spark: SparkSession,
    handle: TableHandle,
    snapshot: Snapshot,
    layout: Layout,
    files: pa.Table,
    columns: Sequence[Leaf],
) -> DataFrame:
    found = {number for number, _ in layout.found}
    constants = tuple(leaf for leaf in columns if leaf.id not in found)
    specs = handle.partition_specs_at(snapshot)
    scan = Scan(
        layout, tuple(columns), Constants(constants, tuple(specs)), lg_k=USUAL.lg_k, top=0, access=handle.file_access
    )
    frame, _ = opened_rows(spark, scan, files)
    values = scan.values(frame).selectExpr(*(f"v{place}" for place in range(len(columns))))
    expected, seen = pc.sum(files["row_count"], skip_nulls=False).as_py(), values.count()
    if expected is not None and seen != expected:
        raise PreconditionFailed(
            f"Spark finds {seen} rows in files of which the table has {expected}: files whose names begin with _ or . are "
            "hidden from Spark; rewrite the table with skiway tables optimize",
            key="quality.rows",
        )
    return values


@dataclass(frozen=True, slots=True)
class _Rows:
    """All rows, with the values of some columns as v0, v1, ..."""

    frame: DataFrame
    columns: dict[str, Leaf]
    table: v1.Table

    def facts(self, checks: Sequence[v1.RuleCheck]) -> TableFacts:
        """The exact facts that the rules need."""
        count = self.frame.count()
        found: dict[str, dict[str, Any]] = {name: {} for name in self.columns}
        keys: dict[tuple[str, ...], KeyFacts] = {}
        for check in checks:
            names = columns_of(check)
            if any(name not in self.columns for name in names):
                continue
            match check.WhichOneof("check"):
                case "null_share":
                    share = self._where(names[0], "{v} IS NULL").count() / count if count else 0.0
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

    def _v(self, name: str) -> str:
        return f"v{list(self.columns).index(name)}"

    def _where(self, name: str, condition: str) -> DataFrame:
        return self.frame.where(condition.format(v=self._v(name))).select(self._v(name))

    def _values(self, name: str) -> DataFrame:
        return self._where(name, "{v} IS NOT NULL")

    def _numbers(self, name: str) -> DataFrame:
        """The values that have an order: all but NULL and NaN."""
        kind = value_kind(self.columns[name].type)
        assert kind is not None
        return self._where(name, "{v} IS NOT NULL AND NOT isnan({v})" if kind.has_nan else "{v} IS NOT NULL")

    def _texts(self, name: str, frame: DataFrame) -> list[str | None]:
        """The values of the first column in canonical form."""
        of = self.columns[name].type
        found: list[str | None] = texts(typed(frame.toArrow().column(0).combine_chunks(), of), of).to_pylist()
        return found

    def _parsed(self, name: str, frame: DataFrame) -> list[Any]:
        kind = type_of(column_types(self.table.schema_json)[name])
        assert kind is not None
        return [bound(kind, text).value for text in self._texts(name, frame) if text is not None]

    def _range(self, name: str) -> dict[str, Any]:
        numbers, v = self._numbers(name), self._v(name)
        low = self._parsed(name, numbers.selectExpr(f"min({v}) AS value"))
        if not low:
            return {"distinct": Interval(0, 0)}
        (high,) = self._parsed(name, numbers.selectExpr(f"max({v}) AS value"))
        return {"least": Interval(low[0], low[0]), "most": Interval(high, high)}

    def _quantile(self, name: str, rank: float, before: dict[str, Any]) -> dict[str, Any]:
        """The smallest value whose rank is at least the given one."""
        numbers = self._numbers(name)
        count = numbers.count()
        if not count:
            return {"distinct": Interval(0, 0)}
        place = max(ceil(rank * count), 1)
        (value,) = self._parsed(name, self._at_place(name, numbers, count, place))
        return {"quantiles": {**before.get("quantiles", {}), rank: value}}

    def _at_place(self, name: str, values: DataFrame, count: int, place: int) -> DataFrame:
        """The value at a place in the order of all values, counted from 1.

        To sort and skip values, Spark would keep all that are below the place in memory. So while there are too many, two values
        of a random sample narrow them down, and all values are only compared with these, and counted.
        """
        from pyspark.sql import functions as f

        kind = value_kind(self.columns[name].type)
        assert kind is not None
        key = f.expr((kind.number or "{v}").format(v=self._v(name)))
        for seed in count_from(0):
            if count <= _SORTED_VALUES:
                break
            sampled = values.sample(_SAMPLED_VALUES / count, seed).select(key.alias("key")).limit(2 * _SAMPLED_VALUES)
            pivots = sorted(row.key for row in sampled.collect())
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
        return values.sort(self._v(name)).offset(place - 1).limit(1)

    def _some_values(self, name: str, most: int) -> dict[str, Any]:
        """Up to so many different values. NaN has no text, so it is shown by name."""
        found = self._texts(name, self._values(name).distinct().limit(most))
        return {"values": [text if text is not None else "NaN" for text in found], "is_complete": len(found) < most}

    def _key(self, names: Sequence[str]) -> KeyFacts:
        key = [self._v(name) for name in names]
        complete = " AND ".join(f"{v} IS NOT NULL" for v in key)
        repeated = self.frame.where(complete).groupBy(*key).count().where("count > 1").count()
        return KeyFacts(repeated, self.frame.where(f"NOT ({complete})").count())
