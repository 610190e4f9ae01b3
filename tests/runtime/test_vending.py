"""The settings `warehouse.vending`: which provider issues credentials for which object store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from formats.google_key_file import written_key_file
from skiway.config import load
from skiway.errors import Unavailable
from skiway.formats import location
from skiway.runtime.lake import vending_of, warehouse_of
from skiway.runtime.source_access import source_access_of
from skiway.vending import TableAccess, Vending
from vending.token_exchange import token_exchange

AZURE = {"storage.azure.account_name": "skiway", "storage.azure.account_key": "cGxhbnRlZA=="}
IN_AZURE = TableAccess("a1", "ada", location("abfss://lake@skiway.dfs.core.windows.net/w/t"), writes=False)
IN_GCS = TableAccess("a1", "ada", location("gs://lake/w/t"), writes=False)


def vending(home: Path, **settings: str) -> Vending:
    loaded = load(home, flags=settings)
    return vending_of(loaded, lambda: b"", warehouse_of(loaded).properties)


def test_nothing_is_issued_by_default(tmp_path: Path) -> None:
    assert vending(tmp_path, **AZURE).credentials == {}


def test_signatures_for_azure_are_valid_as_long_as_configured(tmp_path: Path) -> None:
    enabled = {"warehouse.vending.azure.enabled": "true", "warehouse.vending.azure.duration_seconds": "900"}
    found = vending(tmp_path, **AZURE, **enabled)
    assert found.credentials.keys() == {"abfss"}
    issued = found.credentials["abfss"].issue(IN_AZURE)
    assert issued is not None
    assert issued.expires_at is not None
    assert timedelta(seconds=880) < issued.expires_at - datetime.now(UTC) <= timedelta(seconds=900)


def test_tokens_for_gcs_are_issued_with_the_configured_account(tmp_path: Path) -> None:
    with token_exchange() as exchange:
        enabled = {
            "warehouse.vending.gcs.enabled": "true",
            "warehouse.vending.gcs.token_endpoint": exchange.endpoint,
            "storage.gcs.service_account_file": str(written_key_file(tmp_path, exchange.own_tokens)),
        }
        found = vending(tmp_path, **enabled)
        assert found.credentials.keys() == {"gs"}
        issued = found.credentials["gs"].issue(IN_GCS)
        assert issued is not None
        assert issued.properties["gcs.oauth2.token"] == "limited-1"
        assert exchange.requests[0]["subject_token"] == "own-token"


def test_missing_key_file_is_reported_at_the_start(tmp_path: Path) -> None:
    given = {"warehouse.vending.gcs.enabled": "true", "storage.gcs.service_account_file": str(tmp_path / "missing")}
    with pytest.raises(Unavailable, match=r"check storage\.gcs\.service_account_file"):
        vending(tmp_path, **given)


def test_key_file_and_warehouse_are_closed_to_connectors(tmp_path: Path) -> None:
    file = tmp_path / "elsewhere" / "key.json"
    settings = load(
        tmp_path / "home", flags={"storage.gcs.service_account_file": str(file), "warehouse.uri": "gs://lake/w"}
    )
    closed = source_access_of(settings, tmp_path / "home").closed
    assert {str(file), "gs://lake/w"} <= set(closed)
