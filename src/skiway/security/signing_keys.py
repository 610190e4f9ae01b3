"""Keys that verify tokens: one given once, or those that an identity provider publishes and changes."""

from __future__ import annotations

import ipaddress
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event, Lock, Thread
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx
import jwt
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from skiway.errors import InvalidArgument, SkiwayError, Unauthorized, Unavailable

__all__ = ["PublicKey", "PublishedKeys", "SigningKey", "SigningKeys", "StaticKey", "keys_by_discovery", "keys_by_url"]

log = logging.getLogger(__name__)

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey | Ed448PublicKey

MIN_RSA_BITS = 2048


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A public key; where its publisher says for which algorithm, it serves no other."""

    key: PublicKey = field(repr=False)
    kid: str = ""
    algorithm: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.key, RSAPublicKey) and self.key.key_size < MIN_RSA_BITS:
            raise InvalidArgument(
                f"the RSA key has {self.key.key_size} bits, which is not safe: use one of {MIN_RSA_BITS} or more"
            )

    def fits(self, algorithm: str) -> bool:
        """Can a signature of this algorithm be checked with this key?"""
        if self.algorithm not in ("", algorithm):
            return False
        try:
            jwt.get_algorithm_by_name(algorithm).prepare_key(self.key)
        except (TypeError, jwt.InvalidKeyError):
            return False
        return True


class SigningKeys(Protocol):
    """Finds the key that a token was signed with."""

    def find(self, kid: str, algorithm: str) -> SigningKey:
        """The key of this id, or without an id the only one; raises `Unauthorized`."""


class StaticKey:
    """One key, from a PEM file with a public key or a certificate; ids are not looked at."""

    def __init__(self, pem: str) -> None:
        self._key = SigningKey(_from_pem(pem))

    def find(self, kid: str, algorithm: str) -> SigningKey:  # noqa: ARG002  (there is one key, whatever its id)
        """The key, whatever id the token names."""
        found = _chosen([self._key], "", algorithm)
        assert found is not None
        return found


class PublishedKeys:
    """The keys that `fetch` returns, kept and fetched anew: in the background when they are old, and for unknown ids.

    Whatever is asked, there is at most one fetch at a time and one in `interval_s`. While fetching fails, the keys stay
    what they were. Calls with a known key never wait; the others wait for a fetch under way, up to `wait_s`.
    """

    def __init__(
        self,
        fetch: Callable[[], Sequence[SigningKey]],
        *,
        refresh_s: float = 300.0,
        interval_s: float = 15.0,
        wait_s: float = 5.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fetch = fetch
        self._refresh_s = refresh_s
        self._interval_s = interval_s
        self._wait_s = wait_s
        self._monotonic = monotonic
        self._lock = Lock()
        self._keys: Sequence[SigningKey] = ()
        self._fetched_at = self._tried_at = float("-inf")
        self._under_way: Event | None = None

    def find(self, kid: str, algorithm: str) -> SigningKey:
        """The key of this id."""
        known = self._present()
        found = _chosen(known, kid, algorithm)
        if found is None:
            known = self._newest()
            found = _chosen(known, kid, algorithm)
        if found is None:
            raise _unknown(kid, known)
        return found

    def _present(self) -> Sequence[SigningKey]:
        """The keys now, without waiting."""
        with self._lock:
            if self._keys and self._monotonic() - self._fetched_at >= self._refresh_s:
                self._begin_fetch()
            return self._keys

    def _newest(self) -> Sequence[SigningKey]:
        """The keys after a fetch, unless the last one was just now."""
        with self._lock:
            self._begin_fetch()
            under_way = self._under_way
        if under_way is not None:
            under_way.wait(self._wait_s)
        return self._keys

    def _begin_fetch(self) -> None:
        now = self._monotonic()
        if self._under_way is None and now - self._tried_at >= self._interval_s:
            self._tried_at = now
            done = Event()
            Thread(target=self._finish_fetch, args=(done,), name="skiway-keys", daemon=True).start()
            self._under_way = done  # the thread ends only after the lock is free again

    def _finish_fetch(self, done: Event) -> None:
        keys: Sequence[SigningKey] = ()
        try:
            keys = self._fetch()
        except SkiwayError as error:
            log.warning("%s; %d known keys stay in use", error.message, len(self._keys))
        finally:
            with self._lock:
                if keys:
                    self._keys, self._fetched_at = keys, self._monotonic()
                self._under_way = None
            done.set()


def _chosen(keys: Iterable[SigningKey], kid: str, algorithm: str) -> SigningKey | None:
    """The key that the token must have been signed with; None when its id is not known."""
    named = [key for key in keys if key.kid == kid or not kid]
    fitting = [key for key in named if key.fits(algorithm)]
    if named and not fitting:
        raise Unauthorized(
            f"the token is signed with {algorithm}, which is not what its key is for: have it signed as the "
            "issuer's published keys say",
            key="token.algorithm",
        )
    if len(fitting) > 1 and not kid:
        raise Unauthorized(
            f"the token does not say which of {len(fitting)} keys signed it: have the issuer put `kid` into its header",
            key="token.key",
        )
    return fitting[0] if fitting else None


def _unknown(kid: str, known: Sequence[SigningKey]) -> Unauthorized:
    if not known:
        return Unauthorized(
            "the issuer's keys could not be fetched, so no token can be checked: try again shortly; if it stays so, "
            "see the server's log",
            key="token.keys.unavailable",
        )
    return Unauthorized(
        f"the token is signed with key {kid[:64]!r}, which its issuer does not publish: get a new token from the issuer "
        "this server trusts; after a change of keys, try again shortly",
        key="token.key",
    )


def _from_pem(pem: str) -> PublicKey:
    try:
        key = _certified(pem) if "BEGIN CERTIFICATE" in pem else load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise InvalidArgument(
            "the key for tokens is no public key in PEM: it must begin with -----BEGIN PUBLIC KEY----- or "
            "-----BEGIN CERTIFICATE-----"
        ) from None
    if not isinstance(key, PublicKey):
        raise InvalidArgument(f"the key for tokens is a {type(key).__name__}: use RSA, an elliptic curve or Ed25519")
    return key


def _certified(pem: str) -> PublicKeyTypes:
    return x509.load_pem_x509_certificate(pem.encode()).public_key()


# --------------------
# The keys an identity provider publishes, fetched over HTTP: by the address of its key set, or found by discovery.


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
