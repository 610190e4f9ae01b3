"""The catalogs behind Flight calls: the recorded one, a memory catalog, and a lake."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from client.recorded_catalog import RecordedCatalog
from fuzz.flight_target import KEY, FlightTarget, attached
from lake.lakes import Lake
from metastore.resource_factory import Ids
from skiway.airport import AirportService
from skiway.airport.memory import MemoryCatalog
from skiway.airport.server.tickets import TicketOffice
from skiway.client import AirportClient, col
from skiway.errors import SkiwayError
from skiway.lake import Handles, Sources, airport_service
from skiway.metastore import Realm
from skiway.request_path import Access
from skiway.security import PermissionAuthorizer, Principal, Roles
from skiway.storage import open_stores
from skiway.storage.blobs.cache import with_blob_cache

ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "name": ["a", None, "c"],
        "v": [0.5, None, 2.5],
        "tags": pa.array([["x"], [], None], pa.list_(pa.string())),
        "place": pa.array(
            [{"x": 1, "y": "q"}, None, {"x": None, "y": ""}], pa.struct({"x": pa.int32(), "y": pa.string()})
        ),
        "day": pa.array([0, 1, None], pa.date32()),
        "at": pa.array([0, 1, None], pa.timestamp("us", "UTC")),
        "amount": pa.array([1, 2, None], pa.decimal128(18, 4)),
        "raw": [b"x", b"", None],
        "flag": [True, False, None],
    }
)
PLAIN = pa.table({"id": pa.array([1, 2], pa.int64()), "name": ["a", "b"]})

Statement = Callable[[AirportClient], object]
STATEMENTS: tuple[Statement, ...] = (
    lambda db: db.create_schema("s", comment="c", tags={"k": "v"}),
    lambda db: db.create_table("s.t", ROWS.schema, not_null=["id"]),
    lambda db: db.insert("s.t", ROWS),
    lambda db: db.insert("s.t", ROWS, returning=True),
    lambda db: db.scan("s.t", columns=["id", "name"], where=(col("id") > 1) & (col("name") == "c")).read_all(),
    lambda db: db.scan("s.t", at_version=1).read_all(),
    lambda db: db.scan("s.t", at_timestamp="2100-01-01 00:00:00").read_all(),
    lambda db: db.update("s.t", {"name": "z"}, where=col("id") == 1),
    lambda db: db.update("s.t", {"v": 1.0}, where=col("id") == 2, returning=True),
    lambda db: db.delete("s.t", where=col("id") == 3, returning=True),
    lambda db: [db.statistics("s.t", name) for name in ROWS.column_names],
    lambda db: db.create_table_as("s.made", PLAIN),
    lambda db: db.create_table("s.keyed", PLAIN.schema, primary_key=["id"], unique=[["name"]], checks=["id > 0"]),
    lambda db: db.insert("s.keyed", PLAIN),
    lambda db: db.json.insert("s.made", PLAIN, returning=True),
    lambda db: db.json.update("s.made", [0], PLAIN.slice(0, 1)),
    lambda db: db.json.delete("s.made", [0]),
    lambda db: db.add_column("s.t", pa.field("more", pa.int32())),
    lambda db: db.change_column_type("s.t", "more", pa.int64()),
    lambda db: db.set_default("s.t", "more", "1 + 1"),
    lambda db: db.set_not_null("s.made", "id"),
    lambda db: db.drop_not_null("s.made", "id"),
    lambda db: db.add_constraint("s.made", "CHECK (id > 0)"),
    lambda db: db.rename_column("s.t", "more", "less"),
    lambda db: db.remove_column("s.t", "less"),
    lambda db: db.add_field("s.t", ["place"], pa.field("z", pa.int32())),
    lambda db: db.rename_field("s.t", ["place", "z"], "zz"),
    lambda db: db.remove_field("s.t", ["place", "zz"]),
    lambda db: db.rename_table("s.made", "renamed"),
    lambda db: db.drop_table("s.renamed"),
    lambda db: db.create_schema("gone"),
    lambda db: db.drop_schema("gone"),
    lambda db: list(db.flights()),
    lambda db: db.databases(),
)


def run_statements(db: AirportClient) -> None:
    """Run all statements, as far as the catalog supports them. A transaction's end has actions of its own."""
    for statement in STATEMENTS:
        with contextlib.suppress(SkiwayError, TypeError):
            statement(db)
    with contextlib.suppress(SkiwayError), db.transaction(explicit=True):
        db.insert("s.t", ROWS.slice(0, 1))


class RecordedTarget(FlightTarget):
    """The catalog of the recordings: functions, statistics, time travel, tables that the client reads."""

    name = "flight"

    def service(self) -> AirportService:
        return AirportService(RecordedCatalog(), tickets=TicketOffice(KEY), actions={"reset": lambda _: None})

    def prepare(self, location: str) -> None:
        with attached(location, "demo") as db:
            db.scan("static_data.employees").read_all()
            db.call_scalar("utils.test_add", pa.array([1]), pa.array([2]))
            db.call("utils.test_echo", "x").read_all()
            db.call("utils.test_repeat", "x", 3).read_all()
            db.call("utils.test_table_in_out", "x", rows=PLAIN).read_all()


class MemoryTarget(FlightTarget):
    """A memory catalog, which takes every statement."""

    name = "memory"

    def service(self) -> AirportService:
        return AirportService(
            MemoryCatalog("mem", ids=Ids("transaction"), memory_limit="200MB", timeout_s=5),
            tickets=TicketOffice(KEY),
        )

    def prepare(self, location: str) -> None:
        with attached(location, "mem") as db:
            run_statements(db)


class _AnyToken:
    """Everybody may write in account `a1`."""

    def authenticate(self, headers: Mapping[str, str]) -> Principal:
        return Principal("writer", "a1", frozenset({"developer"}), Roles().permissions(["developer"]))


class _DeterministicLake(Lake):
    """A lake with the same ids in every run."""

    ids: Any = None

    @property
    def realm(self) -> Realm:
        return self.realm_of("a1")

    def realm_of(self, account_id: str) -> Realm:
        if self.ids is None:
            self.ids = Ids()
        return Realm(self.stores, account_id, ids=self.ids)

    def service(self) -> AirportService:
        access = Access(lambda who: self.realm_of(who.account_id), _AnyToken(), PermissionAuthorizer())
        return airport_service(access, handles=Handles(Sources(self.secrets), self.warehouse), key=KEY)


class LakeTarget(FlightTarget):
    """Managed tables, and the tables of the schema `skiway`."""

    name = "lake"

    def service(self) -> AirportService:
        folder = Path(self.folder) / "lake"
        folder.mkdir(exist_ok=True)
        stores = self.stack.enter_context(open_stores("memory://"))
        self.lake = _DeterministicLake(folder, with_blob_cache(stores))
        return self.lake.service()

    def prepare(self, location: str) -> None:
        with attached(location, "managed") as db:
            run_statements(db)
