"""The page about connectors, jobs and queries matches the code."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

from skiway.metastore.jobs.api import DEFAULT_INTERVAL
from skiway.metastore.jobs.attempts import MAX_MESSAGE, MAX_TABLE_ERRORS
from skiway.metastore.jobs.queue import JobQueue, JobRules
from skiway.metastore.queries.leases import QueryRules
from skiway.metastore.records import keys

PAGE = (Path(__file__).parents[3] / "docs" / "jobs.md").read_text()
TEXT = " ".join(PAGE.split())


def test_example_prints_the_output_on_the_page(capsys):
    ((code, printed),) = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)
    exec(code, {})
    assert capsys.readouterr().out == printed


def listed_calls(module: str) -> set[str]:
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{module}` |"))
    return set(re.findall(r"`(\w+)`", row)) - {module}


@pytest.mark.parametrize("module", ["connectors", "jobs", "queries"])
def test_page_lists_every_call(module):
    public = inspect.getmembers(importlib.import_module(f"skiway.metastore.{module}"), inspect.isfunction)
    assert listed_calls(module) == {name for name, _ in public}


def test_page_lists_every_method_of_the_job_queue():
    public = {name for name, value in vars(JobQueue).items() if callable(value) and not name.startswith("_")}
    assert listed_calls("jobs.queue") - {"JobQueue"} == public


def test_numbers_on_the_page_match_the_code():
    job, query = JobRules(), QueryRules()
    for phrase in (
        f"lasts {job.lease_s:.0f} s from",
        f"wait {job.base_backoff_s} s, then twice as long each time, up to {job.max_backoff_s:.0f} s",
        f"After {job.max_attempts} attempts",
        f"first {MAX_TABLE_ERRORS} are stored",
        f"up to {MAX_MESSAGE} characters",
        f"`ttl_seconds`, {query.default_ttl_s:.0f} s by default, at most {query.max_ttl_s / 3600:.0f} h",
        f"until {query.grace_s:.0f} s after",
        f"at most {query.max_leases} active",
        f"every `interval`, {DEFAULT_INTERVAL.total_seconds() / 60:.0f} minutes by default",
    ):
        assert phrase in TEXT, phrase


def test_keys_on_the_page_match_the_code():
    for key in (
        keys.job("{a}", "{id}"),
        keys.job_active("{a}", "{digest of the work}"),
        keys.job_listing("{a}") + "{newest first}",
        keys.schedule("{a}", "{c}"),
    ):
        assert f"`{key.replace('%7B', '{').replace('%7D', '}').replace('any', '{state}')}`" in PAGE
    assert keys.job_ready(7, "a", "j").startswith("/queue/ready/")
    assert keys.job_leased(7, "a", "j").startswith("/queue/leased/")
