"""Requests to an identity provider: its metadata, its keys, tokens for the codes of logins, and logins with a device code.

Callers wait for these requests, so redirects are not followed, and responses are limited in size and time. Plain http is
allowed only on the loopback interface: on a network, others could read or change the requests and responses.

`DeviceLogin` is the device authorization flow of OAuth (RFC 8628), for logins without a browser on the same machine. The
identity provider issues a short code. A person enters it in any browser, while this side asks again and again whether that
has happened.
"""

from __future__ import annotations

import ipaddress
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from skiway.errors import InvalidArgument, TimedOut, Unauthorized, Unavailable, Unsupported
from skiway.foundation.causes import cause_of

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
    text = ": ".join(part for part in parts if isinstance(part, str) and part) or "it gave no reason"
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


GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
DEFAULT_INTERVAL_S: Final = 5.0
MAX_INTERVAL_S: Final = 60.0
SLOWER_BY_S: Final = 5.0
"""How much longer to wait after `slow_down`, as the RFC demands."""
MAX_WAIT_S: Final = 1800.0
"""The longest wait for a person, whatever the provider says about its code."""
MAX_FAILURES: Final = 5
"""How many requests in a row may fail before the login does."""
AGAIN: Final = "run skiway login again"


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """What a person needs in order to log in: the code, and where to enter it. `direct_uri` has the code in it already."""

    user_code: str
    uri: str
    direct_uri: str
    interval_s: float
    lifetime_s: float
    device_code: str

    def __repr__(self) -> str:
        return f"DeviceCode({self.user_code!r}, {self.uri!r})"  # without the code of the device, which is a secret


@dataclass(frozen=True, slots=True)
class IssuedTokens:
    """The tokens of a login. A server accepts the access token, or else the ID token."""

    access_token: str
    id_token: str
    refresh_token: str
    lifetime_s: float | None

    def __repr__(self) -> str:
        return "IssuedTokens(****)"


class DeviceLogin:
    """Logins of a public client at one issuer."""

    def __init__(self, issuer: str, client_id: str, *, scopes: str = "openid", timeout_s: float = 10.0) -> None:
        _require_private(issuer)
        self._issuer, self._client_id, self._scopes, self._timeout_s = issuer, client_id, scopes, timeout_s

    @property
    def name(self) -> str:
        """The host of the issuer, for people."""
        return urlsplit(self._issuer).hostname or self._issuer

    def begin(self) -> DeviceCode:
        """Ask the issuer for a code."""
        form = {"client_id": self._client_id, "scope": self._scopes}
        status, answer = self._post(self._endpoint("device_authorization_endpoint"), form)
        if status != 200:
            raise Unauthorized(
                f"the identity provider {self.name} refused to begin a login for the client {self._client_id!r}: "
                f"{quoted_error(answer)}; ask the operator of the server to allow the device flow for this client",
                key="login.refused",
            )
        # Older drafts of the RFC, which some providers implement, write URL instead of URI.
        uri = _text(answer, "verification_uri") or _text(answer, "verification_url")
        user_code, device_code = _text(answer, "user_code"), _text(answer, "device_code")
        if not (uri and user_code and device_code):
            raise unavailable(self._issuer, "its response contains no code, or no page to enter it", problem=DEVICE)
        return DeviceCode(
            user_code,
            uri,
            _text(answer, "verification_uri_complete"),
            min(_number(answer, "interval") or DEFAULT_INTERVAL_S, MAX_INTERVAL_S),
            min(_number(answer, "expires_in") or MAX_WAIT_S, MAX_WAIT_S),
            device_code,
        )

    def wait(
        self,
        code: DeviceCode,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        slower: Callable[[float], None] = lambda _: None,
    ) -> IssuedTokens:
        """Ask until the person has logged in. `slower` learns the new interval if the provider asks for a longer one."""
        ends_at, failures = clock() + code.lifetime_s, 0
        while clock() < ends_at:
            sleep(code.interval_s)
            try:
                found = self._poll(code)
                failures = 0
            except Unavailable:  # a lost request must not end the login
                failures += 1
                if failures >= MAX_FAILURES:
                    raise
                found = "slow_down"
            if isinstance(found, IssuedTokens):
                return found
            if found == "slow_down":
                code = replace(code, interval_s=min(code.interval_s + SLOWER_BY_S, MAX_INTERVAL_S))
                slower(code.interval_s)
        raise _expired(code)

    def refresh(self, refresh_token: str) -> IssuedTokens:
        """New tokens for a refresh token; the old refresh token stays valid if the provider sends no other one."""
        form = {"grant_type": "refresh_token", "refresh_token": refresh_token, "client_id": self._client_id}
        status, answer = self._post(self._endpoint("token_endpoint"), form)
        if status != 200:
            raise Unauthorized(
                f"the login at {self.name} has ended: {quoted_error(answer)}; {AGAIN}", key="login.refused"
            )
        found = self._tokens(answer)
        return found if found.refresh_token else replace(found, refresh_token=refresh_token)

    def revoke(self, refresh_token: str) -> bool:
        """Tell the issuer to forget the login. Returns whether the issuer supports that and has confirmed it."""
        endpoint = self._published.get("revocation_endpoint")
        if not isinstance(endpoint, str):
            return False
        _require_private(endpoint)
        form = {"token": refresh_token, "token_type_hint": "refresh_token", "client_id": self._client_id}
        status, _ = post_form(endpoint, form, user=None, timeout_s=self._timeout_s, problem=DEVICE, needs_body=False)
        return status == 200

    def _poll(self, code: DeviceCode) -> IssuedTokens | str:
        """The tokens, or why there are none yet."""
        form = {"grant_type": GRANT, "device_code": code.device_code, "client_id": self._client_id}
        status, answer = self._post(self._endpoint("token_endpoint"), form)
        if status == 200:
            return self._tokens(answer)
        match answer.get("error"):
            case "authorization_pending" | "slow_down" as waiting:
                return str(waiting)
            case "expired_token":
                raise _expired(code)
            case "access_denied":
                raise Unauthorized(
                    f"the login was refused at {self.name}: {quoted_error(answer)}; {AGAIN}, or ask the administrator "
                    "of the identity provider for access",
                    key="login.refused",
                )
        raise Unauthorized(
            f"the identity provider {self.name} refused the login: {quoted_error(answer)}; {AGAIN}", key="login.refused"
        )

    def _tokens(self, answer: Mapping[str, Any]) -> IssuedTokens:
        access, identity = _text(answer, "access_token"), _text(answer, "id_token")
        if not (access or identity):
            raise unavailable(self._issuer, "its response contains no token", problem=DEVICE)
        return IssuedTokens(access, identity, _text(answer, "refresh_token"), _number(answer, "expires_in"))

    def _post(self, url: str, form: Mapping[str, str]) -> tuple[int, Mapping[str, Any]]:
        return post_form(url, form, user=None, timeout_s=self._timeout_s, problem=DEVICE)

    def _endpoint(self, name: str) -> str:
        found = self._published.get(name)
        if not isinstance(found, str):
            raise Unsupported(
                f"the identity provider {self.name} has no {name}, so it does not support logins on the command line: get "
                "a token in another way, and store it with skiway login --token-file -",
                key="login.unsupported",
            )
        _require_private(found)
        return found

    @cached_property
    def _published(self) -> Mapping[str, Any]:
        return metadata_of(self._issuer, timeout_s=self._timeout_s, problem=DEVICE)


def _require_private(url: str) -> None:
    if not is_private(url):
        raise InvalidArgument(
            f"a login at {url!r} would send tokens without TLS: ask the operator of the server for an issuer with https"
        )


def _expired(code: DeviceCode) -> TimedOut:
    return TimedOut(f"the code {code.user_code} has expired before it was confirmed: {AGAIN}", key="login.expired")


def _text(answer: Mapping[str, Any], name: str) -> str:
    found = answer.get(name)
    return found if isinstance(found, str) else ""


def _number(answer: Mapping[str, Any], name: str) -> float | None:
    found = answer.get(name)
    if not isinstance(found, int | float) or isinstance(found, bool):
        return None
    return float(found) if found > 0 else None
