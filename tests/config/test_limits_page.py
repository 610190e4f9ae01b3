"""The page about limits names the settings and their defaults."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from skiway.config import Settings
from skiway.config.settings import known
from skiway.foundation.threads import lane_share

PAGE = (Path(__file__).parents[2] / "docs" / "limits.md").read_text()


def test_every_setting_on_the_page_exists_with_its_default() -> None:
    named = re.findall(r"`((?:server|quotas)\.[a-z_.]+)`(?: \(([0-9]+)(?: MiB)?\))?", PAGE)
    assert len(named) > 8
    for key, default in named:
        if key in ("quotas.caller", "quotas.account"):
            continue
        assert key in known(), key
        if default:
            actual = float(known()[key].default)
            assert float(default) in (actual, actual / 2**20), key


def test_quotas_on_the_page_are_those_of_the_settings() -> None:
    quotas = Settings().quotas
    rows = {
        name: (caller, account)
        for name, caller, account in re.findall(r"^\| `(\w+)` \| .* \| (\w+) \| (\w+) \|$", PAGE, re.M)
    }
    shown = {"none": 0}
    for each in fields(quotas.caller):
        found = tuple(float(shown.get(value, value)) for value in rows[each.name])
        assert found == (getattr(quotas.caller, each.name), getattr(quotas.account, each.name)), each.name
    assert lane_share(100) == 75
