"""Secrets that are logged by mistake do not appear in the log."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from skiway.config.fields import MASK, Secret
from skiway.security.redaction import Redacted
from skiway.telemetry.logs import is_secret_name, redacted, redacted_text

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhZGEifQ.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("password=hunter2 for ada", "password=**** for ada"),
        ("db_password: 'hunter 2', user: ada", "db_password: ****, user: ada"),
        ('{"client_secret": "hunter2", "user": "ada"}', '{"client_secret": ****, "user": "ada"}'),
        ("authorization: Bearer hunter2", "authorization: Bearer ****"),
        ("got Bearer hunter2, refused", "got Bearer ****, refused"),
        ("Basic YWRhOmh1bnRlcjI= sent", "Basic **** sent"),
        ("postgresql://ada:hunter2@db/lake is down", "postgresql://ada:****@db/lake is down"),
        ("postgresql://ada:hun@ter2@db/lake", "postgresql://ada:****@db/lake"),
        ("s3://b?secret_access_key=hunter2&region=x", "s3://b?secret_access_key=****&region=x"),
        (f"token {JWT} expired", "token **** expired"),
        ("AWS_SECRET_ACCESS_KEY=hunter2", "AWS_SECRET_ACCESS_KEY=****"),
        ("x-api-key: hunter2", "x-api-key: ****"),
    ],
)
def test_text_that_looks_like_a_secret_is_masked(text: str, expected: str):
    assert redacted_text(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "removed 3 of 500 pointers",
        "page_token=abc is not ours",
        "the secret accounts/a/connectors/c is missing",
        "table sales.people at s3://bucket/path?region=eu",
        "the token was refused",
        "http://127.0.0.1:8181/iceberg",
        "password is None: password=None",
    ],
)
def test_text_without_secrets_is_unchanged(text: str):
    assert redacted_text(text) == text


@pytest.mark.parametrize("name", ["password", "Authorization", "aws_secret_access_key", "session-token", "apiKey"])
def test_names_of_secrets_are_recognized(name: str):
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["account", "page_token", "next_token", "key", "subject", "monkey"])
def test_other_names_are_not_secret(name: str):
    assert not is_secret_name(name)


def test_secrets_are_masked_by_name_at_any_depth():
    value = {"user": "ada", "options": {"password": "hunter2", "tries": 3}, "list": [{"token": "hunter2"}]}
    expected = {"user": "ada", "options": {"password": MASK, "tries": 3}, "list": [{"token": MASK}]}
    assert redacted(value) == expected


@pytest.mark.parametrize("wrapped", [Secret("hunter2"), Redacted("hunter2")])
def test_wrapped_secrets_are_masked(wrapped: object):
    assert redacted(wrapped) == MASK
    assert redacted({"anything": [wrapped]}) == {"anything": [MASK]}


def test_fields_hidden_from_repr_stay_hidden():
    @dataclass
    class Connector:
        name: str
        auth: str = field(repr=False)

    assert redacted(Connector("files", "hunter2")) == {"name": "files"}
