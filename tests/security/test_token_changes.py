"""Tokens are added to and removed from a file that servers read meanwhile."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from skiway.errors import InvalidArgument, NotFound, Unavailable
from skiway.security import TokenEntry, TokenFile, new_token
from skiway.security.tokens import add_token, remove_token, token_id


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tokens.toml"


def added(file: Path, *names: str) -> list[TokenEntry]:
    entries = [new_token(name, "acme", roles=["default"]).entry for name in names]
    for entry in entries:
        add_token(file, entry)
    return entries


def names(file: Path) -> list[str]:
    return [entry.name for entry in TokenFile(file).entries()]


def test_removed_token_is_gone_for_readers_at_once(file: Path) -> None:
    added(file, "ada", "grace", "edsger")
    reader = TokenFile(file)
    assert [entry.name for entry in remove_token(file, "grace")] == ["grace"]
    assert [entry.name for entry in reader.entries()] == ["ada", "edsger"]
    assert file.stat().st_mode & 0o077 == 0


def test_change_is_on_disk_when_the_command_ends(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power failure must not bring back a token that was removed: the folder is synced after the file was renamed."""
    added(file, "ada")
    events: list[str] = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda opened: (events.append("sync"), fsync(opened))[1])
    monkeypatch.setattr(Path, "replace", lambda self, to: (events.append("rename"), replace(self, to))[1])
    remove_token(file, "ada")
    assert events == ["sync", "rename", "sync"]


@pytest.mark.parametrize("digits", [4, 8, 64])
def test_token_is_found_by_its_id(file: Path, digits: int) -> None:
    first, second = added(file, "ada", "ada")
    remove_token(file, second.sha256[:digits].upper())
    assert TokenFile(file).entries() == (first,)


def test_one_of_several_tokens_of_a_name_must_be_named_by_its_id(file: Path) -> None:
    first, second, _ = added(file, "ada", "ada", "grace")
    with pytest.raises(InvalidArgument, match=f"{token_id(first)}, {token_id(second)}"):
        remove_token(file, "ada")
    assert names(file) == ["ada", "ada", "grace"]
    remove_token(file, "ada", every=True)
    assert names(file) == ["grace"]


@pytest.mark.parametrize("name", ["", "nobody", "abc", "ADA"])
def test_unknown_token_is_reported(file: Path, name: str) -> None:
    added(file, "ada")
    with pytest.raises(NotFound, match="skiway tokens list"):
        remove_token(file, name)
    assert names(file) == ["ada"]


def test_comments_of_other_tokens_stay(file: Path) -> None:
    file.write_text("# tokens of the team\n")
    (ada,) = added(file, "ada")
    file.write_text(f"{file.read_text()}# the next one is for reports\n")
    added(file, "report")
    remove_token(file, "report")
    assert file.read_text().startswith("# tokens of the team\n")
    assert TokenFile(file).entries() == (ada,)


def test_file_in_another_form_is_rewritten(file: Path) -> None:
    first, second = added(file, "ada", "grace")
    inline = ", ".join(
        f'{{name = "{each.name}", account = "acme", sha256 = "{each.sha256}"}}' for each in (first, second)
    )
    file.write_text(f"tokens = [{inline}]\n")
    remove_token(file, "ada")
    assert names(file) == ["grace"]


def test_json_file_is_changed_as_well(tmp_path: Path) -> None:
    entry, file = new_token("ada", "acme").entry, tmp_path / "tokens.json"
    file.write_text(f'{{"tokens": [{{"name": "ada", "account": "acme", "sha256": "{entry.sha256}"}}]}}')
    remove_token(file, "ada")
    assert names(file) == []
    with pytest.raises(InvalidArgument, match="TOML"):
        add_token(file, entry)


def test_concurrent_changes_are_all_made(file: Path) -> None:
    added(file, *(f"old{n}" for n in range(8)))
    with ThreadPoolExecutor(8) as threads:
        adding = [threads.submit(added, file, f"new{n}") for n in range(8)]
        removing = [threads.submit(remove_token, file, f"old{n}") for n in range(8)]
    assert [each.exception() for each in adding] + [each.exception() for each in removing] == [None] * 16
    assert sorted(names(file)) == [f"new{n}" for n in range(8)]


def test_directory_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="cannot write the tokens file"):
        added(tmp_path / "file" / "tokens.toml", "ada")
