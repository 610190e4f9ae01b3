"""Tables and columns as records for people and programs: their types, the statistics of a column, and sizes with units."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final

from skiway.errors import NotFound, PreconditionFailed

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from skiway.client.metastore import Id, Metastore, Table
    from skiway.client.metastore.resources import TableStats
    from skiway.model import v1

UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def format_size(count: float) -> str:
    """Format a number of bytes.

    >>> format_size(1536), format_size(12)
    ('1.5 KiB', '12 B')
    """
    number, unit = float(count), 0
    while number >= 1024 and unit < len(UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:.1f} {UNITS[unit]}" if unit else f"{count:.0f} B"


def picked(source: object, *names: str) -> dict[str, Any]:
    """Return these attributes of a record or message by their names. `new=old` gives one another name."""
    pairs = (name.partition("=") for name in names)
    return {new: getattr(source, old or new) for new, _, old in pairs}


class AtMost(int):
    """A number that is an upper bound."""

    def __format__(self, spec: str) -> str:
        return f"at most {int(self):{spec}}"


def row_count(count: int | None, *, is_bound: bool) -> int | None:
    """A number of rows, which is marked if the table has at most that many.

    >>> f"{row_count(1500, is_bound=True):,}", f"{row_count(1500, is_bound=False):,}"
    ('at most 1,500', '1,500')
    """
    return AtMost(count) if count is not None and is_bound else count


BLOCKS: Final = "▁▂▃▄▅▆▇█"
BINS: Final = 16
MAX_FILES: Final = 1000
DATA_FILE: Final = 1


@dataclass(frozen=True, slots=True)
class ColumnRecord:
    """A column in the output."""

    name: str
    type: str
    required: bool


@dataclass(frozen=True, slots=True)
class TableRecord:
    """A table in the output. From `rows` on, the fields describe its current snapshot; None means unknown."""

    name: str
    id: str
    format: str
    origin: str
    description: str | None
    location: str | None
    rows: int | None
    data_files: int | None
    size_bytes: int | None
    snapshot_id: int | None
    columns: tuple[ColumnRecord, ...]
    properties: dict[str, str]
    created_at: datetime | None
    updated_at: datetime | None
    damage: str | None = None
    problem: str | None = None
    rows_are_bound: bool = False

    @classmethod
    def of(cls, table: Table, names: Mapping[str, str], *, name: str | None = None) -> TableRecord:
        """Convert a resource of the client; `names` are the names of connectors by id.

        Give the full `name` of the table where it is known: otherwise the server is asked for it.
        """
        (stats, damage), upstream = _stats(table), table.upstream
        metadata = table.message.metadata_location
        return cls(
            str(table) if name is None else name,
            str(table.id),
            table_format(table),
            "managed" if metadata else names.get(upstream.connector_id.id, "-") if upstream else "-",
            table.description,
            metadata or (upstream.uri if upstream else None),
            row_count(stats.row_count, is_bound=stats.row_count_is_bound),
            stats.data_file_count,
            stats.total_size_bytes,
            stats.snapshot_id,
            _columns(table.schema_json),
            dict(table.properties),
            None if table.damage else table.created_at,
            None if table.damage else table.updated_at,
            damage,
            table.problem or None,
            stats.row_count_is_bound,
        )


def _stats(table: Table) -> tuple[TableStats, str | None]:
    """Return the statistics of a table, and what is wrong if it or they are damaged."""
    from skiway.client.metastore.resources import TableStats

    try:
        return table.stats, table.damage or None
    except PreconditionFailed as error:
        if error.key != "resource.damaged":
            raise
        return TableStats(None), error.message


def table_format(table: Table) -> str:
    """Return the format of a table, such as `iceberg`."""
    from skiway.model import v1

    if table.message.metadata_location:
        return "iceberg"
    if table.upstream is None or not table.upstream.format:
        return "-"
    return v1.TableFormat.Name(table.upstream.format).removeprefix("TF_").lower()


def _columns(schema_json: str) -> tuple[ColumnRecord, ...]:
    """Return the columns of a schema in JSON."""
    fields = json.loads(schema_json or "{}").get("fields", [])
    return tuple(ColumnRecord(each["name"], duckdb_type(each["type"]), bool(each.get("required"))) for each in fields)


def column_comments(table: Table) -> dict[str, str]:
    """Return the comment of each column of a table by its name; empty if the column has none."""
    fields = json.loads(table.schema_json or "{}").get("fields", [])
    return {each["name"]: doc if isinstance(doc := each.get("doc"), str) else "" for each in fields}


DUCKDB_TYPES: Final = {
    "unknown": "NULL",
    "int": "INTEGER",
    "long": "BIGINT",
    "string": "VARCHAR",
    "binary": "BLOB",
    "timestamptz": "TIMESTAMP WITH TIME ZONE",
    "timestamptz_ns": "TIMESTAMP WITH TIME ZONE",
}
"""DuckDB's names of the types of Iceberg that have other ones there."""


def duckdb_type(data_type: Any) -> str:
    """A type in the JSON of a schema in DuckDB's words.

    >>> duckdb_type({"type": "list", "element": "long"}), duckdb_type("decimal(9, 2)")
    ('BIGINT[]', 'DECIMAL(9,2)')
    """
    if isinstance(data_type, str):
        name = data_type.lower()
        return DUCKDB_TYPES.get(name, "BLOB" if name.startswith("fixed[") else name.upper().replace(", ", ","))
    match data_type.get("type"):
        case "list":
            return f"{duckdb_type(data_type['element'])}[]"
        case "map":
            return f"MAP({duckdb_type(data_type['key'])}, {duckdb_type(data_type['value'])})"
        case "struct":
            from skiway.airport.wire.duckdb_sql import quoted_name  # which loads pyarrow

            members = (f"{quoted_name(each['name'])} {duckdb_type(each['type'])}" for each in data_type["fields"])
            return f"STRUCT({', '.join(members)})"
    return str(data_type.get("type")).upper()


def schema_types(schema_json: str) -> dict[str, str]:
    """The types of the columns by their names."""
    return {each.name: each.type for each in _columns(schema_json)}


def nested_types(schema_json: str) -> dict[str, str]:
    """The types of the fields in columns, by their dotted names."""

    def below(name: str, data_type: Any) -> Iterator[tuple[str, str]]:
        if isinstance(data_type, str):
            return
        parts = [(each["name"], each["type"]) for each in data_type.get("fields", ())]
        parts += [(part, data_type[part]) for part in ("element", "key", "value") if part in data_type]
        for part, of in parts:
            yield f"{name}.{part}", duckdb_type(of)
            yield from below(f"{name}.{part}", of)

    fields = json.loads(schema_json or "{}").get("fields", [])
    return dict(found for each in fields for found in below(each["name"], each["type"]))


# -- statistics of columns ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DistinctCount:
    """The number of distinct values. An estimate lies between its bounds with the given confidence."""

    value: int
    lower: int | None = None
    upper: int | None = None
    confidence: float | None = None

    @classmethod
    def of(cls, ndv: v1.Ndv) -> DistinctCount | None:
        """Convert the message; None if the number is unknown."""
        match ndv.WhichOneof("mode"):
            case "exact":
                return cls(ndv.exact)
            case "approx":
                estimate = ndv.approx
                return cls(
                    round(estimate.estimate),
                    round(estimate.confidence_lower) if estimate.HasField("confidence_lower") else None,
                    round(estimate.confidence_upper) if estimate.HasField("confidence_upper") else None,
                    estimate.confidence_level if estimate.HasField("confidence_level") else None,
                )
        return None


@dataclass(frozen=True, slots=True)
class TopValue:
    """A frequent value and its number of occurrences."""

    value: str | None
    count: int


@dataclass(frozen=True, slots=True)
class ColumnProfile:
    """The statistics of a column in one snapshot. None means unknown.

    `quality` says whether a value is exact, an estimate or a bound.
    """

    name: str
    type: str
    values: int
    nulls: int | None
    nans: int | None
    distinct: DistinctCount | None
    min: str | None
    max: str | None
    bounds: tuple[str, ...]
    counts: tuple[int, ...]
    quantiles: dict[str, str]
    top_values: tuple[TopValue, ...]
    avg_width_bytes: float | None
    rows_profiled: int | None
    rows_total: int | None
    quality: dict[str, str]
    errors: str | None

    @classmethod
    def of(cls, stats: v1.ColumnStats, type_name: str) -> ColumnProfile:
        """Convert the statistics that the metastore has stored."""
        properties = stats.properties
        return cls(
            stats.column_name,
            type_name,
            stats.value_count,
            stats.null_count if stats.HasField("null_count") else None,
            stats.nan_count if stats.HasField("nan_count") else None,
            DistinctCount.of(stats.ndv),
            stats.min if stats.HasField("min") else None,
            stats.max if stats.HasField("max") else None,
            tuple(stats.histogram.bounds),
            tuple(stats.histogram.counts),
            json.loads(properties.get("quantiles", "{}")),
            tuple(TopValue(value, count) for value, count in json.loads(properties.get("top_values", "[]"))),
            float(properties["avg_width_bytes"]) if "avg_width_bytes" in properties else None,
            int(properties["rows.profiled"]) if "rows.profiled" in properties else None,
            int(properties["rows.total"]) if "rows.total" in properties else None,
            _quality(properties),
            properties.get("errors"),
        )

    @classmethod
    def of_files(cls, name: str, type_name: str, parts: Sequence[v1.ColumnStats]) -> ColumnProfile:
        """Merge the statistics of the files of a snapshot that was not profiled; they give bounds only."""
        nulls = [part.null_count for part in parts if part.HasField("null_count")]
        lows = [part.min for part in parts if part.HasField("min")]
        highs = [part.max for part in parts if part.HasField("max")]
        filled = [part for part in parts if part.null_count + part.nan_count < part.value_count]  # bounds cover no NaN
        return cls(
            name=name,
            type=type_name,
            values=sum(part.value_count for part in parts),
            nulls=sum(nulls) if len(nulls) == len(parts) else None,
            nans=None,
            distinct=None,
            min=min(lows, key=_order) if lows and len(lows) >= len(filled) else None,
            max=max(highs, key=_order) if highs and len(highs) >= len(filled) else None,
            bounds=(),
            counts=(),
            quantiles={},
            top_values=(),
            avg_width_bytes=None,
            rows_profiled=0,
            rows_total=None,
            quality=dict.fromkeys(("max", "min", "null_count", "value_count"), "bound"),
            errors=None,
        )

    @property
    def null_share(self) -> float | None:
        """The share of values that are NULL."""
        return self.nulls / self.values if self.nulls is not None and self.values else None

    def histogram(self, bins: int = BINS) -> str:
        """Return the histogram as blocks, in bins of equal width from minimum to maximum; "" if there is none."""
        positions = [numeric_position(bound) for bound in self.bounds]
        known = [position for position in positions if position is not None]
        return histogram_bars(known, self.counts, bins) if known and len(known) == len(self.counts) + 1 else ""


def _quality(properties: Mapping[str, str]) -> dict[str, str]:
    found = {key.removeprefix("quality."): value for key, value in properties.items() if key.startswith("quality.")}
    return dict(sorted(found.items()))


def _order(text: str) -> tuple[int, Decimal, str]:
    """The sort key of a bound: numbers by value, everything else as text, which also orders dates and times."""
    try:
        return 0, Decimal(text), ""
    except InvalidOperation:
        return 1, Decimal(0), text


def histogram_bars(positions: Sequence[float], counts: Sequence[int], bins: int) -> str:
    """Draw a histogram as `bins` blocks; an empty bin is blank.

    >>> histogram_bars([0.0, 1.0, 2.0], [10, 30], 4)
    '▃▃██'
    """
    if positions[-1] <= positions[0]:
        return BLOCKS[-1]
    heights = equal_bins(positions, counts, bins, (positions[-1] - positions[0]) / bins)
    top = max(heights)
    return "".join(BLOCKS[min(int(height / top * 8), 7)] if height > 0 else " " for height in heights)


def equal_bins(positions: Sequence[float], counts: Sequence[int], bins: int, width: float) -> list[float]:
    """How many values are in each of some bins of equal width, from the first position on.

    `counts` are the values between two positions each, which are assumed to be evenly distributed. The last bin has its end.
    """
    low, heights = positions[0], [0.0] * bins
    for start, end, count in zip(positions, positions[1:], counts, strict=False):
        first = min(int((start - low) / width), bins - 1)
        for number in range(first, min(int((end - low) / width), bins - 1) + 1):
            left, right = low + number * width, low + (number + 1) * width
            share = max(0.0, min(end, right) - max(start, left)) / (end - start) if end > start else 1.0
            heights[number] += count * share
    return heights


def numeric_position(text: str) -> float | None:
    """Return a bound as a number: its value, or the seconds of a date or time; None for other text."""
    try:
        return float(text)
    except ValueError:
        pass
    for kind in (datetime.fromisoformat, time.fromisoformat):
        try:
            return _seconds(kind(text))
        except ValueError:
            continue
    return None


def _seconds(moment: datetime | time) -> float:
    if isinstance(moment, datetime):
        return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
    return datetime.combine(date(1970, 1, 1), moment.replace(tzinfo=UTC)).timestamp()


def column_profiles(lake: Metastore, table: TableRecord, at: int | None) -> Iterator[ColumnProfile]:
    """Yield the statistics of a table's columns in the order of its schema, each followed by those of its nested fields.

    Without a profile, they are the bounds in the statistics of its files.
    """
    from skiway.client.metastore import Id

    table_id = Id(table.id)  # a name would be resolved in each call
    types = {column.name: column.type for column in table.columns}
    order = {name: number for number, name in enumerate(types)}
    try:
        stored = list(lake.statistics.columns(table_id, at))
        is_empty = at is None and table.data_files == 0
        parts = {} if stored or is_empty else _file_statistics(lake, table_id, table.data_files or 0, at)
    except NotFound as error:
        if error.key != "snapshot.none":
            raise
        return
    for each in sorted(stored, key=lambda one: order.get(top_level(one.column_name, types), len(order))):
        yield ColumnProfile.of(each, types.get(each.column_name, duckdb_type(each.logical_type)))
    for name in sorted(parts, key=lambda one: order.get(top_level(one, types), len(order))):
        yield ColumnProfile.of_files(name, types.get(name, duckdb_type(parts[name][0].logical_type)), parts[name])


def top_level(name: str, columns: Collection[str]) -> str:
    """The column of a table that contains the field with this dotted name; the name itself if there is none."""
    parts = name.split(".")
    candidates = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((each for each in candidates if each in columns), name)


def nested_fields(table: TableRecord, profiles: Mapping[str, ColumnProfile], column: str) -> list[ColumnProfile]:
    """The profiles of the fields in a column of a table, out of those of all columns by name."""
    names = [each.name for each in table.columns]
    return [each for name, each in profiles.items() if name != column and top_level(name, names) == column]


def profile_facts(profile: ColumnProfile | None, before: ColumnProfile | None = None) -> dict[str, Any] | None:
    """A profile as plain data, with what it was `before`."""
    if profile is None:
        return None
    return {
        **picked(profile, "values", "null_share"),
        "null_share_before": before.null_share if before else None,
        "distinct": profile.distinct.value if profile.distinct else None,
        "distinct_before": before.distinct.value if before and before.distinct else None,
        **picked(profile, "min", "max", "bounds", "counts", "quality", "errors"),
        "top_values": top_values_data(profile),
    }


def top_values_data(profile: ColumnProfile) -> list[dict[str, Any]]:
    """The most frequent values of a column as plain data."""
    return [{"value": each.value, "count": each.count} for each in profile.top_values]


def _file_statistics(lake: Metastore, table_id: Id, data_files: int, at: int | None) -> dict[str, list[v1.ColumnStats]]:
    """Return the statistics of all files by column; nothing for many files, as all statistics would be transferred."""
    if data_files > MAX_FILES:
        return {}
    parts: dict[str, list[v1.ColumnStats]] = {}
    for file in lake.statistics.files(table_id, at):
        for column in file.columns if file.file_content <= DATA_FILE else ():
            parts.setdefault(column.column_name, []).append(column)
    return parts


def scalar_fields(message: Message) -> dict[str, Any]:
    """Return the numbers, texts and flags of a message by their names."""
    fields = message.DESCRIPTOR.fields
    return {field.name: getattr(message, field.name) for field in fields if field.message_type is None}


def health_data(health: v1.TableHealth) -> dict[str, Any]:
    """Return the health of a table: figures, the sizes of its files, and which maintenance is worth it."""
    figures = scalar_fields(health)
    del figures["snapshot_id"]
    sizes = [{**scalar_fields(size), "to_bytes": size.to_bytes or None} for size in health.sizes]
    return {"figures": figures, "sizes": sizes, "decisions": list(map(scalar_fields, health.decisions))}
