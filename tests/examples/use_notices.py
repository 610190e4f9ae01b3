"""Uses the notices of CONTRIBUTING.md through every door. `test_added_resource.py` runs it with a copy of the project that has them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc

from runtime.servers import Server, started
from skiway.cli.app import app
from skiway.client import Metastore
from skiway.errors import AlreadyExists, InvalidArgument, NotFound, PreconditionFailed
from skiway.model import v1

SETUP = """
version: 1
notices:
- name: outage
  text: The lake is read-only on Sunday.
  severity: warning
  labels: [maintenance, sunday]
- name: welcome
  text: Ask in the channel for help.
"""


def use_grpc(server: Server) -> None:
    model: Any = v1

    def call(method: str, request: Any) -> Any:
        path, response = f"/skiway.v1.NoticeService/{method}Notice", getattr(model, f"{method}NoticeResponse")
        with grpc.insecure_channel(server.address) as channel:
            return channel.unary_unary(path, type(request).SerializeToString, response.FromString)(request)

    spec = model.NoticeSpec(display_name="rpc", text="By gRPC")
    created = call("Create", model.CreateNoticeRequest(spec=spec)).notice
    assert (created.text, created.resource_id.kind) == ("By gRPC", v1.ResourceKind.Value("RK_NOTICE"))
    assert call("Get", model.GetNoticeRequest(display_name="rpc")).notice == created
    call("Delete", model.DeleteNoticeRequest(notice_id=created.resource_id))


def use_client(lake: Any) -> None:
    lake.notices.create("client", text="By client", labels=["a", "b"])
    created = lake.notices.get("client")
    assert (created.text, created.labels, created.hidden, created.version) == ("By client", ("a", "b"), False, 1)
    changed = lake.notices.update("client", new_name="renamed", text="Changed", labels=None, if_version=1)
    assert (changed.name, changed.text, changed.labels, changed.version) == ("renamed", "Changed", (), 2)
    assert [notice.name for notice in lake.notices()] == ["renamed"]
    for error, name, fields in (
        (AlreadyExists, "renamed", {"text": "again"}),
        (InvalidArgument, "blank", {}),
        (InvalidArgument, "strange", {"text": "x", "severity": "fatal"}),
    ):
        with expected(error):
            lake.notices.create(name, **fields)
    with expected(PreconditionFailed):
        lake.notices.delete("renamed", if_version=1)
    lake.notices.delete("renamed")
    with expected(NotFound):
        lake.notices.get("renamed")
    actions = [event.action for event in lake.events() if event.kind == "notice"]
    assert actions == ["created", "deleted", "created", "renamed", "deleted"]


def use_commands(server: Server) -> None:
    assert "notices" in command("--help")
    where = ("--server", server.address)
    command("notices", "create", "cli", "By command", "--label", "a", "--severity", "info", *where)
    command("notices", "update", "cli", "--hide", *where)
    shown = json.loads(command("notices", "get", "cli", "--output", "json", *where))
    assert (shown["text"], shown["labels"], shown["severity"], shown["hidden"]) == ("By command", ["a"], "info", True)
    assert "By command" in command("notices", "list", *where)
    command("notices", "delete", "cli", "--yes", *where)
    assert json.loads(command("notices", "list", "--output", "json", *where)) == []


def use_setup_file(server: Server, lake: Any, folder: Path) -> None:
    file = folder / "lake.yaml"
    where = ("--server", server.address)
    for text, names in ((SETUP, ["outage", "welcome"]), (SETUP.partition("- name: welcome")[0], ["outage"])):
        file.write_text(text)
        command("setup", "apply", str(file), "--delete", *where)
        assert [notice.name for notice in lake.notices()] == names
    command("setup", "plan", str(file), *where)  # fails if there are changes
    assert "The lake is read-only on Sunday." in command("setup", "export", *where)


def use_explorer(server: Server) -> None:
    address = urlsplit(server.addresses["http"])
    with closing(HTTPConnection(address.netloc, timeout=60)) as connection:
        connection.request("GET", "/notices")
        response = connection.getresponse()
        page = response.read().decode()
    assert response.status == 200, page
    assert "The lake is read-only on Sunday." in page
    assert 'href="/notices" aria-current="page"' in page


def command(*arguments: str) -> str:
    """The output of a command."""
    from typer.testing import CliRunner

    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, (arguments, result.output, result.exception)
    return result.output


@contextmanager
def expected(error: type[Exception]) -> Iterator[None]:
    """A block that must raise."""
    try:
        yield
    except error:
        return
    raise AssertionError(f"{error.__name__} was not raised")


if __name__ == "__main__":
    home = Path(sys.argv[1]) / "home"
    with started(home, fresh=True) as running, Metastore(running.address) as metastore:
        use_grpc(running)
        use_client(metastore)
        use_commands(running)
        use_setup_file(running, metastore, home.parent)
        use_explorer(running)
