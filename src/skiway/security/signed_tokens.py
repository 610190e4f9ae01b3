"""Tokens that the servers sign: access tokens, and tokens of jobs and of queries.

Everybody can read the content; the signature needs a key that the servers share. Each purpose has its own key, so a text
that was signed for one purpose is not accepted for another.

**Access tokens** are short-lived and stand for a static token, for clients that use OAuth 2. An access token names the hash
of the static token that it was issued for, and is signed with a key that the servers share and that is in the secrets store.
So whoever reads the file with the hashes cannot make one, and it is worthless as soon as the static token is revoked or
expires. It can be exchanged for a new one until the session ends; then the client must send its static token again.

**Tokens of jobs** let a job use a door of the servers, for example from Spark. A token is signed with the key that the
servers share. It names the account, the job, its lease and its tables. It is valid while the worker has this lease, for a
day at most: when a worker was killed, its tokens expire with the lease, and they are not valid for the next attempt either.
The token of a job that maintains a table may read and write this table, and nothing else. The token for a Python function of
a pipeline may read the tables that the function reads, and nothing else.

**Query tokens** let the process of a query read tables on behalf of its caller, for as long as the query may take. A token
contains the principal of the caller and is signed with a key that the servers share. Its holder can read what the caller can
read and change nothing, over Airport only.
"""

from __future__ import annotations

import binascii
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from hashlib import sha256
from typing import Final

import msgspec

from skiway.errors import PermissionDenied, Unauthorized
from skiway.foundation.clock import Clock, utc_now
from skiway.security.authentication import MEMBER_ROLE, READ, ROLES, Authorizer, Claim, Principal


class SignedText:
    """Signs and reads texts for one purpose."""

    def __init__(self, key: bytes, purpose: str) -> None:
        self._key = hmac.new(key, purpose.encode(), sha256).digest()

    def seal(self, content: bytes) -> str:
        """The content with its signature, in characters that are safe in URLs and headers."""
        return f"{_text(content)}.{_text(self._mac(content))}"

    def open(self, sealed: str) -> bytes | None:
        """The content of a text; None if it was not signed with this key for this purpose."""
        content, _, mac = sealed.partition(".")
        try:
            found, given = _bytes(content), _bytes(mac)
        except (ValueError, binascii.Error):
            return None
        return found if hmac.compare_digest(self._mac(found), given) else None

    def _mac(self, content: bytes) -> bytes:
        return hmac.new(self._key, content, sha256).digest()


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))


ACCESS_PREFIX: Final = "skiway_access_"


class AccessToken(msgspec.Struct, array_like=True, frozen=True):
    """The content of an access token: the hash of its static token, when the session began, and when the token expires."""

    sha256: str
    since: int
    until: int

    @property
    def expires_at(self) -> datetime:
        """When it expires."""
        return datetime.fromtimestamp(self.until, UTC)


class AccessTokens:
    """Makes and reads access tokens. One is valid for `lifetime_s` seconds, all of a session together for `session_s`."""

    def __init__(
        self, key: bytes, *, lifetime_s: float = 3600, session_s: float = 43200, clock: Clock = utc_now
    ) -> None:
        self._signed = SignedText(key, "access tokens")
        self._lifetime, self._session = timedelta(seconds=lifetime_s), timedelta(seconds=session_s)
        self._clock = clock

    def issue(self, digest: str, *, since: datetime | None = None, until: datetime | None = None) -> tuple[str, float]:
        """A token for the static token with this hash, and for how many seconds it is valid.

        `since` is when the session began, now if it begins; `until` is when the static token expires. Raises `Unauthorized`
        if the session is over.
        """
        now = self._clock()
        start = since or now
        ends = min(filter(None, (now + self._lifetime, start + self._session, until)))
        if ends <= now:
            raise Unauthorized(
                "the session of the access token is over: request a new one with the client's credentials",
                key="token.session",
            )
        content = msgspec.json.encode(AccessToken(digest, int(start.timestamp()), int(ends.timestamp())))
        return f"{ACCESS_PREFIX}{self._signed.seal(content)}", int((ends - now).total_seconds())

    def read(self, token: str, *, expired: bool = False) -> AccessToken:
        """The content of a token; raises `Unauthorized` if it was not issued here or, unless `expired`, has expired."""
        found = self._signed.open(token.removeprefix(ACCESS_PREFIX))
        if found is None:
            raise Unauthorized("the access token is unknown: request a new one", key="token.unknown")
        read = msgspec.json.decode(found, type=AccessToken)
        if not expired and self._clock() >= read.expires_at:
            raise Unauthorized(
                f"the access token was valid until {read.expires_at.isoformat()}: request a new one",
                key="token.expired",
            )
        return read


JOB_PREFIX: Final = "skiway_job_"
_LIFETIME: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class LeasedJob:
    """A job that a worker runs. `epoch` is the number of the worker's lease, which no other attempt of the job has."""

    account_id: str
    id: str
    epoch: int


class _JobToken(msgspec.Struct, array_like=True, frozen=True):
    account_id: str
    job_id: str
    table_id: str
    until: int
    reads: tuple[str, ...] = ()
    epoch: int = 0


class JobTokens:
    """Makes and reads tokens of jobs. `key` is called at the first use; `runs` says whether a worker still has the lease of a job."""

    prefix: Final = JOB_PREFIX

    def __init__(
        self,
        key: Callable[[], bytes],
        *,
        runs: Callable[[LeasedJob], bool] = lambda _: False,
        clock: Clock = utc_now,
    ) -> None:
        self._key, self._runs, self._clock = key, runs, clock

    @cached_property
    def _signed(self) -> SignedText:
        return SignedText(self._key(), "tokens of jobs")

    def issue(self, job: LeasedJob, table_id: str) -> str:
        """A token for a job that maintains a table."""
        return self._issue(job, table_id, ())

    def issue_reader(self, job: LeasedJob, table_ids: Iterable[str]) -> str:
        """A token for a job, with which these tables can be read."""
        return self._issue(job, "", tuple(sorted(set(table_ids))))

    def _issue(self, job: LeasedJob, table_id: str, reads: tuple[str, ...]) -> str:
        until = int((self._clock() + _LIFETIME).timestamp())
        content = msgspec.json.encode(_JobToken(job.account_id, job.id, table_id, until, reads, job.epoch))
        return f"{JOB_PREFIX}{self._signed.seal(content)}"

    def principal(self, token: str) -> Principal:
        """The owner of a token. Raises `Unauthorized` if it was not issued here, has expired, or the job no longer runs with its lease."""
        found = self._signed.open(token.removeprefix(JOB_PREFIX))
        if found is None:
            raise Unauthorized("the token of a job is unknown: start the job again", key="token.unknown")
        read = msgspec.json.decode(found, type=_JobToken)
        ends = datetime.fromtimestamp(read.until, UTC)
        if self._clock() >= ends or not self._runs(LeasedJob(read.account_id, read.job_id, read.epoch)):
            raise Unauthorized(
                f"this run of the job {read.job_id} has ended, so its token is no longer valid", key="token.expired"
            )
        if not read.table_id:
            return Principal(
                f"job:{read.job_id}",
                read.account_id,
                frozenset(),
                frozenset(),
                expires_at=ends,
                reads=frozenset(read.reads),
                read_only=True,
            )
        return Principal(
            f"job:{read.job_id}",
            read.account_id,
            frozenset({MEMBER_ROLE}),
            ROLES[MEMBER_ROLE],
            expires_at=ends,
            table_id=read.table_id,
        )


QUERY_PREFIX: Final = "skiway_query_"


class _QueryToken(msgspec.Struct, frozen=True):
    subject: str
    account: str
    roles: list[str]
    permissions: list[str]
    groups: list[str]
    claims: dict[str, Claim]
    until: int


class QueryTokens:
    """Makes and reads query tokens."""

    prefix: Final = QUERY_PREFIX

    def __init__(self, key: bytes, *, clock: Clock = utc_now) -> None:
        self._signed = SignedText(key, "query tokens")
        self._clock = clock

    def issue(self, principal: Principal, lifetime_s: float) -> str:
        """A token of the principal, valid for some seconds, and not longer than the caller's own credentials."""
        until = self._clock() + timedelta(seconds=lifetime_s)
        if principal.expires_at is not None:
            until = min(until, principal.expires_at)
        content = _QueryToken(
            principal.subject,
            principal.account_id,
            sorted(principal.roles),
            sorted(principal.permissions & READ),
            sorted(principal.groups),
            dict(principal.claims),
            int(until.timestamp()),
        )
        return f"{QUERY_PREFIX}{self._signed.seal(msgspec.json.encode(content))}"

    def principal(self, token: str) -> Principal:
        """The principal of a token; raises `Unauthorized` if it was not issued here, or has expired."""
        found = self._signed.open(token.removeprefix(QUERY_PREFIX))
        if found is None:
            raise Unauthorized("the token of the query is unknown", key="token.unknown")
        content = msgspec.json.decode(found, type=_QueryToken)
        until = datetime.fromtimestamp(content.until, UTC)
        if self._clock() >= until:
            raise Unauthorized(f"the token of the query was valid until {until.isoformat()}", key="token.expired")
        return Principal(
            content.subject,
            content.account,
            frozenset(content.roles),
            frozenset(content.permissions) & READ,
            expires_at=until,
            groups=frozenset(content.groups),
            claims=content.claims,
            read_only=True,
        )


class ReadOnlyAuthorizer:
    """Refuses callers with query tokens everything but reading, and asks the usual authorizer otherwise."""

    def __init__(self, usual: Authorizer) -> None:
        self._usual = usual

    def require(self, principal: Principal, *any_of: str) -> None:
        """Return if the caller has one of the permissions."""
        if principal.read_only:
            any_of = tuple(each for each in any_of if each in READ)
            if not any_of:
                raise PermissionDenied("the token of a query can only read", key="token.read_only")
        self._usual.require(principal, *any_of)
