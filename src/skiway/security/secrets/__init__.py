"""Stores of secrets, such as the credentials of connectors, which are never part of the records that use them.

`open_secrets` opens a store by URL: in memory, in encrypted files, or in AWS Secrets Manager.
"""

from skiway.security.secrets.opening import open_secrets
from skiway.security.secrets.store import MAX_SECRET_BYTES, MemorySecrets, SecretsStore, secret_key

__all__ = ["MAX_SECRET_BYTES", "MemorySecrets", "SecretsStore", "open_secrets", "secret_key"]
