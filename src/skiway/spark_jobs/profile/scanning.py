"""One Spark query: the figures of some columns in files with the same layout.

With the jars of an object store, Spark reads its files itself: those of a connector with the credentials of the connector, never with
its own. The session of Spark has the credentials of the server. A connector could name a bucket that only the server may read,
at an endpoint of its own that has files of the same names, and would get statistics of the server's files. So every read of a
connector's files sets endpoint and credentials for each bucket; they take precedence over all settings of the session.

Without these jars, the tasks read the files with the reader of the lake, so object stores work on every Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, cast
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from skiway.errors import PreconditionFailed, Unavailable
from skiway.formats import PartitionSpec, location
from skiway.formats.files import Files
from skiway.formats.schemas import Leaf
from skiway.foundation.causes import DISK_FULL, cause_of
from skiway.spark_jobs.interruption import check_interrupted
from skiway.spark_jobs.profile.figures import MAX_BOUND_LENGTH, PROFILE, failed_files, figures_of
from skiway.spark_jobs.profile.layouts import ELEMENT, Layout
from skiway.spark_jobs.profile.values import ValueKind, storage_type_of, texts, value_kind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ADDRESS: Final = "file_address"
_BATCH_ROWS: Final = 65_536

_PROVIDERS = "org.apache.hadoop.fs.s3a"


def s3_options(paths: Iterable[str], access: Mapping[str, str] | None) -> dict[str, str]:
    """The options of a read of these files. `access` are S3 properties; with None, Spark uses its own credentials."""
    buckets = {place.bucket for place in map(location, paths) if place.scheme == "s3"} if access is not None else set()
    # Hadoop would reuse a connection to the same bucket that was made with other credentials.
    options = {"fs.s3a.impl.disable.cache": "true"} if buckets else {}
    for bucket in sorted(buckets):
        options |= {f"fs.s3a.bucket.{bucket}.{name}": value for name, value in _settings(access or {}).items()}
    return options


def _settings(access: Mapping[str, str]) -> dict[str, str]:
    key, secret = access.get("s3.access-key-id", ""), access.get("s3.secret-access-key", "")
    token, endpoint = access.get("s3.session-token", ""), access.get("s3.endpoint", "")
    kind = "TemporaryAWSCredentialsProvider" if token else "SimpleAWSCredentialsProvider"
    settings = {
        "aws.credentials.provider": f"{_PROVIDERS}.{kind if key else 'AnonymousAWSCredentialsProvider'}",
        "access.key": key,
        "secret.key": secret,
        "session.token": token,
        "endpoint": endpoint or "s3.amazonaws.com",
        "path.style.access": str(bool(endpoint)).lower(),
        "connection.ssl.enabled": str(urlsplit(endpoint).scheme != "http").lower(),
        "endpoint.region": access.get("s3.region", ""),
    }
    return {name: value for name, value in settings.items() if value}


def rows_in_tasks(spark: SparkSession, access: Files, addresses: Mapping[str, str], schema: str) -> DataFrame:
    """The rows of Parquet files, one task for each, in the columns of `schema`, as DDL, and the address of the file."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    result = cast(StructType, StructType.fromDDL(f"{ADDRESS} STRING, {schema}"))
    columns = to_arrow_schema(StructType(result.fields[1:]), timestamp_utc=True)
    places = list(addresses.items())

    def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                path, address = places[number]
                with access.open(path) as source:
                    yield from _read(source, columns, address)

    return spark.range(0, len(places), 1, max(1, len(places))).mapInArrow(read, result)


def _read(source: pa.NativeFile, columns: pa.Schema, address: str) -> Iterator[pa.RecordBatch]:
    file = pq.ParquetFile(source)
    here = [name for name in columns.names if name in file.schema_arrow.names]
    for rows in file.iter_batches(_BATCH_ROWS, columns=here):
        found = [
            _converted(rows.column(field.name), field.type) if field.name in here else pa.nulls(len(rows), field.type)
            for field in columns
        ]
        yield pa.RecordBatch.from_arrays([pa.repeat(address, len(rows)), *found], [ADDRESS, *columns.names])


def _converted(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values as Spark would read them: times and nanoseconds as numbers, and only the chosen fields of structs.

    The fields of a missing struct are NULL, which is all that counts: only they are profiled.
    """
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_struct(kind):
        parts = [_converted(column.field(field.name), field.type) for field in kind]
        return pa.StructArray.from_arrays(parts, fields=list(kind))
    return column.cast(kind)


_TRACKED: Final = 1024  # number of values that approx_top_k tracks
_FILE: Final = "_metadata.file_path"
_ADDRESS: Final = "$file"
_NO_FILE_SYSTEM: Final = re.compile(r"FileSystem not found|No FileSystem for scheme")
"""What Spark says if it lacks the jars for an object store."""


@dataclass(frozen=True, slots=True)
class Constants:
    """Columns with a single value per file, which is only in its partition."""

    columns: tuple[Leaf, ...]
    specs: tuple[PartitionSpec, ...]

    def table(self, files: pa.Table) -> pa.Table:
        """The values as text, with a row per file."""
        return pa.table({f"k{leaf.id}": _as_text(self.values(files, leaf), leaf) for leaf in self.columns})

    def values(self, files: pa.Table, leaf: Leaf) -> pa.Array:
        """The values of a column, with a row per file."""
        partition, specs = files["partition"].combine_chunks(), files["spec_id"].combine_chunks()
        target = storage_type_of(leaf.type)
        values = pa.nulls(files.num_rows, target)
        for spec in self.specs:
            for field in spec.fields:
                if field.source_id == leaf.id and field.transform == "identity":
                    mine = pc.fill_null(pc.equal(specs, spec.id), False)
                    values = pc.if_else(mine, partition.field(str(field.id)).cast(target), values)
        return values


@dataclass(frozen=True, slots=True)
class _Figure:
    """A figure of a column: an aggregate function `sql` with `{}` for its argument, which is the SQL `of`."""

    sql: str
    of: str


class ScanResult(NamedTuple):
    """The profile of some columns, the files that could be read, with their row counts, and the profile of those that failed."""

    profile: pa.Table
    read: pa.Table
    failed: pa.Table


@dataclass(frozen=True, slots=True)
class Scan:
    """The query for the figures of `columns`, which are in the files or among the constants.

    A column in lists or maps is the only one of its query, because there its values are the rows.
    """

    layout: Layout
    columns: tuple[Leaf, ...]
    constants: Constants
    lg_k: int
    top: int
    access: Files | None = None

    @property
    def elements(self) -> str | None:
        """The SQL for the array of the values, if the column is in lists or maps."""
        found = dict(self.layout.found)
        arrays = (found[leaf.id].array for leaf in self.columns if leaf.id in found)
        return next(filter(None, arrays), None)

    def opened(self, spark: SparkSession, files: pa.Table) -> DataFrame:
        """The rows of the files, with the address of the file in a column."""
        reader = spark.read.schema(self._read_schema)
        # Take paths literally: no wildcards, and no partition values.
        reader = reader.option("recursiveFileLookup", "true").option("__globPaths__", "false")
        own = None if self.access is None else self.access.own_s3_access
        reader = reader.options(**s3_options(files["path"].to_pylist(), own))
        places = [_spark_path(path) for path in files["path"].to_pylist()]
        return reader.parquet(*places).selectExpr(f"{_FILE} AS `{_ADDRESS}`", "*")

    def opened_in_tasks(self, spark: SparkSession, access: Files, addresses: Mapping[str, str]) -> DataFrame:
        """The same rows, which the tasks read without Spark's file systems. `addresses` are those of the files by path."""
        return rows_in_tasks(spark, access, addresses, self._read_schema).withColumnRenamed(ADDRESS, _ADDRESS)

    @property
    def _read_schema(self) -> str:
        return self.layout.schema([leaf.id for leaf in self.columns]) or "`nothing` INT"

    def values(self, frame: DataFrame) -> DataFrame:
        """The address of the file, and the values of the columns as v0, v1, ..."""
        found = dict(self.layout.found)
        if self.elements is not None:
            frame = frame.selectExpr(f"`{_ADDRESS}`", f"explode({self.elements}) AS {ELEMENT}")
        values = [
            f"{found[leaf.id].value if leaf.id in found else _parsed_constant(leaf)} AS v{place}"
            for place, leaf in enumerate(self.columns)
        ]
        return frame.selectExpr(f"`{_ADDRESS}`", *values)

    def aggregated(self, values: DataFrame) -> pa.Table:
        """The figures per file, computed with aggregates of Spark."""
        from pyspark.sql import functions as F  # noqa: N812

        names = self._arguments()
        # Sketch aggregates interpret their argument for each row; a projection is compiled.
        made = [f"{sql} AS {name}" for sql, name in names.items() if sql != name]
        figures = ["count(*) AS rows"] + [
            f"{figure.sql.format(names[figure.of])} AS {name}{place}"
            for place, leaf in enumerate(self.columns)
            for name, figure in self._figures(f"v{place}", kind_of(leaf)).items()
        ]
        arguments = values.selectExpr("*", *made)
        return arguments.groupBy(f"`{_ADDRESS}`").agg(*map(F.expr, figures)).toArrow()

    def _arguments(self) -> dict[str, str]:
        """The arguments of all aggregates, as SQL, with the names of their columns."""
        figures = dict.fromkeys(
            figure.of
            for place, leaf in enumerate(self.columns)
            for figure in self._figures(f"v{place}", kind_of(leaf)).values()
        )
        return {sql: sql if sql.isalnum() else f"a{number}" for number, sql in enumerate(figures)}

    def _figures(self, v: str, kind: ValueKind) -> dict[str, _Figure]:
        number = f"CASE WHEN isnan({v}) THEN NULL ELSE {v} END" if kind.has_nan else v
        figures = {
            "values": _Figure("count({})", v),
            "min": _Figure("min({})", number),
            "max": _Figure("max({})", number),
            "theta": _Figure(f"theta_sketch_agg({{}}, {self.lg_k})", kind.hashed.format(v=v)),
        }
        if kind.has_nan:
            figures["nans"] = _Figure("count_if({})", f"isnan({v})")
        if kind.width is None:
            figures["width"] = _Figure("sum({})", f"octet_length({v})")
        if kind.number is not None:
            figures["kll"] = _Figure("kll_sketch_agg_double({})", f"CAST({kind.number.format(v=number)} AS DOUBLE)")
        if kind.ranked and self.top:
            short = f"CASE WHEN char_length({v}) <= {MAX_BOUND_LENGTH} THEN {v} END" if kind.sql == "STRING" else v
            figures["top"] = _Figure(f"approx_top_k({{}}, {self.top}, {_TRACKED})", short)
        return figures

    def figure_names(self, place: int) -> list[str]:
        """The names of the figures of a column."""
        return list(self._figures("", kind_of(self.columns[place])))

    def column(self, result: pa.Table, place: int) -> pa.Table:
        """The part of a result that is about one column."""
        names = self.figure_names(place)
        return pa.table({"rows": result["rows"], **{name: result[f"{name}{place}"] for name in names}})


ScanFiles: TypeAlias = Callable[[Scan, pa.Table], ScanResult]
"""Runs a scan of files, in whichever way."""


def run_scan(spark: SparkSession, scan: Scan, files: pa.Table) -> ScanResult:
    """Run the query. If Spark fails, the files are bisected until the failing ones are isolated."""
    try:
        return _queried(spark, scan, files)
    except spark_errors() as error:
        check_interrupted(error)
        _check_alive(spark)
        _check_setup(error)
        if files.num_rows == 1:
            return ScanResult(PROFILE.empty_table(), files.slice(0, 0), failed_files(files, _reason(error)))
    middle = files.num_rows // 2
    halves = [run_scan(spark, scan, half) for half in (files.slice(0, middle), files.slice(middle))]
    return joined_results(halves)


def joined_results(results: Sequence[ScanResult]) -> ScanResult:
    """The results for different files as one."""
    return ScanResult(*(pa.concat_tables(parts) for parts in zip(*results, strict=True)))


def _queried(spark: SparkSession, scan: Scan, files: pa.Table) -> ScanResult:
    frame, addresses = opened_rows(spark, scan, files)
    figures = scan.aggregated(scan.values(frame)).combine_chunks()
    paths = pa.array([_path(uri) for uri in figures[_ADDRESS].to_pylist()], pa.string())
    return matched_with_files(scan, files, figures, paths=paths, seen=pa.array(addresses, pa.string()))


def opened_rows(spark: SparkSession, scan: Scan, files: pa.Table) -> tuple[DataFrame, Mapping[str, str]]:
    """The rows of the files with all constants, and the addresses of the files by path, without those that Spark hides."""
    from pyspark.sql import functions as F  # noqa: N812

    try:
        frame = scan.opened(spark, files)
        addresses = {_path(uri): uri for uri in frame.inputFiles()}
    except spark_errors() as error:
        if scan.access is None or not _NO_FILE_SYSTEM.search(str(error)):
            raise
        addresses = {path: quote(path, safe="/:") for path in map(str, map(location, files["path"].to_pylist()))}
        frame = scan.opened_in_tasks(spark, scan.access, addresses)
    if scan.constants.columns:
        constants = spark.createDataFrame(_addressed(scan.constants.table(files), files, addresses))
        frame = frame.join(F.broadcast(constants), _ADDRESS, "left")
    return frame, addresses


def rows_from_arrow(spark: SparkSession, rows: pa.Table, columns: Sequence[Leaf]) -> DataFrame:
    """Rows that were read into memory, with the values of the columns as v0, v1, ... as in a scan."""
    values = {
        f"k{leaf.id}": column if kind_of(leaf).has_nan else pa.chunked_array([_as_text(_stored(column, leaf), leaf)])
        for leaf, column in zip(columns, rows.columns, strict=True)
    }
    frame = spark.createDataFrame(pa.table(values))
    return frame.selectExpr(*(f"{_parsed_constant(leaf)} AS v{place}" for place, leaf in enumerate(columns)))


def _stored(column: pa.ChunkedArray, leaf: Leaf) -> pa.Array:
    found = column.combine_chunks()
    found = found.storage if isinstance(found, pa.ExtensionArray) else found
    return found.cast(storage_type_of(leaf.type))


def matched_with_files(scan: Scan, files: pa.Table, result: pa.Table, *, paths: pa.Array, seen: pa.Array) -> ScanResult:
    """Match a result, which has figures of the files at `paths`, with the files.

    A file that is not in `seen`, or whose row count differs from the table's, counts as failed.
    """
    wanted = pa.array([str(location(path)) for path in files["path"].to_pylist()], pa.string())
    aligned = result.take(pc.index_in(wanted, value_set=paths))
    rows = pc.fill_null(aligned["rows"], 0).combine_chunks()
    aligned = aligned.set_column(aligned.column_names.index("rows"), "rows", rows)
    has_elements = scan.elements is not None
    expected = rows if has_elements else pc.coalesce(files["row_count"], rows).combine_chunks()
    good = pc.and_(pc.equal(expected, rows), pc.is_in(wanted, value_set=seen))
    read, aligned = files.filter(good), aligned.filter(good)
    if not has_elements:
        read = read.set_column(read.column_names.index("row_count"), "row_count", aligned["rows"])
    parts = [
        figures_of(
            read,
            _completed(scan.column(aligned, place)),
            column_id=leaf.id,
            of=leaf.type,
            kind=kind_of(leaf),
            elements=has_elements,
        )
        for place, leaf in enumerate(scan.columns)
    ]
    return ScanResult(pa.concat_tables(parts), read, pa.concat_tables(_mismatches(files, expected, rows, good)))


def _completed(result: pa.Table) -> pa.Table:
    """Set the counts of files without rows, which are missing from the result of Spark."""
    return result.set_column(result.column_names.index("values"), "values", pc.fill_null(result["values"], 0))


def _mismatches(files: pa.Table, expected: pa.Array, rows: pa.Array, good: pa.Array) -> Iterator[pa.Table]:
    yield PROFILE.empty_table()
    for place, fine in enumerate(good.to_pylist()):
        if not fine:
            reason = f"{rows[place]} rows were found in it, but the table has {expected[place]}"
            yield failed_files(files.slice(place, 1), reason)


def _addressed(constants: pa.Table, files: pa.Table, addresses: Mapping[str, str]) -> pa.Table:
    """Add the addresses of the files, in both forms that Spark uses for local files."""
    written = [addresses.get(str(location(path)), "") for path in files["path"].to_pylist()]
    short = [re.sub("^file:/+", "file:/", uri) for uri in written]
    long = [re.sub("^file:/+", "file:///", uri) for uri in written]
    both = [constants.append_column(_ADDRESS, pa.array(uris, pa.string())) for uris in (short, long)]
    everything = pa.concat_tables(both).combine_chunks()
    return everything.group_by(everything.column_names).aggregate([])  # other addresses have only one form


def kind_of(leaf: Leaf) -> ValueKind:
    """The kind of the values of a column that is profiled."""
    kind = value_kind(leaf.type)
    assert kind is not None
    return kind


def _spark_path(path: str) -> str:
    place = location(path)
    if place.scheme == "file":
        return f"file:{place.path}"
    return f"s3a://{place.bucket}/{place.path}" if place.scheme == "s3" else str(place)


def _path(uri: str) -> str:
    """Convert an address from Spark to a path."""
    return str(location(re.sub("^file:/+", "/", unquote(uri))))


def _as_text(values: pa.Array, leaf: Leaf) -> pa.Array:
    if kind_of(leaf).sql == "BIGINT" and not pa.types.is_integer(storage_type_of(leaf.type)):
        return _micros_or_nanos(values).cast(pa.string())
    return texts(values, leaf.type)


def _micros_or_nanos(values: pa.Array) -> pa.Array:
    if pa.types.is_time(values.type) and values.type.unit != "ns":
        values = values.cast(pa.time64("us"))
    return values.cast(pa.int64())


def _parsed_constant(leaf: Leaf) -> str:
    """The SQL that parses the value of a constant from its text."""
    if leaf.type == pa.uuid():
        return f"unhex(replace(k{leaf.id}, '-', ''))"
    sql = kind_of(leaf).sql
    return f"unbase64(k{leaf.id})" if sql == "BINARY" else f"CAST(k{leaf.id} AS {sql})"


def _check_alive(spark: SparkSession) -> None:
    try:
        spark.range(1).count()
    except spark_errors() as error:
        check_interrupted(error)
        raise Unavailable(f"Spark no longer responds: {_reason(error)}; restart it") from error


def _check_setup(error: Exception) -> None:
    """Raise if the error concerns all files: a disk is full, or a bucket is missing."""
    cause = cause_of(error)
    if cause is not None:
        kind = Unavailable if cause is DISK_FULL else PreconditionFailed
        raise kind(f"Spark failed: {cause.sentence}", key=cause.key, detail=_reason(error)) from error


def spark_errors() -> tuple[type[Exception], ...]:
    """The exceptions that a session raises if a job fails; a local one also raises errors of Py4J."""
    from pyspark.errors import PySparkException

    try:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    except ImportError:  # a client-only install of Spark Connect does not have it
        return (PySparkException,)
    return PySparkException, Py4JError


def _reason(error: Exception) -> str:
    """The line with the error class, or else the first line."""
    message = str(error).strip()
    found = re.search(r"\[[A-Z][A-Z_.]+\][^\n]*", message)
    return (found[0] if found else message.partition("\n")[0])[:500]
