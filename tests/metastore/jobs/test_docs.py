"""The page about connectors, jobs and queries matches the code."""

from __future__ import annotations

from pathlib import Path

from skiway.metastore.jobs.api import DEFAULT_INTERVAL
from skiway.metastore.jobs.attempts import MAX_TABLE_ERRORS
from skiway.metastore.jobs.queue import JobRules
from skiway.metastore.queries.leases import QueryRules

PAGE = (Path(__file__).parents[3] / "docs" / "jobs.md").read_text()
TEXT = " ".join(PAGE.split())


def test_numbers_on_the_page_match_the_code():
    job, query = JobRules(), QueryRules()
    for phrase in (
        f"a job for {job.lease_s:.0f} s from",
        f"waits {job.base_backoff_s} s, then twice as long each time, up to {job.max_backoff_s:.0f} s",
        f"After {job.max_attempts} attempts",
        f"stores the first {MAX_TABLE_ERRORS} of them",
        f"`ttl_seconds`, {query.default_ttl_s:.0f} s by default, at most {query.max_ttl_s / 3600:.0f} h",
        f"at most {query.max_leases} active",
        f"every `interval`, {DEFAULT_INTERVAL.total_seconds() / 60:.0f} minutes by default",
    ):
        assert phrase in TEXT, phrase
