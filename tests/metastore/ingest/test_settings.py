"""The settings of copies: which are accepted, and what single tables inherit."""

from __future__ import annotations

import pytest

from metastore.resource_factory import ResourceFactory, expect_error, mask
from metastore.upstreams import SECRETS, connector
from skiway.errors import InvalidArgument, PermissionDenied, PreconditionFailed
from skiway.metastore import connectors
from skiway.metastore.connectors.specs import CopyMode, CopyRules, rules_for
from skiway.model import v1
from skiway.security.source_access import SourceAccess

APPEND, UPSERT, REPLACE = v1.COM_APPEND, v1.COM_UPSERT, v1.COM_REPLACE


@pytest.mark.parametrize(
    ("kind", "copy", "field", "message"),
    [
        (v1.CK_CSV, None, "copy", "tables of kind csv cannot be mirrored"),
        (v1.CK_PARQUET, {}, "copy.mode", "use COM_APPEND, COM_UPSERT or COM_REPLACE"),
        (v1.CK_PARQUET, {"mode": 77}, "copy.mode", "77"),
        (v1.CK_PARQUET, {"mode": UPSERT}, "copy.key_columns", "name the columns that identify a row"),
        (v1.CK_PARQUET, {"mode": APPEND, "key_columns": ["id"]}, "copy.key_columns", "only for COM_UPSERT"),
        (v1.CK_PARQUET, {"mode": UPSERT, "key_columns": ["id", "ID"]}, "copy.key_columns", "each column once"),
        (v1.CK_PARQUET, {"mode": UPSERT, "key_columns": [" "]}, "copy.key_columns", ""),
        (v1.CK_PARQUET, {"mode": APPEND, "cursor_column": "id"}, "copy.cursor_column", "only for databases"),
        (v1.CK_AIRPORT, {"mode": APPEND}, "copy.mode", "use COM_REPLACE"),
        (v1.CK_JDBC, {"mode": APPEND}, "copy.cursor_column", "that grows with every new or changed row"),
        (v1.CK_JDBC, {"mode": REPLACE, "cursor_column": "id"}, "copy.cursor_column", "COM_APPEND or COM_UPSERT"),
        (v1.CK_PARQUET, {"mode": APPEND, "changes": True}, "copy.changes", "copied from PostgreSQL"),
        (v1.CK_JDBC, {"mode": APPEND, "changes": True}, "copy.changes", "copied from PostgreSQL"),
        (v1.CK_PARQUET, {"mode": APPEND, "tables": {"t": {"changes": True}}}, "copy.tables.t.changes", "all tables"),
        (v1.CK_PARQUET, {"mode": APPEND, "schema_changes": 9}, "copy.schema_changes", "SCH_FOLLOW or SCH_REJECT"),
        (v1.CK_PARQUET, {"mode": APPEND, "read_partitions": 65}, "copy.read_partitions", "1 to 64"),
        (v1.CK_PARQUET, {"mode": APPEND, "tables": {"t": {"mode": UPSERT}}}, "copy.tables.t.key_columns", ""),
        (v1.CK_PARQUET, {"tables": {"t": {"sort_by": "id"}}}, "copy.tables.t.mode", ""),
        (v1.CK_PARQUET, {"mode": APPEND, "tables": {"t": {"tables": {"u": {}}}}}, "copy.tables.t.tables", ""),
    ],
)
def test_wrong_settings_are_refused(factory, kind, copy, field, message):
    factory.catalog()
    uri = "sqlite:////nowhere.db" if kind == v1.CK_JDBC else "/nowhere"
    source = v1.ConnectorSource(namespace=v1.NamespacePath(segments=["n"]))
    with pytest.raises(InvalidArgument) as raised:
        connector(factory, uri, kind, copy=None if copy is None else v1.CopySettings(**copy), source=source)
    assert raised.value.params["field"] == field
    assert message in raised.value.message


@pytest.mark.parametrize("more", [{"cursor_column": "id"}, {"mode": REPLACE}, {"read_partitions": 2}])
def test_copies_of_changes_have_no_other_way_to_find_them(factory, more):
    factory.catalog()
    source = v1.ConnectorSource(namespace=v1.NamespacePath(segments=["n"]))

    def made(**settings):
        copy = v1.CopySettings(**{"mode": UPSERT, "changes": True, **settings})
        connector(factory, "postgresql://me@127.0.0.1/db", v1.CK_JDBC, copy=copy, source=source)

    with pytest.raises(InvalidArgument) as raised:
        made(**more)
    assert raised.value.params["field"] == "copy.changes"
    made()


def test_tables_inherit_what_they_do_not_set():
    copy = v1.CopySettings(
        mode=UPSERT,
        key_columns=["id"],
        schema_changes=v1.SCH_REJECT,
        sort_by="id",
        tables={
            "s.logs": v1.CopySettings(mode=APPEND, partition_by=["day(ts)"], schema_changes=v1.SCH_FOLLOW),
            "users": v1.CopySettings(key_columns=["a", "b"]),
        },
    )
    assert rules_for(copy, "s.users", "users") == CopyRules(CopyMode.UPSERT, ("a", "b"), follows=False, sort_by="id")
    logs = rules_for(copy, "s.logs", "logs")
    assert (logs.mode, logs.follows, logs.partition_by, logs.sort_by) == (CopyMode.APPEND, True, ("day(ts)",), "id")
    assert rules_for(copy, "s.other", "other").keys == ("id",)


def test_rows_are_only_copied_to_managed_catalogs(factory):
    mirror = factory.catalog("mirror", connector_ref="x")
    destination = v1.ConnectorDestination(catalog_id=mirror.resource_id)
    with expect_error(PreconditionFailed, "connector.copy.catalog", display_name="mirror"):
        connector(factory, "/nowhere", copy=v1.CopySettings(mode=APPEND), destination=destination)


def test_copy_is_updated_and_checked_again(factory):
    factory.catalog()
    made = connector(factory, "/nowhere", copy=v1.CopySettings(mode=APPEND))

    def update(copy: v1.CopySettings) -> v1.Connector:
        request = v1.UpdateConnectorRequest(
            connector_id=made.resource_id, spec=v1.ConnectorSpec(copy=copy), update_mask=mask("copy")
        )
        return connectors.calls(SECRETS).update(factory.home, request).connector

    with expect_error(InvalidArgument, "field.invalid", field="copy.key_columns"):
        update(v1.CopySettings(mode=UPSERT))
    assert list(update(v1.CopySettings(mode=UPSERT, key_columns=["id"])).copy.key_columns) == ["id"]


@pytest.mark.parametrize("uri", ["postgresql://me@10.1.2.3/db", "mysql://me@localhost:99/db", "sqlite:////etc/x.db"])
def test_database_that_sources_may_not_reach_is_refused(factory: ResourceFactory, uri: str) -> None:
    factory.catalog()
    spec = v1.ConnectorSpec(
        display_name="db",
        kind=v1.CK_JDBC,
        uri=uri,
        copy=v1.CopySettings(mode=REPLACE),
        destination=v1.ConnectorDestination(catalog_display_name="lake"),
    )
    closed = SourceAccess(local_roots=("/data",), addresses=())
    with pytest.raises(PermissionDenied):
        connectors.create(factory.home, v1.CreateConnectorRequest(spec=spec), secrets=SECRETS, access=closed)
