"""The command line in shells and on terminals: completion, narrow and plain terminals, full disks and closed pipes."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pytest

from runtime.servers import Server, command, environment, launch, skiway
from scope import sample
from skiway.cli import command as progress_module
from skiway.cli.command import collected
from skiway.cli.options import COMPLETIONS, completer
from skiway.client import AirportClient, Metastore
from skiway.model import v1

FOLDER = Path(sys.executable).parent
"""Where the command `skiway` is."""


@pytest.fixture(scope="module")
def narrow(lake: Server) -> Iterator[dict[str, str]]:
    """The environment of commands that use the server, which has the profiled table `lake.shells.measures`."""
    with AirportClient(lake.addresses["airport"], "lake") as catalog:
        catalog.create_schema("shells")
        catalog.create_table_as("shells.measures", pa.table({"temperature_in_degrees": [1.5, 2.5], "é": [1, 2]}))
        with Metastore(lake.address) as metastore:
            found = metastore.snapshots.get("lake.shells.measures")
            stats = [profile(1, "temperature_in_degrees"), profile(2, "é")]
            metastore.statistics.put_columns("lake.shells.measures", found, stats)
        yield environment(
            SKIWAY_SERVER=lake.address, TERM="xterm", PATH=f"{FOLDER}{os.pathsep}{os.environ['PATH']}", LC_ALL="C.UTF-8"
        )
        catalog.drop_table("shells.measures")
        catalog.drop_schema("shells")


def profile(number: int, name: str) -> v1.ColumnStats:
    found = v1.ColumnStats(column_id=number, column_name=name, logical_type="DOUBLE", value_count=1000, null_count=0)
    found.min, found.max = "0", "1234567890.5"
    found.histogram.CopyFrom(v1.Histogram(bounds=["0", "500", "1000"], counts=[300, 700]))
    found.properties["quality.min"] = "bound"
    return found


def on_terminal(*arguments: str, columns: int, env: dict[str, str]) -> str:
    """What a command writes to a terminal."""
    controller, terminal = pty.openpty()
    with subprocess.Popen(
        command(*arguments), stdout=terminal, stderr=terminal, env={**env, "COLUMNS": str(columns)}
    ) as process:
        os.close(terminal)
        written = b""
        while True:
            try:
                part = os.read(controller, 65536)
            except OSError:  # the end, on Linux
                break
            if not part:
                break
            written += part
    os.close(controller)
    assert process.returncode == 0, written
    return written.decode().replace("\r\n", "\n")


def unstyled(text: str) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", text)


# -- completion --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expected"),
    [("skiway tab", ["tables"]), ("skiway snapshots list lake.sh", ["lake.shells.measures"])],
)
def test_bash_completes_commands_and_names(narrow: dict[str, str], line: str, expected: list[str]) -> None:
    words = line.split()
    script = f'eval "$(skiway completion bash)"; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; '
    done = subprocess.run(
        ["bash", "-c", f'{script} _skiway_completion skiway; printf "%s\\n" "${{COMPREPLY[@]}}"'],
        env=narrow,
        capture_output=True,
        text=True,
    )
    assert (done.stdout.split(), done.stderr) == (expected, "")


@pytest.mark.parametrize(
    ("argument", "start", "expected"),
    [
        ("TABLE", "lake.shells.", ["lake.shells.measures"]),
        ("TABLE", "lake.raw.o", ["lake.raw.orders"]),
        ("TABLE", "lake.raw.orders.", []),
        ("TABLE", "nothing.", []),
        ("NAMESPACE", "lake.sh", ["lake.shells"]),
        ("NAMESPACE", "la", ["lake", "lake.raw", "lake.shells"]),
        ("OBJECT", "lake.she", ["lake.shells", "lake.shells.measures"]),
        ("CATALOG", "la", ["lake"]),
        ("VIEW", "lake.raw.", []),
        ("CONNECTOR", "r", ["raw"]),
    ],
)
def test_names_start_with_what_is_typed(narrow: dict[str, str], argument: str, start: str, expected: list[str]) -> None:
    found = completer(COMPLETIONS[argument], lambda _: Metastore(narrow["SKIWAY_SERVER"]))(None, start)
    assert [name for name in found if name in expected or not expected] == expected
    assert all(name.startswith(start) for name in found)


@pytest.mark.parametrize(
    ("shell", "variables"),
    [("zsh", {}), ("fish", {"_TYPER_COMPLETE_FISH_ACTION": "get-args"})],
)
def test_other_shells_get_the_names(narrow: dict[str, str], shell: str, variables: dict[str, str]) -> None:
    script = subprocess.run(command("completion", shell), env=narrow, capture_output=True, text=True, check=True).stdout
    assert f"_SKIWAY_COMPLETE=complete_{shell}" in script
    asked = {
        "_SKIWAY_COMPLETE": f"complete_{shell}",
        "_TYPER_COMPLETE_ARGS": "skiway tables describe lake.sh",
        **variables,
    }
    done = subprocess.run(["skiway"], env={**narrow, **asked}, capture_output=True, text=True)
    assert "lake.shells.measures" in done.stdout
    assert done.stderr == ""


def test_completion_without_a_server_is_empty(narrow: dict[str, str]) -> None:
    asked = {"_SKIWAY_COMPLETE": "complete_bash", "COMP_WORDS": "skiway tables describe la", "COMP_CWORD": "3"}
    env = {**narrow, **asked, "SKIWAY_SERVER": "127.0.0.1:1"}
    done = subprocess.run(["skiway"], env=env, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("", "")


# -- terminals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", sample([40, 80], every=2))
def test_narrow_terminal_shows_histograms(narrow: dict[str, str], columns: int) -> None:
    shown = on_terminal("tables", "describe", "lake.shells.measures", columns=columns, env=narrow)
    assert unstyled(shown).count("▄▄▄▄▄▄▄▄████████") == 2
    assert "values" in shown
    assert "\x1b[" in shown


def test_terminal_without_unicode_gets_ascii(narrow: dict[str, str]) -> None:
    shown = on_terminal("tables", "describe", "lake.shells.measures", columns=80, env={**narrow, "LC_ALL": "C"})
    assert shown.isascii()
    assert "========@@@@@@@@" in shown
    assert "in 0" in shown
    assert "in  within these bounds" in shown


def test_pipe_gets_utf8_in_every_locale(narrow: dict[str, str]) -> None:
    line = command("tables", "describe", "lake.shells.measures", "-o", "ndjson")
    done = subprocess.run(line, env={**narrow, "LC_ALL": "C"}, capture_output=True, check=True)
    assert '"name": "é"' in done.stdout.decode()


def test_output_that_cannot_encode_a_character_does_not_fail(narrow: dict[str, str]) -> None:
    line = command("tables", "describe", "lake.shells.measures", "-o", "csv")
    done = subprocess.run(line, env={**narrow, "PYTHONIOENCODING": "ascii"}, capture_output=True, check=True)
    assert b"\\xe9" in done.stdout


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_styles_can_be_switched_off(narrow: dict[str, str], variable: str, value: str) -> None:
    arguments = ("tables", "describe", "lake.shells.measures")
    assert "\x1b[" not in on_terminal(*arguments, columns=80, env={**narrow, variable: value})


# -- the end of the output ---------------------------------------------------------------------------------------------

WRITERS = [
    ("events", "list"),
    ("tables", "list", "-o", "json"),
    ("config",),
    ("--help",),
    ("--version",),
    ("attach",),
    ("sql", "SELECT * FROM range(5)"),
]


def ended(*arguments: str, stdout: TextIO, env: dict[str, str]) -> tuple[int, str]:
    """The exit code of a command, and what it writes to stderr."""
    with launch(*arguments, stdout=stdout, stderr=subprocess.PIPE, env=env) as process:
        _, message = process.communicate(timeout=60)
    return process.returncode, message


@pytest.mark.parametrize("arguments", WRITERS, ids=" ".join)
def test_full_disk_is_reported_in_one_line(narrow: dict[str, str], arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        code, message = ended(*arguments, stdout=full, env=narrow)
    assert (code, message) == (1, "skiway: the output cannot be written: No space left on device\n")


@pytest.mark.parametrize("arguments", WRITERS, ids=" ".join)
def test_closed_pipe_ends_the_command_quietly(narrow: dict[str, str], arguments: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        code, message = ended(*arguments, stdout=closed, env=narrow)
    assert (code, message) == (0, "")


# -- formats and progress ----------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_long_work_shows_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(progress_module, "QUIET_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")

    def items() -> Iterator[int]:
        deadline = time.monotonic() + 200
        for number in range(10**9):
            yield number
            if "so far" in stream.getvalue() or time.monotonic() > deadline:
                return

    found = collected("reading", items())
    assert found == list(range(len(found)))
    assert "reading" in stream.getvalue()


def test_long_work_shows_nothing_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    monkeypatch.setattr("sys.stderr", io.StringIO())
    monkeypatch.setattr(threading.Timer, "start", lambda _: begun.append("timer"))
    assert collected("reading", iter("ab")) == ["a", "b"]
    assert begun == []


def test_short_work_shows_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    assert collected("reading", iter("ab")) == ["a", "b"]
    assert stream.getvalue() == ""


def test_maintenance_and_tokens_have_results_for_programs(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()

    def result(*arguments: str | Path) -> Any:
        done = skiway(*arguments, "--output", "json", "--home", home)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    made = result("tokens", "create", "ada", "--account", "default")
    assert made["name"] == "ada"
    assert made["token"].startswith("skiway_")
    assert result("tokens", "delete", "ada") == [{"name": "ada", "id": made["id"], "account": "default"}]
    backup = result("backup", tmp_path / "backup")
    assert backup["pointers"] > 0
    assert result("gc", "--dry-run") == []
    assert result("migrate") == []
    same = f"warehouse.uri={(home / 'warehouse').as_uri()}"
    done = skiway("restore", tmp_path / "backup", "-o", "json", "--home", tmp_path / "other", "--set", same)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["pointers"] == backup["pointers"]
