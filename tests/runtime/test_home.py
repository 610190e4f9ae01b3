"""The home of a server is closed to other users, also if it was created with other permissions."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from skiway.config import load
from skiway.errors import PreconditionFailed
from skiway.runtime.stores import prepare_home, stores_of


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_existing_home_is_closed_to_other_users(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    home = tmp_path / "home"
    for name in ("secrets", "audit", "blobs", "warehouse"):
        (home / name).mkdir(parents=True)
    files = ("skiway.toml", "tokens.toml", "pointers.db", "secrets/a", "audit/calls.jsonl")
    for name in (*files, "warehouse/data.parquet"):
        (home / name).touch()
        (home / name).chmod(0o644)
    home.chmod(0o755)
    with stores_of(load(home), home):
        pass
    assert mode(home) == 0o700
    assert {name: oct(mode(home / name)) for name in files} == dict.fromkeys(files, oct(0o600))
    assert mode(home / "secrets") == mode(home / "audit") == mode(home / "blobs") == 0o700
    assert mode(home / "warehouse" / "data.parquet") == 0o644, "closed by the folder, and possibly large"
    assert "took away their permissions" in caplog.text
    caplog.clear()
    prepare_home(load(home), home)
    assert not caplog.records


def test_home_of_another_user_stops_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir(mode=0o755)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PreconditionFailed, match="chmod go="):
        prepare_home(load(tmp_path / "home"), tmp_path / "home")
    (tmp_path / "home").chmod(0o700)
    prepare_home(load(tmp_path / "home"), tmp_path / "home")
