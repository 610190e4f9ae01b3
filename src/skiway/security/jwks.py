"""The keys an identity provider publishes, fetched over HTTP: by the address of its key set, or found by discovery."""

from __future__ import annotations

import ipaddress
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx
import jwt

from skiway.errors import InvalidArgument, Unavailable
from skiway.security.signing_keys import PublicKey, SigningKey

__all__ = ["keys_by_discovery", "keys_by_url"]

Fetch = Callable[[], Sequence[SigningKey]]

DISCOVERY_PATH = "/.well-known/openid-configuration"
MAX_BYTES = 1_048_576


def keys_by_url(url: str, *, allow_http: bool = False, timeout_s: float = 5.0) -> Fetch:
    """A function that fetches the key set at `url`.

    Plain http is refused, but for this machine: whoever can change the keys on their way can sign any token.
    """
    _check_url(url, allow_http=allow_http)
    return lambda: _key_set(_get(url, timeout_s), url)


def keys_by_discovery(issuer: str, *, allow_http: bool = False, timeout_s: float = 5.0) -> Fetch:
    """A function that asks `issuer` where its key set is, each time, and fetches it."""
    _check_url(issuer, allow_http=allow_http)

    def fetch() -> Sequence[SigningKey]:
        place = issuer.rstrip("/") + DISCOVERY_PATH
        found = _get(place, timeout_s)
        if found.get("issuer") != issuer:
            raise _failed(place, f"it speaks for issuer {found.get('issuer')!r}, not {issuer!r}")
        url = found.get("jwks_uri")
        if not isinstance(url, str):
            raise _failed(place, "it names no jwks_uri")
        return keys_by_url(url, allow_http=allow_http, timeout_s=timeout_s)()

    return fetch


def _key_set(document: Mapping[str, Any], url: str) -> list[SigningKey]:
    """The keys that can verify; others are passed over, as one bad key must not take the good ones with it."""
    listed = document.get("keys")
    keys = [key for each in (listed if isinstance(listed, list) else []) if (key := _signing_key(each)) is not None]
    if not keys:
        raise _failed(url, "it holds no usable key for signatures")
    return keys


def _signing_key(entry: Any) -> SigningKey | None:
    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
        return None
    kid, algorithm = entry.get("kid", ""), entry.get("alg", "")
    if not isinstance(kid, str) or not isinstance(algorithm, str):
        return None
    try:
        key = jwt.PyJWK(entry).key
        # Secrets and private keys have no place in a published set: whoever reads it could sign with them.
        return SigningKey(key, kid, algorithm) if isinstance(key, PublicKey) else None
    except (jwt.PyJWTError, InvalidArgument, TypeError, ValueError):
        return None


def _get(url: str, timeout_s: float) -> Mapping[str, Any]:
    deadline = time.monotonic() + timeout_s
    try:
        with httpx.stream("GET", url, timeout=timeout_s, headers={"accept": "application/json"}) as response:
            response.raise_for_status()
            document = json.loads(_body(response, url, deadline))
    except httpx.HTTPStatusError as error:
        raise _failed(url, f"it answers {error.response.status_code}") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise _failed(url, f"{type(error).__name__} {error}".strip()) from None
    except (ValueError, RecursionError):
        raise _failed(url, "it answers something else than JSON") from None
    if not isinstance(document, dict):
        raise _failed(url, "it answers no JSON object")
    return document


def _body(response: httpx.Response, url: str, deadline: float) -> bytes:
    """The whole answer. A server that drips it byte by byte keeps every single read within its timeout."""
    body = b""
    for chunk in response.iter_bytes():
        body += chunk
        if len(body) > MAX_BYTES:
            raise _failed(url, f"it answers more than {MAX_BYTES} bytes")
        if time.monotonic() > deadline:
            raise _failed(url, "it answers too slowly")
    return body


def _check_url(url: str, *, allow_http: bool) -> None:
    parts = urlsplit(url)
    if not parts.hostname or parts.scheme not in ("http", "https"):
        raise InvalidArgument(f"{url!r} cannot be asked for keys: give an address that begins with https://")
    if parts.scheme == "http" and not (allow_http or _is_this_machine(parts.hostname)):
        raise InvalidArgument(
            f"{url} would send keys unprotected, and whoever changes them on the way can sign any token: use https://, "
            "or allow http where the network is your own"
        )


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _failed(url: str, why: str) -> Unavailable:
    return Unavailable(f"the keys for tokens cannot be had from {url}: {why}", key="token.keys.unavailable")
