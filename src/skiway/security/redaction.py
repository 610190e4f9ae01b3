"""Secrets in memory, masked wherever they are printed; and secrets where people put them by mistake.

Secrets in addresses and properties are recognized by their names and by their shapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hmac import compare_digest
from itertools import pairwise
from typing import Any, Final, Generic, NoReturn, Self, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from skiway.config.fields import MASK

S = TypeVar("S", str, bytes)


class Redacted(Generic[S]):
    """A secret in memory. Printing, formatting or logging it shows `****`; only `reveal()` returns it.

    >>> password = Redacted("correct horse")
    >>> print(password, repr(password), f"{password:>6}")
    **** Redacted(****)   ****
    >>> password.reveal()
    'correct horse'
    """

    __slots__ = ("_secret",)

    def __init__(self, secret: S) -> None:
        self._secret: S = secret

    def reveal(self) -> S:
        """The secret itself. Do not store it, and never put it into a message."""
        return self._secret

    def __eq__(self, other: object) -> bool:
        """Compare in constant time."""
        if not isinstance(other, Redacted):
            return NotImplemented
        return compare_digest(_bytes(self._secret), _bytes(other._secret))

    __hash__ = None  # type: ignore[assignment]  # a hash would leak information about the secret

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the same object, so that objects that contain it can be copied."""
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret cannot be pickled: call reveal() where it must be sent")

    def __format__(self, spec: str) -> str:
        return format(MASK, spec)

    def __str__(self) -> str:
        return MASK

    def __repr__(self) -> str:
        return f"Redacted({MASK})"


def _bytes(secret: str | bytes) -> bytes:
    return secret.encode() if isinstance(secret, str) else secret


_HUMPS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORD: Final = re.compile(r"[a-z0-9]+")

# The last word of a name, alone or after others: `sig`, `sas-token`, `x.access.token`. A name that merely contains such
# a word, such as `token_type`, is harmless.
_LAST_WORDS: Final = frozenset(
    [
        *("assertion", "auth", "authorization", "bearer", "cookie", "credential", "credentials", "hmac", "jwt", "pass"),
        *("passcode", "passphrase", "passwd", "password", "pat", "psw", "pw", "pwd", "sas", "secret", "session", "sig"),
        *("signature", "token", "tokens"),
    ]
)
_ENDINGS: Final = (
    *("password", "passwd", "secret", "token", "apikey", "accesskey", "secretkey", "accountkey", "connectionstring"),
)
_KEYS: Final = frozenset(
    [
        *("access", "account", "api", "encryption", "hmac", "master", "private", "secret", "shared", "signing", "sse"),
        *("storage", "subscription"),
    ]
)
_PAIRS: Final = frozenset([("connection", "string"), ("sas", "url")])
"""The last two words of a name."""
_PAIRS_ANYWHERE: Final = frozenset([("account", "key"), ("client", "secret"), ("jaas", "config"), ("sas", "token")])
"""Words that may be followed by the name of an account: `fs.azure.account.key.lake.dfs.core.windows.net`."""

_VALUES: Final = re.compile(
    r"""
      ^(?:bearer|basic|token|aws4-hmac-sha256)\s+\S           # the header `authorization`
    | -----BEGIN[ A-Z0-9]*PRIVATE[ ]KEY-----
    | \beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*                     # JSON Web Tokens
    | \b(?:AKIA|ASIA)[A-Z0-9]{16}\b                            # keys of AWS
    | \b(?:skiway_|dapi|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|ya29\.|AIza|sk_live_)[\w.-]{16,}
    | (?:^|[?&;,.\s])(?:password|passwd|pwd|secret|token|access_token|sig|accountkey|sharedaccesssignature)\s*=\s*[^\s;&,]
    | ^[a-z][a-z0-9+.-]*://[^/?\#\s@:]*:[^/?\#\s@]+@            # user and password in a URL
    | "private_key"\s*:
    """,
    re.VERBOSE | re.IGNORECASE,
)
_WEB: Final = ("http", "https")
_WITHOUT_USER: Final = (*_WEB, "s3", "s3a", "s3n", "gs")
_USER_INFO: Final = re.compile(r"(?<=//)[^/?#]*@")


def is_secret_name(name: str) -> bool:
    """Whether it is the name of a secret, in any spelling: `s3.secret-access-key`, `clientSecret`, `sig`."""
    words = [word.rstrip("0123456789") for word in _WORD.findall(_HUMPS.sub("_", name).lower())]
    *before, last = list(filter(None, words)) or [""]  # numbers distinguish names of the same kind: `password2`
    pairs = set(pairwise([*before, last]))
    if pairs & _PAIRS_ANYWHERE or (*before[-1:], last) in _PAIRS:
        return True
    if last in _LAST_WORDS or last.endswith(_ENDINGS):
        return True
    if last == "id":  # half of a pair that belongs together: `access-key-id`
        return before[-2:] == ["access", "key"]
    if last == "pem":
        *before, last = before or [""]
    if last == "key":
        return not before or before[-1] in _KEYS
    return False


def is_secret_value(value: str) -> bool:
    """Whether it has the shape of a secret: a token, a private key, a connection string with a password."""
    return _VALUES.search(value) is not None


def secret_in_uri(uri: str) -> str:
    """What is secret in a URI, such as `the parameter sig`; empty if nothing is.

    Web addresses and buckets may have no user at all, because some services accept a token or a key there.
    """
    try:
        parts = urlsplit(uri)
        password = parts.password
    except ValueError:
        return "the part before @" if "@" in uri else ""
    if password is not None:
        return "a password"
    if ":" in unquote(parts.username or ""):  # an encoded one, which drivers decode
        return "a password"
    if parts.username is not None and parts.scheme in _WITHOUT_USER:
        return "a user"
    if parts.scheme in _WEB and not parts.netloc and "@" in uri:  # the slashes are missing or wrong
        return "the part before @"
    for name, value in _parameters(uri):
        if is_secret_name(name) or is_secret_value(value):
            return f"the parameter {name}"
    return "a secret" if is_secret_value(unquote(parts.path)) else ""


def without_secrets(uri: str) -> str:
    """The URI as it can be shown: user info is masked, and all parameters if one of them is secret."""
    if not secret_in_uri(uri):
        return uri
    if "://" not in uri:  # a connection string, or an address with wrong slashes
        return MASK
    shown = _USER_INFO.sub(f"{MASK}@", uri)
    if is_secret_value(unquote(urlsplit(shown).path)):
        return f"{shown.partition('://')[0]}://{MASK}"
    return re.sub(r"[?#;].*", f"?{MASK}", shown, flags=re.DOTALL)


def _parameters(uri: str) -> Iterator[tuple[str, str]]:
    """The parameters after `?` and `#`, and after `;` as in connection strings."""
    for part in re.split(r"[?#;]", uri)[1:]:
        yield from parse_qsl(part, keep_blank_values=True)
