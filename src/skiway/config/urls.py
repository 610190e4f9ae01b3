"""URLs without the secrets that people put into them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from urllib.parse import parse_qsl, unquote, urlsplit

from skiway.config.sources import Given

__all__ = ["moved_password", "secret_parameters", "shown_url"]

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
