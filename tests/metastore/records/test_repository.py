"""The write protocol, for every kind of resource."""

from __future__ import annotations

from datetime import timedelta
from threading import Barrier, Thread
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from metastore.faults import Crashed, CrashPoint, crashing_stores
from metastore.integrity import damage, kind_of
from metastore.resource_factory import behavior, expect_error
from skiway.errors import AlreadyExists, Contention, Internal, NotFound, PreconditionFailed
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import CATALOG, KINDS, NAMESPACE, TABLE, VIEW
from skiway.metastore.records.repository import Repository, etag
from skiway.metastore.records.updates import copied
from skiway.model import v1
from skiway.storage import ABSENT, Check, Stores, open_stores

ME = v1.ResourceId(account_id="a1", id="r1")
SAMPLES: dict[str, Any] = {
    "account": v1.Account(resource_id=v1.ResourceId(account_id="a1", id="a1"), display_name="one"),
    "catalog": v1.Catalog(resource_id=ME, display_name="one"),
    "namespace": v1.Namespace(resource_id=ME, catalog_id=v1.ResourceId(id="c1"), parents=["p"], display_name="one"),
    "table": v1.Table(resource_id=ME, namespace_id=v1.ResourceId(id="n1"), display_name="one"),
    "view": v1.View(resource_id=ME, namespace_id=v1.ResourceId(id="n1"), display_name="one"),
    "snapshot": v1.Snapshot(table_id=ME, snapshot_id=7, upstream_created_at=Timestamp(seconds=99)),
    "table_stats": v1.TableStats(table_id=ME, snapshot_id=7),
    "column_stats": v1.ColumnStatsSet(table_id=ME, snapshot_id=7),
    "file_stats": v1.FileStatsSet(table_id=ME, snapshot_id=7),
    "grant": v1.Grant(object_id=ME, grantee="user:one", privilege=v1.PV_READ),
    "branch": v1.Branch(resource_id=ME, catalog_id=v1.ResourceId(id="c1"), display_name="one"),
    "pipeline": v1.Pipeline(resource_id=ME, display_name="one"),
    "policy": v1.Policy(resource_id=ME, display_name="one"),
    "column_tags": v1.ColumnTags(table_id=ME),
    "webhook": v1.Webhook(resource_id=ME, display_name="one"),
    "rule": v1.QualityRule(resource_id=ME, table_id=v1.ResourceId(id="t1"), display_name="one"),
    "rule_results": v1.RuleResults(
        rule_id=ME, table_id=v1.ResourceId(id="t1"), rule_name="one", last_decided=v1.RST_PASSED
    ),
    "connector": v1.Connector(resource_id=ME, display_name="one"),
    "job": v1.Job(account_id="a1", job_id="j1"),
    "job_log": v1.JobLog(account_id="a1", job_id="j1", text="one\n"),
    "lease": v1.QueryLease(descriptor=v1.QueryDescriptor(account_id="a1", query_id="q1")),
    "transaction": v1.Transaction(account_id="a1", transaction_id="t1", state=v1.TX_OPEN),
    "idempotency": v1.IdempotencyRecord(account_id="a1", operation="CreateTable", key="k"),
}
# The keys of some kinds follow from their content, and those of a grant from its identity, not from a name.
BY_CONTENT = ("job", "grant", "rule_results", "transaction")
NAMED = [kind for kind in KINDS if kind.names(SAMPLES[kind.noun]) and kind.noun not in BY_CONTENT]


def changed(value: Any) -> Any:
    """The same resource with different content."""
    other = copied(value)
    other.updated_at.seconds += 1
    return other


def renamed(value: Any) -> Any:
    other = changed(value)
    if isinstance(value, v1.Snapshot):
        other.upstream_created_at.seconds += 1
    else:
        other.display_name = "two"
    return other


def another(value: Any) -> Any:
    """Another resource with the same name."""
    other = copied(value)
    if isinstance(value, v1.Snapshot):
        raise AssertionError("snapshots of one table differ in their names")
    other.resource_id.id = "r2"
    return other


@pytest.fixture(params=KINDS, ids=lambda kind: kind.noun)
def kind(request) -> Any:
    return request.param


@pytest.fixture(params=NAMED, ids=lambda kind: kind.noun)
def named_kind(request) -> Any:
    return request.param


@pytest.fixture
def catalogs(stores) -> Repository[v1.Catalog]:
    return Repository(stores, CATALOG)


@behavior(8, 18)
def test_new_resource_is_found_by_all_its_keys_in_version_1(stores, kind):
    repository, value = Repository(stores, kind), SAMPLES[kind.noun]
    created = repository.create(value)
    assert created.pointer.version == 1
    assert repository.find(kind.key(value)) == created
    assert [repository.named(name) for name in kind.names(value)] == [value] * len(kind.names(value))
    assert damage(stores) == []
    assert kind_of(kind.key(value)) is kind


@behavior(8)
def test_creating_an_identical_resource_again_changes_nothing(stores, kind):
    repository, value = Repository(stores, kind), SAMPLES[kind.noun]
    created = repository.create(value)
    assert repository.create(value) == created
    assert repository.find(kind.key(value)) == created


@behavior(7)
def test_creating_an_identical_resource_again_refreshes_its_blob(catalogs, clock):
    uri = catalogs.create(SAMPLES["catalog"]).pointer.blob_uri
    before = catalogs.stores.blobs.head(uri)
    clock.now = before.modified_at + timedelta(seconds=60)  # the store uses the clock of the machine
    catalogs.create(SAMPLES["catalog"])
    assert catalogs.stores.blobs.head(uri).modified_at > before.modified_at


@behavior(9)
@pytest.mark.parametrize("kind", [kind for kind in NAMED if kind.noun != "snapshot"], ids=lambda kind: kind.noun)
def test_creation_with_an_existing_name_leaves_nothing_behind(stores, kind):
    repository, value = Repository(stores, kind), SAMPLES[kind.noun]
    repository.create(value)
    before = list(stores.pointers.scan())
    with expect_error(AlreadyExists, f"{kind.noun}.already.exists", name=kind.title(value)):
        repository.create(another(value))
    assert list(stores.pointers.scan()) == before


@behavior(9)
def test_existing_id_with_different_content_is_rejected(stores, kind):
    repository, value = Repository(stores, kind), SAMPLES[kind.noun]
    repository.create(value)
    with pytest.raises(AlreadyExists):
        repository.create(changed(value))
    assert repository.named(kind.key(value)) == value


@behavior(30)
def test_table_and_view_cannot_share_a_name(stores):
    Repository(stores, TABLE).create(SAMPLES["table"])
    with expect_error(AlreadyExists, "relation.name.already.claimed", resource="view"):
        Repository(stores, VIEW).create(another(SAMPLES["view"]))


@behavior(11)
def test_name_without_its_owner_is_damage_and_not_repaired(stores, named_kind):
    repository, value = Repository(stores, named_kind), SAMPLES[named_kind.noun]
    repository.create(value)
    stores.pointers.compare_and_delete(named_kind.key(value), expect=1)
    for again in (value, changed(value)):
        with expect_error(Internal, "pointer.partial"):
            repository.create(again)
    assert repository.find(named_kind.key(value)) is None


@behavior(11)
def test_missing_name_is_damage_when_the_resource_is_updated(stores, named_kind):
    repository, value = Repository(stores, named_kind), SAMPLES[named_kind.noun]
    created = repository.create(value)
    stores.pointers.compare_and_delete(named_kind.names(value)[0], expect=1)
    with expect_error(Internal, "pointer.partial"):
        repository.update(created, changed(value))


@behavior(12)
def test_rename_moves_the_names_and_frees_the_old_ones(stores, named_kind):
    repository, value = Repository(stores, named_kind), SAMPLES[named_kind.noun]
    created = repository.create(value)
    updated = repository.update(created, renamed(value))
    assert (updated.pointer.key, updated.pointer.version) == (created.pointer.key, 2)
    assert etag(updated.pointer) != etag(created.pointer)
    unchanged = set(named_kind.names(value)) & set(named_kind.names(updated.value))
    assert all(repository.named(name) is None for name in set(named_kind.names(value)) - unchanged)
    assert all(repository.named(name) == updated.value for name in named_kind.names(updated.value))
    assert damage(stores) == []


@behavior(12, 13)
def test_names_and_etag_follow_the_content(stores, kind):
    repository, value = Repository(stores, kind), SAMPLES[kind.noun]
    first = repository.create(value)
    second = repository.update(first, changed(value))
    third = repository.update(second, value)
    assert etag(first.pointer) == etag(third.pointer) != etag(second.pointer)
    assert [stored.pointer.version for stored in (first, second, third)] == [1, 2, 3]
    assert damage(stores) == []


def test_rename_to_an_existing_name_changes_nothing(catalogs):
    first = catalogs.create(v1.Catalog(resource_id=ME, display_name="one"))
    catalogs.create(v1.Catalog(resource_id=v1.ResourceId(account_id="a1", id="r2"), display_name="two"))
    before = list(catalogs.stores.pointers.scan())
    with expect_error(AlreadyExists, "catalog.already.exists", name="two"):
        catalogs.update(first, v1.Catalog(resource_id=ME, display_name="two"))
    assert list(catalogs.stores.pointers.scan()) == before


def test_stale_update_and_stale_delete_are_rejected(stores, kind):
    repository, value = Repository(stores, kind), SAMPLES[kind.noun]
    first = repository.create(value)
    second = repository.update(first, changed(value))
    with expect_error(PreconditionFailed, "version.mismatch", expected="1", actual="2"):
        repository.update(first, renamed(value) if kind in NAMED else changed(changed(value)))
    with expect_error(PreconditionFailed, "version.mismatch", expected="1", actual="2"):
        repository.delete(first.pointer, first.value)
    assert repository.find(kind.key(value)) == second
    repository.delete(second.pointer, second.value)
    with expect_error(NotFound, kind.noun):
        repository.update(second, changed(second.value))
    assert list(stores.pointers.scan()) == []


@behavior(17)
def test_one_of_two_concurrent_updates_of_one_version_wins(catalogs):
    created = catalogs.create(SAMPLES["catalog"])
    barrier, outcomes = Barrier(8), []

    def update(number: int) -> None:
        wanted = copied(created.value)
        wanted.description = str(number)
        barrier.wait()
        try:
            outcomes.append(catalogs.update(created, wanted).value.description)
        except PreconditionFailed as error:
            outcomes.append(error.key)

    threads = [Thread(target=update, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [outcome for outcome in outcomes if outcome != "version.mismatch"]
    found = catalogs.named(created.pointer.key)
    assert found is not None
    assert found.description == winner


@behavior(14)
@pytest.mark.parametrize("loss", ["gone", "damaged"])
def test_unreadable_resource_can_be_deleted_with_all_its_names(stores, kind, loss):
    repository, value = Repository(stores, kind), SAMPLES[kind.noun]
    pointer = repository.create(value).pointer
    unrelated = Repository(stores, CATALOG).create(
        v1.Catalog(resource_id=v1.ResourceId(account_id="a1", id="other"), display_name="other")
    )
    if loss == "gone":
        stores.blobs.delete(pointer.blob_uri)
    else:
        stores.blobs._overwrite(pointer.blob_uri, b"not what it was")
    damaged = repository.peek(pointer.key)
    assert damaged == (pointer, None)
    repository.delete(*damaged)
    assert {each.blob_uri for each in stores.pointers.scan()} == {unrelated.pointer.blob_uri}
    repository.create(value)


@behavior(15)
def test_pointer_to_a_missing_blob_is_damage(catalogs):
    created = catalogs.create(SAMPLES["catalog"])
    catalogs.stores.blobs.delete(created.pointer.blob_uri)
    with expect_error(Internal, "pointer.dangling", pointer=created.pointer.key):
        catalogs.find(created.pointer.key)
    with expect_error(Internal, "pointer.dangling"):
        list(catalogs.scan(keys.catalog_name("a1")))
    assert [each.damage for each in catalogs.page(keys.catalog_name("a1"), size=10).items] != [""]


@behavior(15)
@pytest.mark.parametrize("meanwhile", ["updated", "deleted"])
def test_blob_collected_while_its_pointer_moves_is_not_damage(catalogs, monkeypatch, meanwhile):
    created = catalogs.create(SAMPLES["catalog"])
    read = type(catalogs.stores.blobs).get
    moved = []

    def get(self: Any, uri: str) -> bytes:
        if not moved:
            moved.append(uri)
            if meanwhile == "updated":
                catalogs.update(created, changed(created.value))
            else:
                catalogs.delete(created.pointer, created.value)
            self.delete(uri)
        return read(self, uri)

    monkeypatch.setattr(type(catalogs.stores.blobs), "get", get)
    found = catalogs.named(created.pointer.key)
    assert found == (changed(created.value) if meanwhile == "updated" else None)


def test_blob_of_another_kind_is_damage(stores):
    created = Repository(stores, CATALOG).create(SAMPLES["catalog"])
    uri = stores.blobs.put(b"\xff\xff", folder="x")
    stores.pointers.compare_and_set(created.pointer.key, uri, expect=1)
    with expect_error(Internal, "blob.unreadable", uri=uri):
        Repository(stores, CATALOG).find(created.pointer.key)


@behavior(16)
def test_counts_follow_creations_and_deletions(stores):
    repository = Repository(stores, NAMESPACE)
    made = []
    for number, name in enumerate(["a", "a/b", "a.b", "a b", "ä", "a%2Fb"]):
        sample = copied(SAMPLES["namespace"])
        sample.resource_id.id, sample.display_name = f"n{number}", name
        made.append(repository.create(sample))
    prefix = keys.namespace_path("a1", "c1", ["p"]) + "/"
    assert repository.count(prefix) == 6
    repository.delete(made[0].pointer, made[0].value)
    assert repository.count(prefix) == 5
    assert repository.count(keys.namespace_path("a1", "c1", ["p", "a"]) + "/") == 0


def test_failed_check_in_the_same_batch_is_contention(catalogs):
    created = catalogs.create(SAMPLES["catalog"])
    check = [Check("/somewhere", expect=3)]
    other = another(SAMPLES["catalog"])
    other.display_name = "free"
    with pytest.raises(Contention):
        catalogs.create(other, also=lambda _: check)
    with pytest.raises(Contention):
        catalogs.update(created, changed(created.value), also=lambda _: check)
    with pytest.raises(Contention):
        catalogs.delete(created.pointer, created.value, also=check)
    assert catalogs.find(created.pointer.key) == created


@behavior(10)
@pytest.mark.parametrize("step", ["create", "update", "rename", "delete"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_crash_at_any_operation_leaves_each_resource_complete_or_absent(kind, step, when):
    """Crash at every operation of the store, then check the state."""
    at = 0
    while True:
        at += 1
        with open_stores("memory://") as stores:
            clean, value = Repository(stores, kind), SAMPLES[kind.noun]
            created = None if step == "create" else clean.create(value)
            crash_point = CrashPoint(at, when)
            repository = Repository(crashing_stores(stores, crash_point), kind)
            target = renamed(value) if step == "rename" and kind in NAMED else changed(value)
            try:
                if created is None:
                    repository.create(value)
                elif step == "delete":
                    repository.delete(created.pointer, created.value)
                else:
                    repository.update(created, target)
            except Crashed:
                pass
            assert damage(stores) == []
            assert clean.named(kind.key(value)) in _possible(step, value, target)
            if crash_point.done < at:
                assert clean.named(kind.key(value)) == _possible(step, value, target)[1]
                break
    assert at > 1


def _possible(step: str, value: Any, target: Any) -> list[Any]:
    return {"create": [None, value], "delete": [value, None]}.get(step, [value, target])


def test_versions_start_at_absent_plus_one(stores: Stores):
    assert Repository(stores, CATALOG).create(SAMPLES["catalog"]).pointer.version == ABSENT + 1
