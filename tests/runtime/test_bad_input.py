"""Invalid requests over the wire: each gets its status, code and message key, and changes nothing in the store."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.field_mask_pb2 import FieldMask

from metastore.resource_factory import ResourceFactory, key, mask
from rpc.rpc_server import Answer, Client
from runtime.servers import NO_GC, started, stored_pointers
from skiway.metastore.records.names import normal_text
from skiway.model import v1
from skiway.storage import Stores, open_stores, utc_now

Code = grpc.StatusCode
INVALID, MISSING, EXISTS, LOST = Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.ALREADY_EXISTS, Code.ABORTED
TOO_MUCH, REFUSED = Code.RESOURCE_EXHAUSTED, Code.FAILED_PRECONDITION

MAX_MESSAGE_BYTES = 1024 * 1024
UNKNOWN_ID = str(uuid.UUID(int=7))

pytestmark = pytest.mark.timeout(180)


@dataclass
class Environment:
    """A running server, a client in account `a1`, and the server's store, with resources in two accounts."""

    client: Client
    stores: Stores
    factory: ResourceFactory
    catalog: v1.Catalog
    namespace: v1.Namespace
    table: v1.Table
    view: v1.View
    foreign: v1.Table

    def call(self, operation: str, request: Any = None, **headers: str) -> Answer:
        return self.client(operation, request, **{"x_skiway_account": "a1", **headers})

    def digest(self) -> str:
        """A hash of all pointers in the store that calls can change, with their values and versions."""
        lines = (f"{each.key} {each.blob_uri} {each.version}\n" for each in stored_pointers(self.stores))
        return hashlib.sha256("".join(lines).encode()).hexdigest()


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    home: Path = tmp_path_factory.mktemp("bad") / "home"
    settings = (*NO_GC, f"server.grpc.max_message_bytes={MAX_MESSAGE_BYTES}")
    with (
        started(home, *(part for each in settings for part in ("--set", each))) as server,
        open_stores(f"sqlite:///{home}/pointers.db", (home / "blobs").as_uri()) as stores,
        grpc.insecure_channel(server.address) as channel,
    ):
        factory = ResourceFactory(stores, utc_now, ids=lambda: str(uuid.uuid4()))
        table = factory.table()
        for number in (1, 2):
            factory.snapshot(table, number, at=number)
        factory.account("a2")
        yield Environment(
            Client(channel, caller=""),
            stores,
            factory,
            factory.first_catalog(),
            factory.first_namespace(),
            table,
            factory.view(),
            _other(stores),
        )
        assert server.stop() == 0
        assert "Traceback" not in server.output()


class _Other(ResourceFactory):
    """A factory for resources in account `a2`."""

    @property
    def home(self) -> Any:
        return self.realm("a2")


def _other(stores: Stores) -> v1.Table:
    factory = _Other(stores, utc_now, ids=lambda: str(uuid.uuid4()))
    table = factory.table()
    factory.snapshot(table, 1)
    return table


def resource_id_of(text: str, kind: v1.ResourceKind.ValueType = v1.RK_UNSPECIFIED, account: str = "") -> v1.ResourceId:
    return v1.ResourceId(id=text, kind=kind, account_id=account)


def get_table(**ref: Any) -> Callable[[Environment], tuple[str, Any]]:
    return lambda _: ("TableService/GetTable", v1.GetTableRequest(table_id=v1.ResourceId(**ref)))


def named(name: str) -> Callable[[Environment], tuple[str, Any]]:
    """A request to create a catalog with this name."""
    return lambda _: ("CatalogService/CreateCatalog", v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name=name)))


def path(*segments: str) -> Callable[[Environment], tuple[str, Any]]:
    """A request to create a namespace below this path."""

    def make(env: Environment) -> tuple[str, Any]:
        spec = v1.NamespaceSpec(display_name="n", path=segments, catalog_id=env.catalog.resource_id)
        return "NamespaceService/CreateNamespace", v1.CreateNamespaceRequest(spec=spec)

    return make


def new_table(**changes: Any) -> Callable[[Environment], tuple[str, Any]]:
    def make(env: Environment) -> tuple[str, Any]:
        place = {"catalog_id": env.catalog.resource_id, "namespace_id": env.namespace.resource_id}
        spec = v1.TableSpec(**{"display_name": "new", "schema_json": "{}", **place, **changes})
        return "TableService/CreateTable", v1.CreateTableRequest(spec=spec)

    return make


def update(
    *paths: str, precondition: v1.Precondition | None = None, **spec: Any
) -> Callable[[Environment], tuple[str, Any]]:
    def make(env: Environment) -> tuple[str, Any]:
        request = v1.UpdateTableRequest(
            table_id=env.table.resource_id,
            spec=v1.TableSpec(**spec),
            update_mask=mask(*paths),
            precondition=precondition,
        )
        return "TableService/UpdateTable", request

    return make


def columns(*messages: dict[str, Any]) -> Callable[[Environment], tuple[str, Any]]:
    """A stream of statistics, by default for snapshot 1 of the table; without items, nothing is stored."""

    def make(env: Environment) -> tuple[str, Any]:
        defaults = {"table_id": env.table.resource_id, "snapshot_id": 1}
        requests = [v1.PutColumnStatsRequest(**{**defaults, **each}) for each in messages]
        return "TableStatisticsService/PutColumnStats", requests

    return make


def listing(**page: Any) -> Callable[[Environment], tuple[str, Any]]:
    return lambda _: ("CatalogService/ListCatalogs", v1.ListCatalogsRequest(page=v1.PageRequest(**page)))


def token_of_another_listing(env: Environment) -> tuple[str, Any]:
    request = v1.ListSnapshotsRequest(table_id=env.table.resource_id, page=v1.PageRequest(page_size=1))
    token = env.call("SnapshotService/ListSnapshots", request).message.page.next_page_token
    assert token
    return listing(page_token=token)(env)


def tampered_token(env: Environment) -> tuple[str, Any]:
    request = v1.ListSnapshotsRequest(table_id=env.table.resource_id, page=v1.PageRequest(page_size=1))
    token = env.call("SnapshotService/ListSnapshots", request).message.page.next_page_token
    request.page.page_token = token[:-1] + ("A" if token[-1] != "A" else "B")
    return "SnapshotService/ListSnapshots", request


def used_key(env: Environment) -> tuple[str, Any]:
    """A request whose idempotency key was used by another request."""
    first = v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="with a key"), idempotency=key("used"))
    assert env.call("CatalogService/CreateCatalog", first).code is Code.OK
    first.spec.display_name = "with the same"
    return "CatalogService/CreateCatalog", first


@dataclass(frozen=True)
class InvalidCall:
    """An invalid call and the expected error."""

    description: str
    make: Callable[[Environment], tuple[str, Any]]
    status: Code
    code: str
    key: str
    headers: dict[str, str] = field(default_factory=dict)


def invalid(description: str, make: Callable[[Environment], tuple[str, Any]], key: str, **headers: str) -> InvalidCall:
    return InvalidCall(description, make, INVALID, "MC_INVALID_ARGUMENT", key, headers)


def missing(description: str, make: Callable[[Environment], tuple[str, Any]], key: str) -> InvalidCall:
    return InvalidCall(description, make, MISSING, "MC_NOT_FOUND", key)


def exceeds_limit(description: str, make: Callable[[Environment], tuple[str, Any]], key: str) -> InvalidCall:
    return InvalidCall(description, make, TOO_MUCH, "MC_RATE_LIMITED", key)


def raw(operation: str, data: bytes) -> Callable[[Environment], tuple[str, Any]]:
    return lambda _: (operation, data)


SURROGATE = b"\xed\xa0\x80"
"""Half of a surrogate pair, which is not valid in UTF-8."""

INVALID_CALLS = [
    # ids
    invalid("an id of another kind", get_table(id=UNKNOWN_ID, kind=v1.RK_CATALOG), "kind"),
    invalid("an id of a kind of the future", get_table(id=UNKNOWN_ID, kind=99), "kind"),
    invalid("no id", get_table(), "field"),
    invalid("a blank id", get_table(id=" \t"), "field"),
    missing("an unknown id", get_table(id=UNKNOWN_ID), "table"),
    missing("an id with slashes", get_table(id="../by-id/x"), "table"),
    missing("an id with NUL", get_table(id="a\0b"), "table"),
    missing("an id of 10 000 characters", get_table(id="x" * 10_000), "table"),
    missing(
        "the id of a catalog, not marked as one",
        lambda env: ("TableService/GetTable", v1.GetTableRequest(table_id=resource_id_of(env.catalog.resource_id.id))),
        "table",
    ),
    # names
    invalid("no spec", raw("CatalogService/CreateCatalog", b""), "spec.required"),
    invalid("no name", named(""), "display.name.required"),
    invalid("a blank name", named(" \t\n"), "display.name.required"),
    invalid("a name that normalises to nothing", named("\u3000\u00a0\u2003"), "display.name.required"),
    exceeds_limit("a name of 10 000 characters", named("x" * 10_000), "name.too_long"),
    invalid("a name that is not in normal form", named("\ufdfa" * 20), "name.not.normal"),
    invalid("a blank segment", path("a", " "), "path.segment.blank"),
    exceeds_limit("a path that is too deep", path(*"abcdefghijklmnop"), "path.too_deep"),
    InvalidCall(
        "a name that is taken", new_table(display_name="people"), EXISTS, "MC_CONFLICT", "table.already.exists"
    ),
    InvalidCall(
        "a name that is taken in other case",
        new_table(display_name="PEOPLE"),
        EXISTS,
        "MC_CONFLICT",
        "relation.name.already.claimed",
    ),
    InvalidCall(
        "the name of a view", new_table(display_name="adults"), EXISTS, "MC_CONFLICT", "relation.name.already.claimed"
    ),
    invalid(
        "half of a surrogate pair",
        raw("CatalogService/CreateCatalog", b"\n\x05\n\x03" + SURROGATE),
        "message.malformed",
    ),
    invalid("a property that looks like a secret", new_table(properties={"Secret-Access-Key": "x"}), "property.secret"),
    # places
    missing("a place in no catalog", new_table(catalog_id=resource_id_of(UNKNOWN_ID)), "catalog"),
    missing("a place in no namespace", new_table(namespace_id=resource_id_of(UNKNOWN_ID)), "namespace"),
    # masks
    invalid("no mask", update(), "update.mask.required"),
    invalid("an unknown path", update("resource_id.id"), "update.mask.path.invalid"),
    invalid("a path into a plain field", update("display_name.x"), "update.mask.path.invalid"),
    invalid("a blank path", update(" "), "update.mask.path.invalid"),
    invalid("a required field cleared", update("display_name"), "display.name.cannot.clear"),
    # versions
    *(
        InvalidCall(
            f"version {number}",
            update("description", description="x", precondition=v1.Precondition(expected_version=number)),
            REFUSED,
            "MC_PRECONDITION_FAILED",
            "version.mismatch",
        )
        for number in (-1, 0, 2, 2**63 - 1, -(2**63))
    ),
    InvalidCall(
        "another etag",
        update("description", description="x", precondition=v1.Precondition(expected_etag="x" * 5000)),
        REFUSED,
        "MC_PRECONDITION_FAILED",
        "etag.mismatch",
    ),
    # pages
    invalid("a token of another listing", token_of_another_listing, "page.token.invalid"),
    invalid("a tampered token", tampered_token, "page.token.invalid"),
    invalid("a token that is none", listing(page_token="☃ no token"), "page.token.invalid"),
    # streams
    invalid("an empty stream", columns(), "column.stats.empty"),
    invalid("a stream without items", columns({}, {}), "column.stats.empty"),
    invalid("two snapshots in one stream", columns({}, {"snapshot_id": 2}), "stats.inconsistent.target"),
    invalid(
        "two tables in one stream", columns({}, {"table_id": resource_id_of(UNKNOWN_ID)}), "stats.inconsistent.target"
    ),
    invalid(
        "two keys in one stream",
        columns({"idempotency": key("one")}, {"idempotency": key("two")}),
        "idempotency.inconsistent.key",
    ),
    missing("statistics of no snapshot", columns({"snapshot_id": -5}), "snapshot"),
    invalid("garbage in a stream", raw("TableStatisticsService/PutColumnStats", b"\xff\xff\xff"), "message.malformed"),
    invalid(
        "statistics that cannot be true",
        columns({"columns": [v1.ColumnStats(column_id=1, value_count=-1)]}),
        "stats.invalid",
    ),
    # messages and headers
    invalid("garbage", raw("TableService/GetTable", b"\x0a\xff\xff\xff\xff garbage"), "message.malformed"),
    invalid("a header that is too long", listing(), "header.invalid", x_correlation_id="x" * 200),
    InvalidCall(
        "an unknown account",
        listing(),
        Code.UNAUTHENTICATED,
        "MC_UNAUTHENTICATED",
        "account.unknown",
        {"x_skiway_account": "nobody"},
    ),
    # state
    InvalidCall("a key that was used otherwise", used_key, LOST, "MC_CONFLICT", "idempotency.mismatch"),
    InvalidCall(
        "a namespace that is not empty",
        lambda env: (
            "NamespaceService/DeleteNamespace",
            v1.DeleteNamespaceRequest(namespace_id=env.namespace.resource_id),
        ),
        LOST,
        "MC_CONFLICT",
        "namespace.not_empty",
    ),
    InvalidCall(
        "the current snapshot deleted",
        lambda env: (
            "SnapshotService/DeleteSnapshot",
            v1.DeleteSnapshotRequest(table_id=env.table.resource_id, snapshot_id=2),
        ),
        REFUSED,
        "MC_PRECONDITION_FAILED",
        "snapshot.current",
    ),
]


@pytest.mark.parametrize("invalid_call", INVALID_CALLS, ids=lambda invalid_call: invalid_call.description)
def test_invalid_call_gets_its_error_and_changes_nothing(env, invalid_call):
    operation, request = invalid_call.make(env)
    before = env.digest()
    answer = env.call(operation, request, **invalid_call.headers)
    assert answer.code is invalid_call.status, answer
    assert (v1.ErrorCode.Name(answer.error.code), answer.error.message_key) == (invalid_call.code, invalid_call.key)
    assert len(answer.text) <= 512
    assert answer.error.correlation_id == answer.trailers["x-correlation-id"]
    assert env.digest() == before


@pytest.mark.parametrize("path", ["skiway.v1.TableService/DropTable", "skiway.v2.TableService/GetTable", "x/y"])
def test_unknown_methods_are_unimplemented(env, path):
    before = env.digest()
    stub = env.client.channel.unary_unary(f"/{path}")
    with pytest.raises(grpc.RpcError) as refused:
        stub(b"", timeout=20)
    assert refused.value.code() is Code.UNIMPLEMENTED
    assert env.digest() == before


def test_message_over_the_limit_is_rejected(env):
    before = env.digest()
    answer = env.call(*named("x" * MAX_MESSAGE_BYTES)(env))
    assert answer.code is TOO_MUCH
    assert env.digest() == before
    assert env.call(*listing()(env)).code is Code.OK


def test_header_of_a_megabyte_is_rejected_and_the_connection_survives(env):
    before = env.digest()
    answer = env.call(*named("never")(env), x_huge="x" * 1_000_000)
    assert answer.code is TOO_MUCH, answer
    assert env.digest() == before
    assert env.call(*listing()(env)).code is Code.OK


@pytest.mark.parametrize("size", [0, -1, -(2**31), 1001, 2**31 - 1])
def test_page_sizes_out_of_range_are_clamped(env, size):
    answer = env.call(*listing(page_size=size)(env))
    assert answer.code is Code.OK
    assert 1 <= len(answer.message.catalogs) <= 1000


UNUSUAL_NAMES = {
    "right to left override": "abc\u202ecba",
    "zero width": "a\u200bb\u200d",
    "combining": "e\u0301te\u0301",
    "NUL": "a\0b",
    "emoji": "🏔️ 🧑‍🚀",
    "full width": "Ｌａｋｅ  ２",
    "ligature": "ﬁne",
    "beyond the basic plane": "𝒟ata",
    "dots and slashes": "../a%2Fb/./c",
    "longest": "x" * 255,
    "longest of four bytes each": "😀" * 255,
}


@pytest.mark.parametrize("name", UNUSUAL_NAMES.values(), ids=UNUSUAL_NAMES)
def test_unusual_names_are_stored_as_given_or_rejected_and_found_by_every_spelling(env, name):
    made = env.call(*named(name)(env))
    if made.code is not Code.OK:  # the error suggests the name to use
        assert made.code is Code.INVALID_ARGUMENT
        assert "cannot be stored as it is: use " in made.text
        made = env.call(*named(normal_text(name))(env))
    assert made.code is Code.OK, made.text
    stored_name = made.message.catalog.display_name
    for spelling in (name, stored_name, f"  {name}\t"):
        request = v1.ResolveCatalogRequest(ref=v1.NameRef(catalog=spelling))
        found = env.call("DirectoryService/ResolveCatalog", request)
        assert found.message.resource_id == made.message.catalog.resource_id
        again = env.call(*named(spelling)(env))
        assert again.code is (EXISTS if spelling == stored_name else Code.INVALID_ARGUMENT)
    request = v1.DeleteCatalogRequest(catalog_id=made.message.catalog.resource_id)
    assert env.call("CatalogService/DeleteCatalog", request).code is Code.OK


def test_page_token_stays_valid_when_its_row_is_deleted(env):
    made = [env.call(*named(f"page {number}")(env)).message.catalog for number in range(4)]
    first = env.call(*listing(page_size=1)(env)).message
    shown = [first.catalogs[0].display_name]
    token = first.page.next_page_token
    while token:
        last = next((each for each in made if each.display_name == shown[-1]), None)
        if last is not None:  # deleted after it was shown
            request = v1.DeleteCatalogRequest(catalog_id=last.resource_id)
            assert env.call("CatalogService/DeleteCatalog", request).code is Code.OK
        page = env.call(*listing(page_size=1, page_token=token)(env)).message
        shown += [each.display_name for each in page.catalogs]
        token = page.page.next_page_token
        assert len(set(shown)) == len(shown)
    assert {each.display_name for each in made} < set(shown)
    assert sorted(shown) == shown


FOREIGN = {
    "TableService/GetTable": lambda table: v1.GetTableRequest(table_id=table),
    "TableService/UpdateTable": lambda table: v1.UpdateTableRequest(
        table_id=table, spec=v1.TableSpec(description="mine"), update_mask=FieldMask(paths=["description"])
    ),
    "TableService/DeleteTable": lambda table: v1.DeleteTableRequest(
        table_id=table, precondition=v1.Precondition(expected_version=1)
    ),
    "SnapshotService/ListSnapshots": lambda table: v1.ListSnapshotsRequest(table_id=table),
    "SnapshotService/SetCurrentSnapshot": lambda table: v1.SetCurrentSnapshotRequest(table_id=table, snapshot_id=1),
    "SnapshotService/CreateSnapshot": lambda table: v1.CreateSnapshotRequest(
        spec=v1.SnapshotSpec(table_id=table, snapshot_id=9)
    ),
    "TableStatisticsService/PutTableStats": lambda table: v1.PutTableStatsRequest(table_id=table, snapshot_id=1),
    "TableStatisticsService/PutColumnStats": lambda table: [
        v1.PutColumnStatsRequest(table_id=table, snapshot_id=1, columns=[v1.ColumnStats(column_id=1)])
    ],
    "DirectoryService/LookupTable": lambda table: v1.LookupTableRequest(resource_id=table),
}


@pytest.mark.parametrize("account", ["", "a2"], ids=["as one's own", "as the other's"])
@pytest.mark.parametrize("operation", FOREIGN)
def test_resource_of_another_account_looks_like_a_missing_one(env, operation, account):
    before = env.digest()
    foreign_id, missing_id = env.foreign.resource_id.id, str(uuid.uuid4())
    answers = [
        env.call(operation, FOREIGN[operation](resource_id_of(each, account=account)))
        for each in (foreign_id, missing_id)
    ]
    assert comparable(answers[0], foreign_id) == comparable(answers[1], missing_id)
    assert answers[0].code is (Code.OK if operation.startswith("DirectoryService/Lookup") else MISSING)
    assert env.digest() == before


def test_deleting_without_precondition_does_not_reveal_other_accounts(env):
    """Deleting a missing resource succeeds, so deleting a resource of another account must look the same."""
    before = env.digest()
    foreign_id, missing_id = env.foreign.resource_id.id, str(uuid.uuid4())
    for account in ("", "a2"):
        for_foreign, for_missing = (
            env.call("TableService/DeleteTable", v1.DeleteTableRequest(table_id=resource_id_of(each, account=account)))
            for each in (foreign_id, missing_id)
        )
        assert comparable(for_foreign, foreign_id) == comparable(for_missing, missing_id)
    assert env.digest() == before


def comparable(answer: Answer, requested_id: str) -> tuple[object, ...]:
    """Everything in an answer except the requested id and the correlation id."""
    call = answer.headers["x-correlation-id"]
    shown = [answer.text, str(answer.message)]
    if answer.code is not Code.OK:
        shown.append(str(answer.status))
    plain = [text.replace(requested_id, "ID").replace(call, "CALL") for text in shown]
    return answer.code, plain, sorted(answer.headers), sorted(answer.trailers)
