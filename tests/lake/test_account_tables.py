"""`skiway.tokens` and `skiway.audit`: for administrators, and only of their own account."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from lake.lakes import Lake, opened_lake
from skiway.config import Settings
from skiway.config.telemetry import Audit
from skiway.lake.system import administration
from skiway.security import new_token
from skiway.security.tokens import add_token


def rows(lake: Lake, token: str, table: str) -> list[dict[str, Any]]:
    with lake.client(token=token) as db:
        return list(db.scan(f"skiway.{table}").read_all().to_pylist())


def write_log(folder: Path, *lines: str | dict[str, Any]) -> None:
    folder.mkdir(exist_ok=True)
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    (folder / "table.log").write_text("".join(f"{text}\n" for text in texts))


def record(number: int, account: str = "a1") -> dict[str, Any]:
    return {
        "time": f"2026-01-01T00:00:{number:02d}.000Z",
        "account_id": account,
        "subject": f"user{number}",
        "operation": "GetTable",
        "outcome": "OK",
        "duration_ms": 1.5,
        "table": "people",
    }


def test_audit_has_the_records_of_the_own_account_newest_first(tmp_path: Path) -> None:
    write_log(tmp_path / "audit", record(1), "damaged {", "[]", '{"time": 5}', record(2, "other"), record(3))
    with opened_lake(tmp_path, settings=Settings(audit=Audit(directory=tmp_path / "audit"))) as lake:
        found = rows(lake, "writer", "audit")
        assert [(each["caller"], each["category"], each["outcome"]) for each in found] == [
            ("user3", "table", "OK"),
            ("user1", "table", "OK"),
        ]
        assert json.loads(found[0]["details"]) == {"table": "people"}
        assert rows(lake, "reader", "audit") == rows(lake, "nothing", "audit") == []


def test_only_the_end_of_a_large_log_is_read(tmp_path: Path, monkeypatch: Any) -> None:
    write_log(tmp_path / "audit", *(record(number) for number in range(20)))
    monkeypatch.setattr(administration, "TAIL_BYTES", 500)
    with opened_lake(tmp_path, settings=Settings(audit=Audit(directory=tmp_path / "audit"))) as lake:
        found = rows(lake, "writer", "audit")
    assert [each["caller"] for each in found] == ["user19", "user18", "user17"]


def test_disabled_audit_log_is_empty(tmp_path: Path) -> None:
    write_log(tmp_path / "audit", record(1))
    disabled = Settings(audit=Audit(enabled=False, directory=tmp_path / "audit"))
    with opened_lake(tmp_path, settings=disabled) as lake:
        assert rows(lake, "writer", "audit") == []


def test_tokens_are_empty_without_a_file(tmp_path: Path) -> None:
    with opened_lake(tmp_path) as lake:
        assert rows(lake, "writer", "tokens") == []


def test_tokens_of_other_accounts_are_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    for name, account in (("ada", "a1"), ("bob", "other")):
        add_token(file, new_token(name, account, roles=["member"]).entry)
    settings = Settings()
    settings = replace(settings, auth=replace(settings.auth, tokens=replace(settings.auth.tokens, file=file)))
    with opened_lake(tmp_path, settings=settings) as lake:
        assert [(each["name"], each["state"]) for each in rows(lake, "writer", "tokens")] == [("ada", "valid")]
        assert rows(lake, "reader", "tokens") == []
