"""The operations page is accurate."""

from __future__ import annotations

import json
import re
from pathlib import Path

from skiway.config import describe
from skiway.telemetry.audit import CATEGORIES
from skiway.telemetry.context import FACTS
from skiway.telemetry.metrics import MAX_SERIES

PROJECT = Path(__file__).parents[2]
PAGE = (PROJECT / "docs" / "operations.md").read_text()


def test_page_lists_categories_facts_and_limits():
    assert " ".join(", ".join(CATEGORIES).split()) in " ".join(PAGE.split())
    assert all(f"`{fact}`" in PAGE for fact in FACTS)
    assert f"{MAX_SERIES} combinations" in PAGE


def test_settings_on_the_page_exist():
    keys = {setting.key for setting in describe()}
    named = set(re.findall(r"`((?:log|audit|telemetry|metrics)\.[a-z_.]+)`", PAGE))
    sections = {key.rpartition(".")[0] for key in keys}
    assert len(named) > 10
    assert named - keys - sections == set()


def test_audit_record_on_the_page_has_the_right_fields(tmp_path: Path):
    shown = json.loads(re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)[0])
    assert {"time", "correlation_id", "operation", "resources", "outcome", "duration_ms"} <= shown.keys()
