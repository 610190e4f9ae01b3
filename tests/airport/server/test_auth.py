"""Authentication, authorization per catalog, and the identity that handlers receive."""

from __future__ import annotations

from functools import partial
from typing import Any

import grpc
import pyarrow as pa
import pytest

from airport.raw import AIRPORT, Raw, code_of
from airport.server.test_server import catalog_named, where
from skiway.airport import BearerAuth, CatalogAuthorizer, CatalogBuilder, Request, Server, current_request
from skiway.errors import InvalidArgument, PermissionDenied, Unauthorized

Code = grpc.StatusCode


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (*AIRPORT, ("authorization", f"Bearer {token}"))


class Team(CatalogAuthorizer):
    """Tokens are names; each may use the catalog of that name, and `common`."""

    def authenticate(self, token: str | None) -> str:
        if token not in ("ada", "grace"):
            raise Unauthorized("who are you?")
        return token

    def authorize_catalog(self, request: Request, catalog: str) -> Request:
        if catalog == "odd":
            return request
        if catalog == "broken":
            raise ValueError("the directory at db.internal:5432 is down")
        if catalog not in (request.identity, "common"):
            raise PermissionDenied(f"{request.identity} may not use {catalog}")
        return request.with_claims(role="owner" if catalog == request.identity else "guest")


def test_handlers_receive_the_identity_of_each_call() -> None:
    catalog = CatalogBuilder("demo")
    catalog.schema("s").table(schema=pa.schema({"where": pa.string()}), name="t")(
        lambda scan: pa.table({"where": [current_request().identity]})
    )
    with Server(catalog.build(), port=0, auth=BearerAuth({"1": "ada", "2": "grace"}.get)) as server:
        for token, user in (("1", "ada"), ("2", "grace")):
            with Raw(server.location, bearer(token)) as raw:
                assert where(raw, "demo", "s", "t") == user


def test_authorizer_decides_per_catalog_and_denial_is_permission_denied() -> None:
    catalogs = [catalog_named(name) for name in ("ada", "grace", "common")]
    with Server(catalogs, port=0, auth=Team()) as server, Raw(server.location, bearer("ada")) as raw:
        assert where(raw, "ada", "s", "t") == "ada"
        assert where(raw, "common", "s", "t") == "common"
        code, message = code_of(lambda: where(raw, "grace", "s", "t"))
        assert (code, message) == (Code.PERMISSION_DENIED, "ada may not use grace")
        code, message = code_of(lambda: where(raw, "broken", "s", "t"))
        assert (code, message) == (Code.PERMISSION_DENIED, "no access to catalog 'broken'")
        assert code_of(lambda: where(raw, "unknown", "s", "t"))[0] is Code.PERMISSION_DENIED


def test_the_authorizer_may_enrich_the_request() -> None:
    seen: list[Request] = []

    def scan(options):
        seen.append(current_request())
        return pa.table({"where": ["x"]})

    catalogs = [catalog_named("ada", scan), catalog_named("odd", scan)]
    with Server(catalogs, port=0, auth=Team()) as server, Raw(server.location, bearer("ada")) as raw:
        where(raw, "ada", "s", "t")
        where(raw, "odd", "s", "t")
    assert [dict(request.claims) for request in seen] == [{"role": "owner"}, {}]


def test_a_ticket_is_authorized_again_when_it_is_redeemed() -> None:
    with Server([catalog_named("ada")], port=0, auth=Team()) as server, Raw(server.location, bearer("ada")) as ada:
        ticket = ada.endpoints("ada", "s", "t")[0].ticket.ticket
        with Raw(server.location, bearer("grace")) as grace:
            assert code_of(grace.get(ticket))[0] is Code.PERMISSION_DENIED
        with Raw(server.location) as anonymous:
            assert code_of(anonymous.get(ticket))[0] is Code.UNAUTHENTICATED
        assert list(ada.get(ticket))


def test_listings_may_depend_on_the_caller() -> None:
    from skiway.airport import Catalog, CatalogVersion, Schema, Table, Versioned

    class Mine(Table):
        schema = pa.schema({"x": pa.int64()})

        def __init__(self, name: str) -> None:
            self.name = name

        def scan(self, options):
            return ()

    class Desk(Schema):
        name = "desk"

        def tables(self):
            return [Mine(f"{current_request().identity}_notes")]

    class Office(Catalog, Versioned):
        name = "office"

        def schemas(self):
            return [Desk()]

        def version(self):
            return CatalogVersion(1)

    with Server(Office(), port=0, auth=BearerAuth(lambda token: token)) as server:
        for user in ("ada", "grace", "ada"):
            with Raw(server.location, bearer(user)) as raw:
                listed = list(raw.stream("ListFlights", b""))
                assert f"{user}_notes".encode() in listed[0]
                assert raw.scan("office", "desk", f"{user}_notes").num_rows == 0
                other = "grace" if user == "ada" else "ada"
                assert code_of(partial(raw.scan, "office", "desk", f"{other}_notes"))[0] is Code.NOT_FOUND
                (body,) = raw.action("list_schemas", b"\x81\xaccatalog_name\xa6office")
                assert f"{user}_notes".encode() in unsealed(body)
                assert f"{other}_notes".encode() not in unsealed(body)


def unsealed(body: bytes) -> bytes:
    from skiway.airport.wire.protocol import CatalogRoot, unseal

    root = unseal(body, CatalogRoot, "listing")
    assert root.schemas[0].contents.serialized is not None
    return b"".join(unseal(root.schemas[0].contents.serialized, list[bytes], "schema"))


def test_denial_in_a_stream_is_a_permission_error_in_duckdb() -> None:
    with Server([catalog_named("ada")], port=0, auth=Team()) as server, Raw(server.location, bearer("ada")) as ada:
        ticket = ada.endpoints("ada", "s", "t")[0].ticket.ticket
        with Raw(server.location, bearer("grace")) as grace, pytest.raises(grpc.RpcError) as failed:
            list(grace.get(ticket))
    trailers = dict(failed.value.trailing_metadata())
    assert trailers["x-arrow-status"] == "5"
    assert b"PermissionException" in trailers["grpc-status-details-bin"]


# -- what authenticators and authorizers return -------------------------------------------------------------------------


class Answering(CatalogAuthorizer):
    """Returns what a test wants."""

    def __init__(self, identity: Any, allowed: Any) -> None:
        self.identity, self.allowed = identity, allowed

    def authenticate(self, token: str | None) -> Any:
        return self.identity

    def authorize_catalog(self, request: Request, catalog: str) -> Any:
        return self.allowed(request) if callable(self.allowed) else self.allowed


WRONG = [None, False, True, 0, 1, "", b"ada", object(), ("ada",)]


@pytest.mark.parametrize("identity", WRONG, ids=lambda value: "an object" if type(value) is object else repr(value))
def test_authenticator_that_returns_no_identity_denies_access(identity: Any, caplog: pytest.LogCaptureFixture) -> None:
    auth = Answering(identity, lambda request: request)
    with Server([catalog_named("ada")], port=0, auth=auth) as server, Raw(server.location, bearer("x")) as raw:
        code, message = code_of(lambda: where(raw, "ada", "s", "t"))
    assert (code, message) == (Code.UNAUTHENTICATED, "the server could not identify the caller")
    assert f"Answering.authenticate returned {identity!r} instead of an identity" in caplog.text


@pytest.mark.parametrize(
    "allowed", [*WRONG[:5], "ada", object()], ids=lambda value: "an object" if type(value) is object else repr(value)
)
def test_authorizer_that_returns_no_request_denies_access(allowed: Any, caplog: pytest.LogCaptureFixture) -> None:
    auth = Answering("ada", allowed)
    with Server([catalog_named("ada")], port=0, auth=auth) as server, Raw(server.location, bearer("x")) as raw:
        code, message = code_of(lambda: where(raw, "ada", "s", "t"))
        assert raw.scan("__databases").num_rows == 0
    assert (code, message) == (Code.PERMISSION_DENIED, "no access to catalog 'ada'")
    assert f"Answering.authorize_catalog returned {allowed!r} instead of a Request" in caplog.text


def test_token_check_that_returns_true_identifies_nobody() -> None:
    auth = BearerAuth(lambda token: True)  # type: ignore[arg-type, return-value]
    with Server([catalog_named("ada")], port=0, auth=auth) as server, Raw(server.location, bearer("x")) as raw:
        assert code_of(lambda: where(raw, "ada", "s", "t"))[0] is Code.UNAUTHENTICATED


class Duck:
    """Looks like an authorizer, but is none."""

    def authenticate(self, token: str | None) -> str:
        return "ada"

    def authorize_catalog(self, request: Request, catalog: str) -> Request:
        raise PermissionDenied("never asked")


@pytest.mark.parametrize(
    ("auth", "complaint"),
    [
        (
            Duck(),
            "auth: Duck has a method authorize_catalog that would never be called: let it inherit from CatalogAuthorizer",
        ),
        (
            lambda token: "ada",
            "auth is the function <lambda>, not an authenticator: write auth=BearerAuth(<lambda>)",
        ),
        (
            object(),
            "auth is an object, not an authenticator: pass an object with the method authenticate(token), such as a BearerAuth",
        ),
        (BearerAuth, "auth is the class BearerAuth, not an authenticator: pass an instance, auth=BearerAuth(…)"),
    ],
    ids=["authorizer", "function", "object", "class"],
)
def test_what_would_not_be_asked_is_rejected_when_the_server_is_made(auth: Any, complaint: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Server([catalog_named("ada")], port=0, auth=auth)
    assert refused.value.message == complaint


def test_a_request_never_shows_its_token() -> None:
    assert "secret" not in repr(Request(token="secret", metadata=(("authorization", "Bearer secret"),)))
