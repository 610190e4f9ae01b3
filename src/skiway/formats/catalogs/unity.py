"""Delta and Parquet tables in a Unity Catalog, listed with its REST API. Their files are read as those of other sources.

The catalogs of the server and their schemas are the namespaces. A table in S3 is read with the keys of the connector or, if it has none,
with temporary ones that the server gives for this table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from skiway.errors import (
    InvalidArgument,
    LimitExceeded,
    NotFound,
    PreconditionFailed,
    SkiwayError,
    Unavailable,
    Unsupported,
)
from skiway.formats.delta.table import DeltaTable
from skiway.formats.files import unreadable
from skiway.formats.folders.parquet import ParquetTable
from skiway.formats.opening import SourceRequest
from skiway.formats.source import Namespace, Source, TableHandle, TableName
from skiway.security.source_access import location, web_address
from skiway.security.source_access.connections import guard_session

if TYPE_CHECKING:
    from requests import Response, Session

_API: Final = "/api/2.1/unity-catalog"
_FORMATS: Final = {"DELTA": DeltaTable, "PARQUET": ParquetTable}
_WITH_FILES: Final = ("MANAGED", "EXTERNAL")
_MAX_ANSWER: Final = 32 << 20
_MAX_PAGES: Final = 10_000
_OWN_ACCESS: Final = ("s3.access-key-id", "s3.ambient-credentials")
_KEYS: Final = {
    "access_key_id": "s3.access-key-id",
    "secret_access_key": "s3.secret-access-key",
    "session_token": "s3.session-token",
}


def open_unity(request: SourceRequest) -> Source:
    """Open the server at `request.uri`. If the address has no path, it gets that of the API."""
    address = web_address(request.uri)
    if "credential" in request.properties:
        raise InvalidArgument(
            "a source in Unity Catalog needs credentials of type bearer; those of type client are not supported",
            key="source.credentials",
        )
    request.access.check_url(address)
    return UnitySource(request, address if urlsplit(address).path else f"{address}{_API}")


class UnitySource(Source):
    """The tables of a server that have files in a format that can be read."""

    def __init__(self, request: SourceRequest, api: str) -> None:
        self._request, self._api = request, api

    def namespaces(self) -> list[Namespace]:
        catalogs = [_text(each, "name") for each in self._listed("catalogs")]
        schemas = [
            (catalog, _text(each, "name"))
            for catalog in catalogs
            for each in self._listed("schemas", catalog_name=catalog)
        ]
        return sorted([*((catalog,) for catalog in catalogs), *schemas])

    def tables(self, namespace: Namespace) -> list[str]:
        if len(namespace) == 1:
            return []  # only schemas contain tables
        catalog, schema = self._schema(namespace)
        found = self._listed("tables", catalog_name=catalog, schema_name=schema)
        return sorted(_text(each, "name") for each in found if _is_readable(each))

    def load(self, namespace: Namespace, table: str) -> TableHandle:
        name = TableName(namespace, table)
        full = ".".join((*self._schema(namespace), table))
        found = self._asked("GET", f"/tables/{quote(full, safe='')}", what=str(name))
        if not _is_readable(found):
            kind = f"{found.get('table_type', 'unknown')}, {found.get('data_source_format', 'no format')}"
            raise Unsupported(
                f"{name} is a table of another kind ({kind}); tables in Delta and Parquet can be read",
                key="table.feature",
                table=str(name),
                feature=kind,
            )
        place = location(_text(found, "storage_location"))
        files = self._request.files(self._keys(found, str(name)) if place.scheme == "s3" else None)
        files.reach.check(place)
        opened: TableHandle = _FORMATS[found["data_source_format"]](name, place, files)
        return opened

    def close(self) -> None:
        if "_session" in self.__dict__:
            self._session.close()

    def _schema(self, namespace: Namespace) -> Namespace:
        if len(namespace) != 2:
            raise NotFound(
                f"source {self._request.address!r} has no {'.'.join(namespace)!r}: a namespace is a catalog and a schema, such as "
                "main.sales",
                key="namespace.not_found",
            )
        return namespace

    def _keys(self, table: Mapping[str, Any], name: str) -> dict[str, str]:
        """Temporary keys for the files of a table, unless the connector has its own."""
        if any(self._request.properties.get(each) for each in _OWN_ACCESS):
            return {}
        body = {"table_id": _text(table, "table_id"), "operation": "READ"}
        found = None
        with suppress(NotFound):  # some servers do not have this call
            found = self._asked("POST", "/temporary-table-credentials", what=name, json=body).get(
                "aws_temp_credentials"
            )
        if not isinstance(found, dict) or not found.get("access_key_id"):
            raise PreconditionFailed(
                f"source {self._request.address!r} gives no keys for the files of {name} in S3; add credentials of type aws to the "
                "connector",
                key="source.credentials",
            )
        return {own: str(found[key]) for key, own in _KEYS.items() if found.get(key)}

    def _listed(self, kind: str, **parameters: str) -> Iterator[Mapping[str, Any]]:
        """The entries of all pages of a list."""
        token, seen = "", set[str]()
        what = ".".join(parameters.values()) or kind
        for _ in range(_MAX_PAGES):
            more = {"page_token": token} if token else {}
            page = self._asked("GET", f"/{kind}", what=what, params={**parameters, **more})
            entries = page.get(kind) or []
            if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
                raise self._unintelligible()
            yield from entries
            token = str(page.get("next_page_token") or "")
            if not token:
                return
            if token in seen:
                break
            seen.add(token)
        raise PreconditionFailed(
            f"source {self._request.address!r} does not end its list of {kind}; report this to its operator",
            key="source.rejected",
        )

    def _asked(self, method: str, path: str, *, what: str, **more: Any) -> dict[str, Any]:
        """The answer to a request, about the table or namespace `what`."""
        from requests import RequestException

        try:
            with self._session.request(method, f"{self._api}{path}", stream=True, **more) as response:
                self._check(response, what)
                found = json.loads(_limited(response))
        except SkiwayError:
            raise
        except ValueError:
            raise self._unintelligible() from None
        except (RequestException, OSError) as error:
            raise unreadable(f"source {self._request.address!r}", error) from error
        if not isinstance(found, dict):
            raise self._unintelligible()
        return found

    def _check(self, response: Response, what: str) -> None:
        address, code = self._request.address, response.status_code
        if code in (401, 403):
            raise PreconditionFailed(
                f"source {address!r} rejected the credentials for {what!r}; check the credentials of the connector",
                key="source.credentials",
            )
        if code == 404:
            raise NotFound(f"source {address!r} has no {what!r}; list its namespaces and tables", key="table.not_found")
        if code == 429 or code >= 500:
            raise Unavailable(
                f"source {address!r} answered with HTTP status {code}; try again later", key="source.unavailable"
            )
        if code != 200:
            raise PreconditionFailed(
                f"source {address!r} rejected the request for {what!r} with HTTP status {code}; check the address",
                key="source.rejected",
            )

    def _unintelligible(self) -> PreconditionFailed:
        return PreconditionFailed(
            f"source {self._request.address!r} does not answer like a Unity Catalog; the address is that of its API, such as "
            f"https://host{_API}",
            key="source.rejected",
        )

    @cached_property
    def _session(self) -> Session:
        from requests import Session

        made = Session()
        guard_session(made, self._request.access)
        made.headers["Accept"] = "application/json"
        if token := self._request.properties.get("token"):
            made.headers["Authorization"] = f"Bearer {token}"
        return made


def _limited(response: Response) -> bytes:
    """The body of an answer, if it is not too large."""
    found = bytearray()
    for part in response.iter_content(1 << 16):
        found += part
        if len(found) > _MAX_ANSWER:
            raise LimitExceeded(
                f"an answer of the source is larger than {_MAX_ANSWER >> 20} MiB, and was not read",
                key="metadata.decoded_size",
            )
    return bytes(found)


def _is_readable(table: Mapping[str, Any]) -> bool:
    return (
        table.get("data_source_format") in _FORMATS
        and table.get("table_type") in _WITH_FILES
        and bool(table.get("storage_location"))
    )


def _text(entry: Mapping[str, Any], field: str) -> str:
    found = entry.get(field)
    if not isinstance(found, str) or not found:
        raise PreconditionFailed(f"an entry of the source has no {field}, so it cannot be used", key="source.rejected")
    return found
