"""Commands for connectors and jobs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer

from cli.conftest import Run
from formats.odd_tables import iceberg_folder, write_delta
from runtime.servers import Server, environment, launch, started
from skiway.cli.lake.jobs import report_end
from skiway.client.metastore import Job
from skiway.model import v1

SECRET = "correct-horse-battery"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A source with one table, `people`."""
    found = tmp_path / "source"
    found.mkdir()
    pq.write_table(pa.table({"id": [1, 2, 3]}), found / "people.parquet")
    return found


def test_relative_path_is_resolved_against_the_working_directory(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    made = run("connectors", "create", "relative", "--kind", "parquet", "--uri", "./source")
    assert made.out == "created connector relative; sync it with: skiway connectors sync relative --watch\n"
    shown = run("connectors", "get", "relative", "-o", "json").json
    assert (shown["uri"], shown["catalog"], shown["state"]) == (str(folder), "lake", "active")
    assert run("connectors", "sync", "relative", "--mode", "metadata").code == 0
    assert [each["name"] for each in run("tables", "list", "lake.relative", "-o", "json").json] == [
        "lake.relative.people"
    ]


def test_copies_are_created_shown_and_changed(run: Run, folder: Path) -> None:
    options = ("--copy", "upsert", "--key", "id", "--key", "day", "--partition-by", "day(ts)", "--sort-by", "ts DESC")
    made = run("connectors", "create", "copied", "--kind", "csv", "--uri", folder, *options)
    assert made.code == 0, made.err
    shown = run("connectors", "get", "copied", "-o", "json").json
    assert (shown["copy"], shown["key_columns"], shown["cursor_column"]) == ("upsert", ["id", "day"], None)
    assert run("connectors", "update", "copied", "--key", "id", "--schema-changes", "reject").code == 0
    shown = run("connectors", "get", "copied", "-o", "json").json
    assert (shown["copy"], shown["key_columns"]) == ("upsert", ["id"])
    (folder / "rules.yml").write_text("- unique: id\n")
    assert run("connectors", "update", "copied", "--expect", folder / "rules.yml").code == 0
    assert run("connectors", "get", "copied", "-o", "json").json["expect"] == "- unique: id\n"
    missing = run("connectors", "update", "copied", "--expect", folder / "none.yml")
    assert (missing.code, "none.yml cannot be read" in missing.err) == (2, True)
    wrong = run("connectors", "update", "copied", "--copy", "append")
    assert (wrong.code, "they are only for COM_UPSERT" in wrong.err) == (1, True)
    assert run("connectors", "delete", "copied").code == 0


HOUR = "that are committed more than an hour after rows with a higher id"


@pytest.mark.parametrize(
    ("uri", "mode", "expected"),
    [
        (
            "mysql://me@127.0.0.1/db",
            "append",
            ["deleted rows", "without a higher id", "are added again", f"rows {HOUR}"],
        ),
        ("mysql://me@127.0.0.1/db", "upsert", ["deleted rows", "without a higher id", f"rows {HOUR}"]),
        ("postgresql://me@127.0.0.1/db", "append", ["deleted rows", f"rows of views and foreign tables {HOUR}"]),
        ("postgresql://me@127.0.0.1/db", "replace", ["can miss nothing"]),
    ],
)
def test_what_a_copy_can_miss_is_printed_before_the_first_load(
    run: Run, tmp_path: Path, uri: str, mode: str, expected: list[str]
) -> None:
    options = [] if mode == "replace" else ["--cursor", "id", *(["--key", "k"] if mode == "upsert" else [])]
    made = run("connectors", "create", "db", "--kind", "jdbc", "--uri", uri, "--copy", mode, *options)
    assert made.code == 0, made.err
    (missed, _) = made.out.splitlines()
    assert missed.startswith(f"a copy with mode {mode} can miss ")
    assert [each for each in expected if each not in missed] == []
    assert run("connectors", "get", "db", "-o", "json").json["missed"] == [missed]
    assert run("connectors", "delete", "db").code == 0
    keys = {"mode": mode, **({} if mode == "replace" else {"cursor_column": "id"})}
    copy = {**keys, **({"key_columns": ["k"]} if mode == "upsert" else {}), "tables": {"log": {"mode": "replace"}}}
    planned = {"name": "db", "kind": "jdbc", "uri": uri, "destination": {"catalog": "lake"}, "copy": copy}
    file = tmp_path / "setup.yaml"
    file.write_text(json.dumps({"version": 1, "connectors": [planned]}))
    other = "the copy of table log with mode replace can miss nothing"
    assert [line.strip() for line in run("setup", "plan", file).out.splitlines() if " can miss " in line] == [
        missed,
        other,
    ]
    assert json.loads(run("setup", "plan", file, "-o", "json").out)[0]["missed"] == [missed, other]


def test_mistakes_in_the_options_of_copies_are_reported(run: Run, folder: Path) -> None:
    create = ("connectors", "create", "copied", "--uri", folder)
    unknown = run(*create, "--kind", "csv", "--copy", "merge")
    assert (unknown.code, "'merge' is not one of append, upsert, replace." in unknown.err) == (2, True)
    without = run(*create, "--kind", "parquet", "--key", "id")
    assert (without.code, "need a mode" in without.err) == (2, True)
    mirrored = run(*create, "--kind", "json")
    assert (mirrored.code, "tables of kind json cannot be mirrored" in mirrored.err) == (1, True)
    secret = run(
        "connectors",
        "create",
        "db",
        "--kind",
        "jdbc",
        "--uri",
        f"postgresql://me:{SECRET}@host/db",
        "--copy",
        "replace",
    )
    assert secret.code == 1
    assert SECRET not in secret.err


def test_uris_that_are_not_paths_are_unchanged(run: Run) -> None:
    for number, uri in enumerate(("s3://bucket/lake", "http://127.0.0.1:1/catalog", "file:///nowhere")):
        name = f"address{number}"
        run("connectors", "create", name, "--kind", "iceberg", "--uri", uri, "--source-namespace", "db")
        assert run("connectors", "get", name, "-o", "json").json["uri"] == uri
        assert run("connectors", "delete", name).code == 0


def test_folder_of_iceberg_tables_needs_no_namespace(run: Run, folder: Path) -> None:
    assert run("connectors", "create", "ice", "--kind", "iceberg", "--uri", folder).code == 0
    assert run("connectors", "get", "ice", "-o", "json").json["properties"] == {"iceberg.source": "filesystem"}
    run("connectors", "delete", "ice")


def test_options_of_a_connector_are_stored(run: Run, folder: Path) -> None:
    made = run(
        *("connectors", "create", "full", "--kind", "parquet", "--uri", folder, "--namespace", "inbox.raw"),
        *("--include", "p*", "--exclude", "*_old", "--property", "a.b=c", "--description", "all of it"),
    )
    assert made.code == 0, made.err
    shown = run("connectors", "get", "full", "-o", "json").json
    assert (shown["namespace"], shown["include"], shown["exclude"]) == ("inbox.raw", ["p*"], ["*_old"])
    assert (shown["properties"], shown["description"], shown["credentials"]) == ({"a.b": "c"}, "all of it", False)
    assert run("connectors", "sync", "full", "--mode", "metadata").code == 0
    assert run("tables", "get", "lake.inbox.raw.people").code == 0
    listed = {line[0]: line[1:] for line in run("connectors", "list").lines}
    assert listed["full"] == ["parquet", "active", "lake", "inbox.raw", str(folder)]
    assert run("connectors", "list", "--kind", "delta", "-o", "json").json == []


def test_connector_is_updated_paused_and_deleted(run: Run, folder: Path) -> None:
    run("connectors", "create", "before", "--kind", "parquet", "--uri", folder, "--description", "old")
    assert run("connectors", "update", "before", "--name", "after", "--pause").out == "updated connector after\n"
    shown = run("connectors", "get", "after", "-o", "json").json
    assert (shown["state"], shown["description"]) == ("paused", "old")
    paused = run("connectors", "sync", "after")
    assert paused.code == 1
    assert "--resume" in paused.err
    run("connectors", "update", "after", "--resume", "--include", "people")
    assert run("connectors", "get", "after", "-o", "json").json["include"] == ["people"]
    nothing = run("connectors", "update", "after")
    assert (nothing.code, "give at least one option" in nothing.err) == (2, True)
    assert run("connectors", "delete", "after").code == 0
    assert run("connectors", "get", "after").code == 1


def test_sync_interval_is_set_changed_and_removed(run: Run, folder: Path) -> None:
    assert run("connectors", "create", "often", "--kind", "parquet", "--uri", folder, "--every", "1h").code == 0
    assert run("connectors", "get", "often", "-o", "json").json["every"] == 3600
    assert run("connectors", "update", "often", "--every", "2d").code == 0
    assert run("connectors", "get", "often", "-o", "json").json["every"] == 172_800
    wrong = run("connectors", "update", "often", "--every", "daily")
    assert wrong.code == 2
    assert "'daily' is not a duration above zero, such as 500ms, 30s, 10m, 1h or 7d, or never" in wrong.err
    assert run("connectors", "update", "often", "--every", "never").code == 0
    assert run("connectors", "get", "often", "-o", "json").json["every"] is None
    run("connectors", "delete", "often")


def test_validate_checks_the_source(run: Run, folder: Path, tmp_path: Path) -> None:
    run("connectors", "create", "there", "--kind", "parquet", "--uri", folder)
    run("connectors", "create", "missing", "--kind", "parquet", "--uri", tmp_path / "nothing")
    assert run("connectors", "validate", "there", "-o", "json").json["ok"] is True
    bad = run("connectors", "validate", "missing")
    assert bad.code == 1
    assert "there is nothing at" in bad.out


def test_failure_of_one_table_fails_the_sync_but_not_the_other_tables(run: Run, folder: Path) -> None:
    (folder / "broken.parquet").write_bytes(b"no parquet at all")
    run("connectors", "create", "partly", "--kind", "parquet", "--uri", folder)
    ended = run("connectors", "sync", "partly", "--mode", "metadata")
    assert (ended.code, ended.out) == (3, "metadata: 2 tables, 1 changed, 1 failed\n")
    assert re.search(r"^  broken: .*corrupt", ended.err, re.MULTILINE)
    assert run("tables", "get", "lake.partly.people").code == 0
    result = run("connectors", "sync", "partly", "--mode", "metadata", "-o", "json")
    assert result.code == 3
    assert '"broken"' in result.out
    assert result.err == ""


@pytest.mark.parametrize(
    ("state", "failed", "code"),
    [("succeeded", 0, 0), ("partial", 1, 3), ("failed", 1, 1), ("failed", 0, 1), ("cancelled", 0, 1)],
)
def test_watched_sync_succeeds_only_if_the_job_and_all_its_tables_did(
    capsys: pytest.CaptureFixture[str], state: str, failed: int, code: int
) -> None:
    """A partial job takes Spark, so here it is a record."""
    call = SimpleNamespace(is_for_people=True, print_result=lambda text, _: print(text))
    job = v1.Job(job_id="j1", state=f"JS_{state.upper()}", tables_scanned=3, tables_changed=3 - failed, errors=failed)
    if failed:
        job.table_errors.append(v1.TableError(table="s.broken", message="it is corrupt"))
    try:
        report_end(cast(Any, call), Job(job), {})
        ended = 0
    except typer.Exit as exit_:
        ended = exit_.exit_code
    assert ended == code
    shown = capsys.readouterr()
    told = "succeeded only in part" if state == "partial" else state
    assert shown.out == f"job j1 {told}: 3 tables, {3 - failed} changed, {failed} failed\n"
    assert shown.err == ("  s.broken: it is corrupt\n" if failed else "")


def test_failed_job_is_explained_with_exit_code_1(run: Run, tmp_path: Path) -> None:
    run("connectors", "create", "void", "--kind", "parquet", "--uri", tmp_path / "nothing")
    ended = run("connectors", "sync", "void", "--watch")
    assert ended.code == 1
    job = re.fullmatch(r"job (\S+) failed\n", ended.out)
    assert job
    assert "there is nothing at" in ended.err
    assert f"job {job[1]}: failed\n" in ended.err
    listed = run("jobs", "list", "--connector", "void", "--state", "failed", "-o", "json").json
    assert [(each["id"], each["connector"]) for each in listed] == [(job[1], "void")]
    assert run("jobs", "list", "--connector", "void", "--state", "succeeded", "-o", "json").json == []
    again = run("jobs", "watch", job[1], "-o", "json")
    assert (again.code, '"state": "failed"' in again.out) == (1, True)
    assert run("jobs", "cancel", job[1]).out == f"job {job[1]} has already failed\n"
    log = run("jobs", "log", job[1])
    assert log.out.startswith("--- attempt 1 on ")
    assert "there is nothing at" in log.out
    assert run("jobs", "log", job[1], "-o", "json").json == {"id": job[1], "state": "failed", "log": log.out}


def test_full_sync_requires_a_job(run: Run) -> None:
    ended = run("connectors", "sync", "raw", "--mode", "metadata", "--full")
    assert (ended.code, "--full is only for jobs" in ended.err) == (2, True)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (f"type=bearer,tokn={SECRET}", "credentials of type bearer have no field tokn; their fields are token"),
        (f"type=bearer,{SECRET}", "part 2 of the credentials is not NAME=VALUE"),
        (SECRET, "credentials need a type: type=bearer"),
        (f"type={SECRET},token={SECRET}", "credentials need a type: type=bearer"),
        ("bearer,token=@no/such/file", "cannot read the token of the credentials from no/such/file: No such file"),
        ("bearer,token=$NO_SUCH_VARIABLE", "refers to $NO_SUCH_VARIABLE, which is not set"),
        ("type=bearer", "token"),
    ],
)
def test_error_about_credentials_does_not_repeat_them(run: Run, folder: Path, spec: str, message: str) -> None:
    ended = run("connectors", "create", "secretive", "--kind", "parquet", "--uri", folder, "--credential", spec)
    assert ended.code == 1
    assert message in ended.err
    assert SECRET not in ended.out + ended.err


@pytest.mark.parametrize("passed_as", ["plain", "file", "variable", "environment"])
def test_credentials_are_stored_and_never_shown(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passed_as: str
) -> None:
    (tmp_path / "token").write_text(f"{SECRET}\n")
    monkeypatch.setenv("MY_TOKEN", SECRET)
    specs = {"plain": SECRET, "file": f"@{tmp_path}/token", "variable": "$MY_TOKEN", "environment": SECRET}
    spec = f"type=bearer,token={specs[passed_as]}"
    arguments = [
        "connectors",
        "create",
        passed_as,
        "--kind",
        "iceberg",
        "--uri",
        "http://127.0.0.1:1/",
        "--source-namespace",
        "a",
    ]
    if passed_as == "environment":
        monkeypatch.setenv("SKIWAY_CREDENTIAL", spec)
        assert SECRET not in run("connectors", "create", "--help").out
    else:
        arguments += ["--credential", spec]
    made = run(*arguments, "-o", "json")
    assert made.json["credentials"] is True
    texts = [
        made,
        run("connectors", "get", passed_as),
        run("connectors", "validate", passed_as),
        run("connectors", "list"),
    ]
    assert not any(SECRET in each.out + each.err for each in texts)
    monkeypatch.delenv("SKIWAY_CREDENTIAL", raising=False)
    moved = run("connectors", "update", passed_as, "--uri", "http://127.0.0.1:2/")
    assert (moved.code, "give auth.credentials again (--credential)" in moved.err) == (1, True)
    assert run("connectors", "update", passed_as, "--uri", "http://127.0.0.1:2/", "--credential", spec).code == 0
    run("connectors", "delete", passed_as)


# --- jobs without a worker -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that leaves its jobs to remote workers, of which there are none."""
    root = tmp_path_factory.mktemp("idle")
    with started(root / "home", "--set", "reconciler.backend=remote") as server:
        yield server


@pytest.fixture
def queued_job(idle: Server, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of a queued job."""
    monkeypatch.setenv("SKIWAY_SERVER", idle.address)
    assert run("connectors", "create", tmp_path.name, "--kind", "parquet", "--uri", tmp_path).code == 0
    begun = run("connectors", "sync", tmp_path.name, "-o", "json").json
    assert begun["state"] == "queued"
    return str(begun["id"])


def test_identical_sync_returns_the_queued_job(run: Run, tmp_path: Path, queued_job: str) -> None:
    again = run("connectors", "sync", tmp_path.name)
    assert again.out == f"job {queued_job} is queued; follow it with: skiway jobs watch {queued_job}\n"


def test_queued_job_is_cancelled_immediately(run: Run, queued_job: str) -> None:
    log = run("jobs", "log", queued_job)
    assert (log.out, f"job {queued_job} is queued and has no log yet" in log.err) == ("", True)
    assert run("jobs", "cancel", queued_job).out == f"job {queued_job} is cancelled\n"
    watched = run("jobs", "watch", queued_job)
    assert (watched.code, watched.out) == (1, f"job {queued_job} cancelled\n")
    assert ["state", "cancelled"] in run("jobs", "get", queued_job).lines


def test_ctrl_c_keeps_the_job_and_prints_how_to_follow_it(run: Run, idle: Server, queued_job: str) -> None:
    env = environment(SKIWAY_SERVER=idle.address)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with launch("jobs", "watch", queued_job, env=env, **pipes) as watcher:
        assert watcher.stderr is not None
        assert watcher.stderr.readline() == f"job {queued_job}: queued, waiting for a worker\n"
        os.kill(watcher.pid, signal.SIGINT)
        out, err = watcher.communicate(timeout=60)
    assert (watcher.returncode, out) == (130, "")
    assert f"job {queued_job} keeps running: follow it with `skiway jobs watch {queued_job}`" in err
    assert "Traceback" not in err
    assert run("jobs", "get", queued_job, "-o", "json").json["state"] == "queued"


def test_tables_that_cannot_be_read_are_shown_with_their_reasons(run: Run, tmp_path: Path) -> None:
    """The sync prints the reasons, and so do the commands for tables and for the connector. A taken name is a reason, too."""
    one = pa.table({"id": pa.array([1], pa.int64())})
    for name in ("good", "bad", "taken"):
        write_delta(tmp_path / "source" / name, one, features=("timeTravelByMagic",) if name == "bad" else ())
    run("sql", "CREATE SCHEMA lake.odd; CREATE TABLE lake.odd.taken AS SELECT 1 AS x")
    made = run("connectors", "create", "odd", "--kind", "delta", "--uri", tmp_path / "source", "--namespace", "odd")
    assert made.code == 0, made.err
    synced = run("connectors", "sync", "odd", "--watch")
    assert (synced.code, "in part" in synced.out, "3 tables, 1 changed, 2 failed" in synced.out) == (3, True, True)
    reason = "needs the unsupported reader feature timeTravelByMagic; drop the feature, or copy the table"
    taken = "taken cannot be mirrored as taken: another table or view has this name; rename that one"
    assert re.search(rf"^  bad: .*{reason}$", synced.err, re.MULTILINE), synced.err
    assert f"  taken: {taken}" in synced.err
    listed = {each["name"]: each["problem"] for each in run("tables", "list", "lake.odd", "-o", "json").json}
    assert listed["lake.odd.good"] is listed["lake.odd.taken"] is None
    assert listed["lake.odd.bad"].endswith(reason)
    for arguments in (("tables", "list", "lake.odd"), ("tables", "get", "lake.odd.bad")):
        assert "timeTravelByMagic" in " ".join(run(*arguments).out.split()), arguments
    described = run("tables", "describe", "lake.odd.bad")
    assert (described.code, "the table cannot be read: " in described.err, reason in described.err) == (0, True, True)
    shown = run("connectors", "get", "odd", "-o", "json").json
    assert (shown["last_sync"], shown["last_errors"].keys()) == ("partial", {"bad", "taken"})
    assert shown["last_errors"]["taken"].startswith(taken)
    assert "taken cannot be mirrored" in " ".join(run("connectors", "get", "odd").out.split())


def test_description_says_why_files_have_no_profile(run: Run, tmp_path: Path) -> None:
    iceberg_folder(tmp_path / "source", "orc")
    run("connectors", "create", "orc", "--kind", "iceberg", "--uri", tmp_path / "source", "--namespace", "orc")
    first = run("connectors", "sync", "orc", "--watch")
    assert (first.code, "rows in Avro and ORC are read, but not profiled" in first.err) == (0, True), first.err
    again = run("connectors", "sync", "orc", "--watch")
    assert (again.code, "profiled" in again.err) == (0, False)
    table = "lake.orc.orc.account.table"
    described = run("tables", "describe", table)
    said = " ".join((described.out + described.err).split())
    assert "1 of 1 data files are Avro or ORC, which are read, but not profiled" in said, said
    assert run("tables", "describe", table, "-o", "json").json["files_not_profiled"] == 1
