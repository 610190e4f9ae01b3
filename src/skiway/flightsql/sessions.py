"""Sessions: the catalog and the schema of names that have none.

The client keeps them in cookies, so any server can answer its next call. They are names and give no rights. Without cookies, they are
those of the headers. Clients change them with the actions of Flight's sessions, or with USE.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

import pyarrow as pa
from google.protobuf.message import DecodeError

from skiway.airport.request import Request, authorize
from skiway.airport.server.host import Host
from skiway.airport.wire import protocol
from skiway.errors import InvalidArgument, NotFound
from skiway.flightsql.metadata import Place
from skiway.model import flight_pb2 as flight

_COOKIES: Final = {"catalog": "skiway-catalog", "schema": "skiway-schema"}
_HEADERS: Final = {"catalog": protocol.CATALOG, "schema": "airport-schema"}

SESSION_ACTIONS: Final[Mapping[str, str]] = {
    "SetSessionOptions": "Choose the catalog and the schema of names without one.",
    "GetSessionOptions": "The catalog and the schema of names without one.",
    "CloseSession": "Forget the catalog and the schema of a session.",
}

_NAME: Final = r'("(?:[^"]|"")+"|[\w$]+)'
_USE: Final = re.compile(
    rf"\s*(?:USE\s+|SET\s+(?:SESSION\s+)?SCHEMA\s*=?\s*){_NAME}(?:\s*\.\s*{_NAME})?\s*;?\s*", re.IGNORECASE
)

CHOSEN: Final = pa.schema({"catalog": pa.string(), "schema": pa.string()})
"""The columns of the result of USE."""


def place_of(request: Request) -> Place:
    """Where names without a catalog or a schema are looked up: as in the cookies, or else as in the headers."""
    cookies = _cookies(request)
    return Place(**{option: cookies.get(name) or request.header(_HEADERS[option]) for option, name in _COOKIES.items()})


def chosen_place(host: Host, request: Request, query: str) -> Place | None:
    """The place that a statement chooses; None if it is not a USE."""
    used = _USE.fullmatch(query.replace("'", '"') if query.lstrip()[:3].upper() == "SET" else query)
    if used is None:
        return None
    first, second = (None if name is None else _unquoted(name) for name in used.groups())
    here = place_of(request)
    if second is not None:
        return _checked(host, request, Place(str(first), second))
    if query.lstrip()[:3].upper() == "USE" and str(first).lower() in map(str.lower, host.visible_catalogs(request)):
        return _checked(host, request, Place(str(first)))
    return _checked(host, request, Place(here.catalog, str(first)))


def keep(request: Request, place: Place) -> None:
    """Ask the client to send a place with its next calls."""
    kept = {"catalog": place.catalog, "schema": place.schema}
    if request.connection is not None:
        request.connection.send_initial_metadata(
            tuple(
                ("set-cookie", f"{_COOKIES[option]}={quote(value, safe='')}; Path=/" + ("" if value else "; Max-Age=0"))
                for option, value in kept.items()
            )
        )


def answer(host: Host, request: Request, action: str, body: bytes) -> Iterator[bytes]:
    """Answer an action of `SESSION_ACTIONS`."""
    authorize(request, host.auth)
    if action == "CloseSession":
        keep(request, Place())
        yield flight.CloseSessionResult(status=flight.CloseSessionResult.CLOSED).SerializeToString()
    elif action == "GetSessionOptions":
        here = place_of(request)
        catalog = here.catalog or getattr(host.catalogs.find(""), "name", "")
        options = {"catalog": catalog, "schema": here.schema}
        values = {name: flight.SessionOptionValue(string_value=value) for name, value in options.items()}
        yield flight.GetSessionOptionsResult(session_options=values).SerializeToString()
    else:
        yield _set(host, request, body).SerializeToString()


def _set(host: Host, request: Request, body: bytes) -> flight.SetSessionOptionsResult:
    try:
        asked = flight.SetSessionOptionsRequest.FromString(body).session_options
    except DecodeError as error:
        raise InvalidArgument(
            "malformed SetSessionOptionsRequest: not the protobuf message that Flight defines",
            key="flightsql.malformed",
        ) from error
    errors = flight.SetSessionOptionsResult
    here = place_of(request)
    wanted, refused = {"catalog": here.catalog, "schema": here.schema}, dict[str, Any]()
    for name, value in asked.items():
        if name not in wanted:
            refused[name] = errors.INVALID_NAME
        elif value.WhichOneof("option_value") not in ("string_value", None):
            refused[name] = errors.INVALID_VALUE
        else:
            wanted[name] = value.string_value
    if wanted["catalog"] != here.catalog and "schema" not in asked:
        wanted["schema"] = ""  # it is one of another catalog
    try:
        _checked(host, request, Place(wanted["catalog"]))
        _checked(host, request, Place(**wanted))
    except NotFound as error:
        refused |= {name: errors.INVALID_VALUE for name in asked if name == error.key}
    if not refused:
        keep(request, Place(**wanted))
    return errors(errors={name: errors.Error(value=value) for name, value in refused.items()})


def _checked(host: Host, request: Request, place: Place) -> Place:
    """The place; `NotFound` if the caller sees no such catalog or schema."""
    authorize(request.within(place.catalog), host.auth)
    found = host.catalogs.find(place.catalog)
    if found is None and (place.catalog or place.schema):
        hint = "" if place.catalog else ": name the catalog as well"
        raise NotFound(f"catalog {place.catalog!r} does not exist{hint}", key="catalog")
    if found is not None and place.schema and found.schema(place.schema) is None:
        raise NotFound(f"schema {found.name}.{place.schema} does not exist", key="schema")
    return place


def _cookies(request: Request) -> dict[str, str]:
    found = {}
    for header in request.headers.get("cookie", ()):
        for each in str(header).split(";"):
            name, _, value = each.strip().partition("=")
            found[name] = unquote(value.strip('"'))
    return found


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name
