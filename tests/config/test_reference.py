"""Every setting is documented, and every key of the documents the product must cover is a setting."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from skiway.config import describe, load
from skiway.config.settings import SHORT_FORMS, page_with_reference
from skiway.errors import InvalidArgument

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
KEYS = {setting.key for setting in describe()} | SHORT_FORMS.keys()

# Where the documents speak of the server they were written on, we have settings of our own.
OURS = {
    "quarkus.grpc.server": "server.grpc",
    "quarkus.grpc.clients.floecat": "client",
    "quarkus.log": "log",
    "quarkus.otel": "telemetry",
    "quarkus.micrometer": "telemetry",
    "telemetry": "telemetry",
}


def test_the_page_shows_the_settings_as_they_are():
    assert page_with_reference(PAGE) == PAGE, "run: .venv/bin/python -m skiway.config docs/configuration.md"


def test_every_key_is_on_the_page():
    assert [setting.key for setting in describe() if f"| `{setting.key}` |" not in PAGE] == []


def test_the_examples_on_the_page_load(tmp_path: Path):
    examples = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert examples
    for number, example in enumerate(examples):
        file = tmp_path / f"{number}.toml"
        file.write_text(example)
        load(tmp_path, file)


def test_the_mistakes_on_the_page_are_told_like_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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


def test_every_key_of_the_seed_is_a_setting(shared: Path):
    text = (shared / "seeds" / "003_39b5c625931220ef.txt").read_text()
    keys = list(keys_in(section(text, "## Configuration & Extensibility", "Extension points:")))
    assert len(keys) > 15
    assert [key for key in keys if not is_setting(key)] == []


def test_every_key_of_the_reference_is_a_setting(shared: Path):
    text = (shared / "reference" / "catalog-service.md").read_text()
    keys = list(keys_in(section(text, "### 9.4 Configuration", "Every key has an environment form")))
    assert len(keys) > 40
    assert [key for key in keys if not is_setting(key)] == []


def test_every_key_of_garbage_collection_is_a_setting(shared: Path):
    text = section((shared / "reference" / "catalog-service.md").read_text(), "### 3.7", "### 3.8")
    rows = re.findall(r"`floecat\.(gc\.(?:idempotency|cas|reconcile-jobs)\.)` (.*?)\|", text)
    assert len(rows) == 3
    named = [prefix + name for prefix, said in rows for name in re.findall(r"[a-z]+(?:-[a-z]+)+|enabled", said)]
    assert len(named) > 15
    assert [key for key in named if not is_setting(key)] == []


def test_the_defaults_are_those_of_the_reference():
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


@pytest.mark.parametrize("key", ["floecat.gc.zebra.tick-every", "floecat.zebra.*", "quarkus.zebra", "kv.zebra"])
def test_a_key_that_is_no_setting_is_found(key: str):
    assert not is_setting(key)


def section(text: str, begin: str, end: str) -> str:
    return text.partition(begin)[2].partition(end)[0]


def keys_in(text: str) -> Iterator[str]:
    """The keys in the first cells of a table, with braces spelled out; `.mode` belongs to the key before it."""
    for row in text.splitlines():
        if not row.startswith("| ") or row.startswith(("| Key", "| Property")):
            continue
        last = ""
        for said in re.findall(r"`([^`]+)`", row.strip("|").split("|")[0]):
            whole = last.rpartition(".")[0] + said if said.startswith(".") else said
            if said.startswith(".") and last in ("floecat.kv", "floecat.kv.table"):
                whole = "floecat.kv" + said
            last = last if said.startswith(".") else whole
            yield from spelled_out(whole)


def spelled_out(key: str) -> Iterator[str]:
    parts = re.split(r"\{([^}]*)\}", key)
    choices = [[part] if n % 2 == 0 else re.split(r"\s*,\s*", part) for n, part in enumerate(parts)]
    return ("".join(chosen) for chosen in product(*choices) if "…" not in "".join(chosen))


def is_setting(key: str) -> bool:
    """Whether there is such a setting, or for `a.*` a section."""
    ours = next((mine + key[len(theirs) :] for theirs, mine in OURS.items() if key.startswith(f"{theirs}.")), key)
    name = ours.removeprefix("floecat.").replace("-", "_")
    if name.endswith(".*"):
        return any(each.startswith(name[:-1]) for each in KEYS)
    return name in KEYS
