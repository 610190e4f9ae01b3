"""One question to Spark: the figures of some columns in files that hold them in the same way."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from skiway.errors import Unavailable
from skiway.formats import PartitionSpec
from skiway.formats.locations import location
from skiway.formats.schemas import Leaf
from skiway.pipeline.profile.figures import LONGEST_BOUND, PROFILE, failed_files, figures_of
from skiway.pipeline.profile.layouts import Layout
from skiway.pipeline.profile.values import ValueKind, kept_type, texts, value_kind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Constants", "Scan", "scanned"]

_TRACKED: Final = 1024  # values whose frequency is counted at a time
_FILE: Final = "_metadata.file_path"
_ADDRESS: Final = "$file"


@dataclass(frozen=True, slots=True)
class Constants:
    """Columns that have one value in each file, known from its partition only."""

    columns: tuple[Leaf, ...]
    specs: tuple[PartitionSpec, ...]

    def table(self, files: pa.Table) -> pa.Table:
        """The values as text, a column per column, a row per file."""
        return pa.table({f"k{leaf.id}": _said(self._values(files, leaf), leaf) for leaf in self.columns})

    def _values(self, files: pa.Table, leaf: Leaf) -> pa.Array:
        partition, specs = files["partition"].combine_chunks(), files["spec_id"].combine_chunks()
        target = kept_type(leaf.type)
        values = pa.nulls(files.num_rows, target)
        for spec in self.specs:
            for field in spec.fields:
                if field.source_id == leaf.id and field.transform == "identity":
                    mine = pc.fill_null(pc.equal(specs, spec.id), False)
                    values = pc.if_else(mine, partition.field(str(field.id)).cast(target), values)
        return values


@dataclass(frozen=True, slots=True)
class _Figure:
    """A figure of a column: an aggregate, whose argument is `{}`, of something that is made of each value."""

    sql: str
    of: str


@dataclass(frozen=True, slots=True)
class Scan:
    """What is asked: the figures of `columns`, those in the files and those among the constants."""

    layout: Layout
    columns: tuple[Leaf, ...]
    constants: Constants
    lg_k: int
    top: int

    def opened(self, spark: SparkSession, files: pa.Table) -> DataFrame:
        """The rows of the files, each beside the address of its file."""
        reader = spark.read.schema(self.layout.schema([leaf.id for leaf in self.columns]) or "`nothing` INT")
        # Paths are literal: no wildcards in them, and no values.
        reader = reader.option("recursiveFileLookup", "true").option("__globPaths__", "false")
        places = [_spark_path(path) for path in files["path"].to_pylist()]
        return reader.parquet(*places).selectExpr(f"{_FILE} AS `{_ADDRESS}`", "*")

    def values(self, frame: DataFrame) -> DataFrame:
        """What the figures are computed of, beside the address of the file: the values of the columns, called v0, v1 and
        so on, and what is made of them.
        """
        found = dict(self.layout.found)
        values = [
            f"{found[leaf.id].value if leaf.id in found else _unsaid(leaf)} AS v{place}"
            for place, leaf in enumerate(self.columns)
        ]
        # A sketch evaluates what it is fed with node by node, for each row; a selection is compiled.
        made = [f"{sql} AS {name}" for sql, name in self._arguments().items() if sql != name]
        return frame.selectExpr(f"`{_ADDRESS}`", *values).selectExpr("*", *made)

    def figures(self) -> list[str]:
        """What is computed per file, as SQL."""
        names = self._arguments()
        return ["count(*) AS rows"] + [
            f"{figure.sql.format(names[figure.of])} AS {name}{place}"
            for place, leaf in enumerate(self.columns)
            for name, figure in self._figures(f"v{place}", _kind(leaf)).items()
        ]

    def _arguments(self) -> dict[str, str]:
        """What figures are computed of, as SQL, and the name of the column that it is in."""
        asked = dict.fromkeys(
            figure.of
            for place, leaf in enumerate(self.columns)
            for figure in self._figures(f"v{place}", _kind(leaf)).values()
        )
        return {sql: sql if sql.isalnum() else f"a{number}" for number, sql in enumerate(asked)}

    def _figures(self, v: str, kind: ValueKind) -> dict[str, _Figure]:
        number = f"CASE WHEN isnan({v}) THEN NULL ELSE {v} END" if kind.has_nan else v
        asked = {
            "values": _Figure("count({})", v),
            "min": _Figure("min({})", number),
            "max": _Figure("max({})", number),
            "theta": _Figure(f"theta_sketch_agg({{}}, {self.lg_k})", kind.hashed.format(v=v)),
        }
        if kind.has_nan:
            asked["nans"] = _Figure("count_if({})", f"isnan({v})")
        if kind.width is None:
            asked["width"] = _Figure("sum({})", f"octet_length({v})")
        if kind.number is not None:
            asked["kll"] = _Figure("kll_sketch_agg_double({})", f"CAST({kind.number.format(v=number)} AS DOUBLE)")
        if kind.ranked and self.top:
            told = f"CASE WHEN char_length({v}) <= {LONGEST_BOUND} THEN {v} END" if kind.sql == "STRING" else v
            asked["top"] = _Figure(f"approx_top_k({{}}, {self.top}, {_TRACKED})", told)
        return asked

    def column(self, answer: pa.Table, place: int) -> pa.Table:
        """The part of an answer that is about one column."""
        names = self._figures("", _kind(self.columns[place]))
        return pa.table({"rows": answer["rows"], **{name: answer[f"{name}{place}"] for name in names}})


def scanned(spark: SparkSession, scan: Scan, files: pa.Table) -> tuple[pa.Table, pa.Table, pa.Table]:
    """The profile of the scan's columns; the files that could be read, with their row counts; and the other files.

    Where Spark fails, the files are halved until those are alone that it fails at.
    """
    try:
        return _answered(spark, scan, files)
    except _spark_errors() as error:
        _check_alive(spark)
        if files.num_rows == 1:
            return PROFILE.empty_table(), files.slice(0, 0), failed_files(files, _reason(error))
    middle = files.num_rows // 2
    halves = [scanned(spark, scan, half) for half in (files.slice(0, middle), files.slice(middle))]
    profile, read, failed = (pa.concat_tables(parts) for parts in zip(*halves, strict=True))
    return profile, read, failed


def _answered(spark: SparkSession, scan: Scan, files: pa.Table) -> tuple[pa.Table, pa.Table, pa.Table]:
    from pyspark.sql import functions as F  # noqa: N812

    frame = scan.opened(spark, files)
    addresses = {_path(uri): uri for uri in frame.inputFiles()}  # without those that Spark takes for hidden
    if scan.constants.columns:
        constants = spark.createDataFrame(_addressed(scan.constants.table(files), files, addresses))
        frame = frame.join(F.broadcast(constants), _ADDRESS, "left")
    asked = scan.values(frame).groupBy(f"`{_ADDRESS}`").agg(*map(F.expr, scan.figures()))
    seen = pa.array(addresses, pa.string())
    return _sorted_out(scan, files, asked.toArrow().combine_chunks(), seen=seen)


def _sorted_out(
    scan: Scan, files: pa.Table, answer: pa.Table, *, seen: pa.Array
) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Each file's row of the answer, and what is to be said of files whose rows are not those of the table."""
    paths = pa.array([str(location(path)) for path in files["path"].to_pylist()], pa.string())
    answered = pa.array([_path(uri) for uri in answer[_ADDRESS].to_pylist()], pa.string())
    aligned = answer.take(pc.index_in(paths, value_set=answered))
    rows = pc.fill_null(aligned["rows"], 0).combine_chunks()
    aligned = aligned.set_column(aligned.column_names.index("rows"), "rows", rows)
    told = pc.coalesce(files["row_count"], rows).combine_chunks()
    good = pc.and_(pc.equal(told, rows), pc.is_in(paths, value_set=seen))
    read, aligned = files.filter(good), aligned.filter(good)
    read = read.set_column(read.column_names.index("row_count"), "row_count", aligned["rows"])
    parts = [
        figures_of(read, _completed(scan.column(aligned, place)), column_id=leaf.id, of=leaf.type, kind=_kind(leaf))
        for place, leaf in enumerate(scan.columns)
    ]
    return pa.concat_tables(parts), read, pa.concat_tables(_mismatches(files, told, rows, good))


def _completed(answer: pa.Table) -> pa.Table:
    """With the count of files that have no rows, and so are not in what Spark answers."""
    return answer.set_column(answer.column_names.index("values"), "values", pc.fill_null(answer["values"], 0))


def _mismatches(files: pa.Table, told: pa.Array, rows: pa.Array, good: pa.Array) -> Iterator[pa.Table]:
    yield PROFILE.empty_table()
    for place, fine in enumerate(good.to_pylist()):
        if not fine:
            reason = f"Spark finds {rows[place]} rows in it where the table has {told[place]}"
            yield failed_files(files.slice(place, 1), reason)


def _addressed(constants: pa.Table, files: pa.Table, addresses: Mapping[str, str]) -> pa.Table:
    """Beside the addresses of the files, in both ways in which Spark writes one of this machine."""
    written = [addresses.get(str(location(path)), "") for path in files["path"].to_pylist()]
    short = [re.sub("^file:/+", "file:/", uri) for uri in written]
    long = [re.sub("^file:/+", "file:///", uri) for uri in written]
    both = [constants.append_column(_ADDRESS, pa.array(uris, pa.string())) for uris in (short, long)]
    everything = pa.concat_tables(both).combine_chunks()
    return everything.group_by(everything.column_names).aggregate([])  # elsewhere both ways are the same


def _kind(leaf: Leaf) -> ValueKind:
    kind = value_kind(leaf.type)
    assert kind is not None
    return kind


def _spark_path(path: str) -> str:
    place = location(path)
    return f"s3a://{place.bucket}/{place.path}" if place.scheme == "s3" else f"file:{place.path}"


def _path(uri: str) -> str:
    """The path of a file whose address Spark tells."""
    return str(location(re.sub("^file:/+", "/", unquote(uri))))


def _said(values: pa.Array, leaf: Leaf) -> pa.Array:
    if _kind(leaf).sql == "BIGINT" and not pa.types.is_integer(kept_type(leaf.type)):
        return _micros_or_nanos(values).cast(pa.string())
    return texts(values, leaf.type)


def _micros_or_nanos(values: pa.Array) -> pa.Array:
    if pa.types.is_time(values.type) and values.type.unit != "ns":
        values = values.cast(pa.time64("us"))
    return values.cast(pa.int64())


def _unsaid(leaf: Leaf) -> str:
    """The value of a constant, from its text."""
    if leaf.type == pa.uuid():
        return f"unhex(replace(k{leaf.id}, '-', ''))"
    sql = _kind(leaf).sql
    return f"unbase64(k{leaf.id})" if sql == "BINARY" else f"CAST(k{leaf.id} AS {sql})"


def _check_alive(spark: SparkSession) -> None:
    try:
        spark.range(1).count()
    except _spark_errors() as error:
        raise Unavailable(f"Spark does not answer any more: {_reason(error)}; start it again") from error


def _spark_errors() -> tuple[type[Exception], ...]:
    """What a session raises when a job fails; one in this process also lets errors of its Java through."""
    from pyspark.errors import PySparkException

    try:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    except ImportError:  # a client of Spark Connect alone has no such thing
        return (PySparkException,)
    return PySparkException, Py4JError


def _reason(error: Exception) -> str:
    """The line that tells the kind of error, or else the first."""
    said = str(error).strip()
    told = re.search(r"\[[A-Z][A-Z_.]+\][^\n]*", said)
    return (told[0] if told else said.partition("\n")[0])[:500]
