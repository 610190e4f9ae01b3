"""Clients of AWS Secrets Manager: one for all accounts, or one for each, in a role tagged with the account."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from threading import Lock
from typing import Any, Protocol

import boto3
from botocore.config import Config
from cachetools import LRUCache

from skiway.security.clock import Clock, utc_now

__all__ = ["ACCOUNT_TAG", "AssumedRole", "AwsAccess", "Clients", "OneClient"]

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
