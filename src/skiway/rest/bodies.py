"""Bodies of requests: read with limits on their size and on the time that they take, and decoded strictly.

Callers are admitted before the server reads a body of more than 64 KiB. Forms contain the credentials of a caller, so the
server reads them first. They must be small and arrive quickly, and a stranger who sends forms slowly does not block those of
others.

An invalid body is rejected with the name and the value of the invalid field.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from starlette.requests import ClientDisconnect, Request

from skiway.errors import Cancelled, InvalidArgument, LimitExceeded, TimedOut
from skiway.formats.extension_types import may_name_types
from skiway.foundation.causes import suggestion
from skiway.foundation.doors import require_at_most

JSON: Final = "application/json"
FORM: Final = "application/x-www-form-urlencoded"
SMALL_BYTES: Final = 64 * 1024
SOON_S: Final = 0.02
"""Some clients send the body as a packet of its own. To change threads twice would take 0.3 ms longer than to wait for it."""
MAX_FORM_BYTES: Final = 64 * 1024
FORM_S: Final = 10.0


class Body:
    """The body of a request, which must be JSON if there is one. Close it in the end.

    A small body arrives together with the headers, or right after them. `arrived` reads it before the caller is admitted, so
    that the call changes threads only once. `size` is the number of bytes received, even if the body is rejected.
    """

    def __init__(self, request: Request, *, max_bytes: int, seconds: float) -> None:
        self._request, self._max_bytes, self._seconds = request, max_bytes, seconds
        self._reading: asyncio.Task[bytes] | None = None
        self.size = 0

    async def arrived(self) -> bool:
        """Whether the whole body is here. If it is small and does not arrive soon, reading goes on in the background."""
        announced = self._request.headers.get("content-length", "")
        if not announced.isdecimal() or int(announced) > SMALL_BYTES:
            return False
        self._reading = asyncio.create_task(self._read())
        await asyncio.sleep(0)  # the task runs until it has to wait for the client
        if not self._reading.done():
            await asyncio.wait((self._reading,), timeout=SOON_S)
        return self._reading.done()

    async def read(self) -> bytes:
        """The body, once it is here."""
        return await (self._read() if self._reading is None else self._reading)

    def close(self) -> None:
        """Stop reading."""
        if self._reading is not None and not self._reading.cancel() and not self._reading.cancelled():
            self._reading.exception()  # retrieved, so that asyncio does not log it: the caller was refused for another reason

    def _count(self, size: int) -> None:
        self.size += size

    async def _read(self) -> bytes:
        headers = self._request.headers
        async with _deadline(self._seconds):
            received = await _received(self._request, self._max_bytes, self._count)
        _check_media(headers.get("content-type", ""), received, JSON)
        encoding = headers.get("content-encoding", "identity").strip().lower()
        return received if encoding == "identity" else await asyncio.to_thread(self._unpacked, received, encoding)

    def _unpacked(self, packed: bytes, encoding: str) -> bytes:
        if encoding not in ("gzip", "x-gzip"):
            raise InvalidArgument(
                f"the body has the content-encoding {encoding[:100]!r}: compress it with gzip, or not at all",
                key="body.encoding",
            )
        stream = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        try:
            body = stream.decompress(packed, self._max_bytes + 1)
        except zlib.error:
            body = b""
        if len(body) > self._max_bytes:
            raise _too_large(self._max_bytes)
        if not stream.eof:
            raise InvalidArgument("the body is not complete gzip data: send all of it", key="body.encoding")
        return body


class Forms:
    """The forms that are being read. If `most` are open, the next one ends the one that was opened first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[asyncio.Timeout, None] = {}  # in the order in which they were opened

    async def read(self, request: Request, *, seconds: float) -> bytes:
        """The form in the body of a caller who is not authenticated yet."""
        async with _deadline(min(seconds, FORM_S)) as deadline:
            if len(self._open) >= self._most:
                first = next(iter(self._open))
                del self._open[first]
                first.reschedule(asyncio.get_running_loop().time())
            self._open[deadline] = None
            try:
                received = await _received(request, MAX_FORM_BYTES)
            finally:
                self._open.pop(deadline, None)
        _check_media(request.headers.get("content-type", ""), received, FORM)
        return received


@asynccontextmanager
async def _deadline(seconds: float) -> AsyncIterator[asyncio.Timeout]:
    try:
        async with asyncio.timeout(seconds) as deadline:
            yield deadline
    except TimeoutError:
        raise TimedOut(
            f"the body did not arrive within {seconds:g} s: send it faster, or less at a time", key="body.late"
        ) from None


async def _received(request: Request, limit: int, count: Callable[[int], None] = lambda _: None) -> bytes:
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > limit:
        raise _too_large(limit)
    received = bytearray()
    try:
        async for part in request.stream():
            received += part
            count(len(part))
            if len(received) > limit:
                raise _too_large(limit)
    except ClientDisconnect:
        raise Cancelled("the client went away while it sent the body", key="client.gone") from None
    return bytes(received)


def _check_media(given: str, body: bytes, wanted: str) -> None:
    """Pages in a browser can send forms and plain text to any server without asking it, but no JSON."""
    media = given.partition(";")[0].strip().lower()
    if body and media != wanted:
        what = "JSON" if wanted == JSON else "a form"
        raise InvalidArgument(
            f"the body is of type {media[:100] or 'none'}: send {what}, with the header content-type: {wanted}",
            key="body.media",
        )


def _too_large(limit: int) -> LimitExceeded:
    return LimitExceeded(f"the body has more than {limit} bytes: send less at a time", key="body.too_large")


M = TypeVar("M", bound=BaseModel)


_LARGEST: Final = 2**63 - 1
MAX_VALUES: Final = 200_000
"""How many values a body may have. More take seconds to decode, however small they are."""


class FrozenBody(BaseModel):
    """A body, or a part of one."""

    model_config = ConfigDict(frozen=True)


class Identifier(FrozenBody):
    """The namespace and name of a table."""

    namespace: tuple[str, ...] = Field(min_length=1)
    name: str


class CreateNamespace(FrozenBody):
    namespace: tuple[str, ...] = Field(min_length=1)
    properties: dict[str, str] | None = None


class UpdateProperties(FrozenBody):
    removals: tuple[str, ...] | None = None
    updates: dict[str, str] | None = None


class Renaming(FrozenBody):
    source: Identifier
    destination: Identifier


class Registration(FrozenBody):
    """A table or view to be created from an existing metadata file; `overwrite` replaces an existing table."""

    name: str
    metadata_location: Annotated[str, Field(alias="metadata-location", min_length=1)]
    overwrite: bool = False


def at_most(limit: int) -> BeforeValidator:
    """A limit of the items in a list, which is checked before they are decoded."""

    def check(items: Any) -> Any:
        if isinstance(items, list) and len(items) > limit:
            raise ValueError(f"{len(items)} items are too many, send at most {limit} items at a time")
        return items

    return BeforeValidator(check)


def decoded(body: bytes, model: type[M], **given: Any) -> M:
    """Decode the body as `model`; `given` are defaults of fields that may be missing. A field that is null is missing."""
    fields = {**given, **{name: value for name, value in fields_of(body).items() if value is not None}}
    if may_name_types(body.decode()):
        from skiway.formats.iceberg.added_types import with_types

        fields = with_types(fields)
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise _refused(error, fields) from None
    except Exception as error:  # PyIceberg's validators do not say where they failed
        path = _culprit(model, fields)
        if isinstance(error, KeyError):
            reason, path = "it lacks a field", path[:-1]
        else:
            is_explained = type(error).__module__.startswith("pyiceberg.")
            reason = str(error)[:200] if is_explained else "it has the wrong type"
        raise _invalid(
            path, fields, f"{reason}; compare it with the specification of the Iceberg REST catalog"
        ) from error


def fields_of(body: bytes) -> dict[str, Any]:
    """Decode the body as a JSON object."""
    require_at_most(
        MAX_VALUES,
        body.count(b","),
        "the body has {} commas",
        remedy="send fewer values at a time",
        key="body.too_many",
    )
    try:
        text = body.decode()
        found = json.loads(text, parse_constant=_no_constant, parse_int=_integer, object_pairs_hook=_once)
        if "\\ud" in text.lower():
            json.dumps(found, ensure_ascii=False).encode()  # unpaired surrogates cannot be stored
    except (ValueError, RecursionError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else str(error)[:200]
        raise InvalidArgument(f"the body is not JSON: {reason}", key="body.malformed") from None
    if not isinstance(found, dict):
        raise InvalidArgument(
            f"the body is a JSON {type(found).__name__}: send an object, as in {{}}", key="body.malformed"
        )
    return found


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not a JSON number")


def _integer(text: str) -> int:
    if len(text) > 20 or not -_LARGEST - 1 <= int(text) <= _LARGEST:
        raise ValueError(f"number {text[:24]} has more than 64 bits")
    return int(text)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The fields of an object, none of which may appear twice. DuckDB 1.4 writes `"type": {}` before the type of a list."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if found.get(name, {}) != {}:
            raise ValueError(f"field {name[:100]!r} appears twice")
        found[name] = value
    return found


_WANTED: Final = {
    "tuple_type": "send a list",
    "list_type": "send a list",
    "too_short": "send at least one item",
    "dict_type": "send an object",
    "model_type": "send an object",
    "model_attributes_type": "send an object",
}
"""What to send, where the words of pydantic are about Python."""

_DISCRIMINATORS: Final = ("action", "type")
"""Fields that say what an object is: without them, nothing else in it is looked at."""
MAX_ATTEMPTS: Final = 100
SHOWN: Final = 80


def _refused(error: ValidationError, fields: dict[str, Any]) -> InvalidArgument:
    """The first error about a value that was sent, or else the first about one that is missing."""
    errors = error.errors(include_url=False)
    first = next((each for each in errors if each["type"] != "missing" and each["input"] is not None), errors[0])
    path, context = first["loc"], first.get("ctx", {})
    reason = _WANTED.get(first["type"]) or first["msg"].removeprefix("Value error, ").replace(
        "Input should", "it should"
    )
    if first["type"].startswith("union_tag"):
        path = (*path, context["discriminator"].strip("'"))
        names = [each.strip("' ") for each in context.get("expected_tags", "").split(",")]
        reason = suggestion(context.get("tag", ""), names)
    more = f" ({len(errors) - 1} more errors)" if len(errors) > 1 else ""
    return _invalid(path, fields, f"{reason}{more}")


def _invalid(path: Sequence[str | int], fields: dict[str, Any], reason: str) -> InvalidArgument:
    """An error that names a field and its value. Parts of a path that are not in the body name alternatives in models."""
    value: Any = fields
    found, is_missing = list[str](), False
    for number, part in enumerate(path, start=1):
        if (isinstance(value, dict) and part in value) or (isinstance(value, list) and isinstance(part, int)):
            value = value[part]  # type: ignore[index]
            found.append(str(part))
        elif number == len(path) and isinstance(value, dict):
            found.append(str(part))
            is_missing = True
    field = ".".join(found) or "the body"
    shown = json.dumps(value, ensure_ascii=False, default=str)
    shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}…"
    message = f"{field} is missing: add it" if is_missing else f"{field} is {shown}: {reason}"
    return InvalidArgument(message, key="field.invalid", field=field)


def _culprit(model: type[BaseModel], fields: dict[str, Any]) -> list[str | int]:
    """The path of the value without which PyIceberg does not fail: found by leaving out one value after the other."""
    path: list[str | int] = []
    value: Any = fields
    left = MAX_ATTEMPTS
    while isinstance(value, dict | list) and left > 0:
        names: list[Any] = [*range(len(value))] if isinstance(value, list) else sorted(value, key=_DISCRIMINATORS.count)
        for part in names[:left]:
            left -= 1
            item = value[part]
            if isinstance(value, list):
                value[part] = None
            else:
                del value[part]
            is_it = not _fails(model, fields)
            value[part] = item
            if is_it:
                path.append(part)
                value = item
                break
        else:
            break
    return path


def _fails(model: type[BaseModel], fields: dict[str, Any]) -> bool:
    try:
        model.model_validate(fields)
    except ValidationError:
        return False
    except Exception:  # noqa: BLE001 - as in `decoded`
        return True
    return False
