"""The SQL workbench, the history of queries and the forms, as a program that sends requests sees them."""

from __future__ import annotations

import hashlib
import re
import shlex
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runtime.servers import Server, skiway, started
from skiway.client import AirportClient, Metastore
from skiway.errors import InvalidArgument
from skiway.presentation import results
from skiway.presentation.results import OpenClients
from skiway.web.forms.fields import command_of, entry_of, given
from skiway.web.forms.showing import FORMS
from skiway.web.pages import editor
from skiway.web.pages.activity import events
from skiway.web.pages.editor import MAX_ROWS, place_of
from skiway.web.visits import Clients, Visit
from skiway.web.visits import Visitor as WebVisitor
from web.explorers import Visitor, visiting

RUN = "0123456789abcdef"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source with one table."""
    found = tmp_path_factory.mktemp("workbench")
    (found / "source" / "trips").mkdir(parents=True)
    pq.write_table(pa.table({"km": [1.5]}), found / "source" / "trips" / "a.parquet")
    return found


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    home = folder / "home"
    settings = ("--set", f"sources.local_roots={home.parent}", "--set", "sources.addresses=127.0.0.1")
    with started(home, *settings) as running:
        with AirportClient(running.addresses["airport"], "lake") as lake:
            lake.create_schema("sales")
            lake.create_table_as("sales.people", pa.table({"id": [1, 2, 3], "name": ["ann", "bob", "late"]}))
        yield running


@pytest.fixture
def visitor(server: Server) -> Iterator[Visitor]:
    with visiting(server) as found:
        yield found


def run(visitor: Visitor, sql: str, number: str = RUN, **more: str) -> Any:
    return visitor.get(f"/run?{urlencode({'catalog': 'lake', 'sql': sql, 'run': number, **more})}")


# --- the workbench ----------------------------------------------------------------------------------------------------


def test_a_run_has_columns_values_and_what_it_took(visitor: Visitor) -> None:
    found = run(
        visitor, "select name, id, 0.5 as half, 2::bigint << 60 as large, date '2026-01-02' as day from sales.people"
    ).json()
    columns = {each["name"]: each for each in found["columns"]}
    assert columns["name"] == {"name": "name", "type": "VARCHAR", "is_number": False, "values": ["ann", "bob", "late"]}
    assert columns["id"]["values"] == [1, 2, 3]
    assert columns["large"]["values"] == [str(2**61)] * 3, "JavaScript would round the number"
    assert columns["day"]["values"] == ["2026-01-02"] * 3
    assert (found["rows"], found["is_cut"], found["files_read"], found["run"]) == (3, False, 1, RUN)
    assert found["bytes_read"] > 0
    assert found["ms"] > 0


def test_a_large_result_is_cut_and_says_so(visitor: Visitor) -> None:
    found = run(visitor, f"select i from range({MAX_ROWS + 5}) t(i)").json()
    assert (found["rows"], found["is_cut"], len(found["columns"][0]["values"])) == (MAX_ROWS, True, MAX_ROWS)


def test_a_plan_is_shown_without_running_the_query(visitor: Visitor) -> None:
    assert "READ_PARQUET" in run(visitor, "select * from sales.people", explain="on").json()["plan"].upper()


def test_a_running_query_is_cancelled(visitor: Visitor) -> None:
    visitor.get("/sql")  # which makes the session
    found: list[Any] = []
    slow = "select count(*) from range(100000000000) a where hash(a) = 7"
    thread = threading.Thread(target=lambda: found.append(run(visitor, slow, "feedfeedfeed")))
    thread.start()
    while not (answer := run(visitor, "", "feedfeedfeed", cancel="on").json())["cancelled"]:
        assert thread.is_alive()
        time.sleep(0.05)
    thread.join(200)
    assert answer == {"cancelled": True}
    assert found[0].json()["error"] == "You cancelled the query."


def test_a_query_that_is_cancelled_before_it_is_sent_does_not_run(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, first_rows = OpenClients(server.addresses["airport"]), results.first_rows
    unused: Any = None
    clients = Clients(unused, unused, unused, lambda _, catalog, query_id: opened.for_query("", catalog, query_id))

    def visit(**query: str) -> Visit:
        return Visit(WebVisitor(), clients, (), {"run": "feedfeedfeed", "catalog": "lake", **query})

    def cancelled_first(*arguments: Any) -> pa.Table:
        assert editor.run(visit(cancel="on")).body == b'{"cancelled":true}'
        return first_rows(*arguments)

    monkeypatch.setattr(editor, "first_rows", cancelled_first)
    assert b"You cancelled the query." in editor.run(visit(sql="select 1")).body


def test_another_session_cannot_cancel(server: Server) -> None:
    with visiting(server) as first, visiting(server) as second:
        first.get("/sql"), second.get("/sql")
        assert first.browser.cookies["skiway_visitor"] != second.browser.cookies["skiway_visitor"]
        assert run(second, "", "feedfeedfeed", cancel="on").json() == {"cancelled": False}


@pytest.mark.parametrize(
    ("sql", "place"),
    [
        ("select id\nfrom sales.people\nwhere nothing = 1", {"line": 3, "column": 7}),
        ("select id\nfrom sales.nowhere", {"line": 2, "column": 6}),
        ("select\n  nope(id) from sales.people", {"line": 2, "column": 3}),
        ("select 'ö', id frm sales.people", {"line": 1, "column": 20}),
    ],
)
def test_errors_have_a_place(visitor: Visitor, sql: str, place: dict[str, int]) -> None:
    answer = run(visitor, sql)
    assert answer.json()["place"] == place, answer.json()["error"]


def test_errors_without_a_place_have_none() -> None:
    assert place_of("select 1", "the query took longer than 5 s") is None


def complete(visitor: Visitor, text: str, sql: str) -> list[tuple[str, str]]:
    found = visitor.get(f"/complete?{urlencode({'catalog': 'lake', 'q': text, 'sql': sql})}").json()
    return [(each["value"], each["kind"]) for each in found["items"]]


def test_completion_has_tables_columns_and_functions(visitor: Visitor) -> None:
    visitor.get("/catalogs/lake")  # which builds the index
    deadline = time.monotonic() + 20
    while ("sales.people", "table") not in complete(visitor, "peop", "select * from peop"):
        assert time.monotonic() < deadline
    unfinished = "select n from sales.people p where"
    assert ("name", "column") in complete(visitor, "n", unfinished)
    assert complete(visitor, "p.", unfinished) == [("id", "column"), ("name", "column")]
    assert ("date_trunc", "function") in complete(visitor, "date_tr", "select date_tr")
    assert complete(visitor, "x.", "select x. from sales.nowhere x") == []


def test_vendored_files_are_those_of_their_packages() -> None:
    folder = Path(str(files("skiway.web") / "static" / "vendor"))
    sums = dict(reversed(line.split("  ./")) for line in (folder / "SHA256SUMS").read_text().splitlines())
    there = {str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()} - {
        "README.md",
        "SHA256SUMS",
    }
    assert there == sums.keys()
    assert all(hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest for name, digest in sums.items())
    assert all((each / "LICENSE").exists() for each in folder.iterdir() if each.is_dir())


def test_libraries_are_loaded_only_where_they_are_needed(visitor: Visitor) -> None:
    assert "/vendor/ace" in visitor.page("/sql")
    for page in ("/", "/tables/lake/sales/people", "/history", "/new/policy"):
        assert "/vendor/" not in visitor.page(page)
    assert "echarts" not in visitor.page("/sql"), "a chart loads it"


# --- the history ------------------------------------------------------------------------------------------------------


def test_history_has_queries_of_visitors_and_not_those_of_pages(visitor: Visitor) -> None:
    sql = "select count(distinct name) as in_the_history from sales.people"
    run(visitor, sql, "aaaabbbbcccc")
    for page in ("/tables/lake/sales/people?tab=rows", "/", "/history"):
        visitor.get(page)
    found = visitor.data(f"/history?q={quote('IN_THE_HISTORY')}")["queries"]
    assert [(each["query_id"], each["text"], each["door"]) for each in found] == [("aaaabbbbcccc", sql, "explorer")]
    assert not [each for each in visitor.data("/history")["queries"] if each["kind"] == "scan"]
    page = visitor.page("/history/aaaabbbbcccc")
    assert "Why it took" in page
    assert "read parquet" in page
    assert visitor.data("/history/aaaabbbbcccc")["reasons"]
    assert visitor.get("/history/never").status_code == 404


def test_activity_says_who_changed_what_through_which_door(visitor: Visitor) -> None:
    found = visitor.data("/events?q=people&kind=table")["days"]
    changes = [each for day in found for each in day["changes"]]
    assert {(each["action"], each["door"]) for each in changes} == {("created", "airport")}
    assert visitor.data("/events?door=nothing")["days"] == []
    assert visitor.get("/events?days=x").status_code == 400


def test_activity_is_that_of_a_day(server: Server) -> None:
    """Yesterday begins and ends at midnight in UTC, whatever the time is now."""
    opened = OpenClients(server.address)
    unused: Any = None

    def shown(at: datetime, **query: str) -> list[str]:
        clients = Clients(lambda _: opened.metastore(""), unused, unused, unused, clock=lambda: at)
        found = events(Visit(WebVisitor(), clients, (), {"q": "lake.sales.people", **query}))
        return [each["day"] for each in found.data["days"]]

    (day,) = shown(datetime.now(UTC))
    midnight = datetime.fromisoformat(day).replace(tzinfo=UTC)
    for days, first, last in (("today", 0, 1), ("yesterday", 1, 2)):
        assert shown(midnight + timedelta(days=first), days=days) == [day]
        assert shown(midnight + timedelta(days=last, microseconds=-1), days=days) == [day]
        assert shown(midnight + timedelta(days=last), days=days) == []
    assert shown(midnight + timedelta(days=300), on=day) == [day]
    assert shown(midnight, on=f"{midnight - timedelta(days=1):%Y-%m-%d}") == []
    with pytest.raises(InvalidArgument, match="give a date"):
        shown(midnight, on="soon")


def test_activity_looks_further_back_for_a_day(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest events are read first, and then those before them until the day is complete."""
    monkeypatch.setattr("skiway.web.pages.activity.PART", 3)
    opened = OpenClients(server.address)
    unused: Any = None
    clients = Clients(lambda _: opened.metastore(""), unused, unused, unused)
    with Metastore(server.address) as lake:
        everything = len(lake.events.newest(1000)[0])
        for number in range(5):
            lake.tables.update("lake.sales.people", description=str(number))
    shown = events(Visit(WebVisitor(), clients, (), {"q": "lake.sales.people", "days": "7"})).data
    actions = [each["action"] for day in shown["days"] for each in day["changes"]]
    assert everything > 3
    assert actions[-1] == "created"
    assert shown["read"] is None
    monkeypatch.setattr("skiway.web.pages.activity.MAX_EVENTS", 4)
    assert events(Visit(WebVisitor(), clients, (), {"days": "7"})).data["read"] == 6


# --- forms ------------------------------------------------------------------------------------------------------------

FILLED: dict[str, dict[str, str]] = {
    "grant": {"kind": "namespace", "object": "lake.sales", "grantee": "role:analyst", "privilege": "read"},
    "policy": {
        "name": "hide names",
        "to": "role:analyst, user:bob",
        "except": "user:boss",
        "on": "lake.sales.people",
        "rule": "mask: null",
        "columns": "name",
        "description": "for tests",
    },
    "tag": {"table": "lake.sales.people", "column": "name", "tags": "pii, personal"},
    "comment": {"kind": "table", "object": "lake.sales.people", "text": 'it\'s "quoted"'},
    "view": {"name": "lake.sales.adults", "sql": "SELECT id FROM lake.sales.people WHERE id > 1"},
    "rule": {
        "name": "ids",
        "table": "lake.sales.people",
        "kind": "range",
        "column": "id",
        "min": "1",
        "max": "10",
        "severity": "warning",
    },
    "webhook": {
        "name": "hook",
        "url": "http://127.0.0.1:9/x",
        "events": "rule.*, table.failed",
        "secret": "0123456789abcdef",
    },
    "connector": {
        "name": "bikes",
        "kind": "parquet",
        "uri": "{folder}/source",
        "catalog": "lake",
        "namespace": "trips",
        "every": "1h",
    },
    "schedule": {"name": "bikes", "every": "2h"},
    "branch": {"name": "lake@dev", "kind": "branch", "description": "to try"},
    "merge": {"name": "lake@dev"},
}


def values_of(kind: str, folder: Path) -> dict[str, str]:
    return {name: value.replace("{folder}", str(folder)) for name, value in FILLED[kind].items()}


def test_every_form_is_tried() -> None:
    assert FILLED.keys() == FORMS.keys()


@pytest.mark.parametrize("kind", FORMS)
def test_a_form_does_what_its_command_and_its_entry_do(
    visitor: Visitor, server: Server, folder: Path, kind: str, tmp_path: Path
) -> None:
    values = given(FORMS[kind], values_of(kind, folder))
    shown = visitor.data(
        f"/new/{kind}?{urlencode({name: value for name, value in values.items() if name != 'secret'})}"
    )
    assert shown["command"] == command_of(FORMS[kind], values)
    answer = visitor.send(f"/new/{kind}", {**values, "action": "make"}, on="/new/policy")
    assert answer.status_code == 303, answer.text
    assert visitor.get(answer.headers["location"]).status_code == 200
    if entry := entry_of(FORMS[kind], values):
        assert shown["entry"] == entry
        (tmp_path / "setup.yaml").write_text(entry)
        planned = skiway("setup", "plan", tmp_path / "setup.yaml", SKIWAY_SERVER=server.address)
        assert planned.stdout == "the server matches the file\n", planned.stdout + planned.stderr
    command = shlex.split(command_of(FORMS[kind], values))[1:]
    ran = skiway(*command, SKIWAY_SERVER=server.address, WEBHOOK_SECRET="0123456789abcdef")
    repeatable = kind in ("grant", "tag", "comment", "schedule")
    assert (ran.returncode == 0) == repeatable, ran.stderr
    assert repeatable or "exists" in ran.stderr or (kind == "merge" and "is merged" in ran.stderr), ran.stderr


def test_policies_and_webhooks_are_edited_with_what_they_contain(visitor: Visitor, server: Server) -> None:
    with Metastore(server.address) as lake:
        on = ["lake.sales.people"]
        lake.policies.create("edited", to=["role:x"], exceptions=["user:y"], on=on, mask="hash", columns=["name"])
        lake.webhooks.create("edited", url="http://127.0.0.1:9/a", events=["rule.*"], secret="0123456789abcdef")
        shown = next(each for each in visitor.data("/policies")["policies"] if each["name"] == "edited")
        assert (shown["form"]["on"], shown["form"]["rule"], shown["form"]["except"]) == (
            "lake.sales.people",
            "mask: hash",
            "user:y",
        )
        assert f"/new/policy?{urlencode(shown['form'])}".replace("&", "&amp;") in visitor.page("/policies")
        form = {**shown["form"], "rule": "mask: null", "columns": "id", "action": "make"}
        assert visitor.send("/new/policy", form, on="/new/policy").status_code == 303
        changed = lake.policies.get("edited")
        assert (changed.mask, changed.columns, changed.exceptions) == ("null", ("id",), ("user:y",))
        assert len(changed.objects) == 1
        lake.policies.delete("edited")

        form = {
            "name": "edited",
            "url": "http://127.0.0.1:9/a",
            "events": "table.*",
            "replace": "yes",
            "action": "make",
        }
        assert "skiway webhooks update edited" in visitor.page(f"/new/webhook?{urlencode(form)}")
        assert visitor.send("/new/webhook", form, on="/new/policy").status_code == 303
        assert lake.webhooks.get("edited").events == ("table.*",)
        moved = {**form, "url": "http://127.0.0.1:9/b"}
        assert "give the secret again" in visitor.send("/new/webhook", moved, on="/new/policy").text
        answer = visitor.send("/new/webhook", {**moved, "secret": "0123456789abcdefg"}, on="/new/policy")
        assert answer.status_code == 303, answer.text
        assert lake.webhooks.get("edited").url == "http://127.0.0.1:9/b"
        new = visitor.send("/new/webhook", {**form, "name": "other", "replace": "no"}, on="/new/policy")
        assert "Secret is empty" in new.text
        command = shlex.split(command_of(FORMS["webhook"], given(FORMS["webhook"], moved)))[1:]
        assert skiway(*command, SKIWAY_SERVER=server.address).returncode == 0


def test_a_column_gets_a_comment(visitor: Visitor, server: Server) -> None:
    form = {"kind": "table", "object": "lake.sales.people", "column": "name", "text": "first name"}
    answer = visitor.send("/new/comment", {**form, "action": "make"}, on="/new/policy")
    assert answer.headers["location"] == "/tables/lake/sales/people"
    columns = visitor.data("/tables/lake/sales/people")["columns"]["columns"]
    assert {each["name"]: each["comment"] for each in columns} == {"id": "", "name": "first name"}
    command = shlex.split(command_of(FORMS["comment"], given(FORMS["comment"], {**form, "text": "surname"})))[1:]
    assert skiway(*command, SKIWAY_SERVER=server.address).returncode == 0
    assert "surname" in visitor.page("/tables/lake/sales/people")


def test_what_is_wrong_is_shown_in_the_form(visitor: Visitor) -> None:
    answer = visitor.send(
        "/new/policy",
        {"name": "x", "to": "role:x", "rule": "row filter", "sql": "nothing =", "action": "make"},
        on="/new/policy",
    )
    assert answer.status_code == 400
    assert 'value="role:x"' in answer.text
    assert "nothing =" in answer.text
    answer = visitor.send(
        "/new/webhook", {"name": "x", "secret": "0123456789abcdef", "action": "make"}, on="/new/policy"
    )
    assert "URL is empty" in answer.text
    assert "0123456789abcdef" not in answer.text


def test_a_policy_is_previewed_and_not_stored(visitor: Visitor) -> None:
    draft = {"to": "role:x", "rule": "mask: null", "columns": "name", "preview": "lake.sales.people", "as": "eve"}
    before = len(visitor.data("/policies")["policies"])
    masked = visitor.send("/new/policy.json", {**draft, "roles": "x", "action": "preview"}, on="/new/policy").json()[
        "preview"
    ]
    assert [row[1] for row in masked["rows"]] == [None] * 3
    plain = visitor.send("/new/policy.json", {**draft, "roles": "y", "action": "preview"}, on="/new/policy").json()[
        "preview"
    ]
    assert [row[1] for row in plain["rows"]] == ["ann", "bob", "late"]
    assert len(visitor.data("/policies")["policies"]) == before


def test_a_connection_is_tested(visitor: Visitor, folder: Path) -> None:
    form = {**values_of("connector", folder), "name": "other", "action": "test"}
    assert visitor.send("/new/connector.json", form, on="/new/policy").json()["outcome"]["is_good"]
    wrong = visitor.send("/new/connector.json", {**form, "uri": "/nowhere"}, on="/new/policy").json()
    assert wrong["error"] or not wrong["outcome"]["is_good"]


def test_what_destroys_asks_first(visitor: Visitor, server: Server) -> None:
    with Metastore(server.address) as lake:
        lake.policies.create("to delete", to=["role:x"], mask="null", columns=["nobody"])
    assert "see what it hid" in visitor.page("/delete/policy/to%20delete")
    assert "to delete" in visitor.page("/policies")
    assert (
        visitor.send("/delete/policy/to%20delete", {"action": "delete"}, on="/new/policy").headers["location"]
        == "/policies"
    )
    assert "to delete" not in visitor.page("/policies")
    assert visitor.browser.post("/delete/policy/x", data={"action": "delete"}).status_code == 403


def test_progress_of_a_job_is_streamed(visitor: Visitor, server: Server, folder: Path) -> None:
    with Metastore(server.address) as lake:
        lake.connectors.create("streamed", kind="parquet", uri=str(folder / "source"), catalog="lake")
        job = lake.connectors.sync("streamed")
    with visitor.browser.stream("GET", f"/progress/{job.id}") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        text = "".join(answer.iter_text())
    assert text.endswith("event: end\ndata: \n\n")
    assert re.search(r"data: (succeeded|failed|partial)", text)
    assert visitor.get("/progress/never").status_code == 404
