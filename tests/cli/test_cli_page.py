"""The command line page is accurate: its examples produce the output shown, and it covers every command."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from cli.conftest import Done, Run
from skiway.cli.app import LAKE, app

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "commands.md"
COMMAND = re.compile(r"^\$ (.*)$")


def examples(page: str = PAGE) -> list[tuple[str, list[str]]]:
    """The commands on a page, each with the output lines the page shows."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"^```console\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if prompt := COMMAND.match(line):
                found.append((prompt[1], []))
            else:
                found[-1][1].append(line)
    return found


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("profiled")  # it starts Spark, so that the examples need not wait for it
def test_every_example_produces_the_output_shown(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(examples()) > 30
    run_examples(run, PAGE)


def run_examples(run: Run, page: str) -> None:
    """Run the commands on a page, and compare their output with the page."""
    for line, expected in examples(page):
        written = run_line(run, line)
        fails = bool(expected) and expected[0].startswith("skiway: ")
        assert written.code == (1 if fails else 0), f"{line}: {written.err}"
        check(line, expected, written.err if fails else written.out)


def run_line(run: Run, line: str) -> Done:
    """Run all commands of a line and combine their output."""
    out, err, code = "", "", 0
    for part in line.split(" && "):
        program, *arguments = shlex.split(part)
        if program == "mkdir":
            Path(arguments[0]).mkdir()
            continue
        done = run(*arguments)
        out, err, code = out + done.out, err + done.err, code or done.code
    return Done(code, out, err)


def check(line: str, expected: list[str], written: str) -> None:
    """Assert that the expected lines appear in order; `…` matches anything, and whitespace is ignored."""
    left = [" ".join(each.split()) for each in written.splitlines()]
    for each in expected:
        words = " ".join(each.split())
        pattern = ".*".join(re.escape(part.strip()) for part in words.split("…")).replace(r"\ ", r"\s*")
        while left and not re.fullmatch(rf"\s*{pattern}\s*", left[0]):
            left.pop(0)
        assert left, f"$ {line}\ndid not write, in this order: {each!r}\nbut:\n{written}"
        left.pop(0)


def commands() -> list[tuple[str, str]]:
    """Every lake command, as noun and verb."""
    root = typer.main.get_command(app)
    found = []
    for name in LAKE:
        group = root.get_command(None, name)  # type: ignore[attr-defined]
        found += [(name, verb) for verb in getattr(group, "commands", {"": group})]
    return found


def test_every_command_is_in_the_reference() -> None:
    assert len(commands()) > 30
    shown = set(re.findall(r"^### ([a-z]+(?: [a-z-]+)?)(?: |$)", REFERENCE.read_text(), re.MULTILINE))
    assert {f"{name} {verb}".strip() for name, verb in commands()} <= shown


@pytest.mark.parametrize(("name", "verb"), commands())
def test_every_help_text_describes_its_command_and_fits_a_terminal(run: Run, name: str, verb: str) -> None:
    shown = run(name, *([verb] if verb else []), "--help")
    assert shown.code == 0
    lines = shown.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert re.match(r"  [A-Z].*", lines[2])
    for option in ("--output", "--server", "--token"):
        assert option in shown.out
