"""`skiway.settings`: the effective settings, without secrets, for callers who may see them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from lake.lakes import ByToken, Lake, opened_lake
from skiway.config import Settings
from skiway.config.fields import Secret
from skiway.config.server import Sql
from skiway.config.storage import Kv
from skiway.security import Principal, Roles

SECRET = "pass-word-of-the-store"


@pytest.fixture
def settings() -> Settings:
    return Settings(sql=Sql(timeout_seconds=7), kv=Kv(password=Secret(SECRET)))


def shown(lake: Lake, token: str) -> dict[str, dict[str, str]]:
    with lake.client(token=token) as db:
        return {row["key"]: row for row in db.scan("skiway.settings").read_all().to_pylist()}


def test_administrators_see_the_limits_of_callers(tmp_path: Path, settings: Settings) -> None:
    with opened_lake(tmp_path, settings=settings) as lake:
        found = shown(lake, "writer")
    assert (found["sql.timeout_seconds"]["value"], found["sql.timeout_seconds"]["default"]) == ("7", "300")
    assert found["sql.timeout_seconds"]["description"]
    assert {key.partition(".")[0] for key in found} <= {"quotas", "query", "sql", "idempotency", "events"}


def test_readers_see_nothing(tmp_path: Path, settings: Settings) -> None:
    with opened_lake(tmp_path, settings=settings) as lake:
        assert shown(lake, "reader") == {}
        assert shown(lake, "nothing") == {}


def test_operators_see_everything_but_secrets(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def developer(_: ByToken, headers: Mapping[str, str]) -> Principal:
        return Principal("dev", "a1", frozenset({"developer"}), Roles().developer())

    monkeypatch.setattr(ByToken, "authenticate", developer)
    with opened_lake(tmp_path, settings=settings) as lake:
        found = shown(lake, "writer")
    assert {"server.grpc.address", "kv.backend", "warehouse.uri"} <= found.keys()
    assert not {key for key in found if "password" in key or "secret_access_key" in key}
    assert SECRET not in str(found)
