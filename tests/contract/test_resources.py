"""The same claims about every kind of resource, through gRPC, the client and the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from google.protobuf.field_mask_pb2 import FieldMask

from contract.doors import OWNER, READER, STRANGER, Door, Doors, Python, Refused, Rpc, Shown, operation_of
from contract.kinds import (
    CATALOGS,
    CONNECTORS,
    DESCRIBED,
    KINDS,
    NAMESPACES,
    PIPELINES,
    POLICIES,
    RULES,
    TABLE,
    VIEWS,
    WEBHOOKS,
    Kind,
    pipeline_files,
)
from metastore.integrity import damage
from metastore.resource_factory import behavior
from rpc.rpc_server import Client, opened
from skiway.errors import Conflict
from skiway.foundation import resources
from skiway.model import v1
from skiway.storage import open_stores

DOORS = ("rpc", "client", "commands")


@pytest.fixture
def doors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Doors]:
    for name in ("SKIWAY_ACCOUNT", "SKIWAY_HOME", "SKIWAY_CREDENTIAL", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    with open_stores("memory://") as stores, opened(stores) as server:
        server.factory.account("a2")
        server.factory.catalog("lake")
        server.factory.table(namespace=server.factory.namespace("sales"))
        yield Doors(server, tmp_path, monkeypatch)
        assert damage(stores) == []


@pytest.fixture(params=DOORS)
def name_of_door(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def door(doors: Doors, name_of_door: str) -> Door:
    return doors.of(name_of_door)


@pytest.fixture(params=KINDS, ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


def test_every_description_of_resources_is_in_the_contract() -> None:
    described = {found.name for found in vars(resources).values() if isinstance(found, resources.Resource)}
    assert described == {kind.name for kind in DESCRIBED}


def own(kind: Kind, names: list[str]) -> list[str]:
    """The names without those that the lake has."""
    return [name for name in names if kind.full(name) not in ("lake", "lake.sales", TABLE)]


def assert_stored(doors: Doors, kind: Kind, name: str, description: str, *, version: int) -> None:
    assert doors.of("rpc").get(kind, name) == Shown(name, description, version)


def refused(code: str) -> pytest.RaisesExc[Refused]:
    return pytest.raises(Refused, match=f"^{code}$")


@behavior(9)
def test_created_resource_is_returned_and_listed(door: Door, kind: Kind) -> None:
    door.create(kind, "new", "first")
    found = door.get(kind, "new")
    assert found.name == "new"
    assert found.description in ("first", None if kind is PIPELINES else "first")
    assert found.version in (1, None)
    assert own(kind, door.names(kind)) == ["new"]
    with refused("MC_CONFLICT"):
        door.create(kind, "new", "second")


def test_lists_are_complete_and_in_order(doors: Doors, door: Door, kind: Kind) -> None:
    for name in ("c", "a", "e", "b", "d"):
        doors.of("client").create(kind, name, "x")
    assert own(kind, door.names(kind)) == list("abcde")


def test_lists_have_pages(doors: Doors, kind: Kind) -> None:
    for name in ("c", "a", "e", "b", "d"):
        doors.of("client").create(kind, name, "x")
    rpc = doors.of("rpc")
    assert isinstance(rpc, Rpc)
    pages = list(rpc.pages(kind, 2))
    assert {len(page) for page in pages[:-1]} == {2}
    assert own(kind, [message.display_name for page in pages for message in page]) == list("abcde")
    listing = getattr(doors.lake(OWNER), kind.plural)(*([kind.parent] if kind.parent else []), page_size=2)
    assert [found.name for found in listing] == [message.display_name for page in pages for message in page]
    assert listing.total == len(list(listing))


def test_update_changes_what_it_names(doors: Doors, door: Door, kind: Kind) -> None:
    door.create(kind, "one", "first")
    door.create(kind, "two", "first")
    before = message_of(doors, kind, "one")
    door.update(kind, "one", "second")
    assert_stored(doors, kind, "one", "second", version=2)
    assert_stored(doors, kind, "two", "first", version=1)
    after = message_of(doors, kind, "one")
    for message in (before, after):
        for field in ("updated_at", "files" if kind is PIPELINES else "description"):
            message.ClearField(field)
    assert after == before


def message_of(doors: Doors, kind: Kind, name: str) -> Any:
    """The message of a resource."""
    rpc = doors.of("rpc")
    assert isinstance(rpc, Rpc)
    return next(found for page in rpc.pages(kind, 0) for found in page if found.display_name == name)


@behavior(27)
def test_change_of_another_version_is_refused(doors: Doors, door: Door, kind: Kind) -> None:
    doors.of("client").create(kind, "new", "first")
    doors.of("client").update(kind, "new", "second")
    if door.can(kind, "update"):
        with refused("MC_PRECONDITION_FAILED"):
            door.update(kind, "new", "third", 1)
    if door.can(kind, "delete"):
        with refused("MC_PRECONDITION_FAILED"):
            door.delete(kind, "new", 1)
        assert_stored(doors, kind, "new", "second", version=2)
        door.delete(kind, "new", 2)
        assert own(kind, door.names(kind)) == []


def test_deleted_resource_is_gone_and_its_name_is_free(door: Door, kind: Kind) -> None:
    door.create(kind, "new", "first")
    door.delete(kind, "new")
    assert own(kind, door.names(kind)) == []
    with refused("MC_NOT_FOUND"):
        door.get(kind, "new")
    door.create(kind, "new", "again")
    assert own(kind, door.names(kind)) == ["new"]


def test_resource_that_does_not_exist_is_not_found(door: Door, kind: Kind) -> None:
    with refused("MC_NOT_FOUND"):
        door.get(kind, "nothing")
    with refused("MC_NOT_FOUND"):
        door.update(kind, "nothing", "x")
    if isinstance(door, Rpc):  # requests name what they delete by its id, and may be repeated
        door.delete(kind, "nothing")
        with refused("MC_NOT_FOUND"):
            door.delete(kind, "nothing", 1)
        return
    with refused("MC_NOT_FOUND"):
        door.delete(kind, "nothing")


@pytest.mark.parametrize("name", ["", " ", "\t"])
def test_blank_name_is_refused(door: Door, kind: Kind, name: str) -> None:
    with refused("MC_INVALID_ARGUMENT"):
        door.create(kind, name, "x")
    assert own(kind, door.names(kind)) == []


def test_other_accounts_see_nothing(doors: Doors, name_of_door: str, kind: Kind) -> None:
    doors.of("client").create(kind, "new", "first")
    stranger = doors.of(name_of_door, STRANGER)
    for call in (
        lambda: stranger.get(kind, "new"),
        lambda: stranger.update(kind, "new", "x"),
        lambda: stranger.delete(kind, "new"),
    ):
        with refused("MC_NOT_FOUND"):
            call()
    if kind in (WEBHOOKS, POLICIES, CATALOGS):  # others need what the other account does not have
        assert stranger.names(kind) == []
        stranger.create(kind, "new", "of the other account")
        assert stranger.names(kind) == ["new"]
    forged = v1.ResourceId(id=message_of(doors, kind, "new").resource_id.id, account_id="a2")
    operation = operation_of(kind, "Get{}")
    answer = Client(doors.server.client.channel, STRANGER)(
        operation, kind.message("Get{}Request")(**{f"{kind.name}_id": forged})
    )
    assert v1.ErrorCode.Name(answer.error.code) == "MC_NOT_FOUND"
    assert_stored(doors, kind, "new", "first", version=1)


def test_callers_who_may_only_read_change_nothing(doors: Doors, name_of_door: str, kind: Kind) -> None:
    doors.of("client").create(kind, "new", "first")
    reader = doors.of(name_of_door, READER)
    changes: tuple[Callable[[], object], ...] = (
        lambda: reader.create(kind, "other", "x"),
        lambda: reader.update(kind, "new", "x"),
        lambda: reader.delete(kind, "new"),
    )
    for change in changes:
        with refused("MC_PERMISSION_DENIED"):
            change()
    if kind.is_public:
        assert reader.get(kind, "new").name == "new"
        assert own(kind, reader.names(kind)) == ["new"]
    else:
        with refused("MC_PERMISSION_DENIED"):
            reader.get(kind, "new")
    assert_stored(doors, kind, "new", "first", version=1)


@behavior(36, 37)
def test_request_that_is_repeated_with_its_key_creates_one(doors: Doors, kind: Kind) -> None:
    lake = doors.lake(OWNER)

    def create(description: str) -> Any:
        if kind is PIPELINES:
            return lake.pipelines.create(pipeline_files("new", description), idempotency_key="k")
        collection, more = getattr(lake, kind.plural), {**kind.fields, "description": description}
        return collection.create(kind.full("new"), *kind.arguments, **more, idempotency_key="k")

    assert create("x").id == create("x").id
    with pytest.raises(Conflict) as error:
        create("another request")
    assert error.value.key == "idempotency.mismatch"
    assert own(kind, Python(lake).names(kind)) == ["new"]


@behavior(25)
@pytest.mark.parametrize(
    "wrong",
    [
        {"update_mask": FieldMask()},
        {"update_mask": FieldMask(paths=["nothing"])},
        {"update_mask": FieldMask(paths=["description"]), "id": v1.ResourceId(id="x", kind=v1.RK_ACCOUNT)},
        {"update_mask": FieldMask(paths=["description"]), "id": v1.ResourceId(id=" ")},
    ],
    ids=["no fields", "an unknown field", "an id of another kind", "a blank id"],
)
def test_wrong_update_is_refused(doors: Doors, kind: Kind, wrong: dict[str, Any]) -> None:
    doors.of("client").create(kind, "new", "first")
    own_id = wrong.get("id", message_of(doors, kind, "new").resource_id)
    request = kind.message("Update{}Request")(**{f"{kind.name}_id": own_id}, update_mask=wrong["update_mask"])
    answer = Client(doors.server.client.channel, OWNER)(operation_of(kind, "Update{}"), request)
    assert (answer.message, v1.ErrorCode.Name(answer.error.code)) == (None, "MC_INVALID_ARGUMENT")
    assert_stored(doors, kind, "new", "first", version=1)


DECLARED = (WEBHOOKS, POLICIES, RULES, PIPELINES, CATALOGS, NAMESPACES, VIEWS, CONNECTORS)


@pytest.mark.parametrize("kind", DECLARED, ids=str)
def test_setup_file_declares_resources(doors: Doors, tmp_path: Path, kind: Kind) -> None:
    file = tmp_path / "setup.yaml"

    def declare(**descriptions: str) -> None:
        declared = [{"name": kind.full(name), **declaration(kind, name, text)} for name, text in descriptions.items()]
        declared += [{"name": name} for name in LAKE.get(kind, ())]
        file.write_text(yaml.safe_dump({"version": 1, kind.plural: declared}))

    client = doors.of("client")
    declare(one="first", two="first")
    doors.run(OWNER, "setup", "apply", str(file))
    assert own(kind, client.names(kind)) == ["one", "two"]
    declare(two="second")
    doors.run(OWNER, "setup", "apply", str(file))
    assert_stored(doors, kind, "one", "first", version=1)
    assert_stored(doors, kind, "two", "second", version=2)
    doors.run(OWNER, "setup", "apply", str(file), "--delete")
    assert own(kind, client.names(kind)) == ["two"]
    assert doors.run(OWNER, "setup", "plan", str(file)).startswith("the server matches the file")
    exported = yaml.safe_load(doors.run(OWNER, "setup", "export"))[kind.plural]
    assert [kind.text(SimpleNamespace(**found)) for found in exported if found["name"] == kind.full("two")] == [
        "second"
    ]


def declaration(kind: Kind, name: str, description: str) -> dict[str, Any]:
    """The keys of a resource in a setup file."""
    if kind is PIPELINES:
        return {"files": pipeline_files(name, description)}
    return {"description": description, **kind.declaration}


LAKE = {CATALOGS: ("lake",), NAMESPACES: ("lake.sales",)}
"""What a setup file must declare so that it is not deleted."""
