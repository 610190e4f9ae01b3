"""Authentication, authorization and the storage of secrets.

An `Authenticator` turns the headers of a call into a `Principal`, an `Authorizer` decides what the principal may do, and a
`SecretsStore` holds credentials. Implementations with heavy dependencies must be imported from their own modules:
`skiway.security.oidc`, `skiway.security.secrets.files`, `skiway.security.secrets.aws`.
"""

from skiway.config.fields import MASK
from skiway.foundation.clock import Clock, utc_now
from skiway.security.authentication import (
    NOBODY,
    PLATFORM,
    Accounts,
    Authenticator,
    Authorizer,
    DevAuthenticator,
    IssuedTokenAuthenticator,
    PermissionAuthorizer,
    Principal,
    Roles,
    TokenHeaders,
)
from skiway.security.redaction import Redacted
from skiway.security.secrets.store import MemorySecrets, SecretsStore, open_secrets, secret_key
from skiway.security.signed_tokens import AccessTokens, JobTokens, LeasedJob
from skiway.security.tokens import NewToken, TokenAuthenticator, TokenEntry, TokenFile, new_token, roles_of_user

__all__ = [
    "MASK",
    "NOBODY",
    "PLATFORM",
    "AccessTokens",
    "Accounts",
    "Authenticator",
    "Authorizer",
    "Clock",
    "DevAuthenticator",
    "IssuedTokenAuthenticator",
    "JobTokens",
    "LeasedJob",
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
    "roles_of_user",
    "secret_key",
    "utc_now",
]
