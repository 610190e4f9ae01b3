"""Tokens of jobs: with them, a job uses a door of the servers, for example from Spark.

A token is signed with the key that the servers share. It names the account, the job, its lease and its tables. It is valid while the
worker has this lease, for a day at most: when a worker was killed, its tokens expire with the lease, and they are not valid for the
next attempt either. The token of a job that maintains a table may read and write this table, and nothing else. The token for a Python
function of a pipeline may read the tables that the function reads, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Final

import msgspec

from skiway.clock import Clock, utc_now
from skiway.errors import Unauthorized
from skiway.security.principals import MEMBER_ROLE, ROLES, Principal
from skiway.security.signed_text import SignedText

__all__ = ["JOB_PREFIX", "JobTokens", "LeasedJob"]

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
