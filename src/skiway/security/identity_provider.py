"""Requests to an identity provider: its metadata, its keys, and tokens for the codes of logins.

Callers wait for these requests, so redirects are not followed, and responses are limited in size and time. Plain http is
allowed only on the loopback interface: on a network, others could read or change the requests and responses.
"""

from __future__ import annotations

import ipaddress
import json
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from skiway.causes import cause_of
from skiway.errors import InvalidArgument, Unavailable

__all__ = [
    "DEVICE",
    "LOGIN",
    "MAX_BYTES",
    "check_url",
    "get_json",
    "is_private",
    "metadata_of",
    "post_form",
    "quoted_error",
    "unavailable",
]

DISCOVERY_PATH: Final = "/.well-known/openid-configuration"
CHECK_URL: Final = "check auth.oidc.issuer and auth.oidc.jwks_url"
MAX_BYTES: Final = 1_048_576
KEYS: Final = "the keys that verify tokens cannot be fetched from the identity provider"
LOGIN: Final = "the identity provider cannot complete logins"
DEVICE: Final = "the login at the identity provider failed"
"""The beginnings of messages: on a server that checks tokens, in its explorer, and on the command line."""
NETWORK: Final = {DEVICE: "check the network of this machine, or ask the operator of the server"}
"""What to do if the provider cannot be reached, unless it is to check the settings and the network of the server."""
MAX_QUOTED: Final = 200


def metadata_of(issuer: str, *, timeout_s: float, problem: str = KEYS) -> Mapping[str, Any]:
    """The metadata that an issuer publishes about itself. `problem` begins the message if that fails."""
    url = issuer.rstrip("/") + DISCOVERY_PATH
    found = get_json(url, timeout_s=timeout_s, problem=problem)
    if found.get("issuer") != issuer:
        raise unavailable(
            url, f"it is the metadata of issuer {found.get('issuer')!r}, not of {issuer!r}", problem=problem
        )
    return found


def get_json(url: str, *, timeout_s: float, problem: str = KEYS) -> Mapping[str, Any]:
    """The JSON object at `url`."""
    status, found = _requested("GET", url, {}, timeout_s=timeout_s, problem=problem)
    if status != httpx.codes.OK:
        raise unavailable(url, f"the response has status {status}", problem=problem)
    return found


def post_form(
    url: str,
    form: Mapping[str, str],
    *,
    user: tuple[str, str] | None,
    timeout_s: float,
    problem: str = LOGIN,
    needs_body: bool = True,
) -> tuple[int, Mapping[str, Any]]:
    """Send a form, as `user` with a password if that is given. Returns the status and the JSON object in the response.

    Unless it `needs_body`, the response may be empty.
    """
    content = {"data": form, "auth": user}
    return _requested("POST", url, content, timeout_s=timeout_s, problem=problem, needs_body=needs_body)


def check_url(url: str, *, allow_http: bool) -> None:
    """Raise if a request to `url` could be read or changed on its way: it must use TLS or the loopback interface."""
    parts = urlsplit(url)
    if not parts.hostname or parts.scheme not in ("http", "https"):
        raise InvalidArgument(f"keys cannot be fetched from {url!r}: use a URL that starts with https://")
    if not (allow_http or is_private(url)):
        raise InvalidArgument(
            f"{url} would transfer keys without TLS, and anyone who modifies them in transit can sign any token: use "
            "https://, or set auth.oidc.allow_http on a trusted network"
        )


def is_private(url: str) -> bool:
    """Whether nobody on the network can read or change requests to `url`: it uses TLS or the loopback interface."""
    parts = urlsplit(url)
    return bool(parts.hostname) and (
        parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(parts.hostname or ""))
    )


def quoted_error(answer: Mapping[str, Any]) -> str:
    """The error in a response of the provider, as far as it can be printed."""
    parts = [answer.get("error"), answer.get("error_description")]
    text = ": ".join(each for each in parts if isinstance(each, str) and each) or "it gave no reason"
    return "".join(each if each.isprintable() else " " for each in text)[:MAX_QUOTED]


def _requested(
    method: str, url: str, content: Mapping[str, Any], *, timeout_s: float, problem: str, needs_body: bool = True
) -> tuple[int, Mapping[str, Any]]:
    deadline = time.monotonic() + timeout_s
    try:
        with httpx.stream(
            method, url, timeout=timeout_s, headers={"accept": "application/json"}, **content
        ) as response:
            if not needs_body or (not response.is_success and method == "GET"):
                return response.status_code, {}
            document = json.loads(_body(response, url, deadline, problem))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        cause, detail = cause_of(error), f"{type(error).__name__} {error}".strip()
        if cause is not None:
            raise unavailable(url, cause.problem, problem=problem, remedy=cause.remedy, detail=detail) from None
        found = "it did not answer in time" if isinstance(error, httpx.TimeoutException) else "it cannot be reached"
        remedy = NETWORK.get(problem, f"{CHECK_URL}, and the network of this server")
        raise unavailable(url, found, problem=problem, remedy=remedy, detail=detail) from None
    except (ValueError, RecursionError):
        raise unavailable(url, "the response is not JSON", problem=problem) from None
    if not isinstance(document, dict):
        raise unavailable(url, "the response is not a JSON object", problem=problem)
    return response.status_code, document


def _body(response: httpx.Response, url: str, deadline: float, problem: str) -> bytes:
    """The whole body. A server that sends it byte by byte would keep every single read within the timeout."""
    body = b""
    for chunk in response.iter_bytes():
        body += chunk
        if len(body) > MAX_BYTES:
            raise unavailable(url, f"the response is larger than {MAX_BYTES} bytes", problem=problem)
        if time.monotonic() > deadline:
            raise unavailable(url, "the response is too slow", problem=problem)
    return body


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def unavailable(url: str, found: str, *, problem: str = KEYS, remedy: str = "", detail: str = "") -> Unavailable:
    """The error for callers: what failed and what was found. The URL is only in the detail, for the log."""
    return Unavailable(
        f"{problem}: {found}; {remedy or NETWORK.get(problem, CHECK_URL)}",
        key="token.keys.unavailable" if problem == KEYS else "login.unavailable",
        detail=f"{url}: {detail}" if detail else url,
    )
