"""Bad input over the wire: every mistake has its status, its code and its key, and changes nothing in the store."""

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
from runtime.servers import started
from skiway.model import v1
from skiway.storage import Stores, open_stores, utc_now

Code = grpc.StatusCode
INVALID, MISSING, TAKEN, LOST = Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.ALREADY_EXISTS, Code.ABORTED
TOO_MUCH, REFUSED = Code.RESOURCE_EXHAUSTED, Code.FAILED_PRECONDITION

MAX_MESSAGE_BYTES = 1024 * 1024
QUIET = tuple(
    part
    for sweep in ("idempotency", "cas", "pointer", "reconcile_jobs")
    for part in ("--set", f"gc.{sweep}.enabled=false")
)
NOBODY = str(uuid.UUID(int=7))

pytestmark = pytest.mark.timeout(180)


@dataclass
class Ground:
    """A server that runs, a client of it in account `a1`, and the store behind it, with things in both accounts."""

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
        """Of every pointer of the store: what it says, and in which version."""
        lines = (f"{each.key} {each.blob_uri} {each.version}\n" for each in self.stores.pointers.scan())
        return hashlib.sha256("".join(lines).encode()).hexdigest()


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    home: Path = tmp_path_factory.mktemp("bad") / "home"
    limit = ("--set", f"server.grpc.max_message_bytes={MAX_MESSAGE_BYTES}")
    with (
        started(home, *QUIET, *limit) as server,
        open_stores(f"sqlite:///{home}/pointers.db", (home / "blobs").as_uri()) as stores,
        grpc.insecure_channel(server.address) as channel,
    ):
        factory = ResourceFactory(stores, utc_now, ids=lambda: str(uuid.uuid4()))
        table = factory.table()
        for number in (1, 2):
            factory.snapshot(table, number, at=number)
        factory.account("a2")
        yield Ground(
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
    """The same, in account `a2`."""

    @property
    def home(self) -> Any:
        return self.realm("a2")


def _other(stores: Stores) -> v1.Table:
    factory = _Other(stores, utc_now, ids=lambda: str(uuid.uuid4()))
    table = factory.table()
    factory.snapshot(table, 1)
    return table


def an_id(text: str, kind: v1.ResourceKind.ValueType = v1.RK_UNSPECIFIED, account: str = "") -> v1.ResourceId:
    return v1.ResourceId(id=text, kind=kind, account_id=account)


def get_table(**ref: Any) -> Callable[[Ground], tuple[str, Any]]:
    return lambda _: ("TableService/GetTable", v1.GetTableRequest(table_id=v1.ResourceId(**ref)))


def named(name: str) -> Callable[[Ground], tuple[str, Any]]:
    """The creation of a catalog with this name."""
    return lambda _: ("CatalogService/CreateCatalog", v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name=name)))


def path(*segments: str) -> Callable[[Ground], tuple[str, Any]]:
    """The creation of a namespace below this path."""

    def make(ground: Ground) -> tuple[str, Any]:
        spec = v1.NamespaceSpec(display_name="n", path=segments, catalog_id=ground.catalog.resource_id)
        return "NamespaceService/CreateNamespace", v1.CreateNamespaceRequest(spec=spec)

    return make


def new_table(**changes: Any) -> Callable[[Ground], tuple[str, Any]]:
    def make(ground: Ground) -> tuple[str, Any]:
        place = {"catalog_id": ground.catalog.resource_id, "namespace_id": ground.namespace.resource_id}
        spec = v1.TableSpec(**{"display_name": "new", "schema_json": "{}", **place, **changes})
        return "TableService/CreateTable", v1.CreateTableRequest(spec=spec)

    return make


def update(
    *paths: str, precondition: v1.Precondition | None = None, **spec: Any
) -> Callable[[Ground], tuple[str, Any]]:
    def make(ground: Ground) -> tuple[str, Any]:
        request = v1.UpdateTableRequest(
            table_id=ground.table.resource_id,
            spec=v1.TableSpec(**spec),
            update_mask=mask(*paths),
            precondition=precondition,
        )
        return "TableService/UpdateTable", request

    return make


def columns(*messages: dict[str, Any]) -> Callable[[Ground], tuple[str, Any]]:
    """A stream of statistics, of snapshot 1 of the table unless it says otherwise; without items, nothing is stored."""

    def make(ground: Ground) -> tuple[str, Any]:
        usual = {"table_id": ground.table.resource_id, "snapshot_id": 1}
        requests = [v1.PutColumnStatsRequest(**{**usual, **each}) for each in messages]
        return "TableStatisticsService/PutColumnStats", requests

    return make


def listing(**page: Any) -> Callable[[Ground], tuple[str, Any]]:
    return lambda _: ("CatalogService/ListCatalogs", v1.ListCatalogsRequest(page=v1.PageRequest(**page)))


def another_listings_token(ground: Ground) -> tuple[str, Any]:
    request = v1.ListSnapshotsRequest(table_id=ground.table.resource_id, page=v1.PageRequest(page_size=1))
    token = ground.call("SnapshotService/ListSnapshots", request).message.page.next_page_token
    assert token
    return listing(page_token=token)(ground)


def tampered_token(ground: Ground) -> tuple[str, Any]:
    request = v1.ListSnapshotsRequest(table_id=ground.table.resource_id, page=v1.PageRequest(page_size=1))
    token = ground.call("SnapshotService/ListSnapshots", request).message.page.next_page_token
    request.page.page_token = token[:-1] + ("A" if token[-1] != "A" else "B")
    return "SnapshotService/ListSnapshots", request


def used_key(ground: Ground) -> tuple[str, Any]:
    """A key that another request came with."""
    first = v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="with a key"), idempotency=key("used"))
    assert ground.call("CatalogService/CreateCatalog", first).code is Code.OK
    first.spec.display_name = "with the same"
    return "CatalogService/CreateCatalog", first


@dataclass(frozen=True)
class Mistake:
    """A wrong call, and how it is answered."""

    said: str
    make: Callable[[Ground], tuple[str, Any]]
    status: Code
    code: str
    key: str
    headers: dict[str, str] = field(default_factory=dict)


def invalid(said: str, make: Callable[[Ground], tuple[str, Any]], key: str, **headers: str) -> Mistake:
    return Mistake(said, make, INVALID, "MC_INVALID_ARGUMENT", key, headers)


def missing(said: str, make: Callable[[Ground], tuple[str, Any]], key: str) -> Mistake:
    return Mistake(said, make, MISSING, "MC_NOT_FOUND", key)


def too_much(said: str, make: Callable[[Ground], tuple[str, Any]], key: str) -> Mistake:
    return Mistake(said, make, TOO_MUCH, "MC_RATE_LIMITED", key)


def raw(operation: str, data: bytes) -> Callable[[Ground], tuple[str, Any]]:
    return lambda _: (operation, data)


SURROGATE = b"\xed\xa0\x80"
"""Half of a surrogate pair, as no UTF-8 has it."""

MISTAKES = [
    # ids
    invalid("an id of another kind", get_table(id=NOBODY, kind=v1.RK_CATALOG), "kind"),
    invalid("an id of a kind of the future", get_table(id=NOBODY, kind=99), "kind"),
    invalid("no id", get_table(), "field"),
    invalid("a blank id", get_table(id=" \t"), "field"),
    missing("an unknown id", get_table(id=NOBODY), "table"),
    missing("an id with slashes", get_table(id="../by-id/x"), "table"),
    missing("an id with NUL", get_table(id="a\0b"), "table"),
    missing("an id of 10 000 characters", get_table(id="x" * 10_000), "table"),
    missing(
        "the id of a catalog, not marked as one",
        lambda ground: ("TableService/GetTable", v1.GetTableRequest(table_id=an_id(ground.catalog.resource_id.id))),
        "table",
    ),
    # names
    invalid("no spec", raw("CatalogService/CreateCatalog", b""), "spec.required"),
    invalid("no name", named(""), "display.name.required"),
    invalid("a blank name", named(" \t\n"), "display.name.required"),
    invalid("a name that normalises to nothing", named("\u3000\u00a0\u2003"), "display.name.required"),
    too_much("a name of 10 000 characters", named("x" * 10_000), "name.too_long"),
    too_much("a name that normalises to many characters", named("\ufdfa" * 20), "name.too_long"),
    invalid("a blank segment", path("a", " "), "path.segment.blank"),
    too_much("a path that is too deep", path(*"abcdefghijklmnop"), "path.too_deep"),
    Mistake("a name that is taken", new_table(display_name="people"), TAKEN, "MC_CONFLICT", "table.already.exists"),
    Mistake(
        "a name that is taken in other case",
        new_table(display_name="PEOPLE"),
        TAKEN,
        "MC_CONFLICT",
        "relation.name.already.claimed",
    ),
    Mistake(
        "the name of a view", new_table(display_name="adults"), TAKEN, "MC_CONFLICT", "relation.name.already.claimed"
    ),
    invalid(
        "half of a surrogate pair",
        raw("CatalogService/CreateCatalog", b"\n\x05\n\x03" + SURROGATE),
        "message.malformed",
    ),
    invalid("a property that looks like a secret", new_table(properties={"Secret-Access-Key": "x"}), "property.secret"),
    # places
    missing("a place in no catalog", new_table(catalog_id=an_id(NOBODY)), "catalog"),
    missing("a place in no namespace", new_table(namespace_id=an_id(NOBODY)), "namespace"),
    # masks
    invalid("no mask", update(), "update.mask.required"),
    invalid("an unknown path", update("resource_id.id"), "update.mask.path.invalid"),
    invalid("a path into a plain field", update("display_name.x"), "update.mask.path.invalid"),
    invalid("a blank path", update(" "), "update.mask.path.invalid"),
    invalid("a required field cleared", update("display_name"), "display.name.cannot.clear"),
    # versions
    *(
        Mistake(
            f"version {number}",
            update("description", description="x", precondition=v1.Precondition(expected_version=number)),
            REFUSED,
            "MC_PRECONDITION_FAILED",
            "version.mismatch",
        )
        for number in (-1, 0, 2, 2**63 - 1, -(2**63))
    ),
    Mistake(
        "another etag",
        update("description", description="x", precondition=v1.Precondition(expected_etag="x" * 5000)),
        REFUSED,
        "MC_PRECONDITION_FAILED",
        "etag.mismatch",
    ),
    # pages
    invalid("a token of another listing", another_listings_token, "page.token.invalid"),
    invalid("a tampered token", tampered_token, "page.token.invalid"),
    invalid("a token that is none", listing(page_token="☃ no token"), "page.token.invalid"),
    # streams
    invalid("an empty stream", columns(), "column.stats.empty"),
    invalid("a stream without items", columns({}, {}), "column.stats.empty"),
    invalid("two snapshots in one stream", columns({}, {"snapshot_id": 2}), "stats.inconsistent.target"),
    invalid("two tables in one stream", columns({}, {"table_id": an_id(NOBODY)}), "stats.inconsistent.target"),
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
    Mistake(
        "an unknown account",
        listing(),
        Code.UNAUTHENTICATED,
        "MC_UNAUTHENTICATED",
        "account.unknown",
        {"x_skiway_account": "nobody"},
    ),
    # state
    Mistake("a key that was used otherwise", used_key, LOST, "MC_CONFLICT", "idempotency.mismatch"),
    Mistake(
        "a namespace that is not empty",
        lambda ground: (
            "NamespaceService/DeleteNamespace",
            v1.DeleteNamespaceRequest(namespace_id=ground.namespace.resource_id),
        ),
        LOST,
        "MC_CONFLICT",
        "namespace.not_empty",
    ),
    Mistake(
        "the current snapshot deleted",
        lambda ground: (
            "SnapshotService/DeleteSnapshot",
            v1.DeleteSnapshotRequest(table_id=ground.table.resource_id, snapshot_id=2),
        ),
        REFUSED,
        "MC_PRECONDITION_FAILED",
        "snapshot.current",
    ),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.said)
def test_a_mistake_has_its_answer_and_changes_nothing(ground, mistake):
    operation, request = mistake.make(ground)
    before = ground.digest()
    answer = ground.call(operation, request, **mistake.headers)
    assert answer.code is mistake.status, answer
    assert (v1.ErrorCode.Name(answer.error.code), answer.error.message_key) == (mistake.code, mistake.key)
    assert len(answer.text) <= 512
    assert answer.error.correlation_id == answer.trailers["x-correlation-id"]
    assert ground.digest() == before


@pytest.mark.parametrize("path", ["skiway.v1.TableService/DropTable", "skiway.v2.TableService/GetTable", "x/y"])
def test_unknown_methods_are_unimplemented(ground, path):
    before = ground.digest()
    stub = ground.client.channel.unary_unary(f"/{path}")
    with pytest.raises(grpc.RpcError) as refused:
        stub(b"", timeout=20)
    assert refused.value.code() is Code.UNIMPLEMENTED
    assert ground.digest() == before


def test_a_message_over_the_limit_is_refused(ground):
    before = ground.digest()
    answer = ground.call(*named("x" * MAX_MESSAGE_BYTES)(ground))
    assert answer.code is TOO_MUCH
    assert ground.digest() == before
    assert ground.call(*listing()(ground)).code is Code.OK


def test_a_header_of_a_megabyte_is_refused_and_the_connection_lives(ground):
    before = ground.digest()
    answer = ground.call(*named("never")(ground), x_huge="x" * 1_000_000)
    assert answer.code is TOO_MUCH, answer
    assert ground.digest() == before
    assert ground.call(*listing()(ground)).code is Code.OK


@pytest.mark.parametrize("size", [0, -1, -(2**31), 1001, 2**31 - 1])
def test_absurd_page_sizes_are_brought_to_what_is_possible(ground, size):
    answer = ground.call(*listing(page_size=size)(ground))
    assert answer.code is Code.OK
    assert 1 <= len(answer.message.catalogs) <= 1000


ODD = {
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


@pytest.mark.parametrize("name", ODD.values(), ids=ODD)
def test_odd_names_are_kept_in_one_form_and_found_by_every_spelling(ground, name):
    made = ground.call(*named(name)(ground))
    assert made.code is Code.OK, made.text
    kept = made.message.catalog.display_name
    for spelling in (name, kept, f"  {name}\t"):
        request = v1.ResolveCatalogRequest(ref=v1.NameRef(catalog=spelling))
        found = ground.call("DirectoryService/ResolveCatalog", request)
        assert found.message.resource_id == made.message.catalog.resource_id
        assert ground.call(*named(spelling)(ground)).code is TAKEN
    request = v1.DeleteCatalogRequest(catalog_id=made.message.catalog.resource_id)
    assert ground.call("CatalogService/DeleteCatalog", request).code is Code.OK


def test_a_page_token_outlives_the_row_it_names(ground):
    made = [ground.call(*named(f"page {number}")(ground)).message.catalog for number in range(4)]
    first = ground.call(*listing(page_size=1)(ground)).message
    shown = [first.catalogs[0].display_name]
    token = first.page.next_page_token
    while token:
        last = next((each for each in made if each.display_name == shown[-1]), None)
        if last is not None:  # deleted after it was shown
            request = v1.DeleteCatalogRequest(catalog_id=last.resource_id)
            assert ground.call("CatalogService/DeleteCatalog", request).code is Code.OK
        page = ground.call(*listing(page_size=1, page_token=token)(ground)).message
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
def test_what_belongs_to_another_account_is_answered_as_what_does_not_exist(ground, operation, account):
    before = ground.digest()
    theirs, nobodys = ground.foreign.resource_id.id, str(uuid.uuid4())
    answers = [ground.call(operation, FOREIGN[operation](an_id(each, account=account))) for each in (theirs, nobodys)]
    assert told(answers[0], theirs) == told(answers[1], nobodys)
    assert answers[0].code is (Code.OK if operation.startswith("DirectoryService/Lookup") else MISSING)
    assert ground.digest() == before


def test_without_a_precondition_too_nobody_can_tell(ground):
    """Deleting what is not there succeeds, so it succeeds, or not, for what others have just the same."""
    before = ground.digest()
    theirs, nobodys = ground.foreign.resource_id.id, str(uuid.uuid4())
    for account in ("", "a2"):
        mine, absent = (
            ground.call("TableService/DeleteTable", v1.DeleteTableRequest(table_id=an_id(each, account=account)))
            for each in (theirs, nobodys)
        )
        assert told(mine, theirs) == told(absent, nobodys)
    assert ground.digest() == before


def told(answer: Answer, asked: str) -> tuple[object, ...]:
    """All that an answer tells, but for the id that was asked for and the name of the call."""
    call = answer.headers["x-correlation-id"]
    shown = [answer.text, str(answer.message)]
    if answer.code is not Code.OK:
        shown.append(str(answer.status))
    plain = [text.replace(asked, "ID").replace(call, "CALL") for text in shown]
    return answer.code, plain, sorted(answer.headers), sorted(answer.trailers)
