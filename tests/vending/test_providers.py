"""Credentials from STS and configured keys."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from skiway.errors import Unavailable
from skiway.formats import location
from skiway.vending import S3Keys, StaticKeys, TableAccess
from skiway.vending.sts import StsCredentials, StsRole

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
READER = TableAccess("a1", "ada", location("s3://lake/tables/a1/t1"), writes=False)
WRITER = TableAccess("a1", "ada", location("s3://lake/tables/a1/t1"), writes=True)


class Sts:
    """STS, as boto3 calls it."""

    def __init__(self) -> None:
        self.now, self.calls = NOW, list[dict[str, Any]]()
        self.error: Exception | None = None

    def assume_role(self, **arguments: Any) -> Any:
        if self.error:
            raise self.error
        self.calls.append(arguments)
        ends = self.now + timedelta(seconds=arguments["DurationSeconds"])
        number = len(self.calls)
        keys = {"AccessKeyId": f"ASIA{number}", "SecretAccessKey": "s", "SessionToken": "t", "Expiration": ends}
        return {"Credentials": keys}


@pytest.fixture
def sts() -> Sts:
    return Sts()


@pytest.fixture
def provider(sts: Sts) -> StsCredentials:
    return StsCredentials(sts, StsRole("arn:aws:iam::1:role/lake", 3600, "id-7"), clock=lambda: sts.now)


def test_session_is_limited_to_the_table_and_named_after_the_caller(sts: Sts, provider: StsCredentials) -> None:
    issued = provider.issue(READER)
    (call,) = sts.calls
    assert issued.properties == {
        "s3.access-key-id": "ASIA1",
        "s3.secret-access-key": "s",
        "s3.session-token": "t",
        "s3.session-token-expires-at-ms": str(int((NOW + timedelta(hours=1)).timestamp() * 1000)),
    }
    assert "'s'" not in repr(issued)
    assert "'t'" not in repr(issued)
    resource = json.loads(call.pop("Policy"))["Statement"][0]["Resource"]
    assert resource == "arn:aws:s3:::lake/tables/a1/t1/*"
    assert call == {
        "RoleArn": "arn:aws:iam::1:role/lake",
        "RoleSessionName": "skiway-a1-ada",
        "DurationSeconds": 3600,
        "ExternalId": "id-7",
    }


def test_name_that_aws_does_not_allow_is_replaced(sts: Sts, provider: StsCredentials) -> None:
    provider.issue(TableAccess("a1", "Ada Lovelace <ada>", READER.folder, writes=False))
    assert sts.calls[0]["RoleSessionName"].startswith("skiway-")
    assert " " not in sts.calls[0]["RoleSessionName"]


def test_session_is_reused_for_half_of_its_life_and_for_the_same_access_only(
    sts: Sts, provider: StsCredentials
) -> None:
    first = provider.issue(READER)
    sts.now += timedelta(minutes=30)
    assert provider.issue(READER) == first
    assert provider.issue(WRITER) != first
    other = TableAccess("a1", "grace", READER.folder, writes=False)
    assert provider.issue(other) != first
    sts.now += timedelta(seconds=1)
    assert provider.issue(READER) != first


def test_failure_of_sts_tells_callers_nothing(sts: Sts, provider: StsCredentials) -> None:
    sts.error = ClientError({"Error": {"Code": "AccessDenied", "Message": "arn:aws:iam::1:user/x"}}, "AssumeRole")
    with pytest.raises(Unavailable) as caught:
        provider.issue(READER)
    assert "arn:" not in caught.value.message
    assert "arn:" in caught.value.detail


@pytest.mark.parametrize(
    ("account", "writes", "everywhere", "expected"),
    [
        ("a1", False, True, "read"),
        ("a1", True, True, "write"),
        ("a1", False, False, None),
        ("a1", True, False, None),
        ("a2", True, True, None),
    ],
)
def test_static_keys_are_for_callers_with_the_same_rights(
    account: str, writes: bool, everywhere: bool, expected: str | None
) -> None:
    keys = StaticKeys(accounts=["a1"], read=S3Keys("read", "s"), write=S3Keys("write", "s"))
    found = keys.issue(TableAccess(account, "ada", READER.folder, writes, everywhere))
    assert (found and found.access_key_id) == expected


def test_writer_without_keys_for_writing_gets_those_for_reading() -> None:
    keys = StaticKeys(accounts=["a1"], read=S3Keys("read", "s"), write=None)
    found = keys.issue(TableAccess("a1", "ada", READER.folder, writes=True, everywhere=True))
    assert found is not None
    assert found.access_key_id == "read"
