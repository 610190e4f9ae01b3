"""What clients send, decoded strictly: a body that is wrong is refused with the field that is wrong."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from skiway.errors import InvalidArgument

__all__ = ["CreateNamespace", "Identifier", "Renaming", "Report", "UpdateProperties", "decoded", "fields_of"]

M = TypeVar("M", bound=BaseModel)

_LARGEST: Final = 2**63 - 1


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, populate_by_name=False)


class Identifier(_Body):
    """A table, by the levels of its namespace and its name."""

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


class Report(_Body):
    """What a client measured. It may say more than is looked at."""

    kind: Annotated[str, Field(alias="report-type")]


def decoded(body: bytes, model: type[M], **given: Any) -> M:
    """The body as `model` describes it; `given` are fields that need not be sent."""
    fields = {**given, **fields_of(body)}
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise _refused(error) from None
    except Exception as error:
        raise InvalidArgument(
            f"the body is not a {model.__name__}: {type(error).__name__} while it was read; compare it with the "
            "specification of Iceberg's REST catalog",
            key="body.invalid",
        ) from error


def fields_of(body: bytes) -> dict[str, Any]:
    """The object that the body is."""
    try:
        text = body.decode()
        found = json.loads(text, parse_constant=_no_constant, parse_int=_integer, object_pairs_hook=_once)
        if "\\ud" in text.lower():
            json.dumps(found, ensure_ascii=False).encode()  # halves of a character cannot be kept
    except (ValueError, RecursionError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else str(error)[:200]
        raise InvalidArgument(f"the body is not JSON: {reason}", key="body.malformed") from None
    if not isinstance(found, dict):
        raise InvalidArgument(
            f"the body is a JSON {type(found).__name__}: send an object, as in {{}}", key="body.malformed"
        )
    return found


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no number in JSON")


def _integer(text: str) -> int:
    if len(text) > 20 or not -_LARGEST - 1 <= int(text) <= _LARGEST:
        raise ValueError(f"number {text[:24]} has more than 64 bits")
    return int(text)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"field {twice!r} is there twice")
    return found


def _refused(error: ValidationError) -> InvalidArgument:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = ".".join(map(str, first["loc"])) or "the body"
    more = f" ({error.error_count() - 1} more faults)" if error.error_count() > 1 else ""
    return InvalidArgument(f"{field}: {first['msg']}{more}", key="field.invalid", field=field)
