"""The prompt of `skiway sql`: completion, history, `.mode` and `.timer`."""

from __future__ import annotations

import os
import pty
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.conftest import Run
from runtime.servers import Server, environment, launch
from skiway.cli.sql.completion import KnownTable, Names
from skiway.cli.sql.prompt import KEPT_LINES, History, Prompt, has_secret

NAMES = Names(
    "lake",
    "raw",
    ["lake", "other"],
    [
        KnownTable("raw", "people", ["id", "name"]),
        KnownTable("raw", "orders", ["id", "customer", '"Zip code"']),
        KnownTable("skiway", "tables", ["table_name"]),
        KnownTable("skiway", "query("),
    ],
    ["select", "set", "limit"],
)


@pytest.mark.parametrize(
    ("text", "word", "expected"),
    [
        ("", "se", ["select", "set"]),
        ("", "SE", ["SELECT", "SET"]),
        ("SELECT * FROM ", "la", ["lake"]),
        ("SELECT * FROM ", "PEO", ["people"]),
        ("SELECT * FROM ", "lake.", ["lake.raw", "lake.skiway"]),
        ("SELECT * FROM ", "lake.raw.", ["lake.raw.orders", "lake.raw.people"]),
        ("SELECT * FROM ", "raw.o", ["raw.orders"]),
        ("SELECT * FROM ", "lake.skiway.q", ["lake.skiway.query("]),
        ("SELECT ", "na", ["name"]),
        ("SELECT ", "table", []),
        ("SELECT p.id FROM people p WHERE ", "p.", ["p.id", "p.name"]),
        ("SELECT table_name FROM lake.skiway.tables WHERE ", "tab", ["table_name"]),
        ("FROM orders WHERE ", '"z', ['"Zip code"']),
        ("FROM orders WHERE ", "nam", []),
        ("", ".t", [".tables", ".timer"]),
        (".mode ", "j", ["json"]),
        (".timer ", "o", ["off", "on"]),
        (".schema ", "raw.p", ["raw.people"]),
        (".quit ", "", []),
    ],
)
def test_tab_offers_what_fits(text: str, word: str, expected: list[str]) -> None:
    assert NAMES.completions(text, word) == expected


SECRETS = (
    "CREATE SECRET s (TYPE s3, KEY_ID 'a', REGION 'b')",
    "create persistent secret s (\n type s3)",
    "SELECT * FROM x WHERE api_token = 'abc'",
    "SET s3_secret_access_key = 'x'",
    "ATTACH 'postgres://me:hunter2@host/db'",
    "FROM read_csv('https://h/x.csv?X-Amz-Signature=abcdef')",
    "SELECT 'skiway_access_abcdefghijklmnopqrstuvwxyz0123456789'",
    "SELECT 'ghp_abcdefghijklmnopqrstuvwxyz0123456789'",
)


@pytest.mark.parametrize("text", SECRETS)
def test_statements_with_secrets_are_found(text: str) -> None:
    assert has_secret(text)


def test_other_statements_are_kept() -> None:
    for text in ("SELECT * FROM lake.raw.people WHERE name = 'Ada'", "FROM 's3://bucket/x.parquet'", ".mode json"):
        assert not has_secret(text)


def test_history_is_private_and_has_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "new" / "sql_history"
    history = History(path)
    assert history.lines() == []
    history.add(["SELECT 1;"])
    path.chmod(0o644)
    history.add(["SELECT 2", ";"])
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert history.lines() == ["SELECT 1;", "SELECT 2", ";"]
    history.add([f"SELECT {number};" for number in range(2 * KEPT_LINES)])
    assert history.lines()[-1] == f"SELECT {2 * KEPT_LINES - 1};"
    assert len(path.read_text().splitlines()) == KEPT_LINES
    path.unlink()
    path.symlink_to(tmp_path / "other")
    history.add(["SELECT 1;"])
    assert not (tmp_path / "other").exists()


def test_only_statements_without_secrets_reach_the_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    typed: Iterator[str] = iter(["SELECT 1,", "2;", "CREATE SECRET s (", "TYPE s3, KEY_ID 'abc');", ".help", "exit"])
    prompt = Prompt(lambda: NAMES)
    assert len(list(prompt.statements(lambda _: next(typed)))) == 3
    assert (tmp_path / "skiway" / "sql_history").read_text() == "SELECT 1,\n2;\n.help\n"


def test_terminal_completes_names_and_keeps_the_history(lake: Server, tmp_path: Path) -> None:
    env = environment(SKIWAY_SERVER=lake.address, TERM="dumb", COLUMNS="80", XDG_STATE_HOME=str(tmp_path))
    typed = [b"SELECT count(*) AS n FROM lake.raw.peo\t;\n", b".mode line\n", b".timer on\n", b"SELECT 7 AS seven;\n"]
    shown = talk(env, typed)
    assert "lake.raw.people;\r\nn\r\n3\r\n" in shown
    assert re.search(r"seven = 7\r\n0\.\d{3} s\r\n", shown)
    again = talk(env, [b"\x1b[A\n"])  # the arrow up: the last line of the history
    assert "SELECT 7 AS seven;\r\nseven\r\n    7\r\n" in again


def talk(env: dict[str, str], typed: list[bytes]) -> str:
    """What a terminal shows when lines are typed, each after a prompt."""
    controller, terminal = pty.openpty()
    shown = ""
    with launch("sql", env=env, stdin=terminal, stdout=terminal, stderr=terminal) as process:
        try:
            os.close(terminal)
            for number, line in enumerate([*typed, b"exit\n"], start=1):
                deadline = time.monotonic() + 60
                while shown.count("skiway> ") < number:
                    assert time.monotonic() < deadline, shown
                    shown += os.read(controller, 4096).decode()
                os.write(controller, line)
            assert process.wait(200) == 0
        finally:
            process.kill()
            os.close(controller)
    return shown


# --- .mode and .timer -------------------------------------------------------------------------------------------------

ROWS = "SELECT * FROM (VALUES (1, 'Ä b'), (20, NULL)) t(id, text)"


def test_mode_changes_the_form_of_the_following_results(run: Run) -> None:
    forms = {
        "box": "┌────┬──────┐\n│ id │ text │\n├────┼──────┤\n│  1 │ Ä b  │\n│ 20 │ NULL │\n└────┴──────┘\n",
        "line": "  id = 1\ntext = Ä b\n\n  id = 20\ntext = NULL\n",
        "csv": "id,text\n1,Ä b\n20,\n",
        "json": '[\n{"id":1,"text":"Ä b"},\n{"id":20,"text":null}\n]\n',
        "markdown": "| id | text |\n|--:|---|\n| 1 | Ä b |\n| 20 | NULL |\n",
        "table": "id  text\n 1  Ä b\n20  NULL\n",
    }
    for mode, shown in forms.items():
        assert run("sql", stdin_text=f".mode {mode}\n{ROWS};").out == shown
    everything = "".join(f".mode {mode}\n{ROWS};\n" for mode in forms)
    assert run("sql", "--output", "json", stdin_text=everything).out == "".join(forms.values())
    assert run("sql", stdin_text=".mode box\n.mode").out == "box\n"


def test_boxes_are_limited_and_may_be_empty(run: Run) -> None:
    limited = run("sql", "--max-rows", "1", stdin_text=f".mode box\n{ROWS};")
    assert (limited.out.count("\n"), "only the first 1 rows" in limited.err) == (5, True)
    assert "│ a │" in run("sql", stdin_text=".mode box\nSELECT 1 AS a WHERE false;").out
    assert run("sql", stdin_text=".mode line\nSELECT 1 AS a WHERE false;").out == ""


def test_timer_is_shown_beside_the_output(run: Run) -> None:
    timed = run("sql", stdin_text=".timer on\nSELECT 1 AS a;\n.timer off\nSELECT 2 AS a;")
    assert timed.out == "a\n1\na\n2\n"
    assert re.fullmatch(r"(\d+\.\d{3} s\n){2}", timed.err)  # of the statement, and of `.timer off`


@pytest.mark.parametrize(
    ("command", "message"),
    [(".mode jsno", "did you mean json"), (".mode x y", "there is no mode x y"), (".timer", "write .timer on")],
)
def test_wrong_values_are_explained(run: Run, command: str, message: str) -> None:
    found = run("sql", command)
    assert (found.code, message in found.err) == (1, True), found.err


def test_help_and_quit_need_no_dot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    typed = iter(["help", "?;", "select", "help;", "quit", "never read"])
    prompt = Prompt(lambda: NAMES)
    assert list(prompt.statements(lambda _: next(typed))) == [".help", ".help", "select\nhelp;"]
