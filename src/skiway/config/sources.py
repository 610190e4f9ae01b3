"""The sources of settings: a TOML file, environment variables and the command line.

Each value records where it was set. Secrets in URLs are moved or masked here.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from skiway.config.fields import PREFIX
from skiway.errors import InvalidArgument

__all__ = [
    "Given",
    "from_environment",
    "from_file",
    "from_flags",
    "secret_parameters",
    "shown_url",
    "with_password_moved",
]

HEADER = re.compile(r"\s*\[([^\[\]]+)\]")
ASSIGNMENT = re.compile(r"\s*([\w.\-\"' ]+?)\s*=")


@dataclass(frozen=True, slots=True)
class Given:
    """A value that was set. `origin` says where; a relative path is relative to `base`."""

    key: str
    value: object
    origin: str
    base: Path = Path()


def from_flags(flags: Mapping[str, str]) -> Iterator[Given]:
    """The values from the command line, by key."""
    for key, value in flags.items():
        yield Given(key, value, "set on the command line")


def from_environment(environ: Mapping[str, str]) -> Iterator[Given]:
    """The values of variables that start with `SKIWAY__`. An empty variable counts as unset."""
    for name, value in environ.items():
        if name.startswith(PREFIX) and value:
            yield Given(name.removeprefix(PREFIX).lower().replace("__", "."), value, f"set by {name}")


def from_file(path: Path) -> Iterator[Given]:
    """The values in a TOML file, with their line numbers."""
    text = _read(path)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument(f"the settings file {path} is not valid TOML: {error}", key="config.file") from None
    for key, value in _flat(document):
        line = _line_of(key, text)
        yield Given(key, value, f"set in {path}{f', line {line}' if line else ''}", path.absolute().parent)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        raise InvalidArgument(
            f"the settings file {path} does not exist: create it, or omit the option", key="config.file"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidArgument(f"the settings file {path} cannot be read: {reason}", key="config.file") from None


def _flat(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _line_of(key: str, text: str) -> int | None:
    """The line that sets `key`. A heuristic, since `tomllib` reports no positions."""
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := HEADER.match(line):
            section = _unquoted(header[1]) + "."
        elif assignment := ASSIGNMENT.match(line):
            name = section + _unquoted(assignment[1])
            if key == name or key.startswith(f"{name}."):
                return number
    return None


def _unquoted(name: str) -> str:
    return re.sub(r"[\"'\s]", "", name)


# Secrets in URLs

SECRET_NAME = re.compile(r"password|secret|token|access_key|credential", re.IGNORECASE)
USER_INFO = re.compile(r"//.*@")
PASSWORD = re.compile(r"(//[^:/?#@]*):(.*)@")


def shown_url(text: str) -> str:
    """The text; if it is a URL, without user, password and query, which may contain secrets."""
    if "//" not in text:
        return text
    return re.sub(r"\?.*", "?...", USER_INFO.sub("//...@", text))


def secret_parameters(url: str) -> list[str]:
    """The names of query parameters that hold a secret."""
    return [name for name, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True) if SECRET_NAME.search(name)]


def with_password_moved(by_key: Mapping[str, Given]) -> Iterator[Given]:
    """The same values, with a password in `kv.url` moved to `kv.password`, which is never shown."""
    for given in by_key.values():
        url = given.value if given.key == "kv.url" and isinstance(given.value, str) else ""
        if match := PASSWORD.search(url):
            yield replace(given, value=PASSWORD.sub(r"\1@", url))
            yield by_key.get("kv.password") or replace(given, key="kv.password", value=unquote(match[2]))
        else:
            yield given
