"""`scan.mode` of a catalog: whether DuckDB's client gets rows, or files to read itself."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lake.lakes import Lake
from skiway.airport import Request, ScanOptions
from skiway.client import AirportClient, col
from skiway.errors import InvalidArgument
from skiway.lake.reading.table import may_read_files
from skiway.metastore import catalogs
from skiway.model import v1

SCHEMA = pa.schema({"id": pa.int64(), "day": pa.date32(), "name": pa.string(), "at": pa.timestamp("us", tz="UTC")})
MOMENT = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


def rows(start: int, count: int = 10) -> pa.Table:
    ids = list(range(start, start + count))
    days = [dt.date(2026, 1, 1) + dt.timedelta(number) for number in ids]
    return pa.table({"id": ids, "day": days, "name": [f"n{each}" for each in ids], "at": [MOMENT] * count}, SCHEMA)


def set_mode(lake: Lake, mode: str, catalog: str = "managed") -> None:
    found = catalogs.find(lake.realm, catalog)
    assert found is not None
    spec = v1.CatalogSpec(properties={"scan.mode": mode})
    request = v1.UpdateCatalogRequest(catalog_id=found.value.resource_id, spec=spec)
    request.update_mask.paths.append("properties")
    catalogs.update(lake.realm, request)


@pytest.fixture
def db(lake: Lake) -> Iterator[AirportClient]:
    """A table of three files."""
    with lake.client() as client:
        client.create_schema("s")
        client.create_table("s.t", SCHEMA)
        for start in (0, 10, 20):
            client.insert("s.t", rows(start))
        yield client


def calls(db: AirportClient, columns: list[str] | None = None, **options: Any) -> list[Any]:
    """The calls that the endpoints of a scan contain; None for rows from the server."""
    return [each.call for each in db.endpoints("s.t", columns=columns or ["id"], **options)]


def is_read_by_client(db: AirportClient, columns: list[str] | None = None, **options: Any) -> bool:
    found = calls(db, columns, **options)
    assert len({call is None for call in found}) == 1, "all parts are read by the same side"
    return found[0] is not None


@pytest.mark.parametrize(
    ("mode", "plain", "filtered"), [("server", False, False), ("client", True, True), ("auto", True, False)]
)
def test_mode_decides_who_reads(lake: Lake, db: AirportClient, mode: str, plain: bool, filtered: bool) -> None:
    set_mode(lake, mode)
    assert is_read_by_client(db) == plain
    assert is_read_by_client(db, where=col("id") < 15) == filtered
    columns = ["name", "id", "day", "at"]
    expected = pa.concat_tables([rows(0), rows(10), rows(20)])
    found = db.scan("s.t", columns=columns).read_all().sort_by("id")
    assert found.to_pylist() == expected.select(columns).to_pylist()
    chosen = db.scan("s.t", columns=["id"], where=col("id") < 15).read_all()
    assert sorted(chosen["id"].to_pylist()) == list(range(15))
    readers = [row["reader"] for row in db.scan("skiway.plans").read_all().to_pylist() if row["table_name"] == "t"]
    assert readers == ["client" if each else "server" for each in (plain, filtered, plain, filtered)]


def test_pruned_files_are_not_handed_out(lake: Lake, db: AirportClient) -> None:
    set_mode(lake, "client")
    paths = [path for call in calls(db, where=col("id") < 15) for path in call.arguments[0]]
    everything = [path for call in calls(db) for path in call.arguments[0]]
    assert (len(paths), len(everything), len(calls(db))) == (2, 3, 3)
    assert all(Path(path).is_file() for path in everything)


def test_past_snapshots_are_read_from_their_own_files(lake: Lake, db: AirportClient) -> None:
    set_mode(lake, "client")
    first = min(db.scan("skiway.snapshots").read_all().to_pylist(), key=lambda row: row["sequence_number"])
    found = db.scan("s.t", columns=["id"], at_version=first["snapshot_id"]).read_all()
    assert sorted(found["id"].to_pylist()) == list(range(10))


def _deleted(db: AirportClient) -> None:
    (number,) = db.scan("s.t", columns=["rowid"], where=col("id") == 12).read_all()["rowid"].to_pylist()
    db.delete("s.t", [number])


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda db: db.rename_column("s.t", "name", "title"), id="renamed column"),
        pytest.param(lambda db: db.add_column("s.t", pa.field("more", pa.int64())), id="added column"),
        pytest.param(lambda db: db.add_column("s.t", pa.field("other", pa.list_(pa.int64()))), id="another type"),
    ],
)
def test_files_with_other_columns_are_read_by_the_server(lake: Lake, db: AirportClient, change: Any) -> None:
    set_mode(lake, "client")
    assert is_read_by_client(db)
    change(db)
    assert not is_read_by_client(db)
    assert db.scan("s.t", columns=["id"]).read_all().num_rows == 30


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_files_with_deleted_rows_are_read_by_the_server(lake: Lake, mode: str) -> None:
    with lake.client() as db:
        db.create_schema("s")
        lake.managed_table(SCHEMA, **{"write.delete.mode": mode})
        db.insert("s.t", rows(0, 30))
        set_mode(lake, "client")
        assert is_read_by_client(db)
        _deleted(db)
        assert is_read_by_client(db) == (mode == "copy-on-write")
        assert 12 not in db.scan("s.t", columns=["id"]).read_all()["id"].to_pylist()


def test_row_ids_come_from_the_server(lake: Lake, db: AirportClient) -> None:
    set_mode(lake, "client")
    assert not is_read_by_client(db, ["id", "rowid"])
    _deleted(db)
    assert db.scan("s.t", columns=["id"]).read_all().num_rows == 29


def test_folders_with_characters_of_patterns_are_read_by_the_server(tmp_path: Path) -> None:
    from lake.lakes import opened_lake

    folder = tmp_path / "a[1]"
    folder.mkdir()
    with opened_lake(folder) as lake, lake.client() as db:
        db.create_schema("s")
        db.create_table("s.t", SCHEMA)
        db.insert("s.t", rows(0))
        set_mode(lake, "client")
        assert not is_read_by_client(db)


class Peer:
    """A connection from an address."""

    def __init__(self, address: str) -> None:
        self._address = address

    def peer(self) -> str:
        return self._address

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


@pytest.mark.parametrize(
    ("address", "headers", "is_local"),
    [
        ("ipv4:127.0.0.1:5000", {}, True),
        ("ipv6:%5B::1%5D:5000", {}, True),
        ("unix:/run/skiway.sock", {}, True),
        ("ipv4:10.0.0.7:5000", {}, False),
        ("ipv4:127.0.0.1:5000", {"x-forwarded-for": "10.0.0.7"}, False),
        ("", {}, False),
    ],
)
def test_clients_on_other_machines_get_rows(address: str, headers: dict[str, str], is_local: bool) -> None:
    request = Request(metadata=tuple(headers.items()), connection=Peer(address))  # type: ignore[call-arg, arg-type]
    assert may_read_files("client", ScanOptions(columns=["id"]), request) == is_local


@pytest.mark.parametrize("mode", ["", "both", "Server"])
def test_unknown_mode_is_rejected(lake: Lake, mode: str) -> None:
    with pytest.raises(InvalidArgument, match=r"property scan\.mode is .* must be server, client or auto"):
        set_mode(lake, mode)
