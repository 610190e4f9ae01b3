"""Changes of a tokens file: add and remove entries, while servers read it and other commands change it."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from skiway.errors import InvalidArgument, NotFound
from skiway.security.private_files import changing, replace_file
from skiway.security.tokens import TokenEntry, TokenFile

__all__ = ["add_token", "remove_token", "token_id"]

ID_DIGITS: Final = 8
MIN_ID_DIGITS: Final = 4
ENTRY: Final = re.compile(r"^(?=\[\[tokens\]\])", re.MULTILINE)


def token_id(entry: TokenEntry) -> str:
    """The first digits of the token's hash, which tell tokens of one name apart."""
    return entry.sha256[:ID_DIGITS]


def add_token(path: Path, entry: TokenEntry) -> None:
    """Append an entry to a TOML file, which is created if it does not exist."""
    if path.suffix.lower() == ".json":
        raise InvalidArgument(f"cannot add tokens to the JSON file {path}: use a TOML file")
    with changing(path, "the tokens file"), _appending(path) as file:
        TokenFile(path)  # raises if the existing content is invalid
        file.write(f"\n{entry.toml()}".encode())  # one write, so that readers never see half an entry


def remove_token(path: Path, name_or_id: str, *, every: bool = False) -> Sequence[TokenEntry]:
    """Remove the token with this name or id, and return it. If several have the name, `every` removes them all."""
    with changing(path, "the tokens file"):
        entries = TokenFile(path).entries()
        chosen = _chosen(entries, name_or_id, path)
        if len(chosen) > 1 and not every:
            ids = ", ".join(map(token_id, chosen))
            raise InvalidArgument(
                f"{len(chosen)} tokens are called {name_or_id}: name one of {ids}, or revoke them all with --all",
                key="token.ambiguous",
            )
        replace_file(path, _without(path, entries, chosen))
        return chosen


def _chosen(entries: Sequence[TokenEntry], name_or_id: str, path: Path) -> Sequence[TokenEntry]:
    by_name = [entry for entry in entries if entry.name == name_or_id]
    long_enough = len(name_or_id) >= MIN_ID_DIGITS
    found = by_name or [entry for entry in entries if long_enough and entry.sha256.startswith(name_or_id.lower())]
    if not found:
        raise NotFound(
            f"the tokens file {path} has no token {name_or_id!r}: `skiway tokens list` shows names and ids",
            key="token",
        )
    return found


def _without(path: Path, entries: Sequence[TokenEntry], chosen: Sequence[TokenEntry]) -> bytes:
    """The content of the file without the chosen entries. Comments stay where the file has its usual form."""
    kept = tuple(entry for entry in entries if entry not in chosen)
    if path.suffix.lower() == ".json":
        return msgspec.json.format(msgspec.json.encode({"tokens": kept}))
    parts = ENTRY.split(path.read_text())
    hashes = [entry.sha256 for entry in chosen]
    edited = "".join(part for part in parts if not (part.startswith("[[") and any(each in part for each in hashes)))
    return edited.encode() if _is(edited, kept) else "\n".join(entry.toml() for entry in kept).encode()


def _is(text: str, entries: Sequence[TokenEntry]) -> bool:
    try:
        found = msgspec.toml.decode(text).get("tokens", [])
        return msgspec.convert(found, tuple[TokenEntry, ...]) == tuple(entries)
    except msgspec.DecodeError:
        return False


def _appending(path: Path) -> io.FileIO:
    return io.FileIO(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "rb+")
