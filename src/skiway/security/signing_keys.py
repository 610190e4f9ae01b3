"""The keys that verify tokens: one public key from a file, or the key set that an identity provider publishes.

Keys are parsed by PyJWT (`jwt.PyJWK`). Its `PyJWKClient`, which fetches and caches key sets, does not replace this module.
`tests/security/test_pyjwt_key_client.py` runs it against the same provider and shows what it lacks; a test there fails once
PyJWT can do it:

- it rejects all tokens once its cache has expired while the provider is down, although it knows the keys;
- while the provider is down, every call contacts it again, since only a successful fetch starts its cooldown;
- calls with a known key wait for a refresh, and so hang with the provider;
- it limits neither the size of a response nor its total duration;
- it does not find the key set by discovery, and accepts http:// from any host;
- it skips keys without an id, accepts weak RSA keys, shared secrets and private keys in the set, and does not tell whether
  the provider published a key for one algorithm or for all.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event, Lock, Thread
from typing import Any, Protocol

import jwt
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from skiway.errors import InvalidArgument, SkiwayError, Unauthorized
from skiway.security.identity_provider import check_url, get_json, metadata_of, unavailable

log = logging.getLogger(__name__)

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey | Ed448PublicKey
Fetch = Callable[[], "Sequence[SigningKey]"]

MIN_RSA_BITS = 2048


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A public key. If it was published for one algorithm, it verifies no other."""

    key: PublicKey = field(repr=False)
    kid: str = ""
    algorithm: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.key, RSAPublicKey) and self.key.key_size < MIN_RSA_BITS:
            raise InvalidArgument(
                f"the RSA key has {self.key.key_size} bits, which is not secure: use a key of at least {MIN_RSA_BITS} bits"
            )

    def fits(self, algorithm: str) -> bool:
        """Whether this key can verify signatures of `algorithm`."""
        if self.algorithm not in ("", algorithm):
            return False
        try:
            jwt.get_algorithm_by_name(algorithm).prepare_key(self.key)
        except (TypeError, jwt.InvalidKeyError):
            return False
        return True


class SigningKeys(Protocol):
    """Finds the key that verifies a token."""

    def find(self, kid: str, algorithm: str) -> SigningKey:
        """The key with this id, or the only one if the id is empty. Raises `Unauthorized`."""


class StaticKey:
    """One key, from the text of a PEM file with a public key or a certificate. Key ids are ignored."""

    def __init__(self, pem: str) -> None:
        self._key = SigningKey(_from_pem(pem))

    def find(self, kid: str, algorithm: str) -> SigningKey:  # noqa: ARG002  (there is only one key)
        """The key, whatever id the token has."""
        key = _select([self._key], "", algorithm)
        assert key is not None
        return key


class PublishedKeys:
    """A cache of the keys that `fetch` returns. It refreshes old keys in the background, and at once for an unknown id.

    There is at most one fetch at a time, and one per `interval_s`. If it fails, the known keys remain valid. Calls with a
    known key never wait; others wait up to `wait_s` for the fetch in progress.
    """

    def __init__(
        self,
        fetch: Fetch,
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
        self._failure = ""
        self._fetched_at = self._attempted_at = float("-inf")
        self._in_progress: Event | None = None

    def find(self, kid: str, algorithm: str) -> SigningKey:
        """The key with this id."""
        keys = self._cached()
        key = _select(keys, kid, algorithm)
        if key is None:
            keys = self._refreshed()
            key = _select(keys, kid, algorithm)
        if key is None:
            raise _unknown_key(kid, keys, self._failure)
        return key

    def _cached(self) -> Sequence[SigningKey]:
        """The known keys, without waiting. Starts a fetch if they are old."""
        with self._lock:
            if self._keys and self._monotonic() - self._fetched_at >= self._refresh_s:
                self._start_fetch()
            return self._keys

    def _refreshed(self) -> Sequence[SigningKey]:
        """The keys after a fetch, unless the last one was within the interval."""
        with self._lock:
            self._start_fetch()
            in_progress = self._in_progress
        if in_progress is not None:
            in_progress.wait(self._wait_s)
        return self._keys

    def _start_fetch(self) -> None:
        now = self._monotonic()
        if self._in_progress is None and now - self._attempted_at >= self._interval_s:
            self._attempted_at = now
            done = Event()
            Thread(target=self._run_fetch, args=(done,), name="skiway-keys", daemon=True).start()
            self._in_progress = done  # the thread cannot finish before the caller releases the lock

    def _run_fetch(self, done: Event) -> None:
        keys: Sequence[SigningKey] = ()
        try:
            keys = self._fetch()
        except SkiwayError as error:
            self._failure = error.message
            log.warning("%s; the %d known keys remain in use", error, len(self._keys))
        finally:
            with self._lock:
                if keys:
                    self._keys, self._fetched_at, self._failure = keys, self._monotonic(), ""
                self._in_progress = None
            done.set()


def keys_by_url(url: str, *, allow_http: bool = False, timeout_s: float = 5.0) -> Fetch:
    """A function that fetches the key set at `url`.

    Plain http is allowed for this machine only: anyone who can modify the keys in transit can sign any token.
    """
    check_url(url, allow_http=allow_http)
    return lambda: _key_set(get_json(url, timeout_s=timeout_s), url)


def keys_by_discovery(issuer: str, *, allow_http: bool = False, timeout_s: float = 5.0) -> Fetch:
    """A function that asks `issuer` for the URL of its key set and fetches it."""
    check_url(issuer, allow_http=allow_http)

    def fetch() -> Sequence[SigningKey]:
        jwks_uri = metadata_of(issuer, timeout_s=timeout_s).get("jwks_uri")
        if not isinstance(jwks_uri, str):
            raise unavailable(issuer, "its metadata contains no jwks_uri")
        return keys_by_url(jwks_uri, allow_http=allow_http, timeout_s=timeout_s)()

    return fetch


def _key_set(document: Mapping[str, Any], url: str) -> list[SigningKey]:
    """The usable keys of a set. Others are skipped, so that one bad key does not invalidate the set."""
    entries = document.get("keys")
    keys = [key for each in (entries if isinstance(entries, list) else []) if (key := _signing_key(each)) is not None]
    if not keys:
        raise unavailable(url, "it contains no usable signing key")
    return keys


def _signing_key(entry: Any) -> SigningKey | None:
    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
        return None
    kid, algorithm = entry.get("kid", ""), entry.get("alg", "")
    if not isinstance(kid, str) or not isinstance(algorithm, str):
        return None
    try:
        key = jwt.PyJWK(entry).key
        # A published set must not contain secrets or private keys: anyone who reads it could sign with them.
        return SigningKey(key, kid, algorithm) if isinstance(key, PublicKey) else None
    except (jwt.PyJWTError, InvalidArgument, TypeError, ValueError):
        return None


def _select(keys: Iterable[SigningKey], kid: str, algorithm: str) -> SigningKey | None:
    """The key for a token with this header; None if its id is unknown."""
    candidates = [key for key in keys if key.kid == kid or not kid]
    fitting = [key for key in candidates if key.fits(algorithm)]
    if candidates and not fitting:
        raise Unauthorized(
            f"the token is signed with {algorithm}, but its key is for another algorithm: sign it with the algorithm that "
            "the issuer's key set specifies",
            key="token.algorithm",
        )
    if len(fitting) > 1 and not kid:
        raise Unauthorized(
            f"the token does not say which of {len(fitting)} keys signed it: configure the issuer to add the header `kid`",
            key="token.key",
        )
    return fitting[0] if fitting else None


def _unknown_key(kid: str, known: Sequence[SigningKey], failure: str) -> Unauthorized:
    if not known:
        why = failure or "the keys that verify tokens were not fetched yet; retry shortly"
        return Unauthorized(f"no token can be verified: {why}", key="token.keys.unavailable")
    return Unauthorized(
        f"the token is signed with key {kid[:64]!r}, which the issuer does not publish: get a new token from the issuer that "
        "this server trusts; after a key rotation, retry shortly",
        key="token.key",
    )


def _from_pem(pem: str) -> PublicKey:
    data = pem.encode()
    try:
        is_certificate = "BEGIN CERTIFICATE" in pem
        key = x509.load_pem_x509_certificate(data).public_key() if is_certificate else load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        raise InvalidArgument(
            "the key for tokens is not a public key in PEM format: it must start with -----BEGIN PUBLIC KEY----- or "
            "-----BEGIN CERTIFICATE-----"
        ) from None
    if not isinstance(key, PublicKey):
        raise InvalidArgument(
            f"the key for tokens is of the unsupported type {type(key).__name__}: use RSA, an elliptic curve or Ed25519"
        )
    return key
