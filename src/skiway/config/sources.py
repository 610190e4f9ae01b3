"""Where settings come from: a TOML file, environment variables, the command line. Each value knows its place."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from skiway.config.fields import PREFIX
from skiway.errors import InvalidArgument

__all__ = ["Given", "from_environment", "from_file", "from_flags", "moved_password", "secret_parameters", "shown_url"]

HEADER = re.compile(r"\s*\[([^\[\]]+)\]")
ASSIGNMENT = re.compile(r"\s*([\w.\-\"' ]+?)\s*=")


@dataclass(frozen=True, slots=True)
class Given:
    """A value that somebody set. `origin` says where; relative paths are meant from `base`."""

    key: str
    value: object
    origin: str
    base: Path = Path()


def from_flags(flags: Mapping[str, str]) -> Iterator[Given]:
    """What the command line says, by key."""
    for key, value in flags.items():
        yield Given(key, value, "set on the command line")


def from_environment(environ: Mapping[str, str]) -> Iterator[Given]:
    """The variables that begin with `SKIWAY__`. An empty one counts as not set."""
    for name, value in environ.items():
        if name.startswith(PREFIX) and value:
            yield Given(name.removeprefix(PREFIX).lower().replace("__", "."), value, f"set by {name}")


def from_file(path: Path) -> Iterator[Given]:
    """The keys of a TOML file, with their lines."""
    text = _read(path)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument(f"the settings in {path} cannot be read as TOML: {error}", key="config.file") from None
    for key, value in _flat(document):
        line = _line_of(key, text)
        yield Given(key, value, f"set in {path}{f', line {line}' if line else ''}", path.absolute().parent)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        raise InvalidArgument(
            f"the settings file {path} does not exist: make it, or leave it out", key="config.file"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise InvalidArgument(f"the settings file {path} cannot be read: {reason}", key="config.file") from None


def _flat(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _line_of(key: str, text: str) -> int | None:
    """The line that sets `key`, as far as it shows without parsing: good enough to point at."""
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := HEADER.match(line):
            section = _plain(header[1]) + "."
        elif assignment := ASSIGNMENT.match(line):
            name = section + _plain(assignment[1])
            if key == name or key.startswith(f"{name}."):
                return number
    return None


def _plain(name: str) -> str:
    return re.sub(r"[\"'\s]", "", name)


# --------------------
# URLs without the secrets that people put into them.


SECRET_NAME = re.compile(r"password|secret|token|access_key|credential", re.IGNORECASE)
USER_INFO = re.compile(r"//.*@")
PASSWORD = re.compile(r"(//[^:/?#@]*):(.*)@")


def shown_url(text: str) -> str:
    """The text, without what may be a secret if it is a URL: user and password, and what follows a question mark."""
    if "//" not in text:
        return text
    return re.sub(r"\?.*", "?...", USER_INFO.sub("//...@", text))


def secret_parameters(url: str) -> list[str]:
    """The names of parameters in a URL that hold a secret."""
    return [name for name, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True) if SECRET_NAME.search(name)]


def moved_password(chosen: Mapping[str, Given]) -> Iterator[Given]:
    """All that is set, with the password of `kv.url` as a setting of its own, where it is never shown."""
    for given in chosen.values():
        url = given.value if given.key == "kv.url" and isinstance(given.value, str) else ""
        if match := PASSWORD.search(url):
            yield replace(given, value=PASSWORD.sub(r"\1@", url))
            yield chosen.get("kv.password") or replace(given, key="kv.password", value=unquote(match[2]))
        else:
            yield given
