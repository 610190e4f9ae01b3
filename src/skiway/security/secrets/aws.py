"""Clients of AWS Secrets Manager: one for all accounts, or one for each, in a role tagged with the account."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from threading import Lock
from typing import Any, Protocol

from cachetools import LRUCache

from skiway import extras
from skiway.clock import Clock, utc_now
from skiway.errors import LimitExceeded, SkiwayError, Unavailable
from skiway.security.secrets.store import check_size, no_such_secret, secret_key

with extras.needed("aws", "AWS Secrets Manager"):
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

__all__ = ["ACCOUNT_TAG", "AssumedRole", "AwsAccess", "AwsSecrets", "Clients", "OneClient"]

ACCOUNT_TAG = "AccountId"
SESSION_S = 3600
RENEW_BEFORE = timedelta(minutes=5)
MAX_SESSIONS = 256
CONFIG = Config(retries={"mode": "standard", "max_attempts": 4}, connect_timeout=5, read_timeout=10)


class AwsAccess:
    """How AWS is reached; what is left out, boto3 finds in its usual places."""

    def __init__(self, *, region: str | None, endpoint: str | None, credentials: Mapping[str, str]) -> None:
        # One session for all clients: what it has read of a service's description is not read again.
        self._session = boto3.session.Session(region_name=region, **credentials)
        self._endpoint = endpoint

    def client(self, service: str, **credentials: str) -> Any:
        """A client; with `credentials` instead of the session's own, when some are given. For one thread at a time."""
        return self._session.client(service, endpoint_url=self._endpoint, config=CONFIG, **credentials)


class Clients(Protocol):
    """Gives the client to use for an account's secrets."""

    def client(self, account_id: str) -> Any:
        """A client of Secrets Manager."""


class OneClient:
    """The server's own rights, for all accounts."""

    def __init__(self, access: AwsAccess) -> None:
        self._client = access.client("secretsmanager")

    def client(self, account_id: str) -> Any:  # noqa: ARG002  (all accounts share it)
        """The one client."""
        return self._client


@dataclass(frozen=True, slots=True)
class Session:
    """A client and until when it can be used."""

    client: Any
    renew_at: datetime


class AssumedRole:
    """A role assumed for each account, with a session tag that policies can compare with the tag of a secret.

    So AWS itself keeps the secrets of accounts apart. A session is used until shortly before it ends.
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
        given = self._sts.assume_role(
            RoleArn=self._role_arn,
            RoleSessionName=_session_name(account_id),
            DurationSeconds=SESSION_S,
            Tags=[{"Key": ACCOUNT_TAG, "Value": account_id}],
        )["Credentials"]
        client = self._access.client(
            "secretsmanager",
            aws_access_key_id=given["AccessKeyId"],
            aws_secret_access_key=given["SecretAccessKey"],
            aws_session_token=given["SessionToken"],
        )
        return Session(client, given["Expiration"] - RENEW_BEFORE)


def _session_name(account_id: str) -> str:
    """What the audit log of AWS shows: the account's id, or where that has no place in a name, its digest."""
    plain = re.fullmatch(r"[\w+=,.@-]{1,57}", account_id, re.ASCII)
    return f"skiway-{account_id if plain else sha256(account_id.encode()).hexdigest()[:32]}"


# --------------------
# Secrets in AWS Secrets Manager, each tagged with its account.


MAX_NAME = 512
DELETED = {"ResourceNotFoundException", "InvalidRequestException"}  # the latter: somebody scheduled it for deletion


class AwsSecrets:
    """Secrets as those of AWS, named `{prefix}/accounts/{account}/{kind}/{id}`, with the tag `AccountId`."""

    def __init__(self, clients: Clients, *, prefix: str = "skiway") -> None:
        self._clients = clients
        self._prefix = prefix.strip("/")

    def put(self, account_id: str, kind: str, resource_id: str, data: bytes) -> None:
        """See `SecretsStore`."""
        name = self._name(account_id, kind, resource_id)
        check_size(name, data)
        with _explained(name):
            client = self._clients.client(account_id)
            tags = [{"Key": ACCOUNT_TAG, "Value": account_id}]
            try:
                client.create_secret(Name=name, SecretBinary=data, Tags=tags)
            except client.exceptions.ResourceExistsException:
                client.tag_resource(SecretId=name, Tags=tags)
                client.put_secret_value(SecretId=name, SecretBinary=data)

    def get(self, account_id: str, kind: str, resource_id: str) -> bytes:
        """See `SecretsStore`. One that was written by hand as text is given in UTF-8."""
        name = self._name(account_id, kind, resource_id)
        with _explained(name, absent=DELETED):
            found = self._clients.client(account_id).get_secret_value(SecretId=name)
        return bytes(found["SecretBinary"]) if "SecretBinary" in found else str(found["SecretString"]).encode()

    def update(self, account_id: str, kind: str, resource_id: str, data: bytes) -> None:
        """See `SecretsStore`."""
        name = self._name(account_id, kind, resource_id)
        check_size(name, data)
        with _explained(name, absent=DELETED):
            self._clients.client(account_id).put_secret_value(SecretId=name, SecretBinary=data)

    def delete(self, account_id: str, kind: str, resource_id: str) -> None:
        """See `SecretsStore`. Without the usual days of grace, in which the secret would still be there."""
        name = self._name(account_id, kind, resource_id)
        with _explained(name):
            client: Any = self._clients.client(account_id)
            try:
                client.delete_secret(SecretId=name, ForceDeleteWithoutRecovery=True)
            except client.exceptions.ResourceNotFoundException:
                return

    def __repr__(self) -> str:
        return f"AwsSecrets(prefix={self._prefix!r})"

    def _name(self, account_id: str, kind: str, resource_id: str) -> str:
        # AWS takes no percent sign. `=` stands for it: encoding leaves none of its own.
        key = secret_key(account_id, kind, resource_id).replace("%", "=")
        name = f"{self._prefix}/{key}" if self._prefix else key
        if len(name) > MAX_NAME:
            raise LimitExceeded(
                f"the secret's name {name[:80]}… has {len(name)} characters, and AWS takes {MAX_NAME}: use shorter ids",
                key="secret.name.too_long",
            )
        return name


@contextmanager
def _explained(name: str, *, absent: set[str] | None = None) -> Iterator[None]:
    """A block whose SDK errors become ours. Only their codes are told: their texts may quote what was sent."""
    try:
        yield
    except ClientError as error:
        code = error.response["Error"]["Code"]
        raise no_such_secret(name) if code in (absent or ()) else _failed(name, code) from None
    except BotoCoreError as error:
        raise _failed(name, type(error).__name__) from None


def _failed(name: str, why: str) -> SkiwayError:
    return Unavailable(
        f"secret {name}: AWS answers {why}: see region, credentials, the role to assume and its policy",
        key="secret.unavailable",
    )
