"""Error responses: status, code, key, parameters, details, language and length."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from hypothesis import example, given
from hypothesis import strategies as st

from rpc.requests import lake
from rpc.rpc_server import Client, behavior, opened, principal, raising
from skiway import errors
from skiway.config.server import Errors
from skiway.metastore.records import errors as failures
from skiway.metastore.records.errors import failure
from skiway.model import v1
from skiway.rpc.door import ROOM, code_of, failure_of, language
from skiway.telemetry.context import CallContext

CODE = grpc.StatusCode
LIST = "CatalogService/ListCatalogs"

EXPECTED: Mapping[type[errors.SkiwayError], tuple[grpc.StatusCode, v1.ErrorCode.ValueType]] = {
    errors.Unauthorized: (CODE.UNAUTHENTICATED, v1.MC_UNAUTHENTICATED),
    errors.PermissionDenied: (CODE.PERMISSION_DENIED, v1.MC_PERMISSION_DENIED),
    errors.NotFound: (CODE.NOT_FOUND, v1.MC_NOT_FOUND),
    errors.InvalidArgument: (CODE.INVALID_ARGUMENT, v1.MC_INVALID_ARGUMENT),
    errors.NullRowId: (CODE.INVALID_ARGUMENT, v1.MC_INVALID_ARGUMENT),
    errors.PreconditionFailed: (CODE.FAILED_PRECONDITION, v1.MC_PRECONDITION_FAILED),
    errors.SchemaNotEmpty: (CODE.FAILED_PRECONDITION, v1.MC_PRECONDITION_FAILED),
    errors.ConstraintViolation: (CODE.FAILED_PRECONDITION, v1.MC_PRECONDITION_FAILED),
    errors.Conflict: (CODE.ABORTED, v1.MC_CONFLICT),
    errors.AlreadyExists: (CODE.ALREADY_EXISTS, v1.MC_CONFLICT),
    errors.Contention: (CODE.ABORTED, v1.MC_ABORT_RETRYABLE),
    errors.Busy: (CODE.ABORTED, v1.MC_ABORT_RETRYABLE),
    errors.Unsupported: (CODE.UNIMPLEMENTED, v1.MC_UNSUPPORTED),
    errors.LimitExceeded: (CODE.RESOURCE_EXHAUSTED, v1.MC_RATE_LIMITED),
    errors.Unavailable: (CODE.UNAVAILABLE, v1.MC_UNAVAILABLE),
    errors.TimedOut: (CODE.DEADLINE_EXCEEDED, v1.MC_TIMEOUT),
    errors.Cancelled: (CODE.CANCELLED, v1.MC_CANCELLED),
    errors.Internal: (CODE.INTERNAL, v1.MC_INTERNAL),
    errors.SkiwayError: (CODE.INTERNAL, v1.MC_INTERNAL),
}
TREE = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.SkiwayError)]
OPEN = [kind for kind in TREE if kind not in (errors.Internal, errors.SkiwayError)]


def response_to(
    error: Exception, stores, caller: str = "everybody", *, headers: Mapping[str, str] | None = None, **arguments
):
    with opened(stores, services=raising(error), **arguments) as rpc_server:
        rpc_server.callers.add(principal("ada", "catalog.read", locale="xx-YY"))
        return rpc_server.client.as_(caller)(LIST, **(headers or {}))


def test_every_error_class_has_a_status():
    assert EXPECTED.keys() == set(TREE)
    assert {kind: code_of(kind("x")) for kind in TREE} == {kind: code for kind, (code, _) in EXPECTED.items()}


@behavior(81)
@pytest.mark.parametrize("kind", OPEN)
def test_error_has_code_key_parameters_and_details(kind, stores):
    answer = response_to(
        kind("what was asked: what to do", key="some.key", field="spec.name", id="t1"),
        stores,
        headers={"x_correlation_id": "c-1", "x_query_id": "q-1"},
    )
    code, number = EXPECTED[kind]
    assert (answer.code, answer.text) == (code, "what was asked: what to do")
    assert answer.error == v1.Error(
        code=number,
        message="what was asked: what to do",
        params={"field": "spec.name", "id": "t1"},
        context={"operation": LIST, "query_id": "q-1"},
        message_key="some.key",
        correlation_id="c-1",
    )
    info = answer.detail(error_details_pb2.ErrorInfo)
    assert (info.reason, info.domain) == (kind.code, "skiway")
    assert info.metadata == {"correlation_id": "c-1", "grpc_status": code.name, "message_key": "some.key"}
    assert answer.has(error_details_pb2.BadRequest) == (code is CODE.INVALID_ARGUMENT)
    assert not answer.has(error_details_pb2.DebugInfo)


def test_invalid_field_is_reported_as_a_standard_field_violation(client: Client):
    answer = client("CatalogService/GetCatalog")
    (violation,) = answer.detail(error_details_pb2.BadRequest).field_violations
    assert (violation.field, violation.description) == ("catalog_id", answer.text)


def test_grpc_status_library_reads_the_details(client: Client):
    call = client.begin("CatalogService/GetCatalog")
    status = rpc_status.from_call(call)
    assert status is not None
    assert (status.code, status.message) == (CODE.INVALID_ARGUMENT.value[0], call.details())
    assert [each.TypeName() for each in status.details] == [
        "skiway.v1.Error",
        "google.rpc.ErrorInfo",
        "google.rpc.BadRequest",
    ]


@behavior(24)
def test_name_collisions_already_exist_and_other_conflicts_abort(rpc_server):
    sample = lake(rpc_server.factory)
    create = v1.CreateCatalogRequest(spec=v1.CatalogSpec(display_name="lake"))
    taken = rpc_server.client("CatalogService/CreateCatalog", create)
    assert (taken.code, taken.error.code) == (CODE.ALREADY_EXISTS, v1.MC_CONFLICT)
    assert (taken.error.message_key, taken.error.params["name"]) == ("catalog.already.exists", "lake")
    full = rpc_server.client(
        "CatalogService/DeleteCatalog", v1.DeleteCatalogRequest(catalog_id=sample.catalog.resource_id)
    )
    assert (full.code, full.error.code) == (CODE.ABORTED, v1.MC_CONFLICT)
    assert full.error.message_key == "catalog.not_empty"


@behavior(25)
def test_updates_with_a_missing_or_wrong_mask_or_a_wrong_kind_are_rejected(rpc_server):
    sample = lake(rpc_server.factory)
    wrong_kind = v1.ResourceId(id=sample.table.resource_id.id, kind=v1.RK_TABLE)
    for request, key in (
        (v1.UpdateCatalogRequest(catalog_id=sample.catalog.resource_id), "update.mask.required"),
        (
            v1.UpdateCatalogRequest(catalog_id=sample.catalog.resource_id, update_mask={"paths": ["nope"]}),
            "update.mask.path.invalid",
        ),
        (v1.UpdateCatalogRequest(catalog_id=wrong_kind, update_mask={"paths": ["description"]}), "kind"),
    ):
        answer = rpc_server.client("CatalogService/UpdateCatalog", request)
        assert (answer.code, answer.error.message_key) == (CODE.INVALID_ARGUMENT, key)


@behavior(81)
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("password=hunter2 in /srv/skiway/secret.toml"),
        errors.Internal("the blob /srv/skiway/secret.toml holds hunter2", key="blob.unreadable", uri="/srv/hunter2"),
        errors.SkiwayError("hunter2 /srv"),
        KeyError("hunter2 /srv"),
    ],
)
def test_internal_errors_are_returned_without_details_and_logged_with_them(error, stores, caplog):
    with caplog.at_level(logging.ERROR, "skiway.rpc"):
        answer = response_to(error, stores, headers={"x_correlation_id": "c-1"})
    assert (answer.code, answer.error.code, answer.error.message_key) == (
        CODE.INTERNAL,
        v1.MC_INTERNAL,
        "internal.error",
    )
    assert answer.text == "internal error; see the server log, correlation id c-1"
    seen = answer.text + str(answer.status) + str(answer.trailers) + str(answer.headers)
    for hidden in ("hunter2", "/srv", "Traceback", ".py", type(error).__name__):
        assert hidden not in seen
    (record,) = caplog.records
    assert record.getMessage() == f"{LIST} failed"
    assert record.exc_info is not None
    assert record.exc_info[1] is error


def test_internal_error_is_shown_in_debug_mode(stores):
    answer = response_to(RuntimeError("the cause"), stores, disclosure=Errors(debug_details=True))
    assert answer.text.startswith("internal error")
    assert "the cause" in answer.detail(error_details_pb2.DebugInfo).detail


def test_expected_error_is_not_logged_as_an_internal_error(client: Client, caplog):
    assert client("CatalogService/GetCatalog").code is CODE.INVALID_ARGUMENT
    assert caplog.records == []


def test_malformed_message_is_an_invalid_argument(client: Client):
    for operation in ("CatalogService/GetCatalog", "TableStatisticsService/PutColumnStats"):
        answer = client(operation, b"\x0a\xff")
        assert (answer.code, answer.error.message_key) == (CODE.INVALID_ARGUMENT, "message.malformed")
        assert answer.error.params["wanted"].startswith("skiway.v1.")


def test_error_with_its_own_code_is_reported_as_its_base_class(stores):
    class Strange(errors.PermissionDenied):
        code = "MY_OWN"

    answer = response_to(Strange("not on Sundays", key="sunday"), stores)
    assert (answer.code, answer.text) == (CODE.PERMISSION_DENIED, "not on Sundays")
    assert (answer.error.code, answer.error.message_key) == (v1.MC_UNSPECIFIED, "sunday")
    assert answer.detail(error_details_pb2.ErrorInfo).reason == "MY_OWN"


# -- languages ----------------------------------------------------------------------------------------------------


@pytest.fixture
def second_language(monkeypatch):
    """Messages in a language `xx`, which has a text for one key and two invalid templates."""
    words = {"MC_NOT_FOUND": {"catalog": "kein {resource} {id}", "view": "{unknown}", "table": "{"}}
    english = failures.sentences

    def sentences(language: str) -> Mapping[str, Mapping[str, str]]:
        return words if language == "xx" else english(language)

    monkeypatch.setattr(failures, "sentences", sentences)


@behavior(81)
@pytest.mark.parametrize(
    ("caller", "accepted", "prefix"),
    [
        ("everybody", "", "there is no catalog c1"),
        ("everybody", "xx", "kein catalog c1"),
        ("everybody", " XX-yy;q=0.9, en;q=0.8", "kein catalog c1"),
        ("everybody", "en", "there is no catalog c1"),
        ("everybody", "zz", "there is no catalog c1"),
        ("everybody", "../../etc", "there is no catalog c1"),
        ("everybody", "*", "there is no catalog c1"),
        ("ada", "", "kein catalog c1"),
        ("ada", "zz", "kein catalog c1"),
        ("ada", "en-GB", "there is no catalog c1"),
    ],
)
def test_language_is_that_of_the_call_then_of_the_caller_then_english(
    caller, accepted, prefix, stores, second_language
):
    error = failure(errors.NotFound, "catalog", resource="catalog", id="c1")
    answer = response_to(error, stores, caller, headers={"accept_language": accepted})
    assert answer.text.startswith(prefix)
    assert answer.error.message == answer.status.message == answer.text
    assert answer.error.params == {"resource": "catalog", "id": "c1"}


@behavior(81)
@pytest.mark.parametrize("key", ["view", "table", "namespace", "made.up", ""])
def test_error_without_a_valid_translation_is_returned_as_raised(key, stores, second_language):
    error = errors.NotFound("as it was raised", key=key, id="v1")
    assert response_to(error, stores, headers={"accept_language": "xx"}).text == "as it was raised"


def test_only_short_language_tags_are_looked_up(monkeypatch):
    monkeypatch.setattr(failures, "sentences", pytest.fail)
    assert language("abcdefgh", "x-private") == "en"


# -- length -------------------------------------------------------------------------------------------------------


@behavior(81)
def test_long_texts_are_shortened_in_the_middle(stores):
    answer = response_to(errors.NotFound("head " + "x" * 9000 + " tail", key="k", id="y" * 9000), stores)
    assert answer.code is CODE.NOT_FOUND
    assert len(answer.text) == 512
    assert answer.text.startswith("head xxx")
    assert answer.text.endswith("xxx tail")
    assert "…" in answer.text
    assert len(answer.error.params["id"]) == 512


def test_texts_of_the_allowed_length_are_unchanged(stores):
    answer = response_to(errors.NotFound("x" * 512), stores)
    assert answer.text == "x" * 512


def test_maximum_length_is_configurable(stores):
    answer = response_to(errors.NotFound("x" * 512), stores, disclosure=Errors(max_detail_chars=101))
    assert answer.text == "x" * 50 + "…" + "x" * 50


@pytest.mark.parametrize("letter", ["x", "ä", "𝄞", "\n", "%"])
def test_largest_error_reaches_the_client(letter, stores):
    params = {f"param{number}": letter * 600 for number in range(12)}
    error = errors.InvalidArgument(letter * 600, key="k" * 100, field=letter * 600, **params)
    headers = dict.fromkeys(("x_correlation_id", "x_query_id", "x_engine_kind", "x_engine_version"), "h" * 128)
    answer = response_to(error, stores, headers=headers, disclosure=Errors(debug_details=True))
    assert answer.code is CODE.INVALID_ARGUMENT
    assert answer.error.params.keys() == {"field", *params}


@example("", "\ud800", 16)  # characters that UTF-8 cannot encode
@example("", "x" * 20_000, 5000)
@given(st.text(st.characters(), max_size=2000), st.text(st.characters(), max_size=2000), st.integers(16, 5000))
def test_every_error_fits_into_the_trailers(message, value, limit):
    error = errors.InvalidArgument(message, key="k", field=value, id=value)
    encoded = failure_of(error, CallContext("c"), disclosure=Errors(max_detail_chars=limit))
    assert encoded.size <= ROOM
    assert len(encoded.message) <= limit
