"""The home of a demo, and directories that a demo must not touch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from demo.demos import demo
from skiway.demo.home import LAYOUT, DemoHome
from skiway.errors import PreconditionFailed, Unavailable


def files(folder: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "home"


def test_missing_directory_becomes_the_home_of_a_demo(path: Path) -> None:
    home = DemoHome.at(path)
    assert not home.is_complete
    assert path.stat().st_mode & 0o777 == 0o700
    home.completed()
    assert DemoHome.at(path).is_complete


def test_home_of_a_server_is_not_touched(path: Path) -> None:
    path.mkdir(parents=True)
    (path / "pointers.db").write_bytes(b"of somebody")
    before = files(path)
    run = demo(path, "--once")
    assert run.returncode == 1
    assert run.stderr.startswith(f"skiway: {path} is not the home of a demo: it contains pointers.db; choose another")
    assert files(path) == before


@pytest.mark.parametrize(("layout", "age"), [(LAYOUT + 1, "a newer"), (LAYOUT - 1, "an older")])
def test_home_with_another_layout_is_not_touched(path: Path, layout: int, age: str) -> None:
    DemoHome.at(path).completed()
    facts = json.loads((path / "demo.json").read_text())
    (path / "demo.json").write_text(json.dumps({**facts, "layout": layout}))
    before = files(path)
    with pytest.raises(PreconditionFailed, match=f"created by {age} version of Skiway .layout {layout}.*: delete"):
        DemoHome.at(path)
    assert files(path) == before


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"layout": "x", "home": "", "complete": true}'])
def test_invalid_demo_file_is_rejected(path: Path, content: str) -> None:
    path.mkdir(parents=True)
    (path / "demo.json").write_text(content)
    with pytest.raises(PreconditionFailed, match=r"demo\.json is not a valid demo file: delete"):
        DemoHome.at(path)


def test_moved_demo_is_rejected(path: Path, tmp_path: Path) -> None:
    DemoHome.at(path).completed()
    path.rename(tmp_path / "moved")
    with pytest.raises(PreconditionFailed, match=f"was created in {path}, and its tables refer to files there"):
        DemoHome.at(tmp_path / "moved")


def test_home_that_is_a_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match="choose"):
        DemoHome.at(tmp_path / "file")


def test_demo_is_not_built_by_two_processes_at_once(path: Path) -> None:
    home = DemoHome.at(path)
    with (
        home.making(),
        pytest.raises(PreconditionFailed, match="another process is building the demo"),
        DemoHome.at(path).making(),
    ):
        pass
    with home.making():
        pass
