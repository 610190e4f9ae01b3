"""Who calls, what they may, and where their secrets are kept.

An `Authenticator` makes a `Principal` of a call's headers, an `Authorizer` decides what it may do, a `SecretsStore`
keeps credentials. Each has several forms; heavier ones are in modules of their own, which load what they need:
`skiway.security.oidc`, `skiway.security.secrets.files`, `skiway.security.secrets.aws`.
"""

from skiway.clock import Clock, utc_now
from skiway.security.authentication import Authenticator, DevAuthenticator, TokenHeaders
from skiway.security.principals import NOBODY, PLATFORM, Accounts, Authorizer, PermissionAuthorizer, Principal, Roles
from skiway.security.redaction import MASK, Redacted
from skiway.security.secrets.opening import open_secrets
from skiway.security.secrets.store import MemorySecrets, SecretsStore, secret_key
from skiway.security.tokens import NewToken, TokenAuthenticator, TokenEntry, TokenFile, new_token

__all__ = [
    "MASK",
    "NOBODY",
    "PLATFORM",
    "Accounts",
    "Authenticator",
    "Authorizer",
    "Clock",
    "DevAuthenticator",
    "MemorySecrets",
    "NewToken",
    "PermissionAuthorizer",
    "Principal",
    "Redacted",
    "Roles",
    "SecretsStore",
    "TokenAuthenticator",
    "TokenEntry",
    "TokenFile",
    "TokenHeaders",
    "new_token",
    "open_secrets",
    "secret_key",
    "utc_now",
]
