"""The `skiway` command, as users run it."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

from runtime.servers import command, environment, launch, skiway
from skiway import __version__
from skiway.foundation.clock import utc_now
from skiway.metastore.records import keys
from skiway.metastore.records.realm import Realm
from skiway.metastore.seeding import seed_home
from skiway.metastore.transactions.staged_writes import opened
from skiway.storage import open_stores

HELP_S = 0.3
HEAVY = {"duckdb", "google.protobuf", "grpc", "obstore", "pyarrow", "pyspark", "rich", "sqlalchemy", "sqlglot"}
NOUNS = {
    "attach",
    "search",
    "sql",
    "catalogs",
    "namespaces",
    "tables",
    "snapshots",
    "connectors",
    "jobs",
    "queries",
    "events",
    "stats",
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def test_script_and_module_are_equivalent():
    script = Path(sys.executable).with_name("skiway")
    shown = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout == skiway("--version").stdout == f"skiway {__version__}\n"


def test_help_lists_every_command():
    shown = skiway("--help")
    assert shown.returncode == 0
    for name in ("serve", "worker", "demo", "gc", "check", "backup", "restore", "doctor", "config", "tokens", *NOUNS):
        assert re.search(rf"^  {name}  ", shown.stdout, re.MULTILINE), name
    assert max(map(len, shown.stdout.splitlines())) <= 80


def test_help_is_fast():
    """Measure CPU time, which other load does not affect, and take the best of five runs because caches may be cold."""
    assert min(_cpu_time_s() for _ in range(5)) < HELP_S


def _cpu_time_s() -> float:
    before = os.times()
    subprocess.run(command("--help"), check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


LIGHT = [
    ["--help"],
    ["--version"],
    *(
        [name, "--help"]
        for name in ("serve", "worker", "demo", "gc", "check", "backup", "restore", "doctor", "config", *sorted(NOUNS))
    ),
    ["tokens", "create", "--help"],
    ["connectors", "create", "--help"],
    ["tables", "describe", "--help"],
]

RUN_EACH = """
import contextlib, io, json, sys
from skiway.cli import main

for arguments in json.loads(sys.argv[1]):
    sys.argv = ["skiway", *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main()
    print(json.dumps([arguments, out.getvalue(), list(sys.modules)]))
"""


def test_help_imports_no_heavy_libraries():
    """One interpreter runs all commands, so a command that imports a heavy library is the first to show it."""
    ran = subprocess.run(
        [sys.executable, "-c", RUN_EACH, json.dumps(LIGHT)], capture_output=True, text=True, check=True
    )
    reports = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [arguments for arguments, _, _ in reports] == LIGHT
    for arguments, out, modules in reports:
        assert "Usage: " in out or "--version" in arguments, arguments
        assert "skiway.cli.app" in modules
        assert set(modules) & HEAVY == set(), arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serv"], "No such command 'serv'"),
        (["table", "list"], "No such command 'table'. Did you mean 'tables'?"),
        (["tables", "desc", "a.b.c"], "No such command 'desc'. Did you mean 'describe'?"),
        (["tables", "get"], "Missing argument 'TABLE'"),
        (["tables", "list", "-o", "xml"], "'xml' is not one of"),
        (["snapshots", "get", "a.b.c", "x"], "should be a valid integer"),
        (
            ["connectors", "create", "x", "--kind", "xml", "--uri", "."],
            "'--kind': 'xml' is not one of parquet, iceberg,",
        ),
        (["connectors", "create", "x", "--kind", "parqet", "--uri", "."], "json, jdbc; did you mean parquet?"),
        (["catalogs", "create", "x", "--property", "y"], "'y' is not KEY=VALUE"),
        (["serve", "--no-such-option"], "No such option"),
        (["serve", "--set", "gc.cas.enabled"], "'gc.cas.enabled' is not KEY=VALUE, such as"),
        (["config", "--output", "xml"], "'xml' is not one of"),
        (["tokens", "create", "ada"], "Missing option '--account'"),
        (["tokens", "create", "ada", "--account", "default", "--ttl", "0d"], "'0d' is not a duration above zero"),
    ],
)
def test_usage_error_is_reported_with_exit_code_2(arguments, message):
    ended = skiway(*arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


# --- config -------------------------------------------------------------------------------------------------------


def shown_settings(*arguments: str | Path, **env: str) -> dict[str, tuple[str, str]]:
    shown = skiway("config", "--output", "json", *arguments, **env)
    assert shown.returncode == 0, shown.stderr
    return {entry["key"]: (entry["value"], entry["origin"]) for entry in json.loads(shown.stdout)}


def test_settings_are_shown_with_their_origin(home):
    home.mkdir()
    (home / "skiway.toml").write_text('[gc.cas]\npage_size = 7\nmin_age_ms = 70000\n[kv]\nbackend = "memory"\n')
    found = shown_settings(
        "--home",
        home,
        "--set",
        "gc.cas.tick_every=9m",
        SKIWAY__GC__CAS__MIN_AGE_MS="90000",
        SKIWAY__SEED__ENABLED="true",
    )
    assert found["gc.cas.page_size"] == ("7", f"set in {home / 'skiway.toml'}, line 2")
    assert found["gc.cas.min_age_ms"] == ("90000", "set by SKIWAY__GC__CAS__MIN_AGE_MS")
    assert found["gc.cas.tick_every"] == ("9m", "set on the command line")
    assert found["kv.backend"] == ("memory", f"set in {home / 'skiway.toml'}, line 5")
    assert found["gc.pointer.page_size"] == ("500", "default")
    assert found["auth.tokens.file"] == (str(home / "tokens.toml"), "default")


def test_short_form_is_shown_as_the_setting_it_abbreviates(home):
    assert shown_settings("--home", home, "--set", "kv=memory")["kv.backend"] == ("memory", "set on the command line")


def test_secrets_are_hidden(home):
    url = "postgresql://skiway:correct-horse@db.example/lake"
    arguments = ("--home", home, "--set", f"kv.url={url}", "--set", f"blob.url={home.as_uri()}")
    for output in ("json", "table"):
        shown = skiway("config", "--output", output, *arguments)
        assert shown.returncode == 0, shown.stderr
        assert "correct-horse" not in shown.stdout + shown.stderr
    assert shown_settings(*arguments)["kv.password"][0] == "****"


def test_table_has_one_line_per_setting_in_a_narrow_terminal(home):
    shown = skiway("config", "--home", home, "--set", "gc.cas.page_size=12345", COLUMNS="40")
    assert shown.returncode == 0
    lines = [line.split() for line in shown.stdout.splitlines()[1:]]
    assert [line[0] for line in lines] == list(shown_settings("--home", home))
    assert ["gc.cas.page_size", "12345", "set", "on", "the", "command", "line"] in lines


def test_each_invalid_setting_is_reported(home):
    ended = skiway("config", "--home", home, "--set", "gc.cas.page_size=no", "--set", "kv.backend=paper")
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 2
    assert "gc.cas.page_size" in ended.stderr
    assert "kv.backend" in ended.stderr


# --- tokens -------------------------------------------------------------------------------------------------------


def test_token_is_printed_once_and_only_its_hash_is_stored(home):
    made = [skiway("tokens", "create", name, "--account", "default", "--home", home) for name in ("ada", "grace")]
    assert [each.returncode for each in made] == [0, 0]
    tokens = [each.stdout.strip() for each in made]
    assert all(re.fullmatch(r"skiway_[\w-]{40,}", token) for token in tokens)
    file = home / "tokens.toml"
    assert file.stat().st_mode & 0o077 == 0
    text = file.read_text()
    assert [line for line in text.splitlines() if "name" in line] == ['name = "ada"', 'name = "grace"']
    assert not any(token in text for token in tokens)


def test_tokens_created_concurrently_are_all_stored(home):
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    running = [launch("tokens", "create", f"t{n}", "--account", "default", "--home", home, **quiet) for n in range(4)]
    assert [each.wait(200) for each in running] == [0, 0, 0, 0]
    assert sorted(re.findall(r'name = "(\w+)"', (home / "tokens.toml").read_text())) == ["t0", "t1", "t2", "t3"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--account", "default", "--role", "king"], "role 'king' does not exist: choose from administrator"),
        (["--account", ""], "only for the role platform-admin"),
    ],
)
def test_useless_token_is_not_created(home, arguments, message):
    ended = skiway("tokens", "create", "ada", *arguments, "--home", home)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert message in ended.stderr
    assert not (home / "tokens.toml").exists()


def test_malformed_tokens_file_is_reported_and_not_overwritten(home):
    home.mkdir()
    (home / "tokens.toml").write_text("[[tokens]\n")
    ended = skiway("tokens", "create", "ada", "--account", "default", "--home", home)
    assert ended.returncode == 1
    assert "is invalid" in ended.stderr
    assert (home / "tokens.toml").read_text() == "[[tokens]\n"


# --- gc -----------------------------------------------------------------------------------------------------------


def test_gc_dry_run_lists_what_gc_then_deletes(home):
    home.mkdir()
    with open_stores(f"sqlite:///{home}/pointers.db", (home / "blobs").as_uri()) as stores:
        seed_home(stores)
        stray = keys.catalog_name("default", "stray")
        uri = stores.blobs.put(b"x", folder="accounts/default/catalogs/by-id/nobody", suffix=".pb")
        stores.pointers.compare_and_set(stray, uri, expect=0)
    swept = ("--home", home, "--set", "gc.cas.min_age_ms=3600000")  # the blob stays young, however slow the machine is
    dry = skiway("gc", "--dry-run", *swept)
    assert (dry.returncode, dry.stdout) == (0, f"pointer  {stray}\n")
    assert (
        "would delete 0 transactions, 0 expired records, 1 pointer, 0 jobs, 0 secrets, 0 branches, 0 blobs and 0 files"
        in dry.stderr
    )
    real = skiway("gc", *swept)
    assert (real.returncode, real.stdout) == (0, f"pointer  {stray}\n")
    assert (
        "deleted 0 transactions, 0 expired records, 1 pointer, 0 jobs, 0 secrets, 0 branches, 0 blobs and 0 files"
        in real.stderr
    )
    assert skiway("gc", *swept).stdout == ""


def test_gc_ends_expired_transactions_and_runs_the_other_sweeps(home):
    home.mkdir()
    with open_stores(f"sqlite:///{home}/pointers.db", (home / "blobs").as_uri()) as stores:
        seed_home(stores)
        realm = Realm(stores, "default")
        opened(realm, "tx", until=utc_now() - timedelta(minutes=1))
        stray = keys.catalog_name("default", "stray")
        uri = stores.blobs.put(b"x", folder="accounts/default/catalogs/by-id/nobody", suffix=".pb")
        stores.pointers.compare_and_set(stray, uri, expect=0)
    swept = ("--home", home, "--set", "gc.pointer.enabled=false", "--set", "gc.cas.min_age_ms=3600000")
    for arguments, verb in (("--dry-run",), "would delete"), ((), "deleted"):
        ended = skiway("gc", *arguments, *swept)
        assert ended.returncode == 0, ended.stderr
        transaction, pointer = ended.stdout.splitlines()
        assert transaction.startswith("transaction  ")
        assert pointer == f"pointer  {stray}"
        assert f"{verb} 1 transaction, 0 expired records, 1 pointer," in ended.stderr
        assert "skipped" not in ended.stderr
    assert skiway("gc", *swept).stdout == ""


def test_gc_leaves_the_warehouse_alone_if_the_settings_say_so(home):
    home.mkdir()
    with open_stores(f"sqlite:///{home}/pointers.db", (home / "blobs").as_uri()) as stores:
        seed_home(stores)
        opened(Realm(stores, "default"), "tx", until=utc_now() - timedelta(minutes=1))
    ended = skiway("gc", "--home", home, "--set", "gc.warehouse.enabled=false")
    assert (ended.returncode, ended.stdout) == (0, "")
    assert "skipped, because gc.warehouse.enabled is false: transactions, branches, warehouse\n" in ended.stderr


def test_gc_does_not_create_a_missing_home(home):
    ended = skiway("gc", "--home", home)
    assert ended.returncode == 1
    assert f"there is no home {home}" in ended.stderr
    assert not home.exists()


# --- serve on a terminal ------------------------------------------------------------------------------------------


def test_serve_prints_next_steps_on_a_terminal(home):
    controller, terminal = pty.openpty()
    arguments = ("serve", "--home", home, "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0")
    with launch(*arguments, env=environment(TERM="dumb", COLUMNS="100"), stderr=terminal) as process:
        try:
            os.close(terminal)
            message = _read_until(controller, "Ctrl-C")
            addresses = json.loads((home / "ready.json").read_text())
            assert addresses["rpc"] in message
            process.send_signal(signal.SIGINT)
            assert process.wait(200) == 0
        finally:
            process.kill()
            os.close(controller)
    assert not (home / "ready.json").exists()
    assert f"skiway {__version__}" in message
    address = re.search(r"rpc +(127\.0\.0\.1:\d+)", message)
    assert address
    assert f'Metastore("{address[1]}")' in message
    assert str(home) in message
    assert "dev" in message
    assert '{"time"' not in message


def _read_until(controller: int, word: str) -> str:
    message = ""
    deadline = time.monotonic() + 60
    while word not in message:
        assert time.monotonic() < deadline, message
        message += os.read(controller, 4096).decode()
    return message


def test_home_can_be_set_in_the_environment(tmp_path):
    assert shown_settings(SKIWAY_HOME=str(tmp_path / "x"))["auth.tokens.file"][0] == str(tmp_path / "x" / "tokens.toml")
    assert not (tmp_path / "x").exists(), "showing settings must not create the home"
