"""Policies of sessions permit the access to one table, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from skiway.errors import LimitExceeded
from skiway.formats import location
from skiway.vending import TableAccess
from skiway.vending.sts import MAX_CHARACTERS, session_policy
from vending.guarded_s3 import permits

OBJECTS = "arn:aws:s3:::lake/tables/a1"


def access(folder: str = "s3://lake/tables/a1/t1", *, writes: bool = False) -> TableAccess:
    return TableAccess("a1", "ada", location(folder), writes)


def policy(**options: Any) -> Any:
    return json.loads(session_policy(access(**options)))


def test_policy_of_a_reader() -> None:
    assert policy() == {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": f"{OBJECTS}/t1/*"},
            {"Effect": "Allow", "Action": "s3:GetBucketLocation", "Resource": "arn:aws:s3:::lake"},
            {
                "Effect": "Allow",
                "Action": "s3:ListBucket",
                "Resource": "arn:aws:s3:::lake",
                "Condition": {"StringLike": {"s3:prefix": "tables/a1/t1/*"}},
            },
        ],
    }


def test_policy_of_a_writer() -> None:
    actions = policy(writes=True)["Statement"][0]["Action"]
    assert set(actions) == {
        "s3:GetObject",
        "s3:PutObject",
        "s3:DeleteObject",
        "s3:AbortMultipartUpload",
        "s3:ListMultipartUploadParts",
    }


@pytest.mark.parametrize("key", ["t2/data/x", "t11/data/x", "t1", "../a1/t2/x"])
def test_other_tables_are_out_of_reach(key: str) -> None:
    found = policy(writes=True)
    assert permits(found, "s3:GetObject", f"{OBJECTS}/t1/data/x")
    assert permits(found, "s3:ListBucket", "arn:aws:s3:::lake", "tables/a1/t1/data/")
    for action in ("s3:GetObject", "s3:PutObject", "s3:DeleteObject"):
        assert not permits(found, action, f"{OBJECTS}/{key}")
        assert not permits(found, action, f"arn:aws:s3:::other/tables/a1/t1/{key}")
    assert not permits(found, "s3:ListBucket", "arn:aws:s3:::lake", f"tables/a1/{key}")
    assert not permits(found, "s3:ListBucket", "arn:aws:s3:::lake", "tables/a1/")
    assert not permits(found, "s3:ListBucket", "arn:aws:s3:::lake", "")


def test_wildcards_in_a_path_match_only_themselves() -> None:
    found = policy(folder="s3://lake/a*b/${user}/t1")
    assert permits(found, "s3:GetObject", "arn:aws:s3:::lake/a*b/${user}/t1/x")
    assert not permits(found, "s3:GetObject", "arn:aws:s3:::lake/axb/${user}/t1/x")
    assert found["Statement"][0]["Resource"] == "arn:aws:s3:::lake/a${*}b/${$}{user}/t1/*"


def test_partition_of_the_role() -> None:
    assert '"arn:aws-cn:s3:::lake"' in session_policy(access(), partition="aws-cn")


def test_policy_that_is_too_long_is_refused() -> None:
    with pytest.raises(LimitExceeded, match=f"the maximum is {MAX_CHARACTERS}"):
        session_policy(access(f"s3://lake/{'x' * 1000}/t1"))
