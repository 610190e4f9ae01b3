"""Request bodies, decoded strictly: an invalid body is rejected with the name of the invalid field."""

from __future__ import annotations

import json
from collections import Counter
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from skiway.doors import require_at_most
from skiway.errors import InvalidArgument

__all__ = [
    "CreateNamespace",
    "Identifier",
    "Registration",
    "Renaming",
    "UpdateProperties",
    "at_most",
    "decoded",
    "fields_of",
]

M = TypeVar("M", bound=BaseModel)

_LARGEST: Final = 2**63 - 1
MAX_VALUES: Final = 200_000
"""How many values a body may have. More take seconds to decode, however small they are."""


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, populate_by_name=False)


class Identifier(_Body):
    """The namespace and name of a table."""

    namespace: tuple[str, ...] = Field(min_length=1)
    name: str


class CreateNamespace(_Body):
    namespace: tuple[str, ...] = Field(min_length=1)
    properties: dict[str, str] | None = None


class UpdateProperties(_Body):
    removals: tuple[str, ...] | None = None
    updates: dict[str, str] | None = None


class Renaming(_Body):
    source: Identifier
    destination: Identifier


class Registration(_Body):
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
    """Decode the body as `model`; `given` are defaults of fields that may be missing."""
    fields = {**given, **fields_of(body)}
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise _refused(error) from None
    except Exception as error:
        raise InvalidArgument(
            f"the body is not a {model.__name__}: {type(error).__name__} while decoding it; compare it with the "
            "specification of the Iceberg REST catalog",
            key="body.invalid",
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
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"field {twice[:100]!r} appears twice")
    return found


def _refused(error: ValidationError) -> InvalidArgument:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = ".".join(map(str, first["loc"])) or "the body"
    more = f" ({error.error_count() - 1} more errors)" if error.error_count() > 1 else ""
    return InvalidArgument(f"{field}: {first['msg']}{more}", key="field.invalid", field=field)
