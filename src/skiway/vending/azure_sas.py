"""Shared access signatures of Azure for the folders of single tables.

A signature names the directory, the permissions and the time when it expires, and Azure enforces it. It is made with the
key of the account, or with a user delegation key, which Azure issues to the identity of the server. Signatures for
directories require accounts with a hierarchical namespace.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from threading import Lock
from typing import Any, Final

from skiway.formats.object_stores import AzureStorage, azure_account
from skiway.foundation import extras
from skiway.foundation.clock import Clock, utc_now
from skiway.vending.credentials import Sessions, TableAccess, TemporaryCredentials, not_issued

with extras.needed("azure", "vended credentials for Azure"):
    from azure.core.exceptions import AzureError
    from azure.storage.filedatalake import DataLakeServiceClient, generate_directory_sas


_READ: Final = "rl"  # read, list
_WRITE: Final = "racwdl"  # also add, create, write, delete
_SKEW: Final = timedelta(minutes=5)


def delegation_client(account: str) -> Any:
    """The client that gets user delegation keys of an account with the default credentials of this machine."""
    from azure.identity import DefaultAzureCredential

    return DataLakeServiceClient(f"https://{account}.dfs.core.windows.net", DefaultAzureCredential())


class AzureSignatures(Sessions[TemporaryCredentials]):
    """Issues signatures that are limited to the folder of a table and to https. `storage` has the key of the account.

    For accounts without a key, `client` returns the client that gets user delegation keys.
    """

    def __init__(
        self,
        storage: AzureStorage,
        *,
        lifetime_s: int = 3600,
        client: Callable[[str], Any] = delegation_client,
        clock: Clock = utc_now,
    ) -> None:
        super().__init__(clock)
        self._storage, self._lifetime, self._client = storage, timedelta(seconds=lifetime_s), client
        self._keys: dict[str, tuple[Any, datetime]] = {}
        self._keys_lock = Lock()

    @property
    def lifetime_s(self) -> float:
        """See `CredentialsProvider`."""
        return self._lifetime.total_seconds()

    def new(self, access: TableAccess) -> TemporaryCredentials:
        """A new signature."""
        container, account = azure_account(access.folder.bucket)
        expires_at = (self._clock() + self._lifetime).replace(microsecond=0)
        token = generate_directory_sas(
            account_name=account,
            file_system_name=container,
            directory_name=access.folder.path,
            credential=self._storage.key_of(account) or self._delegation_key(account, until=expires_at),
            permission=_WRITE if access.writes_everything else _READ,
            expiry=expires_at,
            protocol="https",
        )
        host, expiry = access.folder.bucket.partition("@")[2], str(int(expires_at.timestamp() * 1000))
        # Iceberg's Java library uses the properties with the host of the account, PyIceberg those without.
        properties = {
            f"adls.sas-token.{host}": token,
            f"adls.sas-token-expires-at-ms.{host}": expiry,
            "adls.account-name": account,
            "adls.sas-token": token,
        }
        return TemporaryCredentials(properties, expires_at, "adls.refresh-credentials-endpoint")

    def _delegation_key(self, account: str, *, until: datetime) -> Any:
        """A user delegation key that is valid until the signature expires."""
        with self._keys_lock:
            found, expires_at = self._keys.get(account, (None, until))
            if found is not None and expires_at >= until:
                return found
            now = self._clock()
            expires_at = now + 2 * self._lifetime
            try:
                found = self._client(account).get_user_delegation_key(now - _SKEW, expires_at)
            except AzureError as error:
                raise not_issued("Azure", error) from error
            self._keys[account] = found, expires_at
            return found
