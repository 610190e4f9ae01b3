"""Commands for catalogs, namespaces, tables, snapshots, queries and statistics."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cli.conftest import ROWS, Run, write_sources
from runtime.servers import Server, skiway, started


def test_catalogs_are_created_listed_shown_and_deleted(run: Run) -> None:
    made = run("catalogs", "create", "spare", "--description", "for later", "--property", "owner=ada")
    assert (made.code, made.out) == (0, "created catalog spare\n")
    listed = run("catalogs", "list")
    assert listed.lines[0][:2] == ["name", "description"]
    assert {line[0] for line in listed.lines[1:]} >= {"lake", "spare"}
    shown = run("catalogs", "get", "spare", "-o", "json").json
    assert (shown["name"], shown["description"], shown["properties"]) == ("spare", "for later", {"owner": "ada"})
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT.*Z", shown["created_at"])
    changed = run("catalogs", "update", "spare", "--name", "extra", "--property", "owner=bob", "--property", "tier=2")
    assert (changed.code, changed.out) == (0, "updated catalog extra\n")
    assert run("catalogs", "get", "extra", "-o", "json").json["properties"] == {"owner": "bob", "tier": "2"}
    assert run("catalogs", "update", "extra").code == 2
    assert run("catalogs", "update", "extra", "--name", "spare").code == 0
    assert run("catalogs", "delete", "spare").out == "deleted catalog spare\n"
    missing = run("catalogs", "get", "spare")
    assert (missing.code, missing.out) == (1, "")
    assert "there is no catalog spare" in missing.err


def test_branches_are_created_compared_merged_and_deleted(run: Run) -> None:
    assert run("catalogs", "create", "trial").code == 0
    made = run("branches", "create", "trial@dev", "--description", "for later")
    assert (made.code, made.out) == (
        0,
        "created branch trial@dev; attach it in DuckDB as the catalog 'trial@dev'\n",
    )
    listed = run("branches", "list", "-o", "json").json
    [branch] = [each for each in listed if each["name"].startswith("trial@")]
    known = run("branches", "get", "trial@dev", "-o", "json").json
    assert branch == {name: value for name, value in known.items() if name in branch}
    assert (known["changed"], known["changed_on_main"], known["own_bytes"]) == (0, 0, 0)
    assert "changed on main" in run("branches", "list", "trial", "--details").out
    assert (branch["name"], branch["state"], branch["is_tag"]) == ("trial@dev", "open", False)
    assert (branch["description"], branch["damage"]) == ("for later", None)
    unchanged = run("branches", "diff", "trial@dev")
    assert (unchanged.code, unchanged.out, unchanged.err) == (0, "", "the branch has changed nothing\n")
    changed = run("sql", 'CREATE SCHEMA "trial@dev".shop')
    assert changed.code == 0, changed.err
    for command in (("diff",), ("merge", "--dry-run")):
        [change] = run("branches", command[0], "trial@dev", *command[1:], "-o", "json").json
        assert (change["kind"], change["name"], change["action"]) == ("namespace", "shop", "created")
        assert (change["plan"], change["conflict"]) == ("publish", "")
        assert "shop" in run("branches", command[0], "trial@dev", *command[1:]).out
    assert run("sql", 'CREATE TABLE "trial@dev".shop.t AS SELECT 1 AS id, 2 AS n').code == 0
    [_, table] = run("branches", "diff", "trial@dev", "--statistics", "-o", "json").json
    [column, _] = table["columns"]
    assert (column["column"], column["max_on_main"], column["max_on_branch"]) == ("id", None, "1")
    assert "max on branch" in run("branches", "diff", "trial@dev", "--statistics").out
    [row] = run("branches", "diff", "trial@dev", "--rows", "shop.t", "--key", "id", "-o", "json").json
    assert row == {"change": "added", "id": 1, "n": 2}
    assert run("sql", 'DROP TABLE "trial@dev".shop.t').code == 0
    assert run("branches", "merge", "trial@dev").out == "merged 1 change of branch trial@dev\n"
    assert run("branches", "get", "trial@dev", "-o", "json").json["state"] == "merged"
    assert run("namespaces", "list", "trial", "-o", "json").json[0]["name"] == "trial.shop"
    assert run("branches", "delete", "trial@dev").out == "deleted branch trial@dev\n"
    assert run("branches", "list", "trial").err == "there are no branches\n"
    assert run("catalogs", "delete", "trial", "--cascade").code == 0


def test_protected_catalogs_are_changed_by_merges(run: Run) -> None:
    assert run("catalogs", "create", "guarded", "--protect", "--rule", "none", "--merger", "user:nobody").code == 0
    shown = run("catalogs", "get", "guarded", "-o", "json").json
    assert (shown["protected"], shown["mergers"], shown["required_rules"]) == (True, ["user:nobody"], ["none"])
    refused = run("sql", "CREATE SCHEMA guarded.shop")
    assert refused.code == 1
    assert "catalog guarded is protected" in refused.err
    assert "skiway branches create guarded@dev" in refused.err
    assert run("branches", "create", "guarded@dev").code == 0
    assert run("sql", 'CREATE SCHEMA "guarded@dev".shop').code == 0
    assert run("branches", "merge", "guarded@dev").code == 1
    assert run("catalogs", "update", "guarded", "--merger", "").code == 0
    planned = run("branches", "merge", "guarded@dev", "--dry-run")
    assert "rule none unknown: there is no such rule" in planned.err
    assert "none (there is no such rule)" in run("branches", "merge", "guarded@dev").err
    assert run("catalogs", "update", "guarded", "--rule", "").code == 0
    assert run("branches", "merge", "guarded@dev").code == 0
    assert run("catalogs", "update", "guarded", "--unprotect").code == 0
    assert "protected" not in run("catalogs", "get", "guarded", "-o", "json").json
    assert run("catalogs", "delete", "guarded", "--cascade").code == 0


def test_statements_that_attach_catalogs_are_printed(run: Run, lake: Server) -> None:
    location = f"grpc://{lake.address}"
    run("catalogs", "create", "two words")
    try:
        shown = run("attach").out.splitlines()
        assert shown[:2] == ["INSTALL airport FROM community;", "LOAD airport;"]
        assert f"ATTACH 'lake' (TYPE airport, LOCATION '{location}');" in shown
        assert f"""ATTACH 'two words' AS "two words" (TYPE airport, LOCATION '{location}');""" in shown
    finally:
        run("catalogs", "delete", "two words")
    chosen = run("attach", "lake", "--token", "secret'7", "-o", "json").json
    assert [each["statement"] for each in chosen][2:] == [
        f"CREATE SECRET (TYPE airport, auth_token '…', SCOPE '{location}');",
        f"ATTACH 'lake' (TYPE airport, LOCATION '{location}');",
    ]
    assert f"auth_token 'secret''7', SCOPE '{location}'" in run("attach", "--token", "secret'7", "--show-token").out
    missing = run("attach", "lak")
    assert (missing.code, missing.out) == (1, "")
    assert "there is no catalog lak; did you mean lake?" in missing.err


def test_search_prints_the_best_results_first(run: Run) -> None:
    run("namespaces", "create", "lake.findable", "--description", "has nothing yet")
    shown = run("search", "FINDABLE")
    assert shown.lines[0] == ["name", "kind", "found", "in", "rows", "comment"]
    assert shown.lines[1][:3] == ["lake.findable", "namespace", "name"]
    (found,) = run("search", "nothing", "findable", "-o", "json").json
    assert (found["name"], found["found_in"], found["comment"]) == ("lake.findable", "comment", "has nothing yet")
    missing = run("search", "no-such-thing-anywhere")
    assert (missing.code, missing.out) == (0, "")
    assert "nothing that you can see matches 'no-such-thing-anywhere'" in missing.err
    run("namespaces", "delete", "lake.findable")


def test_namespaces_are_listed_below_one_parent_and_recursively(run: Run) -> None:
    run("namespaces", "create", "lake.deep.er", "--description", "two at once")
    assert [each["name"] for each in run("namespaces", "list", "lake.deep", "-o", "json").json] == ["lake.deep.er"]
    flat = [each["name"] for each in run("namespaces", "list", "-o", "json").json]
    assert "lake.deep" in flat
    assert "lake.deep.er" not in flat
    assert "lake.deep.er" in [each["name"] for each in run("namespaces", "list", "-r", "-o", "json").json]
    assert run("namespaces", "get", "lake.deep.er", "-o", "json").json["description"] == "two at once"
    assert run("namespaces", "update", "lake.deep.er", "--description", "2").out == "updated namespace lake.deep.er\n"
    refused = run("namespaces", "delete", "lake.deep")
    assert refused.code == 1
    assert "--cascade deletes its contents too" in refused.err
    assert run("namespaces", "delete", "lake.deep", "--cascade").out == "deleted namespace lake.deep\n"
    assert run("namespaces", "get", "lake.deep").code == 1


def test_nonempty_catalog_is_deleted_only_with_cascade(run: Run) -> None:
    run("catalogs", "create", "full")
    run("namespaces", "create", "full.a")
    assert "--cascade" in run("catalogs", "delete", "full").err
    assert run("catalogs", "delete", "full", "--cascade", "-o", "json").json["name"] == "full"


def test_tables_are_listed_with_origin_and_size(run: Run) -> None:
    listed = run("tables", "list", "lake.raw")
    assert listed.out.splitlines()[0].split() == ["name", "format", "origin", "rows", "data", "files", "size"]
    assert listed.lines[1][:3] == ["lake.raw.orders", "parquet", "raw"]
    everywhere = {each["name"]: each for each in run("tables", "list", "-o", "json").json}
    assert everywhere["lake.raw.people"]["columns"][0] == {"name": "id", "type": "BIGINT", "required": False}
    assert {each["name"] for each in run("tables", "list", "lake", "-o", "json").json} <= everywhere.keys()


def test_table_is_created_shown_and_deleted(run: Run) -> None:
    run("namespaces", "create", "lake.made")
    made = run("tables", "create", "lake.made.things", "id BIGINT NOT NULL", "name VARCHAR", "tags VARCHAR[]")
    assert (made.code, made.out) == (0, "created table lake.made.things\n")
    shown = run("tables", "get", "lake.made.things")
    assert ["format", "iceberg"] in shown.lines
    assert ["origin", "managed"] in shown.lines
    assert ["id", "BIGINT", "yes"] in shown.lines
    assert ["tags", "VARCHAR[]", "no"] in shown.lines
    again = run("tables", "create", "lake.made.things", "id INT")
    assert again.code == 1
    assert "things" in again.err
    assert run("tables", "delete", "lake.made.things").out == "deleted table lake.made.things\n"
    assert run("tables", "get", "lake.made.things").code == 1


def test_deleted_mirrored_table_returns_with_the_next_sync(run: Run, tmp_path: Path) -> None:
    write_sources(tmp_path)
    run("connectors", "create", "twice", "--kind", "parquet", "--uri", tmp_path)
    assert run("connectors", "sync", "twice", "--mode", "metadata").out == "metadata: 2 tables, 2 changed, 0 failed\n"
    assert run("tables", "delete", "lake.twice.people").out == "deleted table lake.twice.people\n"
    assert run("tables", "get", "lake.twice.people").code == 1
    assert run("connectors", "sync", "twice", "--mode", "metadata").out == "metadata: 2 tables, 1 changed, 0 failed\n"
    assert run("tables", "get", "lake.twice.people").code == 0


def test_snapshots_are_listed_with_the_current_one_marked(run: Run) -> None:
    run("sql", "CREATE SCHEMA IF NOT EXISTS lake.hist; CREATE TABLE lake.hist.t AS SELECT 1 AS id")
    run("sql", "INSERT INTO lake.hist.t VALUES (2)")
    listed = run("snapshots", "list", "lake.hist.t", "-o", "json").json
    assert [each["current"] for each in listed] == [True, False]
    assert [each["rows"] for each in listed] == [2, 1]
    assert listed[0]["parent_id"] == listed[1]["id"]
    assert [line[1] for line in run("snapshots", "list", "lake.hist.t").lines] == ["current", "yes", "no"]
    older = str(listed[1]["id"])
    assert run("snapshots", "get", "lake.hist.t", older, "-o", "json").json["current"] is False
    assert run("snapshots", "get", "lake.hist.t", "77").code == 1


def test_managed_table_is_rolled_back_and_its_snapshots_get_names(run: Run) -> None:
    run("sql", "CREATE SCHEMA IF NOT EXISTS lake.hist; CREATE TABLE lake.hist.named AS SELECT 1 AS id")
    run("sql", "INSERT INTO lake.hist.named VALUES (2)")
    newer, older = (str(each["id"]) for each in run("snapshots", "list", "lake.hist.named", "-o", "json").json)
    assert run("snapshots", "tag", "lake.hist.named", "two").out == f"tag two of lake.hist.named is snapshot {newer}\n"
    assert run("snapshots", "branch", "lake.hist.named", "one", "--at", older).code == 0
    moved = run("snapshots", "tag", "lake.hist.named", "two", "--at", older)
    assert (moved.code, "add replace => true" in moved.err) == (1, True)
    rolled_back = run("snapshots", "set-current", "lake.hist.named", older)
    assert rolled_back.out == f"the current snapshot of lake.hist.named is now {older}\n"
    counts = [
        run("sql", f"SELECT count(*) AS n FROM lake.hist.named {at}", "-o", "json").json[0]["n"]
        for at in ("", "AT (VERSION => 'one')", "AT (VERSION => 'two')")
    ]
    assert counts == [1, 1, 2]


def test_table_without_snapshots_prints_a_notice(run: Run) -> None:
    run("sql", "CREATE SCHEMA IF NOT EXISTS lake.hist; CREATE TABLE lake.hist.empty (id INT)")
    listed = run("snapshots", "list", "lake.hist.empty")
    assert (listed.code, listed.out) == (0, "")
    assert "has no snapshots yet" in listed.err
    assert run("snapshots", "list", "lake.hist.empty", "-o", "json").json == []
    assert run("tables", "describe", "lake.hist.empty").code == 0


def test_older_snapshot_of_a_mirrored_table_can_be_made_current(run: Run) -> None:
    assert run("snapshots", "set-current", "lake.raw.orders", "1").code == 0
    assert run("snapshots", "set-current", "lake.raw.orders", "99").code == 1


def test_queries_begin_are_renewed_and_end(run: Run) -> None:
    begun = run("queries", "begin", "lake.raw.people", "--id", "its-own", "--ttl", "30s", "-o", "json").json
    assert (begun["id"], begun["state"]) == ("its-own", "active")
    assert [each["table"] for each in begun["tables"]] == ["lake.raw.people"]
    assert ["lake.raw.people", "1"] in run("queries", "get", "its-own").lines
    renewed = run("queries", "renew", "its-own", "--ttl", "5m", "-o", "json").json
    assert renewed["expires_at"] > begun["expires_at"]
    assert run("queries", "end", "its-own").out == "ended query its-own\n"
    assert run("queries", "get", "its-own", "-o", "json").json["state"] == "ended_commit"
    assert run("queries", "end", "never").code == 1


def test_history_has_queries_and_the_reasons_for_their_time(run: Run) -> None:
    sql = "SELECT count(DISTINCT id) AS of_the_history FROM raw.people"
    assert run("sql", f"FROM lake.skiway.query('{sql}')").code == 0
    found = run("queries", "history", "--text", "PEOPLE of_the_history", "--since", "1h", "-o", "json").json
    assert [(each["text"], each["rows"], each["door"]) for each in found] == [(sql, 1, "airport")]
    assert run("queries", "history", "--text", "of_the_history", "--slower-than", "1h", "-o", "json").json == []
    assert run("queries", "history", "--text", "of_the_history", "--caller", "nobody", "-o", "json").json == []
    query = found[0]["query_id"]
    assert run("queries", "why", query).out.startswith(
        ("It was fast", "Running", "Planning", "Sending", "Nothing", "It waited")
    )
    assert run("queries", "why", query, "-o", "json").json["plan"]
    assert run("queries", "why", "never").code == 1


def test_query_as_of_a_time_before_the_first_snapshot_is_rejected(run: Run) -> None:
    ended = run("queries", "begin", "lake.raw.people", "--as-of", "1999-01-01")
    assert (ended.code, ended.out) == (1, "")


def test_files_of_a_table_are_listed(run: Run) -> None:
    files = run("stats", "files", "lake.raw.orders", "-o", "json").json
    assert [each["rows"] for each in files] == [ROWS // 6] * 6
    assert {each["content"] for each in files} == {"data"}
    assert len(run("stats", "files", "lake.raw.orders", "--limit", "2").lines) == 3


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("profiled")
def test_statistics_of_tables_show_how_many_rows_were_profiled(run: Run) -> None:
    listed = {line[0]: line for line in run("stats", "list", "lake.raw").lines}
    assert listed["lake.raw.orders"][1:4] == [f"{ROWS:,}", "exact", f"{ROWS:,}"]
    shown = run("stats", "get", "lake.raw.orders", "-o", "json").json
    assert (shown["rows"], shown["rows_profiled"], shown["data_files"]) == (ROWS, ROWS, 6)
    assert run("stats", "get", "lake.raw.orders", "--at", "9").code == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tables", "get", "lake.raw.order"], "did you mean lake.raw.orders"),
        (["tables", "get", "lake.rwa.orders"], "did you mean lake.raw"),
        (["tables", "get", "lke.raw.orders"], "did you mean lake?"),
        (["catalogs", "get", "Lake"], "did you mean lake?"),
        (["connectors", "get", "row"], "did you mean raw?"),
        (["stats", "get", "lake.raw.zzz"], "did you mean lake.raw.people or lake.raw.orders?"),
        (["tables", "get", "orders"], "write catalog.namespace.table"),
        (["jobs", "get", "nothing"], "there is no job nothing"),
        (["sql", "SELECT * FROM lake.raw.order"], "did you mean lake.raw.orders"),
        (["sql", "SELECT * FROM lakes.raw.orders"], "catalog lakes does not exist; did you mean lake?"),
    ],
)
def test_unknown_name_is_reported_with_similar_names(run: Run, arguments: list[str], message: str) -> None:
    ended = run(*arguments)
    assert (ended.code, ended.out) == (1, "")
    assert message in ended.err
    assert ended.err.startswith("skiway: ")
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [["catalogs", "list"], ["tables", "get", "a.b.c"], ["sql", "SELECT 1 FROM a.b.c"]]
)
def test_error_without_a_server_explains_how_to_start_one(run: Run, arguments: list[str]) -> None:
    ended = run(*arguments, "--server", "127.0.0.1:1")
    assert (ended.code, ended.out) == (1, "")
    assert "no server answers at 127.0.0.1:1: start one with `skiway serve`" in ended.err


def test_empty_result_is_an_empty_list_for_programs_and_a_sentence_for_people(run: Run) -> None:
    run("namespaces", "create", "lake.bare")
    people = run("tables", "list", "lake.bare")
    assert (people.code, people.out) == (0, "")
    assert "there are no tables here" in people.err
    assert run("tables", "list", "lake.bare", "-o", "json").json == []


def test_server_is_found_by_its_home(run: Run, lake: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SKIWAY_SERVER")
    monkeypatch.setenv("SKIWAY_HOME", str(tmp_path))
    (tmp_path / "ready.json").write_text(json.dumps(lake.addresses))
    assert "lake" in [each["name"] for each in run("catalogs", "list", "-o", "json").json]
    (tmp_path / "ready.json").write_text('{"rpc": "127.0.0.1:1"}')
    assert "no server answers at 127.0.0.1:1" in run("catalogs", "list").err
    assert run("catalogs", "list", "--server", lake.address).code == 0


def test_error_asks_for_a_token_if_the_server_requires_one(run: Run, tmp_path: Path) -> None:
    made = skiway(
        "tokens", "create", "ada", "--account", "default", "--role", "administrator", "--home", tmp_path / "home"
    )
    with started(tmp_path / "home", "--set", "auth.mode=token") as server:
        refused = run("catalogs", "list", "--server", server.address)
        assert refused.code == 1
        assert "give a token with --token or SKIWAY_TOKEN" in refused.err
        token = made.stdout.strip()
        assert run("catalogs", "list", "--server", server.address, "--token", token).code == 0
        created = run("sql", "CREATE SCHEMA lake.own", "--server", server.address, "--token", token)
        assert (created.code, created.err) == (0, "")
        wrong = run("sql", "SELECT 1 FROM lake.own.x", "--server", server.address, "--token", "skiway_wrong-one")
        assert wrong.code == 1
        assert "skiway_wrong-one" not in wrong.err


def test_sql_rejects_an_account_option(run: Run) -> None:
    ended = run("sql", "SELECT * FROM lake.raw.people", "--account", "other")
    assert (ended.code, "leave out --account" in ended.err) == (1, True)


def test_events_are_listed_and_watched(run: Run) -> None:
    run("namespaces", "create", "lake.eventful")
    listed = run("events", "list", "-o", "json").json
    assert [each["sequence"] for each in listed] == list(range(1, len(listed) + 1))
    made = next(each for each in listed if each["name"] == "eventful")
    assert (made["kind"], made["action"]) == ("namespace", "created")
    before = made["sequence"] - 1
    assert run("events", "list", "--after", str(before), "-o", "json").json[0] == made
    watched = run("events", "watch", "--after", str(before), "--count", "1")
    assert watched.out.endswith("namespace eventful created\n")
    assert run("events", "watch", "--after", str(before), "--count", "1", "-o", "ndjson").out.count("\n") == 1
    assert "use the cursor of an earlier response" in run("events", "list", "--after", "1000000").err
