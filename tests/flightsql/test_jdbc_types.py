"""Every type of DuckDB through the JDBC driver: values are read, and bound to a parameter that finds them again."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import adbc_driver_flightsql.dbapi
import pyarrow as pa
import pytest

from duckdb_types import TYPES, Type
from flightsql import adbc
from flightsql.jdbc import array_of, connected, rows_of
from lake.lakes import Lake

pytestmark = [pytest.mark.needs("java", "spark"), pytest.mark.timeout(300)]

SENT = [each for each in TYPES if not each.unsent]
"""The types with values that Flight SQL returns; `test_every_type` shows that the others are rejected everywhere."""


@pytest.fixture(scope="module")
def connection(jvm: Any, lake: Lake) -> Iterator[Any]:
    with connected(jvm, lake.location, "reader") as opened:
        yield opened


@pytest.fixture(scope="module")
def peer(lake: Lake) -> Iterator[adbc_driver_flightsql.dbapi.Cursor]:
    """The ADBC driver, whose values are those of DuckDB (`test_every_type`)."""
    with adbc.connected(lake.location, "reader") as opened, opened.cursor() as cursor:
        yield cursor


def column(peer: Any, sql: str) -> pa.ChunkedArray:
    peer.execute(sql)
    return peer.fetch_arrow_table().column("v")


def number_of(value: pa.Scalar, unit: str) -> int:
    """How many units a time has since midnight, or a moment since 1970."""
    kind = value.type
    if pa.types.is_date(kind):
        days = value.cast(pa.int32()).as_py()
        return int(days)
    if pa.types.is_time32(kind):
        value = value.cast(pa.time64("us"))
    count, own = value.cast(pa.int64()).as_py(), value.type.unit
    factors = {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}
    return int(count * factors[own] // factors[unit])


YEAR_1 = -719_162


# -- reading -----------------------------------------------------------------------------------------------------------


def read(jvm: Any, results: Any, kind: pa.DataType) -> Any:
    """The value in the second column, as a program in Java reads a value of its type."""
    java_class = jvm.java.lang.Class.forName
    utc = jvm.java.time.ZoneOffset.UTC
    if pa.types.is_date(kind):
        found = results.getDate(2)
        return found and found.toLocalDate().toEpochDay()
    if pa.types.is_time(kind):
        found = results.getTime(2)
        return found and found.getTime()
    if pa.types.is_timestamp(kind):
        if kind.tz is None:
            found = results.getObject(2, java_class("java.time.LocalDateTime"))
            return found and found.toEpochSecond(utc) * 10**9 + found.getNano()
        found = results.getObject(2, java_class("java.time.OffsetDateTime"))
        return found and found.toEpochSecond() * 10**9 + found.getNano()
    found = results.getObject(2)
    if found is None or isinstance(found, (bool, int, float, str, bytes, Decimal)):
        return found
    if pa.types.is_interval(kind):
        months, days = found.getPeriod().toTotalMonths(), found.getPeriod().getDays()
        return months, days, found.getDuration().toNanos()
    return json.loads(found.toString())


def expected(value: pa.Scalar) -> Any:
    """What `read` returns of a value."""
    kind = value.type
    if not value.is_valid:
        return None
    if pa.types.is_date(kind):
        return number_of(value, "")
    if pa.types.is_time(kind):
        return number_of(value, "ms")
    if pa.types.is_timestamp(kind):
        return number_of(value, "ns")
    if pa.types.is_interval(kind):
        return tuple(value.as_py())
    if pa.types.is_union(kind) or not pa.types.is_nested(kind):
        return value.as_py()
    return as_json(value.as_py(), kind, is_outer=True)


def as_json(value: Any, kind: pa.DataType, *, is_outer: bool = False) -> Any:
    """A nested value as the text of Java shows it: without fields that are NULL, and with days instead of dates."""
    if pa.types.is_map(kind):
        pairs = [(as_json(key, kind.key_type), as_json(item, kind.item_type)) for key, item in value]
        return (
            {str(key): item for key, item in pairs}
            if is_outer
            else [{"key": key, "value": item} for key, item in pairs]
        )
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {each.name: as_json(value[each.name], each.type) for each in kind if value[each.name] is not None}
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        return [as_json(each, kind.value_type) for each in value]
    return (value - date(1970, 1, 1)) // timedelta(days=1) if isinstance(value, date) else value


def is_same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, float) and isinstance(found, float):
        both = (found, wanted)
        return all(map(math.isnan, both)) or found == wanted or math.isclose(*both, rel_tol=1e-7)
    return type(found) is type(wanted) and bool(found == wanted)


@pytest.mark.parametrize("kind", SENT, ids=lambda kind: kind.name)
def test_values_are_read(jvm: Any, connection: Any, peer: Any, kind: Type) -> None:
    """As the type that they have, and as text: Java's dates have no years before 1, and no infinity."""
    sql = f"SELECT id, v, CAST(v AS VARCHAR) AS text FROM ({kind.rows()}) ORDER BY id"
    values = column(peer, sql)
    texts = column(peer, sql.replace("v, CAST(v AS VARCHAR) AS text", "CAST(v AS VARCHAR) AS v"))
    statement = connection.createStatement()
    results = statement.executeQuery(sql)
    found = []
    while results.next():
        found.append((read(jvm, results, values.type), results.getString(3)))
    results.close()
    statement.close()
    assert [text for _, text in found] == texts.to_pylist()
    assert len(found) == len(kind.values) + 1
    for (value, _), wanted in zip(found, values, strict=True):
        if not (wanted.is_valid and pa.types.is_date(wanted.type) and number_of(wanted, "") < YEAR_1):
            assert is_same(value, expected(wanted)), (value, wanted)


# -- parameters --------------------------------------------------------------------------------------------------------

AS_TEXT = "CAST(CAST(? AS VARCHAR) AS {})"
"""How a query takes a value for which JDBC has no call: a time with microseconds, or a year before 1."""


def has_call(value: pa.Scalar) -> bool:
    """Whether a call of JDBC passes the value: dates of usual years, and times with milliseconds."""
    kind = value.type
    if pa.types.is_date(kind):
        return (
            -141_427 <= number_of(value, "") <= 2_932_896
        )  # 1582-10-15, when the calendar of Java begins, to 9999-12-31
    if pa.types.is_time(kind) or pa.types.is_timestamp(kind):
        in_calendar = pa.types.is_time(kind) or -12_219_292_800_000 <= number_of(value, "ms") <= 253_402_300_799_999
        return in_calendar and number_of(value, "ms") * 10**6 == number_of(value, "ns")
    return True


def bind(jvm: Any, connection: Any, statement: Any, value: pa.Scalar, text: str) -> None:
    """Set the only parameter as a program in Java does, by the type that the driver knows of it."""
    known, types = statement.getParameterMetaData().getParameterType(1), jvm.java.sql.Types
    value_ = value.as_py() if not (pa.types.is_temporal(value.type) and not pa.types.is_interval(value.type)) else None
    if known == types.BOOLEAN:
        statement.setBoolean(1, value_)
    elif known == types.BIGINT:
        statement.setLong(1, value_)
    elif known == types.DOUBLE:
        statement.setBigDecimal(1, value_) if isinstance(value_, Decimal) else statement.setDouble(1, value_)
    elif known == types.DECIMAL:
        statement.setBigDecimal(1, Decimal(value_))
    elif known == types.VARBINARY:
        statement.setBytes(1, value_)
    elif known == types.DATE:
        statement.setDate(1, jvm.java.sql.Date(number_of(value, "") * 86_400_000))
    elif known == types.TIME:
        statement.setTime(1, jvm.java.sql.Time(number_of(value, "ms")))
    elif known in (types.TIMESTAMP, types.TIMESTAMP_WITH_TIMEZONE):
        statement.setTimestamp(1, jvm.java.sql.Timestamp(number_of(value, "ms")))
    elif known == types.ARRAY:
        statement.setArray(1, array_of(jvm, connection, ITEMS[str(value.type.value_type)], value_))
    else:
        assert known == types.VARCHAR, known
        statement.setString(1, text)


ITEMS = {"int8": "BIGINT", "int32": "BIGINT", "string": "VARCHAR", "bool": "BOOLEAN"}


@pytest.mark.parametrize("kind", SENT, ids=lambda kind: kind.name)
def test_parameter_finds_the_row(jvm: Any, connection: Any, peer: Any, kind: Type) -> None:
    """Each value finds its own row, and NULL finds the last one."""
    rows = f"({kind.rows()})"
    values = column(peer, f"SELECT v FROM {rows} ORDER BY id")
    texts = column(peer, f"SELECT CAST(v AS VARCHAR) AS v FROM {rows} ORDER BY id").to_pylist()
    sql = f"SELECT id FROM {rows} WHERE v IS NOT DISTINCT FROM "
    prepared = connection.prepareStatement(f"{sql}?")
    assert prepared.getParameterMetaData().getParameterCount() == 1
    by_text = connection.prepareStatement(sql + AS_TEXT.format(kind.sql if kind.name != "ENUM" else "VARCHAR"))
    for number, (value, text) in enumerate(zip(values, texts, strict=True)):
        if text is None:
            prepared.setNull(1, jvm.java.sql.Types.VARCHAR)
        elif has_call(value) and not (kind.name == "UNION" and text == "1"):  # DuckDB takes the text for a text
            bind(jvm, connection, prepared, value, text)
        if text is not None:
            by_text.setString(1, text)
            if kind.name != "UNION" or text != "1":
                assert rows_of(by_text.executeQuery()) == [{"id": number}], f"{text} as text"
            if not has_call(value) or (kind.name == "UNION" and text == "1"):
                continue
        assert rows_of(prepared.executeQuery()) == [{"id": number}], text
    prepared.close()
    by_text.close()
