"""What calls have looked up is kept while nothing changes: every caller gets the same answers as without it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from lake.lakes import ByToken, Lake, call_function
from lake.policed_lake import PolicedLake, policed_lake
from skiway.airport.request import Request, call_of
from skiway.client import AirportClient
from skiway.errors import SkiwayError
from skiway.lake.callers import Callers, Lookups
from skiway.metastore import PLATFORM, Realm, accounts, catalogs, grants, namespaces, tables
from skiway.model import v1
from skiway.request_path import Access
from skiway.security import PermissionAuthorizer, Principal
from skiway.sql import QueryEngine
from skiway.storage import PointerStore, open_stores

CALLERS = ("writer", "analyst", "nothing", "stranger")
"""Callers with all rights, under policies, with a grant, and with nothing."""

TABLES = ("s.people", "S.Persons", "s.more", "s.some", "t.people")


@pytest.fixture
def policed(tmp_path: Path, queries: QueryEngine) -> Iterator[PolicedLake]:
    with policed_lake(tmp_path, queries) as lake:
        yield lake


def outcome(act: Callable[[], pa.Table]) -> Any:
    """The rows, or the error."""
    try:
        return act().to_pylist()
    except SkiwayError as error:
        return type(error).__name__, error.message


def outcomes(location: str, token: str) -> list[Any]:
    """What a caller gets who counts and reads tables, in two catalogs."""

    def counted(client: AirportClient, table: str) -> pa.Table:
        return client.call("skiway.query", f"SELECT count(*) AS n FROM {table}").read_all()

    with AirportClient(location, "managed", token=token) as one, AirportClient(location, "new", token=token) as other:
        counts = [outcome(lambda: counted(one, table)) for table in TABLES]  # noqa: B023 - called at once
        return [*counts, outcome(lambda: one.scan("s.people").read_all()), outcome(lambda: counted(other, "t.people"))]


def test_all_callers_get_the_answers_of_a_server_that_keeps_nothing(
    policed: PolicedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = policed.lake
    people = policed.table.resource_id

    def create_table() -> None:
        with lake.client() as owner:
            owner.create_table("s.more", pa.schema({"a": pa.int32()}))
            owner.insert("s.more", pa.table({"a": pa.array([1], pa.int32())}))

    def create_view() -> None:
        with lake.client() as owner:
            call_function(owner, "create_view", "s.some", "SELECT id, email FROM s.people WHERE id < 3")

    def grant() -> None:
        request = v1.AddGrantRequest(object_id=people, grantee="user:nothing", privilege=v1.PV_READ)
        grants.add(lake.realm, request)

    def revoke() -> None:
        grants.revoke(lake.realm, v1.RevokeGrantRequest(object_id=people, grantee="user:nothing"))

    def mask() -> None:
        policed.mask(subjects=["user:analyst"])

    def filter_rows() -> None:
        policed.filter("id < 2", subjects=["user:analyst"])

    def rename_table() -> None:
        request = v1.UpdateTableRequest(table_id=people, spec=v1.TableSpec(display_name="persons"))
        request.update_mask.paths.append("display_name")
        tables.update(lake.realm, request)

    def drop_table() -> None:
        with lake.client() as owner:
            owner.drop_table("s.more")

    def create_schema() -> None:
        with lake.client() as owner:
            owner.create_schema("t")
            owner.create_table("t.people", pa.schema({"b": pa.string()}))

    def rename_catalog() -> None:
        request = v1.UpdateCatalogRequest(
            catalog_id=policed.catalog.resource_id, spec=v1.CatalogSpec(display_name="new")
        )
        request.update_mask.paths.append("display_name")
        catalogs.update(lake.realm, request)

    seen = set()
    for change in (
        create_table,
        create_view,
        grant,
        mask,
        filter_rows,
        drop_table,
        rename_table,
        revoke,
        create_schema,
        rename_catalog,
    ):
        change()
        for token in CALLERS:
            with monkeypatch.context() as patched:
                patched.setattr(type(lake.stores.pointers), "state", PointerStore.state)
                expected = outcomes(lake.location, token)
            assert outcomes(lake.location, token) == expected, (change, token)
            seen.add(repr(expected))
    assert len(seen) > 12, "the changes are seen"


class InTwoAccounts(ByToken):
    """The same caller, in the account that the token names."""

    def authenticate(self, headers: Mapping[str, str]) -> Principal:
        return replace(super().authenticate({}), account_id=headers["authorization"].removeprefix("Bearer "))


def test_caller_of_one_account_never_gets_what_another_account_has_under_the_same_name(tmp_path: Path) -> None:
    with open_stores("memory://") as stores:
        lake = Lake(tmp_path, stores, authenticator=InTwoAccounts())
        other = v1.CreateAccountRequest(spec=v1.AccountSpec(display_name="a2"), account_id=v1.ResourceId(id="a2"))
        accounts.create(Realm(stores, PLATFORM), other)
        request = v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="managed"))
        catalogs.create(Realm(stores, "a2"), request)
        with lake.served() as location, ExitStack() as stack:
            clients = [
                stack.enter_context(AirportClient(location, "managed", token=account)) for account in ("a1", "a2")
            ]
            for number, client in enumerate(clients):
                client.create_schema("s")
                client.create_table("s.t", pa.schema({"of": pa.int64()}))
                client.insert("s.t", pa.table({"of": [number]}))
            for _ in range(3):
                assert [client.scan("s.t").read_all().to_pylist() for client in clients] == [[{"of": 0}], [{"of": 1}]]


def test_lookup_is_repeated_only_after_a_change(policed: PolicedLake, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    find = namespaces.find_any_case

    def counted(*arguments: Any) -> Any:
        reads.append(arguments)
        return find(*arguments)

    monkeypatch.setattr(namespaces, "find_any_case", counted)
    with policed.lake.client() as client:
        counts = []
        for _ in range(3):
            client.scan("s.people").read_all()
            counts.append(len(reads))
        assert counts[1] == counts[2]
        policed.filter(subjects=["user:reader"])
        client.scan("s.people").read_all()
        assert len(reads) > counts[2]


class OneCaller(Callers):
    """A caller whose state is given."""

    def __init__(self, *states: object) -> None:
        self.states = list(states)

    def state(self) -> Any:
        return self.states.pop(0)


def test_failed_lookup_is_repeated() -> None:
    lookups = Lookups(OneCaller(*3 * [("a", "rights")]))

    def fail() -> str:
        raise SkiwayError("not now")

    with pytest.raises(SkiwayError):
        lookups.get("key", fail)
    assert lookups.get("key", lambda: "found") == "found"
    assert lookups.get("key", fail) == "found"


def test_state_is_read_before_the_lookup() -> None:
    callers = OneCaller(("before", "rights"), ("after", "rights"))
    lookups = Lookups(callers)

    def read() -> str:
        assert callers.states == [("after", "rights")]
        return "old"

    assert lookups.get("key", read) == "old"
    assert lookups.get("key", lambda: "new") == "new"


def test_results_of_former_states_are_not_kept() -> None:
    """Each holds an opened table. A server with a commit per second had thousands of them in memory."""

    class Found:
        pass

    lookups = Lookups(OneCaller(*((state, rights) for state in range(50) for rights in ("ada", "bob"))))
    found = [weakref.ref(lookups.get("key", Found)) for _ in range(100)]
    assert [each() is not None for each in found] == [False] * 98 + [True] * 2


def test_nothing_is_kept_if_the_store_cannot_tell_its_state() -> None:
    lookups = Lookups(OneCaller(None, None))
    assert [lookups.get("key", lambda value=value: value) for value in (1, 2)] == [1, 2]  # type: ignore[misc]


@pytest.mark.parametrize(
    "other",
    [
        {"subject": "bob"},
        {"account_id": "a2"},
        {"roles": frozenset({"member"})},
        {"permissions": frozenset({"catalog.read"})},
        {"groups": frozenset({"emea"})},
        {"claims": {"region": "US"}},
        {"table_id": "t1"},
        {"reads": frozenset({"t1"})},
        {"read_only": True},
    ],
    ids=lambda other: next(iter(other)),
)
def test_callers_who_may_see_different_things_have_different_rights(other: dict[str, Any]) -> None:
    def rights(**changed: Any) -> object:
        ada = Principal("ada", "a1", frozenset({"default"}), frozenset({"table.read"}), claims={"region": "EU"})
        tokens = SimpleNamespace(authenticate=lambda _: replace(ada, **changed))
        callers = Callers(Access(lambda _: pytest.fail("no store is needed"), tokens, PermissionAuthorizer()))

        def in_call() -> object:
            with callers.observe(call_of(Request(method="DoGet"))):
                callers.authenticate(None)
                assert callers.rights == callers.rights
                return callers.rights

        return copy_context().run(in_call)

    assert rights() == rights()
    assert hash(rights()) == hash(rights())
    assert rights(**other) != rights()
