"""The page about running a server lists exactly the settings, options and sweeps that exist."""

from __future__ import annotations

import re
from dataclasses import fields
from datetime import timedelta
from pathlib import Path

from runtime.servers import skiway
from skiway.config import describe
from skiway.config.metastore import Gc
from skiway.runtime.gc.sweeps import KINDS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "serve.md").read_text()


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


def every(interval: timedelta) -> str:
    names = {timedelta(minutes=1): "every minute", timedelta(minutes=10): "every ten minutes"}
    return {**names, timedelta(hours=1): "every hour"}[interval]


def test_page_has_the_table_of_sweeps():
    rows = [
        f"| `{kind.name}` | `gc.{kind.section}` | {every(getattr(Gc(), kind.section).tick_every)} | {kind.deletes} |"
        for kind in KINDS
    ]
    assert re.findall(r"^\| `\w+` \| `gc\..*$", PAGE, re.MULTILINE) == rows


def test_page_of_operations_lists_all_sweeps():
    page = (DOCS / "operations.md").read_text()
    assert ", ".join(f"`{kind.name}`" for kind in KINDS) in " ".join(page.split())


def test_settings_name_the_sweeps_that_they_enable():
    settings = {setting.key: setting.description for setting in describe()}
    for section in (field.name for field in fields(Gc)):
        names = [f"`{kind.name}`" for kind in KINDS if kind.section == section]
        listed = f"sweep {names[0]}" if len(names) == 1 else f"sweeps {', '.join(names[:-1])} and {names[-1]}"
        assert settings[f"gc.{section}.enabled"] == f"Run the {listed}."
