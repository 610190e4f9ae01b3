"""Shared access signatures: what they permit, and that Azure would accept them."""

from __future__ import annotations

import base64
import hmac
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl

import pytest
from azure.core.exceptions import ClientAuthenticationError

from skiway.errors import Unavailable
from skiway.formats import location
from skiway.formats.object_stores import AzureStorage
from skiway.vending import TableAccess
from skiway.vending.azure_sas import AzureSignatures, delegation_client

NOW = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
HOST = "skiway.dfs.core.windows.net"
FOLDER = location(f"abfss://lake@{HOST}/tables/a1/t1")
READER = TableAccess("a1", "ada", FOLDER, writes=False)
WRITER = TableAccess("a1", "ada", FOLDER, writes=True)
KEY = base64.b64encode(b"the key of the account").decode()
OWN_KEY = AzureStorage({"adls.account-name": "skiway", "adls.account-key": KEY})


def parts_of(token: str) -> dict[str, str]:
    return dict(parse_qsl(token, strict_parsing=True))


def signature(key: str, *lines: str) -> str:
    return base64.b64encode(hmac.digest(base64.b64decode(key), "\n".join(lines).encode(), "sha256")).decode()


class Delegation:
    """The service that issues user delegation keys."""

    def __init__(self) -> None:
        self.calls = list[tuple[str, datetime, datetime]]()
        self.error: Exception | None = None

    def client(self, account: str) -> Any:
        def get_user_delegation_key(start: datetime, expiry: datetime) -> Any:
            if self.error:
                raise self.error
            self.calls.append((account, start, expiry))
            return SimpleNamespace(
                signed_oid="oid",
                signed_tid="tid",
                signed_start=start.strftime("%Y-%m-%dT%H:%M:%SZ"),
                signed_expiry=expiry.strftime("%Y-%m-%dT%H:%M:%SZ"),
                signed_service="b",
                signed_version="2024-11-04",
                signed_delegated_user_tid=None,
                value=base64.b64encode(f"key {len(self.calls)}".encode()).decode(),
            )

        return SimpleNamespace(get_user_delegation_key=get_user_delegation_key)


@pytest.fixture
def delegation() -> Delegation:
    return Delegation()


@pytest.mark.parametrize(("access", "permissions"), [(READER, "rl"), (WRITER, "racwdl")])
def test_signature_with_the_key_is_limited_to_the_folder(access: TableAccess, permissions: str) -> None:
    issued = AzureSignatures(OWN_KEY, lifetime_s=900, clock=lambda: NOW).issue(access)
    token = parts_of(issued.properties[f"adls.sas-token.{HOST}"])
    version = token["sv"]
    assert token == {
        "sr": "d",
        "sdd": "3",
        "sp": permissions,
        "se": "2026-01-02T03:19:05Z",
        "spr": "https",
        "sv": version,
        "sig": signature(
            KEY,
            *(permissions, "", "2026-01-02T03:19:05Z", "/blob/skiway/lake/tables/a1/t1"),
            *("", "", "https", version, "d", "", ""),
            *("", "", "", "", ""),
        ),
    }


def test_properties_are_those_of_java_and_of_pyiceberg() -> None:
    issued = AzureSignatures(OWN_KEY, lifetime_s=900, clock=lambda: NOW).issue(READER)
    token = issued.properties["adls.sas-token"]
    assert issued.properties == {
        "adls.account-name": "skiway",
        "adls.sas-token": token,
        f"adls.sas-token.{HOST}": token,
        f"adls.sas-token-expires-at-ms.{HOST}": str(int(datetime(2026, 1, 2, 3, 19, 5, tzinfo=UTC).timestamp() * 1000)),
    }
    assert issued.renewal_property == "adls.refresh-credentials-endpoint"
    assert "sig=" not in repr(issued)
    assert KEY not in str(issued.properties)


def test_signature_is_reused_for_half_of_its_life_and_for_the_same_access_only() -> None:
    now = NOW.replace(microsecond=0)
    provider = AzureSignatures(OWN_KEY, lifetime_s=3600, clock=lambda: now)
    first = provider.issue(READER)
    now += timedelta(minutes=30)
    assert provider.issue(READER) == first
    assert provider.issue(WRITER) != first
    now += timedelta(seconds=1)
    assert provider.issue(READER) != first


def test_account_without_a_key_uses_a_user_delegation_key(delegation: Delegation) -> None:
    other_account = AzureStorage({"adls.account-name": "other", "adls.account-key": KEY})
    provider = AzureSignatures(other_account, lifetime_s=900, client=delegation.client, clock=lambda: NOW)
    token = parts_of(provider.issue(READER).properties["adls.sas-token"])
    assert delegation.calls == [("skiway", NOW - timedelta(minutes=5), NOW + timedelta(seconds=1800))]
    assert (token["sr"], token["sdd"], token["sp"], token["spr"]) == ("d", "3", "rl", "https")
    assert (token["se"], token["ske"]) == ("2026-01-02T03:19:05Z", "2026-01-02T03:34:05Z")
    assert (token["skoid"], token["sktid"], token["sks"]) == ("oid", "tid", "b")
    key = base64.b64encode(b"key 1").decode()
    assert token["sig"] == signature(
        key,
        *("rl", "", "2026-01-02T03:19:05Z", "/blob/skiway/lake/tables/a1/t1"),
        *("oid", "tid", token["skt"], token["ske"], "b", token["skv"], "", "", "", "", ""),
        *("", "https", token["sv"], "d", "", ""),
        *("", ""),
        *("", "", "", "", ""),
    )


def test_user_delegation_key_is_valid_longer_than_the_signatures(delegation: Delegation) -> None:
    now = NOW
    provider = AzureSignatures(AzureStorage({}), lifetime_s=900, client=delegation.client, clock=lambda: now)
    for minutes in (0, 7, 14):
        now = NOW + timedelta(minutes=minutes)
        provider.issue(TableAccess("a1", f"caller-{minutes}", FOLDER, writes=False))
    assert len(delegation.calls) == 1
    now = NOW + timedelta(minutes=16)
    token = parts_of(provider.issue(TableAccess("a1", "grace", FOLDER, writes=False)).properties["adls.sas-token"])
    assert len(delegation.calls) == 2
    assert token["se"] <= token["ske"]


def test_delegation_keys_are_requested_over_https() -> None:
    client = delegation_client("skiway")
    assert (client.url, client.account_name) == (f"https://{HOST}/", "skiway")


def test_failure_of_azure_tells_callers_nothing(delegation: Delegation) -> None:
    delegation.error = ClientAuthenticationError("secret-tenant")
    provider = AzureSignatures(AzureStorage({}), client=delegation.client)
    with pytest.raises(Unavailable) as caught:
        provider.issue(READER)
    assert caught.value.key == "vending.unavailable"
    assert "secret-tenant" not in caught.value.message
    assert "secret-tenant" in caught.value.detail
