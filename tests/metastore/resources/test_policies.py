"""Policies as resources: stored versions, the objects that they cover, and what they withhold from restricted callers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.message import Message

from metastore.resource_factory import ResourceFactory, mask
from skiway.errors import InvalidArgument, PermissionDenied
from skiway.metastore import Realm
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import TABLE
from skiway.metastore.records.policies import CallerPolicies, Restriction, Subject
from skiway.metastore.records.realm import PolicyGuard
from skiway.metastore.records.repository import Guard, Repository
from skiway.metastore.resources import catalogs, namespaces, policies, snapshots, tables, views
from skiway.metastore.resources.policies import SandboxedExpressions
from skiway.model import v1

COLUMNS = ("id", "name", "email")
SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"id": number, "name": name, "type": "string", "required": False} for number, name in enumerate(COLUMNS, 1)
        ],
    }
)
NULL = v1.PolicyMask(kind=v1.MK_NULL, columns=["email"])
CALLS = policies.calls(lambda *_: [])
STAMP = v1.UpstreamStamp(table_native_id="s3://x/y")


class Lake:
    """`lake.sales.eu.orders`, `lake.sales.people`, the view `lake.sales.totals`, and `lake.hr.staff`."""

    def __init__(self, factory: ResourceFactory) -> None:
        self.factory, self.home = factory, factory.home
        self.catalog = factory.catalog("lake")
        self.sales = factory.namespace("sales", catalog=self.catalog)
        self.eu = factory.namespace("sales", "eu", catalog=self.catalog)
        self.hr = factory.namespace("hr", catalog=self.catalog)
        self.orders = factory.table("orders", namespace=self.eu, schema_json=SCHEMA)
        self.people = factory.table("people", namespace=self.sales, schema_json=SCHEMA)
        self.staff = factory.table("staff", namespace=self.hr, schema_json=SCHEMA)
        self.totals = factory.view("totals", namespace=self.sales)

    def create(self, name: str = "p", *on: Any, subjects: Sequence[str] = ("everyone",), **spec: Any) -> v1.Policy:
        given = {"mask": NULL, **spec} if "row_filter" not in spec else spec
        request = v1.CreatePolicyRequest(
            spec=v1.PolicySpec(display_name=name, subjects=subjects, objects=[each.resource_id for each in on], **given)
        )
        return CALLS.create(self.home, request).policy

    def policies(self, name: str = "ada", **more: Any) -> CallerPolicies:
        """The policies that restrict a caller, as a new call finds them."""
        return CallerPolicies(lambda: self.factory.stores, "a1", Subject(name, **more))

    def restricted(self, name: str = "ada", **more: Any) -> Realm:
        """The realm of a caller who may do everything but for policies."""
        return replace(self.home, policies=self.policies(name, **more))

    def lose(self, key: str) -> None:
        """Delete the blob of a record, as if it was lost."""
        found = self.factory.stores.pointers.get(key)
        assert found is not None
        self.factory.stores.blobs.delete(found.blob_uri)


@pytest.fixture
def lake(factory: ResourceFactory) -> Lake:
    return Lake(factory)


def test_callers_have_one_spelling_and_a_mask_may_become_a_filter(lake: Lake) -> None:
    made = lake.create("p", lake.people, subjects=["role:Analyst", "user:Ada", "user:Ada"], exceptions=["group:x"])
    assert list(made.subjects) == ["role:analyst", "user:Ada"]
    spec = v1.PolicySpec(display_name="q", row_filter=v1.PolicyFilter(predicate="id = '1'"))
    request = v1.UpdatePolicyRequest(policy_id=made.resource_id, spec=spec, update_mask=mask("display_name", "rule"))
    changed = CALLS.update(lake.home, request).policy
    assert (changed.display_name, changed.WhichOneof("rule")) == ("q", "row_filter")
    assert list(changed.objects) == [lake.people.resource_id]


def test_update_is_checked_like_a_creation(lake: Lake) -> None:
    made = lake.create("p", lake.people)
    bad = v1.PolicySpec(mask=v1.PolicyMask(kind=v1.MK_NULL, columns=["nothing"]))
    request = v1.UpdatePolicyRequest(policy_id=made.resource_id, spec=bad, update_mask=mask("rule"))
    with pytest.raises(InvalidArgument, match="'nothing', which matches no column"):
        CALLS.update(lake.home, request)
    assert CALLS.get(lake.home, v1.GetPolicyRequest(policy_id=made.resource_id)).policy == made


def test_policy_covers_what_its_objects_contain(lake: Lake) -> None:
    for on, covered in (
        ([lake.people], {"people"}),
        ([lake.sales], {"people", "orders", "totals"}),
        ([lake.eu, lake.staff], {"orders", "staff"}),
        ([lake.catalog], {"people", "orders", "staff", "totals"}),
        ([], {"people", "orders", "staff", "totals"}),
        ([lake.totals], {"totals"}),
        ([lake.factory.catalog("other")], set()),
    ):
        made = lake.create("p", *on)
        own = lake.restricted().policies
        assert own is not None
        objects = (lake.people, lake.orders, lake.staff, lake.totals)
        assert {each.display_name for each in objects if own.of(each)} == covered
        CALLS.delete(lake.home, v1.DeletePolicyRequest(policy_id=made.resource_id))


def test_policy_restricts_its_subjects_except_for_exceptions(lake: Lake) -> None:
    lake.create("p", lake.people, subjects=["user:ada", "role:analyst"], exceptions=["group:trusted"])
    lake.create("q", lake.staff, exceptions=["user:ada"])
    groups, roles = frozenset({"trusted"}), frozenset({"analyst"})
    for caller, restricted in (
        (lake.policies("ada"), [lake.people]),
        (lake.policies("ada", groups=groups), []),
        (lake.policies("grace"), [lake.staff]),
        (lake.policies("grace", roles=roles), [lake.people, lake.staff]),
        (lake.policies("grace", roles=roles, groups=groups), [lake.staff]),
    ):
        assert [each for each in (lake.people, lake.staff) if caller.of(each)] == restricted


def test_column_is_masked_by_its_present_name_and_by_that_in_the_snapshot(lake: Lake) -> None:
    lake.create("p", lake.people)
    found = lake.policies().of(lake.people)
    assert found is not None
    masked = [("email", 3), ("former", 3), ("EMAIL", 9), ("email", None)]
    assert all(found.mask_of(*each) for each in masked)
    assert not any(found.mask_of(*each) for each in (("name", 2), ("former", 9), ("email2", 9), ("my email", 9)))


def test_mask_misses_only_columns_of_the_object_that_it_names(lake: Lake) -> None:
    """The columns of the view are unknown."""
    other = v1.PolicyMask(kind=v1.MK_NULL, columns=["phone"])
    lake.create("own", lake.people)
    lake.create("inherited", lake.sales, mask=other)
    lake.create("view", lake.totals, mask=other)
    own = lake.policies()
    assert [found.missing for each in (lake.people, lake.orders, lake.totals) if (found := own.of(each))] == [""] * 3
    lake.people.schema_json = SCHEMA.replace("email", "mail")
    found = lake.policies().of(lake.people)
    assert found is not None
    assert found.missing == "policy own masks column 'email', which it does not have"


def test_strictest_mask_wins(lake: Lake) -> None:
    kinds = {"a": v1.MK_EXPRESSION, "b": v1.MK_PARTIAL, "c": v1.MK_NULL, "d": v1.MK_HASH}
    made = {
        name: lake.create(
            name,
            lake.people,
            mask=v1.PolicyMask(kind=kind, columns=["email"], expression="1" if kind == v1.MK_EXPRESSION else ""),
        )
        for name, kind in kinds.items()
    }
    for name in "cdba":
        found = lake.policies().of(lake.people)
        assert found is not None
        assert [found.mask_of("email", 9), found.mask_of("former", 3)] == [made[name]] * 2
        CALLS.delete(lake.home, v1.DeletePolicyRequest(policy_id=made[name].resource_id))


def test_callers_without_policies_read_them_once_per_call(lake: Lake) -> None:
    own = lake.restricted().policies
    assert own is not None
    assert own.of(lake.people) is None
    lake.create("p", lake.people)
    assert own.of(lake.people) is None  # the decision of a call does not change
    now = lake.restricted().policies
    assert now is not None
    assert now.of(lake.people)


def test_snapshots_of_a_restricted_table_have_no_counts_and_locations(lake: Lake) -> None:
    lake.factory.snapshot(
        lake.people,
        7,
        summary={"operation": "append", "total-records": "40", "partitions.name=Ada": "1"},
        manifest_list="s3://x/m",
        metadata_location="s3://x/y",
        format_metadata={"a": b"b"},
    )
    lake.create("p", lake.people)
    request = v1.GetSnapshotRequest(table_id=lake.people.resource_id, snapshot=v1.SnapshotRef(snapshot_id=7))
    everything = snapshots.get(lake.home, request).snapshot
    shown = snapshots.get(lake.restricted(), request).snapshot
    assert dict(everything.summary) != dict(shown.summary) == {"operation": "append"}
    assert (shown.manifest_list, shown.metadata_location, dict(shown.format_metadata)) == ("", "", {})
    assert (shown.snapshot_id, shown.schema_json) == (7, everything.schema_json)
    (listed,) = snapshots.list_(lake.restricted(), v1.ListSnapshotsRequest(table_id=lake.people.resource_id)).snapshots
    assert listed == shown


def test_statistics_of_a_restricted_table_are_those_of_visible_columns(lake: Lake) -> None:
    columns = [
        (1, "id"),
        (2, "name"),
        (3, "email"),
        (9, "host"),
        (10, "email.host"),
        (8, "id"),
    ]  # two parts of a column, and a former column
    table_id = lake.people.resource_id
    of_columns = v1.ColumnStatsSet(
        table_id=table_id,
        columns=[v1.ColumnStats(column_id=number, column_name=name, upstream=STAMP) for number, name in columns],
    )
    of_table = v1.TableStats(table_id=table_id, row_count=40, upstream=STAMP)
    of_files = v1.FileStatsSet(table_id=table_id, arrow_file=b"x")
    history = v1.StatisticsHistory(table_id=table_id)
    history.snapshots.add(columns=of_columns.columns)

    def shown() -> list[Any]:
        own = lake.restricted().policies
        assert own is not None
        return [PolicyGuard(own).shown(each) for each in (of_columns, of_table, of_files, history)]

    assert shown() == [of_columns, of_table, of_files, history]
    lake.create("p", lake.people)
    shown_columns, shown_table, shown_files, shown_history = shown()
    for columns_of in (shown_columns, *shown_history.snapshots):
        assert [each.column_name for each in columns_of.columns] == ["id", "name"]
    assert not any(each.HasField("upstream") for each in (shown_table, *shown_columns.columns))
    assert (shown_table.row_count, shown_files) == (40, None)
    lake.create("q", lake.people, row_filter=v1.PolicyFilter(predicate="id = '1'"))
    assert shown() == [None] * 4


class Fixed(Guard):
    """A guard that allows everything or nothing."""

    def __init__(self, allows: bool) -> None:
        self.allows = allows

    @property
    def sees_everything(self) -> bool:
        return self.allows

    @property
    def allows_unreadable(self) -> bool:
        return self.allows

    def sees(self, value: Message) -> bool:
        return self.allows

    def require_change(self, *states: Message) -> None:
        if not self.allows:
            raise PermissionDenied("no")


@pytest.mark.parametrize(("first", "second"), [(True, True), (True, False), (False, True)])
def test_all_guards_have_to_allow_everything(lake: Lake, first: bool, second: bool) -> None:
    stores, key = lake.factory.stores, keys.table("a1", lake.people.resource_id.id)
    guarded, allowed = Repository(stores, TABLE, (Fixed(first), Fixed(second))), first and second
    found = [guarded.find(key), guarded.peek(key), guarded.entry(stores.pointers.get(key))]
    assert [guarded.sees_everything, guarded.sees(lake.people), *(each is not None for each in found)] == [allowed] * 5
    with nullcontext() if allowed else pytest.raises(PermissionDenied):
        guarded.require_change(lake.people)
    with nullcontext() if allowed else pytest.raises(PermissionDenied):
        guarded.creation(lake.people)


def test_claims_of_a_token_replace_neither_the_subject_nor_its_roles_and_groups() -> None:
    claims: dict[str, Any] = {"subject": "root", "roles": ["administrator"], "groups": ["all"], "region": "EU"}
    subject = Subject("ada", frozenset({"reader"}), frozenset({"b", "a"}), claims)
    assert subject.values == {"subject": "ada", "roles": ["reader"], "groups": ["a", "b"], "region": "EU"}
    assert subject.names == {"user:ada", "role:reader", "group:a", "group:b"}


def test_restricted_caller_changes_neither_the_table_nor_its_place(lake: Lake) -> None:
    realm = lake.restricted()
    lake.create("p", lake.sales)
    moved = v1.UpdateNamespaceRequest(
        namespace_id=lake.eu.resource_id,
        spec=v1.NamespaceSpec(path=["eu"], catalog_id=lake.catalog.resource_id),
        update_mask=mask("path", "catalog_id"),
    )
    renamed = v1.UpdateTableRequest(
        table_id=lake.people.resource_id, spec=v1.TableSpec(display_name="x"), update_mask=mask("display_name")
    )
    sql = [v1.ViewSql(sql="SELECT 2", dialect="duckdb")]
    changed = v1.UpdateViewRequest(
        view_id=lake.totals.resource_id, spec=v1.ViewSpec(sql_definitions=sql), update_mask=mask("sql_definitions")
    )
    for change in (
        lambda: namespaces.update(realm, moved),
        lambda: namespaces.delete(
            realm, v1.DeleteNamespaceRequest(namespace_id=lake.sales.resource_id, require_empty=False)
        ),
        lambda: catalogs.delete(
            realm, v1.DeleteCatalogRequest(catalog_id=lake.catalog.resource_id, require_empty=False)
        ),
        lambda: tables.update(realm, renamed),
        lambda: tables.delete(realm, v1.DeleteTableRequest(table_id=lake.people.resource_id)),
        lambda: views.update(realm, changed),
        lambda: views.delete(realm, v1.DeleteViewRequest(view_id=lake.totals.resource_id)),
    ):
        with pytest.raises(PermissionDenied) as refused:
            change()
        assert refused.value.key == "policy.restricted"
    place = {"catalog_id": lake.catalog.resource_id, "namespace_id": lake.sales.resource_id}
    spec = v1.TableSpec(display_name="new", schema_json=SCHEMA, **place)
    assert tables.create(realm, v1.CreateTableRequest(spec=spec)).table.display_name == "new"


def test_unreadable_table_is_deleted_only_by_callers_without_policies(lake: Lake) -> None:
    pointers, request = lake.factory.stores.pointers, v1.DeleteTableRequest(table_id=lake.people.resource_id)
    key = keys.table("a1", lake.people.resource_id.id)
    lake.create("p", lake.people, subjects=["user:ada"])
    lake.lose(key)
    assert lake.policies("ada").of_table(lake.people.resource_id.id) is not None
    assert lake.policies("grace").of_table(lake.people.resource_id.id) is None
    tables.delete(lake.restricted("ada"), request)
    assert pointers.get(key) is not None
    tables.delete(lake.restricted("grace"), request)
    assert pointers.get(key) is None


def test_damaged_policy_may_hide_anything(lake: Lake) -> None:
    made = lake.create("p", lake.people, subjects=["user:grace"])
    assert lake.policies().of(lake.staff) is None
    lake.lose(keys.policy("a1", made.resource_id.id))
    own = lake.policies()
    found = own.of(lake.staff)
    assert found is not None
    assert (found.policies, found.missing) == (["p"], "policy p is damaged")
    assert own.of_namespace(lake.hr) is not None
    withheld = own.withholding_sizes(lake.catalog.resource_id.id, lake.hr.resource_id.id)
    assert withheld is not None
    assert withheld(lake.staff.resource_id.id, False)
    assert not PolicyGuard(own).allows_unreadable


def test_every_policy_of_a_caller_may_hold_for_a_damaged_table(lake: Lake) -> None:
    """Its columns are unknown, so a filter by tag could seem not to concern it."""
    table_id = lake.people.resource_id
    policies.set_tags(lake.home, v1.SetColumnTagsRequest(table_id=table_id, column="name", tags=["pii"]))
    lake.create("p", tags=["pii"], row_filter=v1.PolicyFilter(predicate="id = '1'"))
    lake.lose(keys.table("a1", table_id.id))
    found = lake.policies().of_table(table_id.id)
    assert found is not None
    assert [each.display_name for each in found.filters] == ["p"]
    assert PolicyGuard(lake.policies()).shown(v1.TableStats(table_id=table_id, row_count=40)) is None


def test_sizes_of_tables_with_a_row_filter_are_withheld(lake: Lake) -> None:
    everything = {"people", "orders", "staff"}
    policies.set_tags(lake.home, v1.SetColumnTagsRequest(table_id=lake.staff.resource_id, column="id", tags=["pii"]))
    lake.create("masked", lake.catalog)
    in_catalog = lake.catalog.resource_id.id
    for on, tags, withheld in (
        ([lake.people], [], {"people"}),
        ([lake.eu, lake.staff], [], {"orders", "staff"}),
        ([lake.sales], [], {"people", "orders"}),
        ([lake.catalog], [], everything),
        ([], ["pii"], {"staff"}),
        ([lake.sales], ["pii"], set()),
    ):
        made = lake.create("p", *on, tags=tags, row_filter=v1.PolicyFilter(predicate="id = '1'"))
        own, found = lake.policies(), set()
        for table, namespace in ((lake.people, lake.sales), (lake.orders, lake.eu), (lake.staff, lake.hr)):
            is_withheld = own.withholding_sizes(in_catalog, namespace.resource_id.id)
            if is_withheld is not None and is_withheld(table.resource_id.id, table is lake.staff):
                found.add(table.display_name)
        assert found == withheld
        CALLS.delete(lake.home, v1.DeletePolicyRequest(policy_id=made.resource_id))
    assert lake.policies().withholding_sizes(in_catalog, lake.sales.resource_id.id) is None


def test_digest_tells_every_change_of_policies(lake: Lake) -> None:
    def digest() -> str:
        found = lake.policies().of(lake.people)
        return "" if found is None else found.digest

    def change(policy: v1.Policy, **spec: Any) -> None:
        request = v1.UpdatePolicyRequest(
            policy_id=policy.resource_id, spec=v1.PolicySpec(**spec), update_mask=mask("rule")
        )
        CALLS.update(lake.home, request)

    def tag(column: str, *tags: str) -> None:
        request = v1.SetColumnTagsRequest(table_id=lake.people.resource_id, column=column, tags=tags)
        policies.set_tags(lake.home, request)

    seen = [digest()]
    first = lake.create("first", lake.people)
    seen.append(digest())
    assert digest() == seen[-1]
    change(first, mask=v1.PolicyMask(kind=v1.MK_HASH, columns=["email"]))
    seen.append(digest())
    by_tag = lake.create("by tag", tags=["pii"], mask=v1.PolicyMask(kind=v1.MK_NULL))
    tag("name", "pii")
    seen.append(digest())
    change(by_tag, mask=v1.PolicyMask(kind=v1.MK_HASH))
    seen.append(digest())
    lake.create("later columns", lake.sales, mask=v1.PolicyMask(kind=v1.MK_NULL, columns=["secret*"]))
    seen.append(digest())
    tag("name")
    tag("id", "pii")
    seen.append(digest())
    filtered = lake.create("filter", lake.people, row_filter=v1.PolicyFilter(predicate="id = '1'"))
    seen.append(digest())
    change(filtered, row_filter=v1.PolicyFilter(predicate="id = '2'"))
    seen.append(digest())
    assert len(set(seen)) == len(seen)
    CALLS.delete(lake.home, v1.DeletePolicyRequest(policy_id=filtered.resource_id))
    assert digest() == seen[6]


def test_tags_follow_the_column(lake: Lake) -> None:
    lake.create("p", tags=["pii"], mask=v1.PolicyMask(kind=v1.MK_NULL))
    request = v1.SetColumnTagsRequest(table_id=lake.people.resource_id, column="NAME", tags=["PII", "pii "])
    tagged = policies.set_tags(lake.home, request).tags
    assert [(each.column_id, each.name, list(each.tags)) for each in tagged.columns] == [(2, "name", ["pii"])]
    own = lake.restricted().policies
    assert own is not None
    found = own.of(lake.people)
    assert found is not None
    assert [name for number, name in enumerate(COLUMNS, 1) if found.mask_of("renamed", number)] == ["name"]
    assert own.of(lake.orders) is None
    lake.people.schema_json = SCHEMA.replace('"name": "name"', '"name": "new"').replace('"id": 2', '"id": 4')
    dropped = lake.policies().of(lake.people)
    assert dropped is not None
    assert dropped.mask_of("name", 2), "older snapshots still have the column"
    with pytest.raises(InvalidArgument, match="which table people does not have: choose from id, name, email"):
        policies.set_tags(lake.home, v1.SetColumnTagsRequest(table_id=lake.people.resource_id, column="x"))


def test_filter_by_tag_holds_for_tables_with_a_tagged_column(lake: Lake) -> None:
    lake.create("p", lake.sales, tags=["pii", "gdpr"], row_filter=v1.PolicyFilter(predicate="id = '1'"))
    for table, tag in ((lake.people, "gdpr"), (lake.orders, "other"), (lake.staff, "pii")):
        request = v1.SetColumnTagsRequest(table_id=table.resource_id, column="name", tags=[tag])
        policies.set_tags(lake.home, request)
    own = lake.policies()
    restricted = [each.display_name for each in (lake.people, lake.orders, lake.staff, lake.totals) if own.of(each)]
    assert restricted == ["people"]


def test_tags_of_all_tables_are_listed_with_current_names(lake: Lake) -> None:
    for table, column in ((lake.people, "name"), (lake.orders, "id")):
        policies.set_tags(
            lake.home, v1.SetColumnTagsRequest(table_id=table.resource_id, column=column, tags=["pii", "b"])
        )
    policies.set_tags(lake.home, v1.SetColumnTagsRequest(table_id=lake.orders.resource_id, column="id"))
    listed = policies.list_tags(lake.home, v1.ListColumnTagsRequest()).tags
    assert [(each.table_id.id, [(c.name, list(c.tags)) for c in each.columns]) for each in listed] == [
        (lake.people.resource_id.id, [("name", ["b", "pii"])])
    ]
    tables.delete(lake.home, v1.DeleteTableRequest(table_id=lake.people.resource_id))
    assert not policies.list_tags(lake.home, v1.ListColumnTagsRequest()).tags


def test_expressions_are_compiled_without_a_lake(lake: Lake) -> None:
    compile_ = SandboxedExpressions()
    spec = v1.PolicySpec(display_name="p", subjects=["everyone"], objects=[lake.people.resource_id])
    spec.row_filter.predicate = "name = caller('subject') AND nothing = 1"
    with pytest.raises(InvalidArgument, match="an expression over 'nothing': people has no such column"):
        policies.calls(compile_).create(lake.home, v1.CreatePolicyRequest(spec=spec))
    spec.row_filter.predicate = "name = caller('subject')"
    made = policies.calls(compile_).create(lake.home, v1.CreatePolicyRequest(spec=spec)).policy
    assert made.row_filter.predicate == "name = caller('subject')"


@pytest.mark.parametrize(("kind", "computed"), [(v1.MK_HASH, ["renamed"]), (v1.MK_NULL, [])])
def test_renamed_column_is_still_computed_from_its_values(kind: v1.MaskKind, computed: list[str]) -> None:
    policy = v1.Policy(mask=v1.PolicyMask(kind=kind, columns=["email"]))
    restriction = Restriction("table t", (), (policy,), columns={"renamed": 2, "other": 3}, masked_ids={2: policy})
    assert restriction.computed_columns == computed
    with pytest.raises(PermissionDenied, match="only NULL") if computed else nullcontext():
        restriction.check_inserted("renamed", 2, has_values=True)
    restriction.check_inserted("other", 3, has_values=True)
