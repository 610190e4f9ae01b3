"""Metrics and reflection are for operators: with a token, or from a network that the operator names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2
from starlette.responses import PlainTextResponse

from runtime.in_process import requested
from skiway.config import load
from skiway.errors import InvalidArgument, Unavailable
from skiway.metastore import Realm
from skiway.request_path import Access, Operators
from skiway.runtime.grpc.door import enable_reflection
from skiway.runtime.http.door import web_app
from skiway.security import PermissionAuthorizer, TokenAuthenticator, new_token
from skiway.storage import open_stores

TOKENS = {
    "monitor": new_token("prometheus", "", roles=["platform-monitor"]),
    "platform": new_token("boss", "", roles=["platform-admin"]),
    "tenant": new_token("ada", "a1", roles=["administrator"]),
}
PRIVATE = "10.1.2.3"
PUBLIC = "203.0.113.5"


def operators(*networks: str) -> Operators:
    entries = [token.entry for token in TOKENS.values()]
    authenticator = TokenAuthenticator(lambda: entries, accounts=None)
    with open_stores("memory://") as stores:
        access = Access(lambda who: Realm(stores, who.account_id), authenticator, PermissionAuthorizer())
    return Operators.of(access, networks)


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {TOKENS[name].text.reveal()}"} if name else {}


def get(
    path: str, *, peer: str = PUBLIC, networks: Sequence[str] = (), token: str = "", **headers: str
) -> tuple[int, str]:
    app = web_app(
        iceberg=PlainTextResponse("iceberg"),
        explorer=PlainTextResponse("explorer"),
        metrics=lambda: "account_secret_sales 1",
        not_ready=lambda: (),
        operators=operators(*networks),
    )
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = requested(app, path, headers={**bearer(token), **sent}, peer=peer)
    return answer.status_code, answer.text


@pytest.mark.parametrize(
    ("token", "status"), [("", 401), ("tenant", 403), ("monitor", 200), ("platform", 200)], ids=lambda value: str(value)
)
def test_metrics_need_a_platform_role(token: str, status: int) -> None:
    answer = get("/metrics", token=token)
    assert (answer[0], "secret_sales" in answer[1]) == (status, status == 200)


def test_authentication_that_is_unavailable_is_not_an_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def down(*_: object) -> None:
        raise Unavailable("the store is unavailable: try again later")

    monkeypatch.setattr(TokenAuthenticator, "authenticate", down)
    assert get("/metrics", token="monitor") == (503, "the store is unavailable: try again later\n")


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_health_is_open(path: str) -> None:
    assert get(path)[0] == 200


@pytest.mark.parametrize("peer", [PRIVATE, f"::ffff:{PRIVATE}", "127.0.0.1"])
def test_operator_network_needs_no_token(peer: str) -> None:
    networks = ("10.1.0.0/16", "127.0.0.1")
    assert get("/metrics", peer=peer, networks=networks)[0] == 200
    assert get("/metrics", peer=peer)[0] == 401
    assert get("/metrics", peer=PUBLIC, networks=networks)[0] == 401


@pytest.mark.parametrize("header", ["x_forwarded_for", "forwarded", "x_real_ip", "via"])
def test_address_of_a_proxy_is_not_that_of_its_client(header: str) -> None:
    networks = ("10.1.0.0/16", PUBLIC)
    assert get("/metrics", peer=PRIVATE, networks=networks, **{header: PUBLIC})[0] == 401
    assert get("/metrics", peer=PUBLIC, networks=("10.1.0.0/16",), **{header: PRIVATE})[0] == 401


def test_invalid_network_is_reported() -> None:
    with pytest.raises(InvalidArgument, match=r"server\.operator_networks.*10\.1\.0\.0/16"):
        load(flags={"server.operator_networks": "10.1.2.3/16"})
    assert load(flags={"server.operator_networks": "10.1.0.0/16; ::1"}).server.operator_networks == (
        "10.1.0.0/16",
        "::1",
    )


@contextmanager
def reflecting(*networks: str) -> Iterator[grpc.Channel]:
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads)
        enable_reflection(["skiway.v1.TableService"], server, operators(*networks))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield channel
        finally:
            server.stop(None).wait()


def services(channel: grpc.Channel, version: str, token: str = "") -> Any:
    ask = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    answers = ask(
        iter([reflection_pb2.ServerReflectionRequest(list_services="")]),
        metadata=tuple(bearer(token).items()),
        timeout=20,
    )
    try:
        return [each.name for each in next(answers).list_services_response.service]
    except grpc.RpcError as error:
        return error.code()  # type: ignore[attr-defined]


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_needs_a_token_or_an_operator_network(version: str) -> None:
    with reflecting() as channel:
        assert services(channel, version) is grpc.StatusCode.UNAUTHENTICATED
        assert "skiway.v1.TableService" in services(channel, version, "tenant")
    with reflecting("127.0.0.0/8", "::1") as channel:
        assert "skiway.v1.TableService" in services(channel, version)
