"""When a connector is synced by itself."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from skiway.config.fields import DURATION
from skiway.errors import InvalidArgument

if TYPE_CHECKING:
    from skiway.model import v1

__all__ = ["Every", "auth_of", "interval_of", "policy_of"]

NEVER: Final = "never"

Every = Annotated[
    str | None,
    typer.Option("--every", metavar="TIME", help="Sync it by itself so often: 10m, 1h, 1d; never: only when told."),
]


def policy_of(every: str, before: v1.ConnectorPolicy | None = None) -> v1.ConnectorPolicy:
    """What a connector is to do by itself; the rest as it was."""
    from skiway.model import v1

    policy = v1.ConnectorPolicy()
    if before is not None:
        policy.CopyFrom(before)
    policy.enabled = every != NEVER
    if policy.enabled:
        policy.interval.FromTimedelta(_time(every))
    return policy


def interval_of(policy: v1.ConnectorPolicy) -> timedelta | None:
    """How often a connector is synced by itself; None for one that is not."""
    return policy.interval.ToTimedelta() if policy.enabled and policy.HasField("interval") else None


def _time(text: str) -> timedelta:
    try:
        return DURATION.read(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not {DURATION.takes}, or {NEVER}", param_hint="--every") from None


# --------------------
# Credentials of a connector, as one text: `bearer,token=@token.txt`, or `type=aws,access_key_id=…`.
#
# A value that begins with @ is read from a file, one that begins with $ from the environment, so that no secret is
# left in the history of a shell. What a value is appears in no error.


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
