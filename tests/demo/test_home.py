"""Where a demo is kept, and which directories are left alone."""

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


def test_an_empty_place_becomes_the_home_of_a_demo(path: Path) -> None:
    home = DemoHome.at(path)
    assert not home.is_complete
    assert path.stat().st_mode & 0o777 == 0o700
    home.completed()
    assert DemoHome.at(path).is_complete


def test_the_home_of_a_server_is_left_alone(path: Path) -> None:
    path.mkdir(parents=True)
    (path / "pointers.db").write_bytes(b"of somebody")
    before = files(path)
    run = demo(path, "--once")
    assert run.returncode == 1
    assert run.stderr.startswith(f"skiway: {path} is not the home of a demo: it contains pointers.db; choose another")
    assert files(path) == before


@pytest.mark.parametrize(("layout", "age"), [(LAYOUT + 1, "a newer"), (LAYOUT - 1, "an older")])
def test_another_layout_is_left_alone(path: Path, layout: int, age: str) -> None:
    DemoHome.at(path).completed()
    facts = json.loads((path / "demo.json").read_text())
    (path / "demo.json").write_text(json.dumps({**facts, "layout": layout}))
    before = files(path)
    with pytest.raises(PreconditionFailed, match=f"created by {age} version of Skiway .layout {layout}.*: delete"):
        DemoHome.at(path)
    assert files(path) == before


@pytest.mark.parametrize("nonsense", ["", "[]", "{}", '{"layout": "x", "home": "", "complete": true}'])
def test_a_file_that_no_demo_wrote_is_left_alone(path: Path, nonsense: str) -> None:
    path.mkdir(parents=True)
    (path / "demo.json").write_text(nonsense)
    with pytest.raises(PreconditionFailed, match=r"demo\.json is not a valid demo file: delete"):
        DemoHome.at(path)


def test_a_demo_that_was_moved_is_told_from_one_that_is_in_its_place(path: Path, tmp_path: Path) -> None:
    DemoHome.at(path).completed()
    path.rename(tmp_path / "moved")
    with pytest.raises(PreconditionFailed, match=f"was created in {path}, and its tables refer to files there"):
        DemoHome.at(tmp_path / "moved")


def test_a_place_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match="choose"):
        DemoHome.at(tmp_path / "file")


def test_two_do_not_make_one_demo_at_the_same_time(path: Path) -> None:
    home = DemoHome.at(path)
    with (
        home.making(),
        pytest.raises(PreconditionFailed, match="another process is building the demo"),
        DemoHome.at(path).making(),
    ):
        pass
    with home.making():
        pass
