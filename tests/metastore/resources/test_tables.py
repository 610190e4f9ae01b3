from __future__ import annotations

from typing import Any

import pytest

from metastore.integrity import damage
from metastore.resource_factory import behavior, expect_error, key, mask, names
from skiway.errors import AlreadyExists, Conflict, InvalidArgument, NotFound
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import CONNECTOR, SNAPSHOT, TABLE_STATS
from skiway.metastore.resources import catalogs, namespaces, tables
from skiway.model import v1

Create, Update, Delete, Get, Spec = (
    v1.CreateTableRequest,
    v1.UpdateTableRequest,
    v1.DeleteTableRequest,
    v1.GetTableRequest,
    v1.TableSpec,
)
UPSTREAM = v1.UpstreamRef(uri="s3://b/t", format=v1.TF_ICEBERG, namespace_path=["x"], table_display_name="t")


def update(factory: Any, table: v1.Table, *paths: str, **spec: Any) -> v1.UpdateTableResponse:
    request = Update(table_id=table.resource_id, spec=Spec(**spec), update_mask=mask(*paths))
    return tables.update(factory.home, request)


def upstream(**changed: Any) -> v1.UpstreamRef:
    made = v1.UpstreamRef()
    made.CopyFrom(UPSTREAM)
    made.MergeFrom(v1.UpstreamRef(**changed))
    return made


def in_namespace(factory: Any, namespace: v1.Namespace) -> list[str]:
    return names(tables.list_(factory.home, v1.ListTablesRequest(namespace_id=namespace.resource_id)).tables)


def test_table_is_stored_as_requested(factory):
    namespace = factory.namespace("sales")
    spec = Spec(
        display_name="people",
        description="d",
        catalog_id=namespace.catalog_id,
        namespace_id=namespace.resource_id,
        schema_json='{"fields": []}',
        upstream=UPSTREAM,
        properties={"k": "v"},
    )
    created = tables.create(factory.home, Create(spec=spec))
    assert (created.table.display_name, created.table.upstream) == ("people", UPSTREAM)
    found = tables.get(factory.home, Get(table_id=created.table.resource_id))
    assert (found.table, found.meta) == (created.table, created.meta)
    assert damage(factory.stores) == []


@behavior(32)
def test_table_is_returned_with_the_schema_of_a_snapshot(factory):
    table = factory.table(schema_json='["then"]')
    factory.snapshot(table, 1)
    update(factory, table, "schema_json", schema_json='["now"]')
    request = Get(table_id=table.resource_id)
    now = tables.get(factory.home, request)
    assert now.table.schema_json == '["now"]'
    request.snapshot.snapshot_id = 1
    then = tables.get(factory.home, request)
    assert (then.table.schema_json, then.meta) == ('["then"]', now.meta)
    request.snapshot.snapshot_id = 2
    with expect_error(NotFound, "snapshot", id="2"):
        tables.get(factory.home, request)


@pytest.mark.parametrize(
    ("changed", "error_key"),
    [
        ({"display_name": " "}, "display.name.required"),
        ({"display_name": None}, "display.name.required"),
        ({"schema_json": None}, "field"),
        ({"schema_json": " "}, "field.invalid"),
        ({"schema_json": "{"}, "field.invalid"),
        ({"catalog_id": None}, "field"),
        ({"namespace_id": None}, "field"),
        ({"namespace_id": v1.ResourceId(id="x", kind=v1.RK_VIEW)}, "kind"),
        ({"upstream": v1.UpstreamRef()}, "upstream.uri.required"),
        ({"upstream": upstream(namespace_path=[" "])}, "path.segment.blank"),
        ({"upstream": upstream(column_id_algorithm=v1.CID_UNKNOWN)}, "upstream.algorithm.unknown"),
        ({"upstream": upstream(connector_id=v1.ResourceId(id=" "))}, "upstream.connector.invalid"),
        (
            {"upstream": upstream(connector_id=v1.ResourceId(id="x", kind=v1.RK_TABLE))},
            "upstream.connector.invalid",
        ),
        ({"properties": {"password": "x"}}, "property.secret"),
    ],
)
@behavior(28)
def test_invalid_specs_are_rejected(factory, changed, error_key):
    namespace = factory.namespace("sales")
    good = {
        "display_name": "t",
        "schema_json": "{}",
        "catalog_id": namespace.catalog_id,
        "namespace_id": namespace.resource_id,
    }
    with expect_error(InvalidArgument, error_key):
        tables.create(factory.home, Create(spec=Spec(**(good | changed))))


def test_connector_of_a_table_must_exist_in_the_account(factory):
    for account_id, connector_id in (("a1", "mine"), ("a2", "theirs")):
        connector = v1.Connector(resource_id=v1.ResourceId(account_id=account_id, id=connector_id), display_name="c")
        factory.home.all(CONNECTOR).create(connector)
    created = factory.table(upstream=upstream(connector_id=v1.ResourceId(id="mine")))
    assert created.upstream.connector_id == v1.ResourceId(account_id="a1", id="mine", kind=v1.RK_CONNECTOR)
    for foreign in (v1.ResourceId(id="theirs"), v1.ResourceId(account_id="a2", id="theirs")):
        with expect_error(NotFound, "connector", id="theirs"):
            factory.table("other", upstream=upstream(connector_id=foreign))


@behavior(9)
def test_names_are_unique_per_namespace(factory):
    factory.table("people")
    with expect_error(AlreadyExists, "table.already.exists", name="people"):
        factory.table("people")
    factory.table("people", namespace=factory.namespace("other"))


@behavior(29)
def test_catalog_and_namespace_must_match(factory):
    namespace, other = factory.namespace("sales"), factory.catalog("other")
    spec = Spec(display_name="t", schema_json="{}", catalog_id=other.resource_id, namespace_id=namespace.resource_id)
    with expect_error(InvalidArgument, "namespace.catalog.mismatch"):
        tables.create(factory.home, Create(spec=spec))
    spec.catalog_id.id = "nope"
    with expect_error(NotFound, "catalog", id="nope"):
        tables.create(factory.home, Create(spec=spec))
    with expect_error(InvalidArgument, "namespace.catalog.mismatch"):
        update(factory, factory.table(), "catalog_id", catalog_id=other.resource_id)


@behavior(29)
def test_table_moves_to_another_namespace_and_catalog(factory):
    old = factory.namespace("sales")
    table = factory.table(namespace=old)
    near = factory.namespace("near")
    far = factory.namespace("far", catalog=factory.catalog("zzz"))
    assert update(factory, table, "namespace_id", namespace_id=near.resource_id).meta.pointer_version == 2
    assert (in_namespace(factory, near), in_namespace(factory, old)) == (["people"], [])
    with expect_error(InvalidArgument, "namespace.catalog.mismatch"):
        update(factory, table, "namespace_id", namespace_id=far.resource_id)
    moved = update(
        factory, table, "namespace_id", "catalog_id", namespace_id=far.resource_id, catalog_id=far.catalog_id
    ).table
    assert (moved.catalog_id, in_namespace(factory, near), in_namespace(factory, far)) == (
        far.catalog_id,
        [],
        ["people"],
    )
    assert damage(factory.stores) == []


@behavior(24, 29)
def test_old_namespace_of_a_moved_table_can_be_deleted_but_not_the_new_one(factory):
    old, new = factory.namespace("old"), factory.namespace("new")
    table = factory.table(namespace=old)
    update(factory, table, "namespace_id", namespace_id=new.resource_id)
    namespaces.delete(factory.home, v1.DeleteNamespaceRequest(namespace_id=old.resource_id))
    with expect_error(Conflict, "namespace.not_empty", found="1 table"):
        namespaces.delete(factory.home, v1.DeleteNamespaceRequest(namespace_id=new.resource_id))


@behavior(28)
def test_fields_of_upstream_are_updated_individually(factory):
    table = factory.table(upstream=UPSTREAM)
    changed = update(
        factory,
        table,
        "upstream.uri",
        "Upstream.Partition_Keys",
        upstream=v1.UpstreamRef(uri="s3://c", partition_keys="x"),
    ).table.upstream
    assert changed == upstream(uri="s3://c", partition_keys=["x"])
    assert not update(factory, table, "upstream").table.HasField("upstream")


@behavior(28)
@pytest.mark.parametrize(
    ("paths", "spec", "error_key"),
    [
        (["upstream", "upstream.uri"], {"upstream": UPSTREAM}, "update.mask.upstream.mix.forbidden"),
        (["upstream.uri"], {}, "uri.cannot.clear"),
        (
            ["upstream.column_id_algorithm"],
            {"upstream": upstream(column_id_algorithm=50)},
            "upstream.algorithm.unknown",
        ),
        (["upstream"], {"upstream": v1.UpstreamRef()}, "upstream.uri.required"),
        (["upstream.color"], {}, "update.mask.path.invalid"),
    ],
)
def test_invalid_updates_of_upstream_are_rejected(factory, paths, spec, error_key):
    table = factory.table(upstream=UPSTREAM)
    with expect_error(InvalidArgument, error_key):
        update(factory, table, *paths, **spec)


@behavior(28)
def test_fields_of_a_missing_upstream_cannot_be_updated(factory):
    with expect_error(InvalidArgument, "upstream.missing.for.replacement"):
        update(factory, factory.table(), "upstream.uri", upstream=UPSTREAM)


@behavior(25, 26)
@pytest.mark.parametrize(
    ("paths", "error_key"),
    [
        ([], "update.mask.required"),
        (["created_at"], "update.mask.path.invalid"),
        (["schema_json"], "schema.json.cannot.clear"),
        (["display_name"], "display.name.cannot.clear"),
        (["catalog_id"], "catalog.id.cannot.clear"),
        (["namespace_id"], "namespace.id.cannot.clear"),
    ],
)
def test_invalid_update_masks_are_rejected(factory, paths, error_key):
    with expect_error(InvalidArgument, error_key):
        update(factory, factory.table(), *paths)


@behavior(30)
def test_tables_and_views_share_one_set_of_names(factory):
    table, view = factory.table("a"), factory.view("b")
    with expect_error(AlreadyExists, "relation.name.already.claimed", name="a"):
        factory.view("a")
    with expect_error(AlreadyExists, "relation.name.already.claimed", name="b"):
        factory.table("b")
    with expect_error(AlreadyExists, "relation.name.already.claimed", name="b"):
        update(factory, table, "display_name", display_name="b")
    tables.delete(factory.home, Delete(table_id=table.resource_id))
    assert factory.view("a").resource_id != view.resource_id
    assert damage(factory.stores) == []


@behavior(31)
def test_deleting_a_table_deletes_its_snapshots_and_statistics(factory):
    table = factory.table()
    for number in range(3):
        factory.home.all(SNAPSHOT).create(v1.Snapshot(table_id=table.resource_id, snapshot_id=number))
        factory.home.all(TABLE_STATS).create(v1.TableStats(table_id=table.resource_id, snapshot_id=number))
    request = Delete(table_id=table.resource_id)
    assert tables.delete(factory.home, request).meta.pointer_version == 1
    assert list(factory.stores.pointers.scan(keys.of_table("a1", table.resource_id.id))) == []
    assert tables.delete(factory.home, request).meta.pointer_version == 0
    request.precondition.expected_version = 1
    with expect_error(NotFound, "table", id=table.resource_id.id):
        tables.delete(factory.home, request)


@behavior(31)
def test_repeated_delete_finishes_the_delete_of_a_crashed_process(factory):
    table = factory.table()
    factory.home.all(SNAPSHOT).create(v1.Snapshot(table_id=table.resource_id, snapshot_id=1))
    found = factory.stores.pointers.scan(f"/accounts/a1/namespaces/{table.namespace_id.id}/")
    for pointer in [*found, factory.stores.pointers.get(keys.table("a1", table.resource_id.id))]:
        factory.stores.pointers.compare_and_delete(pointer.key, expect=pointer.version)
    tables.delete(factory.home, Delete(table_id=table.resource_id))
    assert list(factory.stores.pointers.scan(keys.of_table("a1", table.resource_id.id))) == []


@behavior(14)
def test_table_with_a_damaged_blob_can_be_deleted_and_created_again(factory):
    table = factory.table()
    meta = tables.get(factory.home, Get(table_id=table.resource_id)).meta
    factory.stores.blobs._overwrite(meta.blob_uri, b"damaged")
    tables.delete(factory.home, Delete(table_id=table.resource_id))
    factory.table()
    assert damage(factory.stores) == []


@behavior(36, 37, 38)
def test_creation_with_the_same_idempotency_key_is_done_once(factory):
    namespace = factory.namespace("sales")
    spec = Spec(display_name="t", schema_json="{}", catalog_id=namespace.catalog_id, namespace_id=namespace.resource_id)
    first = tables.create(factory.home, Create(spec=spec, idempotency=key("k")))
    spec.catalog_id.account_id = ""
    assert tables.create(factory.home, Create(spec=spec, idempotency=key("k"))) == first
    spec.schema_json = "[]"
    with expect_error(Conflict, "idempotency.mismatch", op="CreateTable"):
        tables.create(factory.home, Create(spec=spec, idempotency=key("k")))


def test_number_of_store_calls_does_not_grow_with_the_namespace(factory, calls):
    namespace = factory.namespace("sales")

    def cost() -> list[int]:
        counts = []
        name = f"new {factory.ids()}"
        calls.reset()
        table = factory.table(name, namespace=namespace)
        counts.append(calls.total)
        calls.reset()
        tables.get(factory.home, Get(table_id=table.resource_id))
        counts.append(calls.total)
        calls.reset()
        page = v1.PageRequest(page_size=2)
        tables.list_(factory.home, v1.ListTablesRequest(namespace_id=namespace.resource_id, page=page))
        counts.append(calls.total)
        calls.reset()
        update(factory, table, "display_name", display_name=f"{name} renamed")
        counts.append(calls.total)
        calls.reset()
        tables.delete(factory.home, Delete(table_id=table.resource_id))
        counts.append(calls.total)
        return counts

    for name in "ab":
        factory.table(name, namespace=namespace)
    few = cost()
    for number in range(60):
        factory.table(f"{number}", namespace=namespace)
    assert cost() == few == [5, 2, 6, 8, 9]  # changes look whether the catalog is protected


def test_emptied_catalog_contains_no_tables(factory):
    table = factory.table()
    catalogs.delete(factory.home, v1.DeleteCatalogRequest(catalog_id=table.catalog_id, require_empty=False))
    with expect_error(NotFound, "table"):
        tables.get(factory.home, Get(table_id=table.resource_id))
