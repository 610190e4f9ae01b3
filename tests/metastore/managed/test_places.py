"""Managed tables at locations that the operator approved for a catalog."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyiceberg.table.update import SetLocationUpdate

from metastore.managed_table_factory import ManagedTableFactory, id_of
from metastore.resource_factory import ResourceFactory, expect_error
from skiway.errors import AlreadyExists, InvalidArgument, PermissionDenied
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore import managed as managed_tables
from skiway.metastore.gc.warehouse import sweep_warehouse
from skiway.metastore.managed.locations import places
from skiway.model import v1


@pytest.fixture
def managed(factory: ResourceFactory, tmp_path: Path) -> ManagedTableFactory:
    name = factory.first_catalog().display_name
    approved = [(f"a1/{name}", str(tmp_path / "approved")), ("a1/other", str(tmp_path / "others"))]
    (tmp_path / "approved").mkdir()
    return ManagedTableFactory(factory, Warehouse.at(str(tmp_path / "warehouse"), approved=approved))


def claimed(managed: ManagedTableFactory) -> list[str]:
    return [str(each.folder) for each in places(managed.factory.stores)]


def test_table_is_created_written_and_dropped_at_an_approved_location(
    managed: ManagedTableFactory, tmp_path: Path
) -> None:
    folder = tmp_path / "approved" / "sales" / "orders"
    table = managed.create(location=f"{folder}/")
    assert table.metadata.location == f"file://{folder}"
    assert table.metadata_location.startswith(f"file://{folder}/metadata/")
    managed.append(table, 1, 2)
    assert managed.rows(table) == [1, 2]
    assert list((folder / "data").glob("*.parquet"))
    managed_tables.drop(managed.home, managed.warehouse, id_of(table), purge=True)
    assert claimed(managed) == []
    assert not folder.exists()
    assert managed.create(location=str(folder)).metadata.location == f"file://{folder}"


@pytest.mark.parametrize(
    "place",
    [
        "{0}/others/x",
        "{0}/approved",
        "{0}/approved-too/x",
        "{0}/x",
        "/etc/x",
        "s3://bucket/x",
        "{0}/approved/../x",
        "x",
    ],
)
def test_other_locations_are_refused(managed: ManagedTableFactory, tmp_path: Path, place: str) -> None:
    with expect_error(InvalidArgument, "location.refused"):
        managed.create(location=place.format(tmp_path))
    assert claimed(managed) == []


def test_links_do_not_lead_out_of_an_approved_location(managed: ManagedTableFactory, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "approved" / "link").symlink_to(tmp_path / "elsewhere")
    with expect_error(InvalidArgument, "location.refused"):
        managed.create(location=f"{tmp_path}/approved/link/orders")


@pytest.mark.parametrize("place", ["orders", "orders/inner", ""])
def test_folders_of_tables_do_not_overlap(managed: ManagedTableFactory, tmp_path: Path, place: str) -> None:
    managed.create(location=f"{tmp_path}/approved/shop/orders")
    with expect_error(AlreadyExists, "location.taken"):
        managed.create("second", location=f"{tmp_path}/approved/shop/{place}")
    (tmp_path / "approved" / "alias").symlink_to(tmp_path / "approved" / "shop")
    with expect_error(AlreadyExists, "location.taken"):
        managed.create("third", location=f"{tmp_path}/approved/alias/orders")
    assert len(claimed(managed)) == 1


def test_folder_with_files_is_not_taken_over(managed: ManagedTableFactory, tmp_path: Path) -> None:
    (tmp_path / "approved" / "mine").mkdir()
    (tmp_path / "approved" / "mine" / "precious.csv").touch()
    with expect_error(AlreadyExists, "location.taken"):
        managed.create(location=f"{tmp_path}/approved/mine")


def test_failed_creation_releases_the_folder(managed: ManagedTableFactory, tmp_path: Path) -> None:
    managed.create("people")
    with pytest.raises(AlreadyExists):
        managed.create("people", location=f"{tmp_path}/approved/people")
    assert claimed(managed) == []


def test_commit_moves_a_table_only_to_free_approved_folders(managed: ManagedTableFactory, tmp_path: Path) -> None:
    table = managed.create(location=f"{tmp_path}/approved/orders")
    managed.create("others", location=f"{tmp_path}/approved/people")

    def move(place: str) -> managed_tables.ManagedTable:
        updates = [SetLocationUpdate(location=f"file://{tmp_path}/{place}")]
        return managed_tables.commit(managed.home, managed.warehouse, id_of(table), [], updates)

    for place in ("approved", "elsewhere", "warehouse/a1/x"):
        with expect_error(InvalidArgument, "location.refused"):
            move(place)
    for place in ("approved/people", "approved/people/inside"):
        with expect_error(AlreadyExists, "location.taken"):
            move(place)
    assert move("approved/other").metadata_location.startswith(f"file://{tmp_path}/approved/other/metadata/")


def test_staged_table_is_committed_where_it_was_staged(managed: ManagedTableFactory, tmp_path: Path) -> None:
    from metastore.managed.test_tables import create_staged, staged_updates

    staged = managed.create(location=f"{tmp_path}/approved/orders", stage=True)
    made = create_staged(managed, staged_updates(staged))
    assert made.metadata.location == f"file://{tmp_path}/approved/orders"
    assert made.id == staged.id
    other = managed.create("unclaimed", stage=True)
    moved = [each for each in staged_updates(other) if each.action != "set-location"]
    with expect_error(InvalidArgument, "location.refused"):
        create_staged(managed, [*moved, SetLocationUpdate(location=f"file://{tmp_path}/approved/free")])


def test_dropped_table_is_collected_later(managed: ManagedTableFactory, tmp_path: Path) -> None:
    folder = tmp_path / "approved" / "orders"
    table = managed.create(location=str(folder))
    managed.append(table, 1)
    inside = managed.create("inside")
    managed_tables.drop(managed.home, managed.warehouse, id_of(table))

    def sweep(now: datetime) -> None:
        token: str | None = None
        while True:
            done = sweep_warehouse(
                managed.factory.stores, managed.warehouse, clock=lambda: now, size=1, token=token, dry_run=False
            )
            if (token := done.next_token) is None:
                return

    sweep(datetime.now(UTC))
    assert list(folder.rglob("*.parquet"))
    sweep(datetime.now(UTC) + timedelta(days=9))
    assert not folder.exists()
    assert claimed(managed) == []
    assert managed.load(inside)


def test_sweep_continues_with_the_next_locations(managed: ManagedTableFactory, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        managed.create(name, location=f"{tmp_path}/approved/{name}")
    tokens: list[str | None] = [None]
    while len(tokens) == 1 or tokens[-1] is not None:
        assert len(tokens) < 5, "the sweep does not proceed"
        done = sweep_warehouse(
            managed.factory.stores,
            managed.warehouse,
            clock=lambda: datetime.now(UTC),
            size=1,
            token=tokens[-1],
        )
        assert done.looked_at == 1
        tokens.append(done.next_token)
    assert len(set(tokens[:-1])) == 3


def test_location_that_is_no_longer_approved_is_closed(managed: ManagedTableFactory, tmp_path: Path) -> None:
    table = managed.create(location=f"{tmp_path}/approved/orders")
    closed = replace(managed, warehouse=Warehouse.at(str(tmp_path / "warehouse")))
    with pytest.raises(PermissionDenied):
        closed.load(v1.Table(resource_id=id_of(table)))
