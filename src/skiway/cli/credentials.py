"""Credentials of a connector, as one text: `bearer,token=@token.txt`, or `type=aws,access_key_id=…`.

A value that begins with @ is read from a file, one that begins with $ from the environment, so that no secret is
left in the history of a shell. What a value is appears in no error.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from skiway.errors import InvalidArgument

if TYPE_CHECKING:
    from skiway.model import v1

__all__ = ["auth_of"]

SCHEMES: Final = {"bearer": "oauth2", "client": "oauth2", "aws": "aws-sigv4", "cli": "aws-sigv4"}


def auth_of(text: str) -> v1.ConnectorAuthSpec:
    """How a connector proves who it is."""
    from skiway.model import v1

    kind, given = _parts(text)
    if kind not in SCHEMES:
        raise InvalidArgument(f"credentials have a type: write type={', type='.join(SCHEMES)}, and then what it needs")
    credentials = v1.ConnectorCredentials()
    chosen: Any = getattr(credentials, kind)
    chosen.SetInParent()
    known = [field.name for field in chosen.DESCRIPTOR.fields]
    for name, value in given.items():
        if name not in known:
            raise InvalidArgument(f"credentials of type {kind} have no {name}: they take {', '.join(known)}")
        setattr(chosen, name, _secret(name, value))
    return v1.ConnectorAuthSpec(scheme=SCHEMES[kind], credentials=credentials)


def _parts(text: str) -> tuple[str, dict[str, str]]:
    """The type, and what is given beside it; the type may come first without its name."""
    kind, given = "", {}
    for number, part in enumerate(text.split(",")):
        name, sign, value = part.partition("=")
        if not sign and number == 0:
            kind = name.strip()
        elif not sign:
            raise InvalidArgument(
                f"part {number + 1} of the credentials is no NAME=VALUE: write them like type=bearer,token=@FILE; "
                "a value with a comma goes into a file"
            )
        elif name.strip() == "type":
            kind = value.strip()
        else:
            given[name.strip()] = value
    return kind, given


def _secret(name: str, value: str) -> str:
    if value.startswith("@"):
        try:
            return Path(value[1:]).expanduser().read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise InvalidArgument(f"the {name} of the credentials cannot be read from {value[1:]}: {reason}") from None
    if value.startswith("$"):
        if value[1:] not in os.environ:
            raise InvalidArgument(f"the {name} of the credentials is to come from {value}, which is not set: export it")
        return os.environ[value[1:]]
    return value
