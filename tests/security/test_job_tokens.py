"""Tokens of jobs: valid while their job runs, and only for their table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from skiway.errors import Unauthorized
from skiway.security import IssuedTokenAuthenticator, JobTokens, LeasedJob, Principal
from skiway.security.signed_tokens import JOB_PREFIX

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB = LeasedJob("a1", "job-1", 1)


class Others:
    """Whoever has another token, or none."""

    def authenticate(self, headers: Mapping[str, str]) -> Principal:
        return Principal(headers.get("authorization", "nobody"), "a1", frozenset(), frozenset())


class Jobs:
    """A running job, and the time."""

    def __init__(self) -> None:
        self.running = {JOB}
        self.now = NOW
        self.tokens = JobTokens(lambda: b"k" * 32, runs=lambda job: job in self.running, clock=lambda: self.now)

    def call(self, token: str) -> Principal:
        return IssuedTokenAuthenticator(Others(), self.tokens).authenticate({"authorization": f"Bearer {token}"})


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


def test_job_is_a_member_of_its_account_with_one_table(jobs: Jobs) -> None:
    found = jobs.call(jobs.tokens.issue(JOB, "t-1"))
    assert (found.subject, found.account_id, found.table_id) == ("job:job-1", "a1", "t-1")
    assert found.permissions == {"account.read"}


def test_reader_reads_its_tables_and_has_no_role(jobs: Jobs) -> None:
    found = jobs.call(jobs.tokens.issue_reader(JOB, ["t-2", "t-1", "t-2"]))
    assert (found.subject, found.account_id, found.reads) == ("job:job-1", "a1", {"t-1", "t-2"})
    assert (found.table_id, found.roles, found.permissions, found.read_only) == ("", frozenset(), frozenset(), True)
    token = jobs.tokens.issue_reader(JOB, ["t-1"])
    jobs.running.clear()
    with pytest.raises(Unauthorized, match="job-1 has ended"):
        jobs.call(token)


def test_token_ends_with_its_job(jobs: Jobs) -> None:
    token = jobs.tokens.issue(JOB, "t-1")
    jobs.running.clear()
    with pytest.raises(Unauthorized, match="job-1 has ended"):
        jobs.call(token)


def test_token_ends_with_the_lease_of_its_worker(jobs: Jobs) -> None:
    """The next attempt of the job runs under another lease."""
    token = jobs.tokens.issue(JOB, "t-1")
    jobs.running = {replace(JOB, epoch=2)}
    with pytest.raises(Unauthorized, match="this run of the job job-1 has ended"):
        jobs.call(token)
    assert jobs.call(jobs.tokens.issue(replace(JOB, epoch=2), "t-1")).table_id == "t-1"


def test_token_of_a_job_that_never_ends_is_valid_for_a_day(jobs: Jobs) -> None:
    token = jobs.tokens.issue(JOB, "t-1")
    jobs.now = NOW + timedelta(hours=23)
    assert jobs.call(token).expires_at == NOW + timedelta(days=1)
    jobs.now = NOW + timedelta(days=1)
    with pytest.raises(Unauthorized):
        jobs.call(token)


def test_changed_token_and_that_of_other_servers_are_refused(jobs: Jobs) -> None:
    token = jobs.tokens.issue(JOB, "t-1")
    other = JobTokens(lambda: b"x" * 32).issue(JOB, "t-1")
    for each in (token[:-3], other, JOB_PREFIX, f"{JOB_PREFIX}a.b"):
        with pytest.raises(Unauthorized, match="unknown") as refusal:
            jobs.call(each)
        assert token not in str(refusal.value)


def test_all_others_are_authenticated_as_before(jobs: Jobs) -> None:
    assert jobs.call("abc").subject == "Bearer abc"
    assert IssuedTokenAuthenticator(Others(), jobs.tokens).authenticate({}).subject == "nobody"
