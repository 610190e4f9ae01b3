"""The doors to resources: each makes the same calls for one caller, and fails with the same codes."""

from __future__ import annotations

import io
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask

from contract.kinds import DESCRIBED, PIPELINES, SECRET, Kind, pipeline_files, write_pipeline
from rpc.rpc_server import METHODS, Client, RpcServer
from skiway.cli import main
from skiway.client import Metastore
from skiway.errors import SkiwayError
from skiway.model import v1

OWNER, READER, STRANGER = "everybody", "reader", "stranger"
"""Callers: one who may do everything, one who may read, and one who may do everything in another account."""

CODES = {
    "does not exist": "MC_NOT_FOUND",
    "there is no": "MC_NOT_FOUND",
    "already exists": "MC_CONFLICT",
    "was changed": "MC_PRECONDITION_FAILED",
    "version": "MC_PRECONDITION_FAILED",
    "permission": "MC_PERMISSION_DENIED",
}
"""Codes by what the command line says. Everything else is about the arguments."""


class Refused(Exception):
    """A call failed with this code."""


@dataclass(frozen=True)
class Shown:
    """A resource as a door shows it. Not all doors show the versions and descriptions of all kinds."""

    name: str
    description: str | None
    version: int | None


class Door(ABC):
    """The calls of one caller. Names are those in the parent of the kind."""

    @abstractmethod
    def create(self, kind: Kind, name: str, description: str) -> None: ...

    @abstractmethod
    def get(self, kind: Kind, name: str) -> Shown: ...

    @abstractmethod
    def names(self, kind: Kind) -> list[str]:
        """The names of all that the caller sees, in the order of the list."""

    @abstractmethod
    def update(self, kind: Kind, name: str, description: str, if_version: int | None = None) -> None: ...

    @abstractmethod
    def delete(self, kind: Kind, name: str, if_version: int | None = None) -> None: ...

    def can(self, kind: Kind, verb: str) -> bool:
        """Whether the door has this call for a kind, with a condition on the version."""
        return True


class Rpc(Door):
    """gRPC: messages that are built from the names of kinds. `lake` resolves ids, as the owner."""

    def __init__(self, client: Client, lake: Metastore) -> None:
        self._client, self._lake = client, lake

    def create(self, kind: Kind, name: str, description: str) -> None:
        spec: dict[str, Any]
        if kind is PIPELINES:
            spec = {"files": pipeline_files(name, description)}
        else:
            spec = {"display_name": name, "description": description, **kind.spec(self._lake)}
        self._call(kind, "Create{}", spec=spec)

    def get(self, kind: Kind, name: str) -> Shown:
        response = self._call(kind, "Get{}", **self._id(kind, name))
        found = _unwrapped(kind, getattr(response, kind.name))
        return Shown(found.display_name, kind.text(found), response.meta.pointer_version)

    def names(self, kind: Kind) -> list[str]:
        return [message.display_name for page in self.pages(kind, 0) for message in page]

    def pages(self, kind: Kind, size: int) -> Iterator[list[Any]]:
        """The pages of a list."""
        token, fields = "", kind.message("List{}sRequest").DESCRIPTOR.fields_by_name
        inside = {name: value for name, value in kind.spec(self._lake).items() if name in fields}
        while True:
            page = v1.PageRequest(page_size=size, page_token=token)
            response = self._call(kind, "List{}s", page=page, **inside)
            listed = getattr(response, kind.plural)
            yield [_unwrapped(kind, found) for found in listed]
            token = response.page.next_page_token
            if not token:
                return

    def update(self, kind: Kind, name: str, description: str, if_version: int | None = None) -> None:
        path = "files" if kind is PIPELINES else "description"
        spec = {path: pipeline_files(name, description) if kind is PIPELINES else description}
        mask = FieldMask(paths=[path])
        self._call(kind, "Update{}", **self._id(kind, name), spec=spec, update_mask=mask, **_condition(if_version))

    def delete(self, kind: Kind, name: str, if_version: int | None = None) -> None:
        self._call(kind, "Delete{}", **self._id(kind, name), **_condition(if_version))

    def _id(self, kind: Kind, name: str) -> dict[str, Any]:
        """The id of a resource that the owner sees, or one that does not exist."""
        owner = Client(self._client.channel, OWNER)
        known = {message.display_name: message for page in Rpc(owner, self._lake).pages(kind, 0) for message in page}
        return {f"{kind.name}_id": known[name].resource_id if name in known else v1.ResourceId(id=name)}

    def _call(self, kind: Kind, template: str, /, **fields: Any) -> Any:
        answer = self._client(operation_of(kind, template), kind.message(f"{template}Request")(**fields))
        if answer.message is None:
            raise Refused(v1.ErrorCode.Name(answer.error.code))
        return answer.message


def operation_of(kind: Kind, template: str) -> str:
    """The service and method with this name, in which `{}` is the kind."""
    return next(operation for operation in METHODS if operation.endswith(f"/{kind.method(template)}"))


def _unwrapped(kind: Kind, message: Any) -> Any:
    """The resource in a message: rules come with their results."""
    return getattr(message, kind.name, message)


def _condition(if_version: int | None) -> dict[str, Any]:
    return {} if if_version is None else {"precondition": v1.Precondition(expected_version=if_version)}


class Python(Door):
    """The client in Python."""

    def __init__(self, lake: Metastore) -> None:
        self._lake = lake

    def create(self, kind: Kind, name: str, description: str) -> None:
        with _codes():
            if kind is PIPELINES:
                self._lake.pipelines.create(pipeline_files(name, description))
            else:
                collection = self._of(kind)
                collection.create(kind.full(name), *kind.arguments, description=description, **kind.fields)

    def get(self, kind: Kind, name: str) -> Shown:
        with _codes():
            found = self._of(kind).get(kind.full(name))
            version = found.meta.version if hasattr(found, "meta") else getattr(found, "version", None)
            return Shown(found.name, kind.text(found), version)

    def names(self, kind: Kind) -> list[str]:
        with _codes():
            return [found.name for found in self._of(kind)(*([kind.parent] if kind.parent else []))]

    def update(self, kind: Kind, name: str, description: str, if_version: int | None = None) -> None:
        with _codes():
            if kind is PIPELINES:
                self._lake.pipelines.update(name, pipeline_files(name, description), if_version=if_version)
            else:
                self._of(kind).update(kind.full(name), description=description, if_version=if_version)

    def delete(self, kind: Kind, name: str, if_version: int | None = None) -> None:
        with _codes():
            self._of(kind).delete(kind.full(name), if_version=if_version)

    def _of(self, kind: Kind) -> Any:
        return getattr(self._lake, kind.plural)


@contextmanager
def _codes() -> Iterator[None]:
    try:
        yield
    except SkiwayError as error:
        raise Refused(error.code) from error


class Commands(Door):
    """The command line, in this process. What it has no command for, the client does."""

    def __init__(self, run: Callable[..., Any], lake: Metastore, folder: Path) -> None:
        self._run, self._client, self._folder = run, Python(lake), folder

    def can(self, kind: Kind, verb: str) -> bool:
        return kind in DESCRIBED and (verb != "update" or kind is not PIPELINES)

    def create(self, kind: Kind, name: str, description: str) -> None:
        if kind.command is None:
            self._client.create(kind, name, description)
        elif kind is PIPELINES:
            self._run("pipelines", "create", str(write_pipeline(self._folder, name, description)))
        else:
            self._run(kind.plural, "create", kind.full(name), *kind.command, "--description", description)

    def get(self, kind: Kind, name: str) -> Shown:
        found = self._run(kind.plural, "get", kind.full(name), "--output", "json")
        return Shown(self._own(kind, found["name"]), kind.text(found), found.get("version"))

    def names(self, kind: Kind) -> list[str]:
        parent = [kind.parent] if kind.parent else []
        return [self._own(kind, found["name"]) for found in self._run(kind.plural, "list", *parent, "--output", "json")]

    def update(self, kind: Kind, name: str, description: str, if_version: int | None = None) -> None:
        if not kind.has_update_command:
            self._client.update(kind, name, description, if_version)
        elif kind is PIPELINES:
            self._run("pipelines", "get", name)
            self._run("pipelines", "apply", str(write_pipeline(self._folder, name, description)))
        else:
            self._run(kind.plural, "update", name, "--description", description, *_option(if_version))

    def delete(self, kind: Kind, name: str, if_version: int | None = None) -> None:
        if kind.command is None:
            self._client.delete(kind, name, if_version)
        else:
            self._run(kind.plural, "delete", kind.full(name), "--yes", *_option(if_version))

    def _own(self, kind: Kind, name: str) -> str:
        return name.removeprefix(f"{kind.parent}.")


def _option(if_version: int | None) -> list[str]:
    return [] if if_version is None else ["--if-version", str(if_version)]


@dataclass(frozen=True)
class Doors:
    """The doors of a server, by caller. Its catalog `lake` has the table `sales.people`."""

    server: RpcServer
    folder: Path
    monkeypatch: pytest.MonkeyPatch

    def of(self, door: str, caller: str = OWNER) -> Door:
        """A door: `rpc`, `client` or `commands`."""
        match door:
            case "rpc":
                return Rpc(Client(self.server.client.channel, caller), self.lake(OWNER))
            case "client":
                return Python(self.lake(caller))
        return Commands(lambda *arguments: self.run(caller, *arguments), self.lake(caller), self.folder)

    def lake(self, caller: str) -> Metastore:
        return Metastore(self.server.address, token=caller)

    def run(self, caller: str, *arguments: str) -> Any:
        """The output of a command: the values of JSON, or a text."""
        out, err = io.StringIO(), io.StringIO()
        self.monkeypatch.setenv("SKIWAY_SERVER", self.server.address)
        self.monkeypatch.setenv("SKIWAY_TOKEN", caller)
        self.monkeypatch.setenv("CONTRACT_SECRET", SECRET)
        self.monkeypatch.setattr(sys, "argv", ["skiway", *arguments])
        code = 0
        with redirect_stdout(out), redirect_stderr(err):
            try:
                main()
            except SystemExit as ended:
                code = int(ended.code or 0)
        if code:
            text = " ".join(err.getvalue().split())
            raise Refused(next((found for phrase, found in CODES.items() if phrase in text), "MC_INVALID_ARGUMENT"))
        return json.loads(out.getvalue()) if "json" in arguments else out.getvalue()
