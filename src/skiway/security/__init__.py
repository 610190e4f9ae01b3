"""Authentication, authorization and the storage of secrets.

An `Authenticator` turns the headers of a call into a `Principal`, an `Authorizer` decides what the principal may do, and a
`SecretsStore` holds credentials. Implementations with heavy dependencies must be imported from their own modules:
`skiway.security.oidc`, `skiway.security.secrets.files`, `skiway.security.secrets.aws`.
"""

from skiway.config.fields import MASK
from skiway.foundation.clock import utc_now
from skiway.security.authentication import (
    NOBODY,
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
