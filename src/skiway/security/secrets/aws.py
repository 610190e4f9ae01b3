"""Secrets in AWS Secrets Manager, each tagged with its account.

All accounts share one client, or each has its own, in a role session tagged with the account.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from threading import Lock
from typing import Any
from urllib.parse import unquote, urlsplit

from cachetools import LRUCache

from skiway.errors import LimitExceeded, SkiwayError, Unavailable
from skiway.foundation import extras
from skiway.foundation.clock import Clock, utc_now
from skiway.security.secrets.store import AWS_CREDENTIALS, check_size, no_such_secret, parameters_of, secret_key

with extras.needed("aws", "AWS Secrets Manager"):
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError


ACCOUNT_TAG = "AccountId"
SESSION_S = 3600
RENEW_BEFORE = timedelta(minutes=5)
MAX_SESSIONS = 256
CONFIG = Config(retries={"mode": "standard", "max_attempts": 4}, connect_timeout=5, read_timeout=10)


class AwsAccess:
    """Access to AWS. Arguments that are None are found by boto3 in the usual places."""

    def __init__(self, *, region: str | None, endpoint: str | None, credentials: Mapping[str, str]) -> None:
        # One session for all clients, so that it loads each service description only once.
        self._session = boto3.session.Session(region_name=region, **credentials)
        self._endpoint = endpoint

    def client(self, service: str, **credentials: str) -> Any:
        """A client, with other `credentials` than the session's if given. Not for concurrent calls."""
        return self._session.client(service, endpoint_url=self._endpoint, config=CONFIG, **credentials)


@dataclass(frozen=True, slots=True)
class Session:
    """The client of a role session, and when to renew it."""

    client: Any
    renew_at: datetime


class AssumedRole:
    """One client per account, in a role session with a tag that policies can compare with the tag of a secret.

    AWS itself then separates the secrets of accounts. A session is renewed shortly before it expires.
    """

    def __init__(self, access: AwsAccess, role_arn: str, *, clock: Clock = utc_now) -> None:
        self._access = access
        self._role_arn = role_arn
        self._clock = clock
        self._sts = access.client("sts")
        self._sessions: LRUCache[str, Session] = LRUCache(MAX_SESSIONS)
        self._lock = Lock()

    def client(self, account_id: str) -> Any:
        """The client of the account's session."""
        with self._lock:
            session = self._sessions.get(account_id)
            if session is None or self._clock() >= session.renew_at:
                session = self._sessions[account_id] = self._assume(account_id)
            return session.client

    def _assume(self, account_id: str) -> Session:
        credentials = self._sts.assume_role(
            RoleArn=self._role_arn,
            RoleSessionName=_session_name(account_id),
            DurationSeconds=SESSION_S,
            Tags=[{"Key": ACCOUNT_TAG, "Value": account_id}],
        )["Credentials"]
        client = self._access.client(
            "secretsmanager",
            aws_access_key_id=credentials["AccessKeyId"],
            aws_secret_access_key=credentials["SecretAccessKey"],
            aws_session_token=credentials["SessionToken"],
        )
        return Session(client, credentials["Expiration"] - RENEW_BEFORE)


def _session_name(account_id: str) -> str:
    """The name shown in AWS audit logs: the account id, or its digest if the id is not allowed there."""
    plain = re.fullmatch(r"[\w+=,.@-]{1,57}", account_id, re.ASCII)
    return f"skiway-{account_id if plain else sha256(account_id.encode()).hexdigest()[:32]}"


MAX_NAME = 512
DELETED = {"ResourceNotFoundException", "InvalidRequestException"}  # the latter: scheduled for deletion


class AwsSecrets:
    """Secrets named `{prefix}/accounts/{account}/{kind}/{id}`, with the tag `AccountId`.

    `client_of` returns the client of Secrets Manager for an account.
    """

    def __init__(self, client_of: Callable[[str], Any], *, prefix: str = "skiway") -> None:
        self._client_of = client_of
        self._prefix = prefix.strip("/")

    def put(self, account_id: str, kind: str, resource_id: str, data: bytes) -> None:
        """See `SecretsStore`."""
        name = self._name(account_id, kind, resource_id)
        check_size(name, data)
        with _explained(name):
            client = self._client_of(account_id)
            tags = [{"Key": ACCOUNT_TAG, "Value": account_id}]
            try:
                client.create_secret(Name=name, SecretBinary=data, Tags=tags)
            except client.exceptions.ResourceExistsException:
                client.tag_resource(SecretId=name, Tags=tags)
                client.put_secret_value(SecretId=name, SecretBinary=data)

    def get(self, account_id: str, kind: str, resource_id: str) -> bytes:
        """See `SecretsStore`. A secret that was created as text is returned in UTF-8."""
        name = self._name(account_id, kind, resource_id)
        with _explained(name, absent=DELETED):
            secret = self._client_of(account_id).get_secret_value(SecretId=name)
        return bytes(secret["SecretBinary"]) if "SecretBinary" in secret else str(secret["SecretString"]).encode()

    def update(self, account_id: str, kind: str, resource_id: str, data: bytes) -> None:
        """See `SecretsStore`."""
        name = self._name(account_id, kind, resource_id)
        check_size(name, data)
        with _explained(name, absent=DELETED):
            self._client_of(account_id).put_secret_value(SecretId=name, SecretBinary=data)

    def delete(self, account_id: str, kind: str, resource_id: str) -> None:
        """See `SecretsStore`. Deletes at once, without the recovery window of AWS."""
        name = self._name(account_id, kind, resource_id)
        with _explained(name):
            client: Any = self._client_of(account_id)
            try:
                client.delete_secret(SecretId=name, ForceDeleteWithoutRecovery=True)
            except client.exceptions.ResourceNotFoundException:
                return

    def __repr__(self) -> str:
        return f"AwsSecrets(prefix={self._prefix!r})"

    def _name(self, account_id: str, kind: str, resource_id: str) -> str:
        # AWS does not allow `%`, so it is replaced by `=`, which does not occur in an encoded key.
        key = secret_key(account_id, kind, resource_id).replace("%", "=")
        name = f"{self._prefix}/{key}" if self._prefix else key
        if len(name) > MAX_NAME:
            raise LimitExceeded(
                f"the secret's name {name[:80]}… has {len(name)} characters, the maximum of AWS is {MAX_NAME}: use shorter ids",
                key="secret.name.too_long",
            )
        return name


@contextmanager
def _explained(name: str, *, absent: set[str] | None = None) -> Iterator[None]:
    """Translate SDK errors in the block. Only their codes are passed on: their messages may quote the request."""
    try:
        yield
    except ClientError as error:
        code = error.response["Error"]["Code"]
        raise no_such_secret(name) if code in (absent or ()) else _failed(name, code) from None
    except BotoCoreError as error:
        raise _failed(name, type(error).__name__) from None


def _failed(name: str, why: str) -> SkiwayError:
    return Unavailable(
        f"secret {name}: AWS returned {why}: check the region, the credentials, the role to assume and its policy",
        key="secret.unavailable",
    )


def open_aws(url: str, *, options: Mapping[str, str], clock: Clock) -> AwsSecrets:
    """AWS Secrets Manager, for `aws://prefix?region=...&role_arn=...`. Credentials are options."""
    parsed = urlsplit(url)
    given = parameters_of(parsed.query, options, known={"region", "endpoint", "role_arn", *AWS_CREDENTIALS})
    credentials = {name: value for name, value in given.items() if name in AWS_CREDENTIALS}
    access = AwsAccess(region=given.get("region"), endpoint=given.get("endpoint"), credentials=credentials)
    prefix = f"{parsed.netloc}{unquote(parsed.path)}" or "skiway"
    if role := given.get("role_arn"):
        return AwsSecrets(AssumedRole(access, role, clock=clock).client, prefix=prefix)
    client = access.client("secretsmanager")  # all accounts share it
    return AwsSecrets(lambda _: client, prefix=prefix)
