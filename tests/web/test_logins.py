"""Logging in to the explorer, and what visitors with few rights see."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from runtime.servers import Server
from skiway.client import AirportClient, Metastore
from skiway.web import pages
from web.explorers import Visitor, visiting, with_tokens

CANARY = "canary-4711"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, dict[str, str]]]:
    home: Path = tmp_path_factory.mktemp("logins") / "home"
    home.mkdir()
    with with_tokens(home) as (server, tokens):
        with AirportClient(server.addresses["airport"], "lake", token=tokens["ada"]) as made:
            made.create_schema("sales")
            made.create_table_as("sales.people", pa.table({"id": [1, 2], "email": [CANARY, f"{CANARY}-2"]}))
            made.create_table_as("sales.hidden", pa.table({"secret": [CANARY]}))
        with Metastore(server.address, token=tokens["ada"]) as metastore:
            metastore.grants.add("lake.sales.people", "user:eve", "read")
            metastore.policies.create("masked", to=["user:eve"], mask="null", columns=["email"])
        yield server, tokens


@pytest.fixture
def visitor(lake: tuple[Server, dict[str, str]]) -> Iterator[Visitor]:
    with visiting(lake[0]) as found:
        yield found


def log_in(visitor: Visitor, token: str, next_: str = "/") -> str:
    answer = visitor.browser.post("/login", data={"token": token, "next": next_})
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


def test_strangers_are_sent_to_the_login_and_back(visitor: Visitor, lake: tuple[Server, dict[str, str]]) -> None:
    answer = visitor.get("/tables/lake/sales/people?tab=rows")
    assert (answer.status_code, answer.headers["location"]) == (
        303,
        "/login?next=%2Ftables%2Flake%2Fsales%2Fpeople%3Ftab%3Drows",
    )
    assert visitor.get("/tables/lake/sales/people.json").status_code == 401
    assert log_in(visitor, lake[1]["ada"], "/tables/lake/sales/people?tab=rows") == "/tables/lake/sales/people?tab=rows"
    assert CANARY in visitor.page("/tables/lake/sales/people?tab=rows")


def test_programs_send_a_token_instead_of_a_session(visitor: Visitor, lake: tuple[Server, dict[str, str]]) -> None:
    def get(token: str) -> tuple[int, str]:
        answer = visitor.browser.get("/tables/lake/sales/people.json?tab=rows", headers={"authorization": token})
        return answer.status_code, answer.text

    status, text = get(f"Bearer {lake[1]['ada']}")
    assert (status, CANARY in text) == (200, True)
    status, text = get(f"bearer {lake[1]['eve']}")
    assert (status, CANARY in text) == (200, False)
    assert get("Bearer wrong")[0] == 401
    assert get("Bearer")[0] == 401
    assert "skiway_session" not in visitor.browser.cookies


def test_token_without_a_session_sends_no_forms(visitor: Visitor, lake: tuple[Server, dict[str, str]]) -> None:
    sent = {"authorization": f"Bearer {lake[1]['ada']}"}
    answer = visitor.browser.post("/sql", data={"catalog": "lake", "query": "SELECT 1"}, headers=sent)
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=%2Fsql")


FOREIGN: list[dict[str, str]] = [
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"origin": "http://[evil"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
]
FORMS = ["/logout", *(f"/{kind}/x" for method, kind in pages.PAGES if method == "POST")]


def test_forms_of_other_sites_are_refused(visitor: Visitor, lake: tuple[Server, dict[str, str]]) -> None:
    for headers in FOREIGN:
        answer = visitor.browser.post("/login", data={"token": lake[1]["ada"]}, headers=headers)
        assert (answer.status_code, "skiway_session" in visitor.browser.cookies) == (403, False), headers
    log_in(visitor, lake[1]["ada"])
    token = re.search(r'name="form_token" value="(\w+)"', visitor.page("/connectors"))
    assert token is not None
    form = {"action": "pause", "form_token": token[1]}
    for headers in FOREIGN:
        for path in FORMS:
            assert visitor.browser.post(path, data=form, headers=headers).status_code == 403, (path, headers)
    assert visitor.get("/connectors").status_code == 200, "the session continues"


def test_form_of_this_site_is_accepted(visitor: Visitor, lake: tuple[Server, dict[str, str]]) -> None:
    own = {"origin": lake[0].addresses["http"].rstrip("/"), "sec-fetch-site": "same-origin"}
    assert visitor.browser.post("/login", data={"token": lake[1]["ada"]}, headers=own).status_code == 303
    assert visitor.send("/logout", {}, on="/connectors", **own).headers["location"] == "/login"


def test_form_tokens_of_any_characters_are_refused(visitor: Visitor, lake: tuple[Server, dict[str, str]]) -> None:
    log_in(visitor, lake[1]["ada"])
    sent = {"content-type": "application/x-www-form-urlencoded"}
    for form_token in (b"k\xc3\xa4se", b"\xff", b"%ff", b"%F0%9F%94%92", b"x" * 5000, b""):
        for path in FORMS:
            body = b"action=pause&form_token=" + form_token
            assert visitor.browser.post(path, content=body, headers=sent).status_code == 403, (path, form_token)


def test_wrong_token_is_refused(visitor: Visitor) -> None:
    answer = visitor.browser.post("/login", data={"token": "wrong"})
    assert answer.status_code == 401
    assert 'role="alert"' in answer.text
    assert "skiway_session" not in visitor.browser.cookies


@pytest.mark.parametrize(
    "target", ["//evil.example", "https://evil.example/", "/\\evil.example", "javascript:alert(1)"]
)
def test_login_leads_only_to_pages_of_this_server(
    visitor: Visitor, lake: tuple[Server, dict[str, str]], target: str
) -> None:
    assert log_in(visitor, lake[1]["ada"], target) == "/"


def test_session_ends_with_the_logout(visitor: Visitor, lake: tuple[Server, dict[str, str]]) -> None:
    log_in(visitor, lake[1]["ada"])
    session = visitor.browser.cookies["skiway_session"]
    assert lake[1]["ada"] not in session
    assert visitor.send("/logout", {}).status_code == 303
    visitor.browser.cookies.set("skiway_session", session)  # as somebody who copied it would
    assert visitor.get("/").status_code == 303


def test_changed_cookie_is_refused(visitor: Visitor, lake: tuple[Server, dict[str, str]]) -> None:
    log_in(visitor, lake[1]["ada"])
    session = visitor.browser.cookies["skiway_session"]
    visitor.browser.cookies.set("skiway_session", session[:-6] + ("A" * 6))
    assert visitor.get("/").status_code == 303


def test_cookie_is_hidden_from_scripts(visitor: Visitor, lake: tuple[Server, dict[str, str]]) -> None:
    answer = visitor.browser.post("/login", data={"token": lake[1]["ada"]})
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie


PAGES = [
    *("/", "/search?q=people", "/search?q=hidden", "/search?q=canary", "/catalogs/lake", "/events", "/queries"),
    *(f"/tables/lake/sales/people?tab={tab}" for tab in ("columns", "rows", "snapshots", "files", "access", "connect")),
    "/tables/lake/sales/hidden?tab=rows",
    "/sql?catalog=lake&sql=from+sales.people",
    "/sql?catalog=lake&sql=select+cast(email+as+int)+from+sales.people",
    "/results?catalog=lake&format=csv&sql=from+sales.people",
]


@pytest.mark.parametrize("path", PAGES)
def test_masked_value_is_on_no_page(visitor: Visitor, lake: tuple[Server, dict[str, str]], path: str) -> None:
    log_in(visitor, lake[1]["eve"])
    kind, _, query = path.partition("?")
    for answer in (visitor.get(path), visitor.get(f"{'/index' if kind == '/' else kind}.json?{query}")):
        assert answer.status_code != 303
        assert CANARY not in answer.text


def test_visitor_sees_only_what_it_was_granted(visitor: Visitor, lake: tuple[Server, dict[str, str]]) -> None:
    log_in(visitor, lake[1]["eve"])
    assert [each["path"][-1] for each in visitor.data("/catalogs/lake")["members"]] == ["people"]
    assert [row[0] for row in visitor.data("/tables/lake/sales/people?tab=rows")["preview"]["rows"]] == [1, 2]
    assert visitor.get("/tables/lake/sales/hidden").status_code in (403, 404)
    assert visitor.get("/connectors").status_code == 403
    assert visitor.send("/connectors/none", {"action": "sync"}, on="/").status_code == 403


def test_administrators_see_the_tokens_and_calls_of_the_account(
    visitor: Visitor, lake: tuple[Server, dict[str, str]]
) -> None:
    log_in(visitor, lake[1]["ada"])
    tokens = {each["name"]: each for each in visitor.data("/tokens")["tokens"]}
    assert tokens.keys() == {"ada", "eve"}
    assert (tokens["ada"]["state"], tokens["ada"]["roles"]) == ("valid", ["administrator"])
    assert tokens["ada"]["last_used_at"]
    assert "ada" in {each["caller"] for each in visitor.data("/audit")["records"]}
    for page in ("/tokens", "/audit"):
        text = visitor.page(page)
        assert not [secret for secret in lake[1].values() if secret in text]


def test_others_see_neither_tokens_nor_calls(visitor: Visitor, lake: tuple[Server, dict[str, str]]) -> None:
    log_in(visitor, lake[1]["eve"])
    assert visitor.data("/tokens")["tokens"] == []
    assert visitor.data("/audit")["records"] == []
    assert [each["id"] for each in visitor.data("/accounts")["accounts"]] in ([], ["default"])
