"""Who calls, what they may, and where their secrets are kept.

An `Authenticator` makes a `Principal` of a call's headers, an `Authorizer` decides what it may do, a `SecretsStore`
keeps credentials. Each has several forms; heavier ones are in modules of their own, which load what they need:
`skiway.security.oidc`, `skiway.security.file_secrets`, `skiway.security.aws_secrets`.
"""

from skiway.security.authentication import Authenticator, TokenHeaders
from skiway.security.authorization import Authorizer, PermissionAuthorizer
from skiway.security.clock import Clock, utc_now
from skiway.security.dev import DevAuthenticator
from skiway.security.opening import open_secrets
from skiway.security.principals import NOBODY, PLATFORM, Accounts, Principal
from skiway.security.redaction import MASK, Redacted
from skiway.security.roles import Roles
from skiway.security.secrets import MemorySecrets, SecretsStore, secret_key
from skiway.security.token_file import TokenFile
from skiway.security.tokens import NewToken, TokenAuthenticator, TokenEntry, new_token

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
