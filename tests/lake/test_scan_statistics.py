"""The statistics of one scan: its table is looked up once, but no change of data or rights in between is missed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pyarrow as pa
import pytest

from airport.raw import AIRPORT, Raw, code_of, descriptor
from lake.policed_lake import ROWS, PolicedLake, policed_lake
from skiway.airport.server import actions
from skiway.airport.server.host import OpenedTable, open_table
from skiway.airport.wire.protocol import StatisticsRequest, encode, packed
from skiway.metastore import grants
from skiway.model import v1
from skiway.sql import QueryEngine

TRACE = ("airport-trace-id", "one scan")


@pytest.fixture
def policed(tmp_path: Path, queries: QueryEngine) -> Iterator[PolicedLake]:
    with policed_lake(tmp_path, queries) as policed:
        yield policed


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[OpenedTable]:
    """The tables that were looked up."""
    tables: list[OpenedTable] = []

    def counting(*arguments: object, **more: object) -> OpenedTable:
        tables.append(open_table(*arguments, **more))  # type: ignore[arg-type]
        return tables[-1]

    monkeypatch.setattr(actions, "open_table", counting)
    return tables


def bounds(policed: PolicedLake, column: str, token: str = "writer") -> tuple[object, object]:
    """The minimum and the maximum of a column in the response to one of the calls of a scan."""
    request = StatisticsRequest(packed(descriptor("managed", "s", "people")), column, "BIGINT")
    with Raw(policed.lake.location, (*AIRPORT, ("authorization", f"Bearer {token}"))) as raw:
        (body,) = raw.action("column_statistics", encode(request), TRACE)
    (row,) = pa.ipc.open_stream(body).read_all().to_pylist()
    return row["min"], row["max"]


def test_calls_of_one_scan_share_the_table_that_the_first_found(policed: PolicedLake, found: list[OpenedTable]) -> None:
    for _ in range(10):
        assert bounds(policed, "id") == (0, 39)
        assert bounds(policed, "number") == (715_517_000, 715_517_039)
    assert len(found) < 5  # more than once only because the usage of the table is stored meanwhile


def test_rows_that_were_inserted_between_two_calls_are_covered(policed: PolicedLake) -> None:
    assert bounds(policed, "id") == (0, 39)
    with policed.lake.client() as owner:
        owner.insert("s.people", ROWS.slice(0, 1).set_column(0, ROWS.schema.field(0), [[100]]))
    assert bounds(policed, "id") == (0, 100)


def test_policy_between_two_calls_hides_the_bounds(policed: PolicedLake) -> None:
    assert bounds(policed, "number", "reader") == (715_517_000, 715_517_039)
    policed.mask()
    assert bounds(policed, "number", "reader") == (None, None)
    assert bounds(policed, "number", "writer") == (715_517_000, 715_517_039)


def test_grant_that_is_revoked_between_two_calls_ends_access(policed: PolicedLake) -> None:
    request = v1.AddGrantRequest(object_id=policed.table.resource_id, grantee="user:stranger", privilege=v1.PV_READ)
    grants.add(policed.lake.realm, request)
    assert bounds(policed, "id", "stranger") == (0, 39)
    grants.revoke(policed.lake.realm, v1.RevokeGrantRequest(object_id=request.object_id, grantee=request.grantee))
    code, _ = code_of(lambda: bounds(policed, "id", "stranger"))
    assert code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.PERMISSION_DENIED)


def test_other_callers_do_not_use_the_table_of_a_scan(policed: PolicedLake) -> None:
    assert bounds(policed, "id") == (0, 39)
    code, _ = code_of(lambda: bounds(policed, "id", "nothing"))
    assert code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.PERMISSION_DENIED)
