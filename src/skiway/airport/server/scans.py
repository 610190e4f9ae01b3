"""Reading tables and table functions: the `endpoints` action, and the DoGet stream of a ticket as frames.

The client reads columns by position and does not check them. Every batch is therefore sent with exactly the bound
schema: columns are matched by name and cast if necessary, and columns that were not requested are NULL. A requested column
that is missing, that occurs twice, or that is NOT NULL and has NULLs, is an error: the client would show wrong values.
NULL columns still have buffers full of zeros; if they make up most of a batch, they are sent compressed, which takes
almost no space.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
from msgspec import structs

from skiway.airport import filters
from skiway.airport.catalog import Catalog, Planned, Table
from skiway.airport.conversion import cast_array
from skiway.airport.functions import TableFunction, read_arguments, read_row
from skiway.airport.request import Request, ServedCall, call_of
from skiway.airport.server.host import Host, OpenedTable, open_table, open_table_function
from skiway.airport.server.tickets import (
    DATABASES,
    ObjectPath,
    Ticket,
    as_plain,
    fingerprint,
    flight_info_of,
    function_changed,
    parse_descriptor,
    table_changed,
)
from skiway.airport.table_refs import DynamicSchemaTableRef, FunctionCall, FunctionCallRequest, SchemaRequest, TableRef
from skiway.airport.tables import (
    ROWID,
    ArrowData,
    CountedBatches,
    ScanOptions,
    TimePoint,
    find_rowid_column,
    record_batches,
    with_parsed_filter,
)
from skiway.airport.wire import protocol
from skiway.airport.wire.frames import FrameWriter
from skiway.airport.wire.protocol import ROWID_COLUMN, EndpointsRequest, Progress, ScanParameters, binary, encode
from skiway.errors import Internal, InvalidArgument, PreconditionFailed, Unsupported
from skiway.model.flight_pb2 import FlightDescriptor, FlightEndpoint, FlightInfo, Location
from skiway.model.flight_pb2 import Ticket as TicketMessage

SMALL_BATCH: Final = 512  # values
MAX_BATCH_BYTES: Final = 8 * 1024 * 1024  # far below gRPC's limit of 2 GiB, but large enough for full throughput


@dataclass(frozen=True)
class SchemaAdapter:
    """Converts batches of one schema to the bound schema."""

    target: pa.Schema
    sources: tuple[int | None, ...]  # for each field of the target: the index in the batch, or None for NULLs
    is_identity: bool  # whether batches need no conversion
    required: tuple[int, ...]  # the requested fields of the target that are NOT NULL
    what: str  # what returns the batches, for messages

    @classmethod
    def plan(
        cls, target: pa.Schema, source: pa.Schema, columns: frozenset[str] | None, *, what: str = "the scan"
    ) -> SchemaAdapter:
        """Plan the conversion from `source` to `target` if only `columns` were requested.

        A requested column that `source` does not have exactly once is an error, which says that `what` returned it.
        """
        requested = [columns is None or field.name in columns for field in target]
        required = tuple(i for i, field in enumerate(target) if requested[i] and not field.nullable)
        if all(requested) and source.equals(target):
            return cls(target, tuple(range(len(target))), True, required, what)
        sources = tuple(
            _position(source, field.name, what) if wanted else None
            for field, wanted in zip(target, requested, strict=True)
        )
        is_identity = sources == tuple(range(len(source))) and all(  # nullability must match the bound schema too
            expected.type == actual.type and expected.nullable == actual.nullable
            for expected, actual in zip(target, source, strict=True)
        )
        return cls(target, sources, is_identity, required, what)

    def apply(self, batch: pa.RecordBatch, nulls: NullColumns) -> pa.RecordBatch:
        """Convert a batch to the bound schema."""
        if not self.is_identity:
            columns = [
                nulls.get(position, field.type, batch.num_rows)
                if index is None
                else cast_column(batch.column(index), field, self.what)
                for position, (index, field) in enumerate(zip(self.sources, self.target, strict=True))
            ]
            if not columns:
                return batch
            batch = pa.RecordBatch.from_arrays(columns, schema=self.target)
        for position in self.required:
            self._check_not_null(batch.column(position), self.target.field(position).name)
        return batch

    def _check_not_null(self, column: pa.Array, name: str) -> None:
        count = column.null_count
        if not count and isinstance(column, pa.DictionaryArray) and column.dictionary.null_count:
            count = column.dictionary_decode().null_count
        if count:
            raise Internal(
                f"{self.what} returned NULL in {count} of {len(column)} rows of column {name!r}, which is NOT NULL: "
                "return values, or declare the column as nullable"
            )

    def null_columns(self, batch: pa.RecordBatch, nulls: NullColumns) -> tuple[int, ...]:
        """The positions of the NULL columns in a converted batch, if they take at least half of its bytes.

        Otherwise compressing them costs more than it saves, as in small batches.
        """
        if self.is_identity or batch.num_rows * batch.num_columns < SMALL_BATCH:
            return ()
        positions = tuple(position for position, index in enumerate(self.sources) if index is None)
        return positions if positions and 2 * nulls.nbytes(batch, positions) >= batch.nbytes else ()


def _position(schema: pa.Schema, name: str, what: str) -> int:
    indices = schema.get_all_field_indices(name)
    if len(indices) == 1:
        return int(indices[0])
    returned = f"it returned {', '.join(map(repr, schema.names))}" if len(schema) else "it returned no columns"
    if indices:
        raise Internal(f"{what} returned column {name!r} {len(indices)} times: {returned}")
    raise Internal(f"{what} did not return the requested column {name!r}: {returned}")


class NullColumns:
    """NULL columns, created once per column of a stream. The key is the position: not every type is hashable."""

    def __init__(self, pool: pa.MemoryPool | None = None) -> None:
        self._pool = pool
        self._cached: dict[int, pa.Array] = {}
        self._measured: tuple[int, tuple[int, ...], int] | None = None

    def get(self, position: int, data_type: pa.DataType, rows: int) -> pa.Array:
        """An array of `rows` NULLs for the column at `position`."""
        cached = self._cached.get(position)
        if cached is None or len(cached) < rows:
            cached = self._cached[position] = pa.nulls(rows, data_type, self._pool)
        return cached if len(cached) == rows else cached.slice(0, rows)

    def nbytes(self, batch: pa.RecordBatch, positions: tuple[int, ...]) -> int:
        """How many bytes the NULL columns of a batch take, measured again only if it has another number of rows."""
        if self._measured is None or self._measured[:2] != (batch.num_rows, positions):
            size = sum(batch.column(position).nbytes for position in positions)
            self._measured = batch.num_rows, positions, size
        return self._measured[2]


class BatchAdapter:
    """Converts the batches of a stream, which `what` returned, to the bound schema, if only `columns` were requested."""

    def __init__(
        self, schema: pa.Schema, columns: Iterable[str] | None = None, *, what: str, pool: pa.MemoryPool | None = None
    ) -> None:
        self._schema, self._what = schema, what
        self._columns = None if columns is None else frozenset(columns)
        self._nulls = NullColumns(pool)
        self._source: pa.Schema | None = None
        self._adapter: SchemaAdapter | None = None

    @cached_property
    def empty(self) -> pa.RecordBatch:
        """A batch without rows."""
        return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in self._schema], schema=self._schema)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert a batch; one without columns and rows stands for no rows."""
        if batch.num_columns == 0 and batch.num_rows == 0:
            return self.empty
        if self._adapter is None or not batch.schema.equals(self._source):
            self._source = batch.schema
            self._adapter = SchemaAdapter.plan(self._schema, batch.schema, self._columns, what=self._what)
        return self._adapter.apply(batch, self._nulls)

    def null_columns(self, batch: pa.RecordBatch) -> tuple[int, ...]:
        """The NULL columns to compress in the batch that was converted last."""
        return () if self._adapter is None else self._adapter.null_columns(batch, self._nulls)


def cast_column(column: pa.Array, field: pa.Field, what: str = "") -> pa.Array:
    """Cast `column`, which `what` returned, to the type of `field`."""
    try:
        return cast_array(column, field.type)
    except pa.ArrowException as error:
        returned = (
            f"{what} returned column {field.name!r} as {column.type}"
            if what
            else f"column {field.name!r} has type {column.type}"
        )
        raise Internal(f"{returned}, but the declared type is {field.type}: {error}") from error


def scan_frames(
    schema: pa.Schema,
    data: ArrowData,
    *,
    columns: Iterable[str] | None = None,
    rows: int | None = None,
    pool: pa.MemoryPool | None = None,
    call: ServedCall | None = None,
    what: str = "a scan",
) -> Iterator[bytes]:
    """The DoGet stream of a scan: the schema, then the batches.

    `rows` is the expected number of rows for the client's progress bar, if known. Error messages begin with `what`, the
    name of what returned `data`.
    """
    writer = FrameWriter(schema, memory_pool=pool)
    yield writer.begin()
    adapt = BatchAdapter(schema, columns, what=what, pool=pool)
    sent = 0
    with contextlib.closing(record_batches(data, schema, what)) as batches:
        for batch in batches:
            if not batch.num_rows:
                continue
            converted = adapt(batch)
            null_columns = adapt.null_columns(converted)
            for part in _parts(converted):
                sent += part.num_rows
                if call is not None:
                    call.rows_out = sent
                progress = encode(Progress(min(1.0, sent / rows))) if rows else b""
                yield from writer.batch(part, app_metadata=progress, null_columns=null_columns)


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split a batch into slices of at most about MAX_BATCH_BYTES."""
    pieces = min(-(-batch.nbytes // MAX_BATCH_BYTES), batch.num_rows)
    if pieces <= 1:
        yield batch
        return
    size = -(-batch.num_rows // pieces)
    for start in range(0, batch.num_rows, size):
        yield batch.slice(start, size)


DATABASES_SCHEMA = pa.schema([pa.field("name", pa.string(), nullable=False)])


def endpoints(host: Host, request: Request, body: EndpointsRequest) -> list[bytes]:
    """The serialized endpoints of a scan: a ticket for DoGet, or function calls that the client runs itself."""
    descriptor = parse_descriptor(binary(body.descriptor))
    parameters = body.parameters
    if is_databases(descriptor):
        return [_endpoint(host, Ticket(None))]
    at = parameters.at_unit, parameters.at_value
    point = TimePoint.parse(*at)
    parsed = filters.parse(parameters.json_filters)
    json_filters = parameters.json_filters if parsed else ""
    request, catalog, path = host.open(request, descriptor)
    if path.kind == "table_function":
        function = _table_function(catalog, path)
        arguments = binary(parameters.table_function_parameters)
        schema = as_plain(function.schema_for(read_arguments(function, arguments)))
        if host.announcements.contradict(request.trace_id, schema):
            raise function_changed(path)
        columns = column_names(schema, parameters.column_ids)
        return [_endpoint(host, Ticket(path, columns, json_filters, *at, arguments, fingerprint=fingerprint(schema)))]
    opened = open_table(catalog, path, point)
    table, schema = opened.table, opened.schema
    check_announced(host, request, opened)
    if isinstance(table, TableRef):
        return _delegated(host, table, parsed, parameters, point)
    columns = column_names(schema, parameters.column_ids)
    if not opened.has_row_ids:
        columns = None if columns is None else opened.own_columns(columns)
        if ROWID in parsed.columns:  # the table cannot evaluate it, and DuckDB filters again
            parsed, json_filters = filters.parse(""), ""
    ticket = Ticket(path, columns, json_filters, *at, fingerprint=fingerprint(schema))
    if isinstance(table, Planned):
        options = with_parsed_filter(_options(ticket), parsed)
        return [
            _delegation(part.location(host.allowed_functions))
            if isinstance(part, FunctionCall)
            else _endpoint(host, structs.replace(ticket, part=part))
            for part in table.plan(options)
        ]
    return [_endpoint(host, ticket)]


def announce(host: Host, request: Request, opened: OpenedTable) -> None:
    """Remember the schema that is announced under an address without binding."""
    if not opened.path.signature and request.trace_id:
        host.announcements.remember(request.trace_id, opened.schema)


def check_announced(host: Host, request: Request, opened: OpenedTable) -> None:
    """Raise `PreconditionFailed` if the client planned this scan with another schema, under an address without binding."""
    if not opened.path.signature and host.announcements.contradict(request.trace_id, opened.schema):
        raise table_changed(opened.path, "it has other columns than when the query was planned")


def column_names(schema: pa.Schema, ids: Sequence[int]) -> list[str] | None:
    """The names of the columns with DuckDB's `ids`, without duplicates.

    An id is the index of a visible column; a special id stands for the row id.
    """
    if not ids:
        return None
    rowid = find_rowid_column(schema)
    visible = [name for index, name in enumerate(schema.names) if index != rowid]
    names: dict[str, None] = {}
    for number in ids:
        if number == ROWID_COLUMN and rowid is not None:
            names[schema.names[rowid]] = None
        elif number < len(visible):
            names[visible[number]] = None
        elif number != ROWID_COLUMN:
            raise InvalidArgument(f"column id {number} is out of range: {len(visible)} columns are visible")
    return list(names)


def do_get(host: Host, request: Request, data: bytes) -> Iterator[bytes]:
    """The stream of a ticket. The caller is authorized again."""
    ticket, call = host.tickets.redeem(data), call_of(request)
    if ticket.path is None:
        call.operation = "list_catalogs"
        names = pa.table({"name": list(host.visible_catalogs(request))}, DATABASES_SCHEMA)
        return scan_frames(DATABASES_SCHEMA, names, call=call)
    request, catalog, path = host.open_path(request, ticket.path)
    options = _options(ticket)
    skip = bool(request.header(protocol.SKIP_RESULTS))
    if path.kind == "table_function":
        call.operation = "table_function"
        function = _table_function(catalog, path)
        arguments = read_arguments(function, ticket.parameters)
        schema = as_plain(function.schema_for(arguments))
        if fingerprint(schema) != ticket.fingerprint:
            raise function_changed(path)
        result = () if skip else function.execute(arguments, options)
        return scan_frames(
            schema,
            result,
            columns=options.columns,
            rows=function.row_count(arguments),
            pool=host.memory_pool,
            call=call,
            what=f"function {path}",
        )
    opened = open_table(catalog, path, options.time_point)
    table, schema = opened.table, opened.schema
    if not isinstance(table, Table):
        raise PreconditionFailed(
            f"table {path} is a table reference and cannot be streamed: request its endpoints again"
        )
    if fingerprint(schema) != ticket.fingerprint:
        raise table_changed(path, "it has other columns than when the scan was planned")
    rows = () if skip else table.scan(options)
    expected = rows.expected_rows if isinstance(rows, CountedBatches) else table.row_count()
    return scan_frames(
        schema,
        rows,
        columns=opened.own_columns(options.columns),
        rows=None if options.json_filters else expected,
        pool=host.memory_pool,
        call=call,
        what=f"the scan of table '{path}'",
    )


def is_databases(descriptor: FlightDescriptor) -> bool:
    """Whether the descriptor stands for the list of catalogs."""
    return list(descriptor.path) == [DATABASES]


def databases_info(descriptor: FlightDescriptor) -> FlightInfo:
    """The FlightInfo of the list of catalogs, which DuckDB's `airport_databases()` reads."""
    return flight_info_of(descriptor, DATABASES_SCHEMA)


def _table_function(catalog: Catalog, path: ObjectPath) -> TableFunction:
    function = open_table_function(catalog, path)
    if not isinstance(function, TableFunction):
        raise Unsupported(f"{path} takes rows as input: call it as {function.name}(…, (SELECT …))")
    return function


def _options(ticket: Ticket) -> ScanOptions:
    return ScanOptions(
        columns=ticket.columns,
        json_filters=ticket.json_filters,
        time_point=TimePoint.parse(ticket.at_unit, ticket.at_value),
        part=ticket.part,
    )


def _endpoint(host: Host, ticket: Ticket) -> bytes:
    # Concatenated protobuf messages merge into one message, so the location is serialized only once.
    issued = FlightEndpoint(ticket=TicketMessage(ticket=host.tickets.issue(ticket)))
    return issued.SerializeToString() + host.endpoint_location


def _delegated(
    host: Host, table: TableRef, parsed: filters.Filter, parameters: ScanParameters, point: TimePoint | None
) -> list[bytes]:
    values = _parameter_values(parameters)
    schema = table.schema
    if isinstance(table, DynamicSchemaTableRef):
        schema = table.schema_for(SchemaRequest(values, point))
    columns = column_names(schema, parameters.column_ids)
    json_filters = parameters.json_filters if parsed else ""
    request = FunctionCallRequest(columns, json_filters, values, point)
    calls = table.function_calls(with_parsed_filter(request, parsed))
    if not calls:
        raise Internal(f"table reference {table.name!r} returned no function calls; at least one is required")
    return [_delegation(call.location(host.allowed_functions)) for call in calls]


def _delegation(uri: str) -> bytes:
    return FlightEndpoint(ticket=TicketMessage(ticket=b"{}"), location=[Location(uri=uri)]).SerializeToString()


def _parameter_values(parameters: ScanParameters) -> tuple[Any, ...]:
    """The parameters of a table reference as Python values."""
    stream = binary(parameters.table_function_parameters)
    if not stream:
        return ()
    row = read_row(stream, "the parameters")
    try:
        return tuple(column[0].as_py() for column in row.columns)
    except (pa.ArrowException, ValueError) as error:  # such as a date that Python cannot represent
        raise InvalidArgument(f"the parameters cannot be converted to Python values: {error}") from error
