"""Where settings come from: a TOML file, environment variables, the command line. Each value knows its place."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from skiway.config.fields import PREFIX
from skiway.errors import InvalidArgument

__all__ = ["Given", "from_environment", "from_file", "from_flags"]

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
