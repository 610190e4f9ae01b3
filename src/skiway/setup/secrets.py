"""Credentials of connectors and secrets of webhooks: read from environment variables and files, never from the setup file itself.

Error messages name variables, files and fields, and never contain values.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from skiway.errors import InvalidArgument
from skiway.model import v1
from skiway.setup.declarations import Credentials, SecretRef

AUTH_SCHEMES: Final = {
    "bearer": "oauth2",
    "client": "oauth2",
    "aws": "aws-sigv4",
    "cli": "aws-sigv4",
    "password": "none",
}
NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9]+")


def credentials_of(declared: Credentials, environment: Mapping[str, str] = os.environ) -> v1.ConnectorCredentials:
    """Read the credentials that a connector declares."""
    if declared.type is None:
        text = read_secret("text of the credentials", declared.env, declared.file, environment)
        return auth_from_text(text, environment).credentials
    given: dict[str, str] = {}
    for name in declared.__struct_fields__:
        value = getattr(declared, name)
        if isinstance(value, SecretRef):
            given[name] = read_secret(f"{name} of the credentials", value.env, value.file, environment)
        elif value and name != "type":
            given[name] = value
    return _message(declared.type, given)


def default_reference(connector: str) -> Credentials:
    """The reference in an export, which cannot know where the credentials are: a variable named after the connector."""
    return Credentials(env=default_variable("CREDENTIAL", connector, otherwise="CONNECTOR"))


def default_variable(kind: str, name: str, *, otherwise: str = "") -> str:
    """The variable in an export that stands for a secret: it is named after what has the secret."""
    return f"SKIWAY_{kind}_{NOT_IN_NAMES.sub('_', name).strip('_').upper() or otherwise or kind}"


def auth_from_text(text: str, environment: Mapping[str, str] = os.environ) -> v1.ConnectorAuthSpec:
    """Parse credentials such as `bearer,token=@token.txt` or `type=aws,access_key_id=…`.

    A value that begins with @ is read from a file, one that begins with $ from the environment, so that no secret is left
    in the history of a shell.
    """
    kind, given = _split(text)
    if kind not in AUTH_SCHEMES:
        raise InvalidArgument(f"credentials need a type: type={', type='.join(AUTH_SCHEMES)}")
    values = {}
    for name, value in given.items():
        if value.startswith("@"):
            values[name] = read_secret(f"{name} of the credentials", "", value[1:], environment)
        elif value.startswith("$"):
            values[name] = read_secret(f"{name} of the credentials", value[1:], "", environment)
        else:
            values[name] = value
    return v1.ConnectorAuthSpec(scheme=AUTH_SCHEMES[kind], credentials=_message(kind, values))


def _message(kind: str, given: Mapping[str, str]) -> v1.ConnectorCredentials:
    if kind == "password":
        if given.keys() != {"password"}:
            raise InvalidArgument("credentials of type password have one field: password")
        return v1.ConnectorCredentials(properties=given)
    credentials = v1.ConnectorCredentials()
    chosen: Any = getattr(credentials, kind)
    chosen.SetInParent()
    known = [field.name for field in chosen.DESCRIPTOR.fields]
    for name, value in given.items():
        if name not in known:
            raise InvalidArgument(
                f"credentials of type {kind} have no field {name}; their fields are {', '.join(known)}"
            )
        setattr(chosen, name, value)
    return credentials


def _split(text: str) -> tuple[str, dict[str, str]]:
    """Return the type and the other values; a first part without a name is the type."""
    kind, given = "", {}
    for number, part in enumerate(text.split(",")):
        name, sign, value = part.partition("=")
        if not sign and number == 0:
            kind = name.strip()
        elif not sign:
            raise InvalidArgument(
                f"part {number + 1} of the credentials is not NAME=VALUE: write them like type=bearer,token=@FILE; "
                "put a value that contains a comma into a file"
            )
        elif name.strip() == "type":
            kind = value.strip()
        else:
            given[name.strip()] = value
    return kind, given


def read_secret(name: str, env: str, file: str | Path, environment: Mapping[str, str] = os.environ) -> str:
    """Read a secret from an environment variable or else from a file. Errors call it by its name."""
    if env:
        if not environment.get(env):
            raise InvalidArgument(f"the {name} refers to ${env}, which is not set: export it")
        return environment[env]
    try:
        return Path(file).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidArgument(f"cannot read the {name} from {file}: {reason}") from None
