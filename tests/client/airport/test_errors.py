"""Errors reach the client as they were raised: with the same class, message, key and parameters."""

from __future__ import annotations

import json
from collections.abc import Iterator

import grpc
import pyarrow as pa
import pytest

from client.recorder import Refusal, Scripted, ordinary
from skiway import errors
from skiway.airport import CatalogBuilder, Server
from skiway.airport.wire.protocol import TypedError, encode
from skiway.client import AirportClient
from skiway.client.errors import BY_CODE, BY_STATUS
from skiway.foundation.doors import GRPC_CODES

EVERY_CLASS = [kind for name in errors.__all__ for kind in [getattr(errors, name)]]

KEYS = {errors.SchemaNotEmpty: "schema.not_empty", errors.NullRowId: "rowid.null"}


def raised(kind: type[errors.SkiwayError]) -> errors.SkiwayError:
    return kind("row 7 is wrong: look at it – ünïcödé", key=KEYS.get(kind, "a.key"), row="7", table="s.t")


@pytest.fixture(scope="module")
def db() -> Iterator[AirportClient]:
    def fail(body: bytes) -> bytes:
        raise raised(getattr(errors, body.decode()))

    builder = CatalogBuilder("demo")
    schema = builder.schema("s")
    for kind in EVERY_CLASS:

        def table(scan: object, kind: type[errors.SkiwayError] = kind) -> pa.Table:
            raise raised(kind)

        schema.table(schema=pa.schema([("a", pa.int64())]), name=kind.__name__)(table)
    with (
        Server(builder.build(), port=0, actions={"fail": fail}) as server,
        AirportClient(server.location, "demo") as client,
    ):
        yield client


@pytest.mark.parametrize("kind", EVERY_CLASS)
def test_error_of_an_action_is_complete(db: AirportClient, kind: type[errors.SkiwayError]) -> None:
    sent = raised(kind)
    with pytest.raises(errors.SkiwayError) as caught:
        db.action("fail", kind.__name__)
    assert type(caught.value) is kind
    assert caught.value.message == str(caught.value) == sent.message
    assert caught.value.key == sent.key
    assert caught.value.params == sent.params
    assert caught.value.code == sent.code


@pytest.mark.parametrize("kind", EVERY_CLASS)
def test_error_of_a_scan_has_its_class_and_message(db: AirportClient, kind: type[errors.SkiwayError]) -> None:
    rows = db.scan(f"s.{kind.__name__}")
    with pytest.raises(errors.SkiwayError) as caught:
        rows.read_all()
    assert type(caught.value) is kind
    assert caught.value.message == raised(kind).message


def test_error_keeps_its_class_through_pyarrows_reader(db: AirportClient) -> None:
    with pytest.raises(errors.PermissionDenied, match="row 7"):
        db.scan("s.PermissionDenied").to_reader().read_all()


def test_codes_map_back_to_the_classes_they_came_from() -> None:
    for kind, code in GRPC_CODES.items():
        expected = errors.Internal if kind is errors.SkiwayError else kind
        assert BY_STATUS.get(code, errors.Internal) is expected


def test_unknown_class_is_mapped_by_its_code(server: Scripted, foreign: AirportClient) -> None:
    server.answers["list_schemas"] = Refusal(grpc.StatusCode.NOT_FOUND, "gone", (("skiway-error", "__import__"),))
    with pytest.raises(errors.NotFound, match="gone"):
        foreign.schemas()


# -- other servers ------------------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Scripted:
    return Scripted(ordinary(pa.table({"a": [1]})))


@pytest.fixture
def foreign(server: Scripted) -> Iterator[AirportClient]:
    with server.serving() as location, AirportClient(location, "c") as client:
        yield client


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_status_of_another_server_is_mapped_by_its_code(
    server: Scripted, foreign: AirportClient, code: grpc.StatusCode
) -> None:
    server.answers["list_schemas"] = Refusal(code, "that went wrong", (("some", "trailer"),))
    with pytest.raises(errors.SkiwayError) as caught:
        foreign.schemas()
    assert type(caught.value) is BY_STATUS.get(code, errors.Internal)
    assert caught.value.message == "that went wrong"
    assert caught.value.key == ""


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("Timestamp not supported. Detail: Failed", "Timestamp not supported"),
        ("No credentials. Detail: Unauthenticated. gRPC client debug context: {x\ny}", "No credentials"),
        ("a sentence.", "a sentence"),
        ("Detail: of the matter", "Detail: of the matter"),
    ],
)
def test_text_that_arrow_adds_to_a_message_is_removed(
    server: Scripted, foreign: AirportClient, raw: str, expected: str
) -> None:
    server.answers["list_schemas"] = Refusal(grpc.StatusCode.UNKNOWN, raw)
    with pytest.raises(errors.Internal) as caught:
        foreign.schemas()
    assert caught.value.message == expected


def test_status_without_a_message_gets_a_default_one(server: Scripted, foreign: AirportClient) -> None:
    server.answers["list_schemas"] = Refusal(grpc.StatusCode.NOT_FOUND)
    with pytest.raises(errors.NotFound, match="failed without a message"):
        foreign.schemas()


DETAILS = {
    "not json, not msgpack": b"\xff\xfe",
    "another json": b"[1]",
    "another msgpack": encode({"a": 1}),
    "empty": b"",
    "an unknown type": encode(TypedError("StrangeException", "that went wrong")),
}


@pytest.mark.parametrize("details", DETAILS.values(), ids=DETAILS.keys())
def test_details_of_another_kind_are_ignored(server: Scripted, foreign: AirportClient, details: bytes) -> None:
    trailers = (("grpc-status-details-bin", details), ("x-arrow-status", "4"))
    server.answers["DoGet"] = Refusal(grpc.StatusCode.NOT_FOUND, "that went wrong", trailers)
    with pytest.raises(errors.NotFound, match=r"^that went wrong$"):
        foreign.scan("s.t").read_all()


def test_details_cannot_downgrade_a_permission_error(server: Scripted, foreign: AirportClient) -> None:
    details = json.dumps({"code": "MC_ABORT_RETRYABLE", "key": "rowid.null", "row": 7}).encode()
    server.answers["list_schemas"] = Refusal(
        grpc.StatusCode.PERMISSION_DENIED, "no", (("grpc-status-details-bin", details),)
    )
    with pytest.raises(errors.PermissionDenied) as caught:
        foreign.schemas()
    assert caught.value.params == {"row": "7"}


def test_parameter_named_like_an_argument_of_the_error_is_kept(server: Scripted, foreign: AirportClient) -> None:
    details = json.dumps({"message": "m", "self": "s"}).encode()
    server.answers["list_schemas"] = Refusal(grpc.StatusCode.NOT_FOUND, "no", (("grpc-status-details-bin", details),))
    with pytest.raises(errors.NotFound, match=r"^no$") as caught:
        foreign.schemas()
    assert caught.value.params == {"message": "m", "self": "s"}


def test_every_code_has_a_class() -> None:
    """The table is derived from the error tree, so that a new class with its own code is mapped automatically."""
    assert BY_CODE.keys() == {kind.code for kind in EVERY_CLASS}
    assert BY_CODE[errors.SkiwayError.code] is errors.Internal
    for code, kind in BY_CODE.items():
        assert kind.code == code
        assert all(
            not issubclass(kind, other)
            for other in EVERY_CLASS
            if other.code == code and other is not kind and other is not errors.SkiwayError
        )
