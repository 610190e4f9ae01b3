"""Time travel: by version and by timestamp, with the schema of that time."""

from __future__ import annotations

import datetime as dt

import grpc
import pyarrow as pa
import pytest

from airport.raw import Raw, code_of, descriptor
from skiway.airport import CatalogBuilder, ScanOptions, Server, TimePoint
from skiway.airport.wire.protocol import FlightInfoRequest, encode, packed
from skiway.errors import InvalidArgument
from skiway.model import flight_pb2 as flight

STATES = {
    1: pa.table({"id": [1]}),
    2: pa.table({"id": [1, 2], "name": ["Ada", "Grace"]}),
    3: pa.table({"name": ["Ada"], "id": [1]}),
}


def version_at(point: TimePoint | None) -> int:
    if point is None:
        return 3
    return point.version() if point.unit == "version" else point.timestamp().year - 2020


def schema_at(point: TimePoint) -> pa.Schema | None:
    state = STATES.get(version_at(point))
    return state.schema if state else None


@pytest.fixture
def raw():
    builder = CatalogBuilder("demo")

    @builder.schema("s").table(schema=STATES[3].schema, schema_at=schema_at)
    def t(scan: ScanOptions) -> pa.Table:
        return STATES[version_at(scan.time_point)]

    with Server(builder.build(), port=0) as server, Raw(server.location) as client:
        yield client


def info(raw: Raw, unit: str, value: str) -> flight.FlightInfo:
    (body,) = raw.action("flight_info", encode(FlightInfoRequest(packed(descriptor("demo", "s", "t")), unit, value)))
    return flight.FlightInfo.FromString(body)


@pytest.mark.parametrize(
    ("unit", "value", "version"), [("VERSION", "1", 1), ("VERSION", "2", 2), ("TIMESTAMP", "2022-05-01 10:00:00", 2)]
)
def test_schema_and_rows_are_those_of_the_requested_time(raw: Raw, unit: str, value: str, version: int) -> None:
    flight_info = info(raw, unit, value)
    assert pa.ipc.read_schema(pa.py_buffer(flight_info.schema)) == STATES[version].schema
    assert flight_info.flight_descriptor.SerializeToString() == descriptor("demo", "s", "t")
    assert flight_info.app_metadata
    ids = range(len(STATES[version].schema))
    scanned = raw.scan("demo", "s", "t", columns=ids, at_unit=unit, at_value=value)
    assert scanned.equals(STATES[version])


def test_current_state_is_read_without_a_time_point(raw: Raw) -> None:
    assert raw.scan("demo", "s", "t", columns=[0, 1]).equals(STATES[3])


def test_column_ids_refer_to_the_schema_of_that_time(raw: Raw) -> None:
    only_name = raw.scan("demo", "s", "t", columns=[1], at_unit="VERSION", at_value="2")
    assert only_name.to_pylist() == [{"id": None, "name": "Ada"}, {"id": None, "name": "Grace"}]
    assert (
        code_of(lambda: raw.scan("demo", "s", "t", columns=[1], at_unit="VERSION", at_value="1"))[0]
        is grpc.StatusCode.INVALID_ARGUMENT
    )


def test_time_before_the_table_existed(raw: Raw) -> None:
    code, message = code_of(lambda: info(raw, "VERSION", "9"))
    assert code is grpc.StatusCode.NOT_FOUND
    assert "version 9" in message


@pytest.mark.parametrize(("unit", "value"), [("VERSION", "x"), ("TIMESTAMP", "yesterday"), ("", "1")])
def test_invalid_time_points(raw: Raw, unit: str, value: str) -> None:
    assert code_of(lambda: info(raw, unit, value))[0] is grpc.StatusCode.INVALID_ARGUMENT


def test_time_points_parse_duckdbs_timestamps() -> None:
    assert TimePoint.parse("", "") is None
    assert TimePoint.parse("VERSION", "3") == TimePoint("version", "3")
    assert TimePoint.parse("snapshot", "abc") == TimePoint("snapshot", "abc")
    assert TimePoint("timestamp", "2025-01-01 10:00:00").timestamp() == dt.datetime(2025, 1, 1, 10, tzinfo=dt.UTC)
    assert TimePoint("timestamp", "2025-01-01").timestamp() == dt.datetime(2025, 1, 1, tzinfo=dt.UTC)
    assert TimePoint("timestamp", "2025-01-01 10:00:00.123456+02").timestamp() == dt.datetime(
        2025, 1, 1, 8, 0, 0, 123456, tzinfo=dt.UTC
    )
    with pytest.raises(InvalidArgument, match="expected an integer"):
        TimePoint("version", "main").version()
