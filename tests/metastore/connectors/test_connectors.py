"""Connectors: what they may be told, and that their credentials show nowhere."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from metastore.faults import Died, Fate, dying
from metastore.integrity import damage
from metastore.mirrors import connector, spec
from metastore.resource_factory import ResourceFactory, behavior, key, mask, names, refused
from skiway.errors import (
    AlreadyExists,
    Conflict,
    Contention,
    InvalidArgument,
    NotFound,
    PreconditionFailed,
    Unavailable,
)
from skiway.metastore import Realm, connectors, gc
from skiway.metastore.connectors.credentials import credentials
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import CONNECTOR, IDEMPOTENCY
from skiway.metastore.records.repository import Repository
from skiway.metastore.resources import accounts, namespaces
from skiway.model import v1
from skiway.security import MemorySecrets
from skiway.storage import open_stores
from storage.homes import Clock

TOKEN = "hunter2-is-not-a-good-token"
BEARER = v1.ConnectorCredentials(bearer=v1.BearerToken(token=TOKEN))
OTHER = v1.ConnectorCredentials(bearer=v1.BearerToken(token="another"))
WITH_TOKEN = v1.ConnectorAuthSpec(scheme="oauth2", credentials=BEARER)


@pytest.fixture
def secrets() -> MemorySecrets:
    return MemorySecrets()


def stored(secrets: MemorySecrets) -> list[bytes]:
    """All secrets there are."""
    return list(secrets._secrets.values())


def create(factory: ResourceFactory, secrets: Any, **more: Any) -> v1.CreateConnectorResponse:
    return connectors.create(factory.home, v1.CreateConnectorRequest(spec=spec(factory, **more)), secrets=secrets)


def update(factory: ResourceFactory, secrets: Any, of: v1.Connector, *paths: str, **request: Any) -> v1.Connector:
    precondition = request.pop("precondition", None)
    asked = v1.UpdateConnectorRequest(
        connector_id=of.resource_id,
        spec=v1.ConnectorSpec(**request),
        update_mask=mask(*paths),
        precondition=precondition,
    )
    return connectors.update(factory.home, asked, secrets=secrets).connector


def get(factory: ResourceFactory, of: v1.Connector) -> v1.Connector:
    return connectors.get(factory.home, v1.GetConnectorRequest(connector_id=of.resource_id)).connector


def delete(factory: ResourceFactory, secrets: Any, of: v1.Connector) -> None:
    connectors.delete(factory.home, v1.DeleteConnectorRequest(connector_id=of.resource_id), secrets=secrets)


def token(factory: ResourceFactory, secrets: Any, of: v1.Connector) -> str | None:
    found = credentials(factory.home, secrets, of.resource_id.id)
    return None if found is None else found.bearer.token


def everything(factory: ResourceFactory) -> bytes:
    """All that is in the stores, pointers and blobs."""
    blobs = [factory.stores.blobs.get(head.uri) for head in factory.stores.blobs.scan()]
    pointers = [f"{each.key} {each.blob_uri}".encode() for each in factory.stores.pointers.scan()]
    return b"\n".join([*blobs, *pointers])


def test_a_connector_is_created_active_and_found_by_id_and_in_the_list(factory, secrets):
    made = create(factory, secrets, name="  my   files ", description="about").connector
    assert (made.display_name, made.description, made.state) == ("my files", "about", v1.CS_ACTIVE)
    assert made.auth.scheme == "none"
    assert get(factory, made) == made
    assert list(connectors.list_(factory.home, v1.ListConnectorsRequest()).connectors) == [made]
    assert damage(factory.stores) == []
    with refused(AlreadyExists, "connector.already.exists", name="my files"):
        create(factory, secrets, name="my files")


@behavior(68)
def test_credentials_go_to_the_store_of_secrets_and_nowhere_else(factory, secrets):
    request = v1.CreateConnectorRequest(spec=spec(factory, auth=WITH_TOKEN), idempotency=key("k"))
    answer = connectors.create(factory.home, request, secrets=secrets)
    assert TOKEN not in str(answer)
    assert TOKEN not in str(connectors.list_(factory.home, v1.ListConnectorsRequest()))
    assert TOKEN.encode() not in everything(factory)
    assert stored(secrets) == [BEARER.SerializeToString()]
    assert token(factory, secrets, answer.connector) == TOKEN
    assert credentials(factory.home, secrets, connector(factory, "plain").resource_id.id) is None


@behavior(68)
def test_what_looks_secret_in_auth_is_masked_in_answers_and_survives_being_sent_back(factory, secrets):
    auth = v1.ConnectorAuthSpec(
        properties={"oauth.session": "abc", "region": "eu", "token_type": "jwt"},
        header_hints={"X-Auth": "s", "Accept": "json", "X-Plain": "Bearer abc"},
    )
    made = create(factory, secrets, auth=auth).connector
    assert dict(made.auth.properties) == {"oauth.session": "****", "region": "eu", "token_type": "****"}
    assert dict(made.auth.header_hints) == {"X-Auth": "****", "Accept": "json", "X-Plain": "****"}
    back = v1.ConnectorAuthSpec(properties={**made.auth.properties, "region": "us"})
    update(factory, secrets, made, "auth.properties", auth=back)
    record = factory.home.all(CONNECTOR).find(keys.connector("a1", made.resource_id.id)).value
    assert dict(record.auth.properties) == {"oauth.session": "abc", "region": "us", "token_type": "jwt"}
    with refused(InvalidArgument, "field.invalid", field="auth.properties"):
        update(factory, secrets, made, "auth.properties", auth=v1.ConnectorAuthSpec(properties={"new": "****"}))


@behavior(35)
@pytest.mark.parametrize(
    "name",
    ["password", "s3.secret-access-key", "clientSecret", "my_api_key", "x.access.token", "db-credentials", "apiToken"],
)
def test_secrets_are_refused_where_everybody_reads(factory, secrets, name):
    with refused(InvalidArgument, "property.secret", field="properties", property=name):
        create(factory, secrets, properties={name: "x"})
    with refused(InvalidArgument, "property.secret", field="auth.properties", property=name):
        create(factory, secrets, auth=v1.ConnectorAuthSpec(properties={name: "x"}))
    with refused(InvalidArgument, "property.secret", field="auth.header_hints", property=name):
        create(factory, secrets, auth=v1.ConnectorAuthSpec(header_hints={name: "x"}))


def test_a_password_in_the_uri_is_refused_and_not_repeated(factory, secrets):
    with refused(InvalidArgument, "connector.uri.password") as raised:
        create(factory, secrets, uri="https://me:hunter2@host/x")
    assert "hunter2" not in str(raised.value)


@behavior(68)
@pytest.mark.parametrize(
    ("kind", "properties", "allowed"),
    [
        (v1.CK_ICEBERG, {}, False),
        (v1.CK_DELTA, {}, False),
        (v1.CK_UNITY, {}, False),
        (v1.CK_GLUE, {}, False),
        (v1.CK_ICEBERG, {"iceberg.source": "rest"}, False),
        (v1.CK_ICEBERG, {"iceberg.source": "filesystem"}, True),
        (v1.CK_DELTA, {"delta.source": "filesystem"}, True),
        (v1.CK_PARQUET, {}, True),
    ],
)
def test_only_a_directory_may_be_read_without_a_namespace(factory, secrets, kind, properties, allowed):
    if allowed:
        create(factory, secrets, kind=kind, properties=properties)
    else:
        with refused(InvalidArgument, "connector.missing.source.namespace"):
            create(factory, secrets, kind=kind, properties=properties)
    source = v1.ConnectorSource(namespace=v1.NamespacePath(segments=["db"]))
    create(factory, secrets, name="named", kind=kind, source=source)


@behavior(68)
def test_the_destination_catalog_must_be_said_exist_and_agree(factory, secrets):
    lake, other = factory.catalog("lake"), factory.catalog("other")

    def to(**destination: Any) -> v1.Connector:
        return create(factory, secrets, destination=v1.ConnectorDestination(**destination)).connector

    with refused(InvalidArgument, "connector.missing.destination.catalog"):
        to()
    with refused(NotFound, "connector.destination.catalog.not.found", display_name="lak"):
        to(catalog_display_name="lak")
    with refused(InvalidArgument, "connector.destination.catalog.mismatch", display_name="lake"):
        to(catalog_display_name="lake", catalog_id=other.resource_id)
    with refused(NotFound, "catalog"):
        to(catalog_id=v1.ResourceId(id="x"))
    made = to(catalog_display_name=" lake ", catalog_id=lake.resource_id)
    assert made.destination == v1.ConnectorDestination(catalog_id=lake.resource_id)


@behavior(68)
def test_destination_names_become_ids_where_they_exist(factory, secrets):
    table = factory.table("people", namespace=factory.namespace("sales", "eu"))
    named = {
        "catalog_display_name": "lake",
        "namespace": v1.NamespacePath(segments=["sales", "eu"]),
        "table_display_name": "people",
    }
    made = create(factory, secrets, destination=v1.ConnectorDestination(**named)).connector.destination
    assert made == v1.ConnectorDestination(
        catalog_id=table.catalog_id, namespace_id=table.namespace_id, table_id=table.resource_id
    )
    path = v1.NamespacePath(segments=["new"])
    absent = v1.ConnectorDestination(catalog_display_name="lake", namespace=path, table_display_name="t")
    later = create(factory, secrets, name="later", destination=absent).connector.destination
    assert (later.namespace, later.table_display_name, later.HasField("namespace_id")) == (path, "t", False)
    for wrong in (
        {"namespace_id": table.namespace_id, "namespace": path},
        {"table_id": table.resource_id, "table_display_name": "other"},
        {"table_id": table.resource_id, "namespace_id": factory.namespace("other").resource_id},
    ):
        destination = v1.ConnectorDestination(catalog_id=table.catalog_id, **wrong)
        with refused(InvalidArgument, "connector.destination.mismatch"):
            create(factory, secrets, name="wrong", destination=destination)


def test_a_renamed_destination_is_still_the_destination(factory, secrets):
    place = factory.namespace("sales")
    made = create(
        factory,
        secrets,
        destination=v1.ConnectorDestination(
            catalog_id=place.catalog_id, namespace=v1.NamespacePath(segments=["sales"])
        ),
    ).connector
    rename = v1.UpdateNamespaceRequest(
        namespace_id=place.resource_id, spec=v1.NamespaceSpec(display_name="new"), update_mask=mask("display_name")
    )
    namespaces.update(factory.home, rename)
    changed = update(
        factory,
        secrets,
        made,
        "destination.table_display_name",
        destination=v1.ConnectorDestination(table_display_name="t"),
    )
    assert changed.destination.namespace_id == place.resource_id


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"kind": v1.CK_UNSPECIFIED}, "kind"),
        ({"kind": 99}, "kind"),
        ({"uri": " "}, "uri"),
        ({"source": v1.ConnectorSource(columns=["#x"])}, "source.columns"),
        ({"source": v1.ConnectorSource(table=" ")}, "source.table"),
        ({"source": v1.ConnectorSource(include_tables=[""])}, "source.include_tables or source.exclude_tables"),
        ({"source": v1.ConnectorSource(namespace=v1.NamespacePath(segments=["a", " "]))}, "source.namespace"),
        ({"auth": v1.ConnectorAuthSpec(scheme="kerberos")}, "auth.scheme"),
        ({"auth": v1.ConnectorAuthSpec(credentials=v1.ConnectorCredentials())}, "auth.credentials"),
        ({"policy": v1.ConnectorPolicy(interval=Duration(seconds=-1))}, "policy.interval"),
        ({"policy": v1.ConnectorPolicy(max_parallel=-1)}, "policy.max_parallel"),
        ({"policy": v1.ConnectorPolicy(scope=v1.SNS_LATEST_N)}, "policy.latest_n"),
    ],
)
def test_what_makes_no_sense_is_refused_by_field(factory, secrets, more, field):
    with pytest.raises(InvalidArgument) as raised:
        create(factory, secrets, **more)
    assert raised.value.params["field"] == field
    assert "update_mask" not in raised.value.message
    assert stored(secrets) == []


def test_credentials_that_lack_something_are_refused_without_being_told(factory, secrets):
    given = v1.ConnectorCredentials(aws=v1.AwsCredentials(access_key_id="AKIA-LONG", secret_access_key=" "))
    with refused(InvalidArgument, "field", field="auth.credentials.aws.secret_access_key") as raised:
        create(factory, secrets, auth=v1.ConnectorAuthSpec(credentials=given))
    assert "AKIA" not in str(raised.value)


@pytest.mark.parametrize(
    ("source", "chosen"),
    [
        (v1.ConnectorSource(), {"orders", "orders_old", "people"}),
        (v1.ConnectorSource(table="people"), {"people"}),
        (v1.ConnectorSource(include_tables=["orders*"]), {"orders", "orders_old"}),
        (v1.ConnectorSource(include_tables=["orders*"], exclude_tables=["*_old"]), {"orders"}),
        (v1.ConnectorSource(exclude_tables=["db.sales.o*"]), {"people"}),
        (v1.ConnectorSource(include_tables=["ORDERS"]), set()),
    ],
)
def test_globs_choose_tables_by_name_or_full_name(source, chosen):
    tables = ["orders", "orders_old", "people"]
    assert {name for name in tables if connectors.selects(source, ("db", "sales"), name)} == chosen


def test_one_table_and_globs_exclude_each_other(factory, secrets):
    source = v1.ConnectorSource(table="t", include_tables=["*"])
    with refused(InvalidArgument, "selector.ambiguous", first="source.table"):
        create(factory, secrets, source=source)


@behavior(68)
def test_connectors_are_listed_by_kind_in_pages(factory, secrets):
    source = v1.ConnectorSource(namespace=v1.NamespacePath(segments=["db"]))
    for number in range(3):
        connector(factory, f"p{number}")
        connector(factory, f"i{number}", kind=v1.CK_ICEBERG, source=source)
    request = v1.ListConnectorsRequest(kind=v1.CK_ICEBERG, page=v1.PageRequest(page_size=2))
    first = connectors.list_(factory.home, request)
    assert (names(first.connectors), first.page.total_size) == (["i0", "i1"], 3)
    request.page.page_token = first.page.next_page_token
    last = connectors.list_(factory.home, request)
    assert (names(last.connectors), last.page.next_page_token) == (["i2"], "")
    assert connectors.list_(factory.home, v1.ListConnectorsRequest()).page.total_size == 6
    with refused(InvalidArgument, "page.token.invalid"):
        connectors.list_(
            factory.home,
            v1.ListConnectorsRequest(kind=v1.CK_PARQUET, page=v1.PageRequest(page_token=first.page.next_page_token)),
        )


def test_masked_fields_are_taken_over_and_others_stay(factory, secrets):
    made = create(factory, secrets, description="old", properties={"a": "1"}, auth=WITH_TOKEN).connector
    changed = update(
        factory,
        secrets,
        made,
        "display_name",
        "description",
        "source.table",
        "policy.enabled",
        "auth.scheme",
        display_name=" new ",
        source=v1.ConnectorSource(table="t"),
        policy=v1.ConnectorPolicy(enabled=True),
        auth=v1.ConnectorAuthSpec(scheme="AWS-SigV4"),
        uri="ignored",
    )
    assert (changed.display_name, changed.uri, dict(changed.properties)) == ("new", made.uri, {"a": "1"})
    assert not changed.HasField("description")
    assert (changed.source.table, changed.policy.enabled, changed.auth.scheme) == ("t", True, "aws-sigv4")
    assert get(factory, made) == changed
    assert token(factory, secrets, made) == TOKEN


def test_an_update_that_changes_nothing_writes_nothing(factory, secrets):
    answer = create(factory, secrets, auth=WITH_TOKEN)
    update(factory, secrets, answer.connector, "uri", uri=answer.connector.uri)
    again = connectors.get(factory.home, v1.GetConnectorRequest(connector_id=answer.connector.resource_id))
    assert again.meta == answer.meta


@pytest.mark.parametrize(
    ("path", "error_key"),
    [
        ("display_name", "display.name.cannot.clear"),
        ("uri", "uri.cannot.clear"),
        ("kind", "kind.cannot.clear"),
        ("destination", "connector.missing.destination.catalog"),
        ("state", "field.invalid"),
        ("created_at", "update.mask.path.invalid"),
        ("auth.secret_id", "update.mask.path.invalid"),
    ],
)
def test_what_must_be_there_cannot_be_cleared(factory, secrets, path, error_key):
    made = connector(factory)
    with refused(InvalidArgument, error_key):
        update(factory, secrets, made, path)
    assert get(factory, made) == made


def test_a_source_namespace_that_is_needed_cannot_be_cleared(factory, secrets):
    source = v1.ConnectorSource(namespace=v1.NamespacePath(segments=["db"]))
    made = connector(factory, kind=v1.CK_UNITY, source=source)
    for path in ("source", "source.namespace"):
        with refused(InvalidArgument, "connector.missing.source.namespace"):
            update(factory, secrets, made, path)


def test_a_connector_can_be_paused_and_woken_but_not_marked_as_deleting(factory, secrets):
    made = connector(factory)
    assert update(factory, secrets, made, "state", state=v1.CS_PAUSED).state == v1.CS_PAUSED
    assert update(factory, secrets, made, "state", state=v1.CS_ACTIVE).state == v1.CS_ACTIVE
    with refused(InvalidArgument, "field.invalid", field="state", found="CS_DELETING"):
        update(factory, secrets, made, "state", state=v1.CS_DELETING)


def test_a_catalog_named_anew_replaces_the_old_id(factory, secrets):
    made = connector(factory)
    other = factory.catalog("other")
    destination = v1.ConnectorDestination(catalog_display_name="other")
    changed = update(factory, secrets, made, "destination.catalog_display_name", destination=destination)
    assert changed.destination.catalog_id == other.resource_id


@behavior(68)
@pytest.mark.parametrize("path", ["auth", "auth.credentials"])
def test_new_credentials_replace_the_old_ones(factory, secrets, path):
    made = create(factory, secrets, auth=WITH_TOKEN).connector
    changed = update(factory, secrets, made, path, auth=v1.ConnectorAuthSpec(credentials=OTHER))
    assert token(factory, secrets, made) == "another"
    assert stored(secrets) == [OTHER.SerializeToString()]
    assert changed.auth.scheme == ("oauth2" if path == "auth.credentials" else "none")
    assert factory.stores.pointers.count("/secrets/") == 1


@behavior(68)
def test_auth_that_is_masked_without_credentials_removes_them(factory, secrets):
    made = create(factory, secrets, auth=WITH_TOKEN).connector
    update(factory, secrets, made, "auth", auth=v1.ConnectorAuthSpec(scheme="none"))
    assert token(factory, secrets, made) is None
    assert stored(secrets) == []
    assert factory.stores.pointers.count("/secrets/") == 0


@behavior(68)
def test_a_failed_update_leaves_the_old_credentials(factory, secrets):
    made = create(factory, secrets, auth=WITH_TOKEN).connector
    connector(factory, "taken")
    new = v1.ConnectorAuthSpec(credentials=OTHER)
    with refused(AlreadyExists, "connector.already.exists"):
        update(factory, secrets, made, "auth", "display_name", auth=new, display_name="taken")
    with refused(PreconditionFailed, "version.mismatch"):
        update(factory, secrets, made, "auth", auth=new, precondition=v1.Precondition(expected_version=7))
    with refused(InvalidArgument, "field.invalid"):
        update(factory, secrets, made, "auth.credentials", "state", auth=new)
    assert token(factory, secrets, made) == TOKEN
    assert stored(secrets) == [BEARER.SerializeToString()]
    assert factory.stores.pointers.count("/secrets/") == 1


@behavior(68)
def test_a_deleted_connector_leaves_no_secret(factory, secrets):
    made = create(factory, secrets, auth=WITH_TOKEN).connector
    delete(factory, secrets, made)
    assert stored(secrets) == []
    assert factory.stores.pointers.count("/secrets/") == 0
    delete(factory, secrets, made)
    with refused(NotFound, "connector"):
        get(factory, made)
    with refused(NotFound, "connector"):
        update(factory, secrets, made, "auth", auth=WITH_TOKEN)
    assert stored(secrets) == []


def test_a_connector_whose_blob_is_lost_can_be_deleted_with_its_secret(factory, secrets):
    answer = create(factory, secrets, auth=WITH_TOKEN)
    factory.stores.blobs.delete(answer.meta.blob_uri)
    delete(factory, secrets, answer.connector)
    assert stored(secrets) == []


@behavior(36, 37)
def test_the_same_key_gives_the_same_connector_unless_its_credentials_differ(factory, secrets):
    request = v1.CreateConnectorRequest(spec=spec(factory, auth=WITH_TOKEN), idempotency=key("k"))
    first = connectors.create(factory.home, request, secrets=secrets)
    assert connectors.create(factory.home, request, secrets=secrets) == first
    assert len(stored(secrets)) == 1
    request.spec.auth.credentials.CopyFrom(OTHER)
    with refused(Conflict, "idempotency.mismatch"):
        connectors.create(factory.home, request, secrets=secrets)
    record = factory.home.all(IDEMPOTENCY).named(keys.idempotency("a1", "CreateConnector", "k"))
    assert TOKEN.encode() not in record.SerializeToString()


def test_a_refused_creation_leaves_no_secret(factory, secrets):
    connector(factory, "taken")
    with refused(AlreadyExists, "connector.already.exists"):
        create(factory, secrets, name="taken", auth=WITH_TOKEN)
    assert stored(secrets) == []
    assert factory.stores.pointers.count("/secrets/") == 0


def test_a_store_of_secrets_that_is_away_leaves_no_connector(factory):
    class Away(MemorySecrets):
        def put(self, *_: Any) -> None:
            raise Unavailable("the vault does not answer: try again later")

    with pytest.raises(Unavailable):
        create(factory, Away(), auth=WITH_TOKEN)
    assert connectors.list_(factory.home, v1.ListConnectorsRequest()).page.total_size == 0


def test_old_credentials_that_cannot_be_removed_now_are_left_to_gc(factory, secrets):
    class Sticky(MemorySecrets):
        def delete(self, *_: Any) -> None:
            raise Unavailable("the vault does not answer: try again later")

    sticky = Sticky()
    made = create(factory, sticky, auth=WITH_TOKEN).connector
    update(factory, sticky, made, "auth", auth=v1.ConnectorAuthSpec(credentials=OTHER))
    assert token(factory, sticky, made) == "another"
    secrets._secrets = sticky._secrets
    factory.clock.advance(901)
    assert len(gc.sweep_secrets(factory.stores, secrets, clock=factory.clock).removed) == 1
    assert stored(secrets) == [OTHER.SerializeToString()]


def test_credentials_that_are_lost_are_an_error_that_says_what_to_do(factory, secrets):
    made = create(factory, secrets, auth=WITH_TOKEN).connector
    secrets._secrets.clear()
    with refused(PreconditionFailed, "connector.credentials.lost", name="files"):
        token(factory, secrets, made)


def test_an_account_cannot_be_deleted_with_connectors_and_sees_no_others(factory, secrets):
    made = connector(factory)
    factory.account("a2")
    foreign = factory.realm("a2")
    with refused(NotFound, "connector"):
        connectors.get(foreign, v1.GetConnectorRequest(connector_id=made.resource_id))
    assert connectors.list_(foreign, v1.ListConnectorsRequest()).page.total_size == 0
    with refused(Conflict, "account.not_empty"):
        accounts.delete(factory.platform, v1.DeleteAccountRequest(account_id=v1.ResourceId(id="a1")))


@behavior(70)
def test_statistics_are_a_pass_of_their_own():
    assert connectors.capture_mode(v1.SyncCaptureRequest()) == v1.CAP_METADATA_ONLY_CORE
    assert connectors.capture_mode(v1.SyncCaptureRequest(include_statistics=True)) == v1.CAP_STATS_ONLY_ASYNC


class DyingSecrets(MemorySecrets):
    """The store of secrets of a process that dies at a chosen moment."""

    def __init__(self, inner: MemorySecrets, fate: Fate) -> None:
        self._inner, self._fate = inner, fate

    def put(self, *arguments: Any) -> None:
        self._fate.run(self._inner.put, *arguments)

    def delete(self, *arguments: Any) -> None:
        self._fate.run(self._inner.delete, *arguments)


@behavior(10, 68)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("change", ["create", "update", "delete"])
def test_a_death_in_any_step_leaves_a_working_connector_and_gc_no_other_secret(change, when):
    at = 0
    while True:
        at += 1
        clock, secrets = Clock(), MemorySecrets()
        factory = ResourceFactory(open_stores("memory://", clock=clock), clock)
        asked = spec(factory, auth=WITH_TOKEN)
        made = None if change == "create" else create(factory, secrets, auth=WITH_TOKEN).connector
        fate = Fate(at, when)
        realm = Realm(dying(factory.stores, fate), "a1", clock=clock, ids=factory.ids)
        doomed = DyingSecrets(secrets, fate)
        try:
            if made is None:
                connectors.create(realm, v1.CreateConnectorRequest(spec=asked), secrets=doomed)
            elif change == "update":
                request = v1.UpdateConnectorRequest(
                    connector_id=made.resource_id,
                    spec=v1.ConnectorSpec(uri="file:///new", auth=v1.ConnectorAuthSpec(credentials=OTHER)),
                    update_mask=mask("auth", "uri"),
                )
                connectors.update(realm, request, secrets=doomed)
            else:
                connectors.delete(realm, v1.DeleteConnectorRequest(connector_id=made.resource_id), secrets=doomed)
        except Died:
            pass
        assert damage(factory.stores) == []
        found = connectors.list_(factory.home, v1.ListConnectorsRequest()).connectors
        for each in found:
            expected = {"file:///data": TOKEN, "file:///new": "another"}
            assert token(factory, secrets, each) == expected[each.uri]
        clock.advance(901)
        gc.sweep_secrets(factory.stores, secrets, clock=clock)
        assert len(stored(secrets)) == len(found)
        assert factory.stores.pointers.count("/secrets/") == len(found)
        for each in found:
            assert token(factory, secrets, each) is not None
        if fate.done < at:
            break
    assert at > 5


def test_gc_spares_credentials_that_are_young_or_in_use_and_tells_in_a_dry_run(factory, secrets):
    made = create(factory, secrets, auth=WITH_TOKEN).connector
    pointer = factory.stores.pointers.get(keys.connector("a1", made.resource_id.id))
    factory.home.all(CONNECTOR).delete(pointer, get(factory, made))
    assert gc.sweep_secrets(factory.stores, secrets, clock=factory.clock).removed == ()
    factory.clock.advance(901)
    kept = create(factory, secrets, name="kept", auth=WITH_TOKEN).connector
    factory.clock.advance(901)
    dry = gc.sweep_secrets(factory.stores, secrets, clock=factory.clock, dry_run=True)
    assert (len(dry.removed), len(stored(secrets))) == (1, 2)
    assert gc.sweep_secrets(factory.stores, secrets, clock=factory.clock).removed == dry.removed
    assert token(factory, secrets, kept) == TOKEN
    assert len(stored(secrets)) == 1


def test_an_update_that_gc_has_overtaken_fails_and_leaves_the_old_credentials(factory, secrets, monkeypatch):
    """The collector comes between the secret and the record that is to name it."""
    made = create(factory, secrets, auth=WITH_TOKEN).connector
    original = Repository.update

    def late(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(Repository, "update", original)
        factory.clock.advance(901)
        assert len(gc.sweep_secrets(factory.stores, secrets, clock=factory.clock).removed) == 1
        return original(*arguments, **named)

    monkeypatch.setattr(Repository, "update", late)
    with refused(Contention, "store.contended"):
        update(factory, secrets, made, "auth", auth=v1.ConnectorAuthSpec(credentials=OTHER))
    assert token(factory, secrets, made) == TOKEN


def test_a_creation_that_gc_has_overtaken_begins_anew(factory, secrets, monkeypatch):
    factory.first_catalog()
    original = Repository.create

    def late(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(Repository, "create", original)
        factory.clock.advance(901)
        assert len(gc.sweep_secrets(factory.stores, secrets, clock=factory.clock).removed) == 1
        return original(*arguments, **named)

    monkeypatch.setattr(Repository, "create", late)
    made = create(factory, secrets, auth=WITH_TOKEN).connector
    assert token(factory, secrets, made) == TOKEN
    assert len(stored(secrets)) == 1


def test_a_record_cannot_name_a_secret_that_gc_is_just_removing(factory, secrets, monkeypatch):
    made = create(factory, secrets, auth=WITH_TOKEN).connector
    original = Repository.update
    outcomes: list[Any] = []

    class Vault(MemorySecrets):
        """The writer goes on after gc has decided, right before the secret goes."""

        _secrets = secrets._secrets
        _lock = secrets._lock
        write: Any

        def __init__(self) -> None: ...

        def delete(self, *arguments: Any) -> None:
            with refused(Contention, "store.contended") as raised:
                self.write()
            outcomes.append(raised.value)
            super().delete(*arguments)

    def late(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(Repository, "update", original)
        factory.clock.advance(901)
        vault = Vault()
        vault.write = lambda: original(*arguments, **named)
        gc.sweep_secrets(factory.stores, vault, clock=factory.clock)
        raise outcomes[0]

    monkeypatch.setattr(Repository, "update", late)
    with refused(Contention, "store.contended"):
        update(factory, secrets, made, "auth", auth=v1.ConnectorAuthSpec(credentials=OTHER))
    assert token(factory, secrets, made) == TOKEN
