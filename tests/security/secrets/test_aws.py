"""Secrets in AWS are tagged with their account and isolated by a role session per account."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest
from botocore.client import BaseClient
from botocore.exceptions import ClientError, EndpointConnectionError
from moto import mock_aws

from skiway.errors import LimitExceeded, NotFound, Unavailable
from skiway.security import open_secrets

SECRET = b"hunter2-hunter2"
OPTIONS = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
ROLE = "arn:aws:iam::123456789012:role/skiway-secrets"
REGION = "eu-west-1"


class OffsetClock:
    """The system time plus an offset, because AWS sessions expire by real time."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.ahead


class Calls(list[tuple[str, str, dict[str, Any]]]):
    """The recorded AWS calls: operation, access key, arguments."""

    def of(self, operation: str) -> list[dict[str, Any]]:
        return [arguments for name, _, arguments in self if name == operation]

    def keys_of(self, operation: str) -> list[str]:
        return [key for name, key, _ in self if name == operation]


@pytest.fixture
def aws() -> Iterator[Any]:
    with mock_aws():
        yield boto3.client("secretsmanager", region_name=REGION, **OPTIONS)


@pytest.fixture
def calls(aws, monkeypatch) -> Calls:
    calls, real = Calls(), BaseClient._make_api_call

    def watched(self, operation, arguments):
        calls.append((operation, self._request_signer._credentials.access_key, arguments))
        return real(self, operation, arguments)

    monkeypatch.setattr(BaseClient, "_make_api_call", watched)
    return calls


@pytest.fixture
def offset_clock() -> OffsetClock:
    return OffsetClock()


@pytest.fixture
def plain(aws):
    return open_secrets(f"aws://lake?region={REGION}", options=OPTIONS)


@pytest.fixture
def in_roles(aws, offset_clock):
    return open_secrets(f"aws://lake?region={REGION}&role_arn={ROLE}", options=OPTIONS, clock=offset_clock)


def test_secret_is_tagged_with_its_account(aws, plain):
    plain.put("acme", "connectors", "c1", SECRET)
    found = aws.describe_secret(SecretId="lake/accounts/acme/connectors/c1")
    assert found["Tags"] == [{"Key": "AccountId", "Value": "acme"}]
    assert aws.get_secret_value(SecretId=found["Name"])["SecretBinary"] == SECRET


def test_existing_secret_without_a_tag_is_tagged(aws, plain):
    aws.create_secret(Name="lake/accounts/acme/connectors/c1", SecretString="by hand")
    assert plain.get("acme", "connectors", "c1") == b"by hand"
    plain.put("acme", "connectors", "c1", SECRET)
    assert plain.get("acme", "connectors", "c1") == SECRET
    tags = aws.describe_secret(SecretId="lake/accounts/acme/connectors/c1")["Tags"]
    assert tags == [{"Key": "AccountId", "Value": "acme"}]


def test_names_contain_only_characters_that_aws_allows(aws, plain):
    plain.put("a~ü", "connectors", "c/1", SECRET)
    assert [each["Name"] for each in aws.list_secrets()["SecretList"]] == ["lake/accounts/a=7E=C3=BC/connectors/c=2F1"]


def test_prefix_has_a_default(aws):
    open_secrets(f"aws://?region={REGION}", options=OPTIONS).put("acme", "connectors", "c1", SECRET)
    assert [each["Name"] for each in aws.list_secrets()["SecretList"]] == ["skiway/accounts/acme/connectors/c1"]


def test_deleted_secret_has_no_recovery_window(aws, plain):
    plain.put("acme", "connectors", "c1", SECRET)
    plain.delete("acme", "connectors", "c1")
    assert aws.list_secrets(IncludePlannedDeletion=True)["SecretList"] == []


def test_secret_scheduled_for_deletion_is_not_found(aws, plain):
    plain.put("acme", "connectors", "c1", SECRET)
    aws.delete_secret(SecretId="lake/accounts/acme/connectors/c1", RecoveryWindowInDays=7)
    with pytest.raises(NotFound):
        plain.get("acme", "connectors", "c1")


def test_without_a_role_no_role_is_assumed(plain, calls):
    plain.put("acme", "connectors", "c1", SECRET)
    assert calls.of("AssumeRole") == []
    assert calls.keys_of("CreateSecret") == ["testing"]


def test_each_account_has_its_own_tagged_session(in_roles, calls):
    for account in ("acme", "globex"):
        in_roles.put(account, "connectors", "c1", SECRET)
        assert in_roles.get(account, "connectors", "c1") == SECRET
    assert [(each["RoleArn"], each["Tags"]) for each in calls.of("AssumeRole")] == [
        (ROLE, [{"Key": "AccountId", "Value": account}]) for account in ("acme", "globex")
    ]
    assert [each["RoleSessionName"] for each in calls.of("AssumeRole")] == ["skiway-acme", "skiway-globex"]
    (acme, globex), read = calls.keys_of("CreateSecret"), calls.keys_of("GetSecretValue")
    assert acme != globex
    assert "testing" not in (acme, globex)
    assert read == [acme, globex]


def test_session_is_reused_until_shortly_before_it_expires(in_roles, calls, offset_clock):
    in_roles.put("acme", "connectors", "c1", SECRET)
    offset_clock.ahead = timedelta(minutes=54)
    in_roles.get("acme", "connectors", "c1")
    assert len(calls.of("AssumeRole")) == 1
    offset_clock.ahead = timedelta(minutes=55, seconds=1)
    in_roles.get("acme", "connectors", "c1")
    offset_clock.ahead = timedelta()  # the new session expires an hour from now in real time
    in_roles.get("acme", "connectors", "c1")
    assert len(calls.of("AssumeRole")) == 2
    first, second, third = calls.keys_of("GetSecretValue")
    assert first != second
    assert second == third


def test_session_name_is_a_digest_if_the_account_id_is_not_a_valid_name(in_roles, calls):
    in_roles.put("a b/ü", "connectors", "c1", SECRET)
    (request,) = calls.of("AssumeRole")
    assert request["RoleSessionName"].removeprefix("skiway-").isalnum()
    assert request["Tags"] == [{"Key": "AccountId", "Value": "a b/ü"}]


@pytest.mark.parametrize(
    "failure",
    [
        ClientError({"Error": {"Code": "AccessDeniedException", "Message": SECRET.decode()}}, "CreateSecret"),
        EndpointConnectionError(endpoint_url="https://aws"),
    ],
    ids=["denied", "away"],
)
def test_aws_error_is_explained_without_quoting_it(plain, monkeypatch, failure):
    def fail(*_):
        raise failure

    monkeypatch.setattr(BaseClient, "_make_api_call", fail)
    for call in (
        lambda: plain.put("acme", "connectors", "c1", SECRET),
        lambda: plain.update("acme", "connectors", "c1", SECRET),
        lambda: plain.get("acme", "connectors", "c1"),
        lambda: plain.delete("acme", "connectors", "c1"),
    ):
        with pytest.raises(Unavailable, match="check the region, the credentials") as refused:
            call()
        assert SECRET.decode() not in refused.value.message
        assert "AccessDeniedException" in refused.value.message or "EndpointConnectionError" in refused.value.message


def test_role_that_cannot_be_assumed_is_explained(in_roles, monkeypatch):
    def fail(self, operation, arguments):
        assert operation == "AssumeRole"
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, operation)

    monkeypatch.setattr(BaseClient, "_make_api_call", fail)
    with pytest.raises(Unavailable, match=r"AWS returned AccessDenied.*the role to assume"):
        in_roles.get("acme", "connectors", "c1")


def test_name_that_is_too_long_for_aws_is_explained(plain):
    with pytest.raises(LimitExceeded, match="the maximum of AWS is 512"):
        plain.put("acme", "connectors", "x" * 500, SECRET)


def test_credentials_do_not_appear_in_repr(plain, in_roles):
    assert "testing" not in repr([plain, in_roles, vars(plain), vars(in_roles)])
