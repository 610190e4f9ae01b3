"""Every setting is documented, and every setting that the catalog service must offer exists."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from skiway.config import describe, load
from skiway.config.settings import SHORT_FORMS
from skiway.errors import InvalidArgument

PROJECT = Path(__file__).parents[2]
PAGE = (PROJECT / "docs" / "configuration.md").read_text()
REFERENCE = PROJECT / "docs" / "reference"
SETTINGS = "".join(page.read_text() for page in sorted(REFERENCE.glob("settings-*.md")))
KEYS = {setting.key for setting in describe()} | SHORT_FORMS.keys()
REQUIRED = Path(__file__).with_name("required_settings.txt").read_text().splitlines()[1:]


def test_generated_pages_are_up_to_date():
    script = runpy.run_path(str(PROJECT / "scripts" / "write_references.py"))
    pages = script["pages"]()
    written = {**pages, **script["parts"]()}
    outdated = [str(path) for path, text in written.items() if not path.exists() or path.read_text() != text]
    assert outdated == [], "run: .venv/bin/python scripts/write_references.py"
    of_runs = {REFERENCE / "benchmarks.md", REFERENCE / "compatibility.md"}
    marked = {page for page in REFERENCE.glob("*.md") if "<!-- page: generated" in page.read_text()}
    assert marked == pages.keys() | of_runs


def test_every_key_is_on_one_page():
    assert [setting.key for setting in describe() if SETTINGS.count(f"| `{setting.key}` |") != 1] == []


def test_examples_on_the_page_load(tmp_path: Path):
    examples = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert examples
    for number, example in enumerate(examples):
        file = tmp_path / f"{number}.toml"
        file.write_text(example)
        load(tmp_path, file)


def test_error_messages_on_the_page_are_accurate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (shown,) = re.findall(r"```text\n(.*?)\n```", PAGE, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lake").mkdir()
    Path("lake/skiway.toml").write_text("\n" * 10 + "[gc.cas]\nmin_agems = 1\n")
    with pytest.raises(InvalidArgument) as caught:
        load(Path("lake"), environ={"SKIWAY__QUERY__MAX_SIZE": "many"})
    assert caught.value.message == shown


def test_every_description_is_a_sentence():
    wrong = [each.key for each in describe() if not re.fullmatch(r"[A-Z].*\.", each.description)]
    assert wrong == []


def test_every_required_setting_exists():
    assert len(REQUIRED) == 71
    assert [key for key in REQUIRED if not is_setting(key)] == []


def test_defaults_are_as_documented():
    settings = load()
    query, jobs = settings.query, settings.reconciler.job_store
    assert (query.default_ttl_ms, query.ended_grace_ms, query.max_size, query.safety_expiry_minutes) == (
        60000,
        15000,
        10000,
        10,
    )
    assert (jobs.max_attempts, jobs.base_backoff_ms, jobs.max_backoff_ms, jobs.lease_ms) == (8, 500, 30000, 30000)
    assert settings.idempotency.ttl_seconds == 900
    assert (settings.log.rotation.max_bytes, settings.log.rotation.keep) == (20_000_000, 14)
    assert settings.server.grpc.max_message_bytes == 64 * 1024 * 1024


@pytest.mark.parametrize("key", ["gc.zebra.tick_every", "zebra.*", "server.zebra", "kv.zebra"])
def test_unknown_key_is_detected(key: str):
    assert not is_setting(key)


def is_setting(key: str) -> bool:
    """Whether the setting `key` exists, or for `a.*` the section `a`."""
    if key.endswith(".*"):
        return any(each.startswith(key[:-1]) for each in KEYS)
    return key in KEYS
