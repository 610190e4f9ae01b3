"""Access tokens of Google Cloud: their boundary, and the exchange with a token service on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from skiway.errors import Unavailable
from skiway.formats import Location, location
from skiway.formats.object_stores import GoogleToken
from skiway.vending import TableAccess
from skiway.vending.gcs_tokens import GcsTokens, access_boundary
from vending.token_exchange import TokenExchange, token_exchange

FOLDER = location("gs://lake/tables/a1/t1")
READER = TableAccess("a1", "ada", FOLDER, writes=False)
WRITER = TableAccess("a1", "ada", FOLDER, writes=True)


class GoogleCredentials:
    """Credentials of google-auth, with tokens that are valid for an hour unless a test says otherwise."""

    def __init__(self) -> None:
        self.token, self.expiry = "", datetime(2000, 1, 1)
        self.valid_for, self.refreshed = timedelta(hours=1), 0

    def refresh(self, request: Any) -> None:
        self.refreshed += 1
        self.token = f"own-{self.refreshed}"
        self.expiry = (datetime.now(UTC) + self.valid_for).replace(tzinfo=None)


@pytest.fixture
def exchange() -> Iterator[TokenExchange]:
    with token_exchange() as found:
        yield found


@pytest.fixture
def own() -> GoogleCredentials:
    return GoogleCredentials()


@pytest.fixture
def provider(exchange: TokenExchange, own: GoogleCredentials) -> GcsTokens:
    return GcsTokens(GoogleToken(own), endpoint=exchange.endpoint)


def test_boundary_permits_reading_and_listing_one_folder() -> None:
    (rule,) = access_boundary(READER)["accessBoundary"]["accessBoundaryRules"]
    assert rule == {
        "availableResource": "//storage.googleapis.com/projects/_/buckets/lake",
        "availablePermissions": ["inRole:roles/storage.objectViewer"],
        "availabilityCondition": {
            "expression": "resource.name.startsWith('projects/_/buckets/lake/objects/tables/a1/t1/') || "
            "api.getAttribute('storage.googleapis.com/objectListPrefix', '').startsWith('tables/a1/t1/')"
        },
    }


def test_boundary_of_a_writer_has_the_role_for_writing() -> None:
    (rule,) = access_boundary(WRITER)["accessBoundary"]["accessBoundaryRules"]
    assert rule["availablePermissions"] == ["inRole:roles/storage.objectUser"]


@pytest.mark.parametrize("path", ["a'b", "a') || true || ('", "a\\", "a\\' || true", 'a"b'])
def test_path_cannot_end_the_string_in_the_condition(path: str) -> None:
    access = TableAccess("a1", "ada", Location("gs", "lake", path), writes=False)
    expression = access_boundary(access)["accessBoundary"]["accessBoundaryRules"][0]["availabilityCondition"]
    texts, outside = cel_strings(expression["expression"])
    assert texts == [
        f"projects/_/buckets/lake/objects/{path}/",
        "storage.googleapis.com/objectListPrefix",
        "",
        f"{path}/",
    ]
    assert outside == "resource.name.startsWith() || api.getAttribute(, ).startsWith()"


def cel_strings(expression: str) -> tuple[list[str], str]:
    """The strings in an expression of CEL, and the text around them."""
    texts, outside, inside = list[str](), "", False
    letters = iter(expression)
    for letter in letters:
        if letter == "'":
            inside = not inside
            texts += [""] if inside else []
        elif inside:
            texts[-1] += next(letters) if letter == "\\" else letter
        else:
            outside += letter
    assert not inside
    return texts, outside


def test_token_of_the_server_is_exchanged_for_a_limited_one(exchange: TokenExchange, provider: GcsTokens) -> None:
    issued = provider.issue(READER)
    (request,) = exchange.requests
    assert request.pop("options") == access_boundary(READER)
    assert request == {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "requested_token_type": "urn:ietf:params:oauth:token-type:access_token",
        "subject_token": "own-1",
        "subject_token_type": "urn:ietf:params:oauth:token-type:access_token",
    }
    assert issued.properties == {
        "gcs.oauth2.token": "limited-1",
        "gcs.oauth2.token-expires-at": str(int(issued.expires_at.timestamp() * 1000)),
    }
    assert issued.renewal_property == "gcs.oauth2.refresh-credentials-endpoint"
    assert "limited" not in repr(issued)


def test_token_expires_when_google_says_so_or_with_that_of_the_server(
    exchange: TokenExchange, provider: GcsTokens, own: GoogleCredentials
) -> None:
    exchange.answer["expires_in"] = 600
    assert timedelta(seconds=590) < provider.issue(READER).expires_at - datetime.now(UTC) <= timedelta(seconds=600)
    del exchange.answer["expires_in"]
    assert provider.issue(WRITER).expires_at == own.expiry.replace(tzinfo=UTC)


def test_token_is_reused_for_half_of_its_life_and_for_the_same_access_only(
    exchange: TokenExchange, own: GoogleCredentials
) -> None:
    now = datetime.now(UTC)
    exchange.answer["expires_in"] = 3600
    provider = GcsTokens(GoogleToken(own), endpoint=exchange.endpoint, clock=lambda: now)
    first = provider.issue(READER)
    now += timedelta(minutes=30)
    assert provider.issue(READER) == first
    assert provider.issue(WRITER) != first
    assert provider.issue(TableAccess("a1", "grace", FOLDER, writes=False)) != first
    now += timedelta(seconds=1)
    assert provider.issue(READER) != first


def test_token_of_the_server_is_renewed_before_half_of_its_life_is_over(
    exchange: TokenExchange, own: GoogleCredentials
) -> None:
    source = GoogleToken(own)
    own.valid_for = timedelta(minutes=20)
    assert source.current()[0] == "own-1"
    assert source.current()[0] == "own-1"
    own.valid_for = timedelta(hours=1)
    issued = GcsTokens(source, endpoint=exchange.endpoint).issue(READER)
    assert exchange.requests[0]["subject_token"] == "own-2"
    assert issued.expires_at - datetime.now(UTC) > timedelta(minutes=59)


@pytest.mark.parametrize("answer", [{"error": "invalid_grant", "error_description": "secret-project"}, {}, []])
def test_failure_of_the_exchange_tells_callers_nothing(
    exchange: TokenExchange, provider: GcsTokens, answer: Any
) -> None:
    exchange.status, exchange.answer = (400 if answer else 200), answer
    with pytest.raises(Unavailable) as caught:
        provider.issue(READER)
    assert caught.value.key == "vending.unavailable"
    assert "secret-project" not in caught.value.message
    assert ("secret-project" in caught.value.detail) == ("secret-project" in json.dumps(answer))
