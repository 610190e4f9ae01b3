"""The page about running a server lists exactly the settings, options and sweeps that exist."""

from __future__ import annotations

import re
from pathlib import Path

from runtime.servers import skiway
from skiway.config import describe, load
from skiway.runtime.gc.sweeps import sweeps
from skiway.security import MemorySecrets
from skiway.storage import open_stores

PAGE = (Path(__file__).parents[2] / "docs" / "serve.md").read_text()


def test_settings_on_the_page_exist():
    known = {setting.key for setting in describe()}
    sections = {key.rpartition(".")[0] for key in known} | {key.partition(".")[0] for key in known}
    named = set(re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)(?:=\w+)?`", PAGE)) | set(re.findall(r"--set ([a-z_.]+)=", PAGE))
    files = {"skiway.toml", "pointers.db", "tokens.toml", "ready.json"}
    assert named - files - known - sections == set()
    assert len(named & known) > 10


def test_every_option_of_serve_is_on_the_page():
    options = set(re.findall(r"--[a-z-]+", skiway("serve", "--help").stdout)) - {"--help"}
    assert len(options) == 6
    assert {option for option in options if f"`{option} " not in PAGE} == set()


def test_every_sweep_is_on_the_page():
    with open_stores("memory://") as stores:
        names = {sweep.name for sweep in sweeps(stores, MemorySecrets(), load().gc)}
    assert names == set(re.findall(r"^\| `(\w+)` \| `gc\.", PAGE, re.MULTILINE))
