"""Tokens that the servers sign: access tokens, and tokens of jobs and of queries.

Everybody can read the content; the signature needs a key that the servers share. Each purpose has its own key, so a text
that was signed for one purpose is not accepted for another.

**Access tokens** are short-lived and stand for a static token, for clients that use OAuth 2. An access token names the hash
of the static token that it was issued for, and is signed with a key that the servers share and that is in the secrets store.
A reader of the file with the hashes cannot make one, and it is worthless as soon as the static token is revoked or
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
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from hashlib import sha256
from typing import Final, Generic, TypeVar

import msgspec

from skiway.errors import PermissionDenied, Unauthorized
from skiway.foundation.clock import Clock, utc_now
from skiway.security.authentication import MEMBER_ROLE, READ, ROLES, Authorizer, Principal

T = TypeVar("T")


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


@dataclass(frozen=True, slots=True)
class _Kind(Generic[T]):
    """Tokens of one kind: they begin with `prefix`, and contain a signed value of the type `content`."""

    prefix: str
    content: type[T]
    signed: SignedText

    def sealed(self, content: T) -> str:
        return f"{self.prefix}{self.signed.seal(msgspec.json.encode(content))}"

    def opened(self, token: str, *, unknown: str) -> T:
        """The content of a token; raises `Unauthorized` with the message `unknown` if it was not issued here."""
        content = self.signed.open(token.removeprefix(self.prefix))
        if content is None:
            raise Unauthorized(unknown, key="token.unknown")
        return msgspec.json.decode(content, type=self.content)


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
        self._kind = _Kind(ACCESS_PREFIX, AccessToken, SignedText(key, "access tokens"))
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
        content = AccessToken(digest, int(start.timestamp()), int(ends.timestamp()))
        return self._kind.sealed(content), int((ends - now).total_seconds())

    def read(self, token: str, *, expired: bool = False) -> AccessToken:
        """The content of a token; raises `Unauthorized` if it was not issued here or, unless `expired`, has expired."""
        read = self._kind.opened(token, unknown="the access token is unknown: request a new one")
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
    job: LeasedJob
    table_id: str
    reads: tuple[str, ...]
    until: datetime


class JobTokens:
    """Makes and reads tokens of jobs. `key` is called at the first use; `runs` says whether a worker still has the lease of a job."""

    prefix: Final = JOB_PREFIX

    def __init__(
        self, key: Callable[[], bytes], *, runs: Callable[[LeasedJob], bool] = lambda _: False, clock: Clock = utc_now
    ) -> None:
        self._key, self._runs, self._clock = key, runs, clock

    @cached_property
    def _kind(self) -> _Kind[_JobToken]:
        return _Kind(JOB_PREFIX, _JobToken, SignedText(self._key(), "tokens of leased jobs"))

    def issue(self, job: LeasedJob, table_id: str) -> str:
        """A token for a job that maintains a table."""
        return self._kind.sealed(_JobToken(job, table_id, (), self._clock() + _LIFETIME))

    def issue_reader(self, job: LeasedJob, table_ids: Iterable[str]) -> str:
        """A token for a job, with which these tables can be read."""
        return self._kind.sealed(_JobToken(job, "", tuple(sorted(set(table_ids))), self._clock() + _LIFETIME))

    def principal(self, token: str) -> Principal:
        """The owner of a token. Raises `Unauthorized` if it was not issued here, has expired, or the job no longer runs with its lease."""
        read = self._kind.opened(token, unknown="the token of a job is unknown: start the job again")
        if self._clock() >= read.until or not self._runs(read.job):
            raise Unauthorized(
                f"this run of the job {read.job.id} has ended, so its token is no longer valid", key="token.expired"
            )
        roles = frozenset({MEMBER_ROLE} if read.table_id else ())
        return Principal(
            f"job:{read.job.id}",
            read.job.account_id,
            roles,
            ROLES[MEMBER_ROLE] if roles else frozenset(),
            expires_at=read.until,
            table_id=read.table_id,
            reads=frozenset(read.reads),
            read_only=not read.table_id,
        )


QUERY_PREFIX: Final = "skiway_query_"


class QueryTokens:
    """Makes and reads query tokens, which contain the principal of a caller who can only read."""

    prefix: Final = QUERY_PREFIX

    def __init__(self, key: bytes, *, clock: Clock = utc_now) -> None:
        self._kind = _Kind(QUERY_PREFIX, Principal, SignedText(key, "principals of queries"))
        self._clock = clock

    def issue(self, principal: Principal, lifetime_s: float) -> str:
        """A token of the principal, valid for some seconds, and not longer than the caller's own credentials."""
        until = self._clock() + timedelta(seconds=lifetime_s)
        if principal.expires_at is not None:
            until = min(until, principal.expires_at)
        return self._kind.sealed(
            replace(principal, permissions=principal.permissions & READ, expires_at=until, read_only=True)
        )

    def principal(self, token: str) -> Principal:
        """The principal of a token; raises `Unauthorized` if it was not issued here, or has expired."""
        principal = self._kind.opened(token, unknown="the token of the query is unknown")
        ends = principal.expires_at
        assert ends is not None, "every query token expires"
        if self._clock() >= ends:
            raise Unauthorized(f"the token of the query was valid until {ends.isoformat()}", key="token.expired")
        return principal


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
