"""Access to object stores: S3, Google Cloud Storage and Azure Data Lake Storage, each as one class.

obstore looks up, lists and deletes files. pyarrow reads and writes them, except in Azure, where its client ends the whole
process on some unexpected responses; there, obstore does so as well.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property, lru_cache, partial
from io import SEEK_CUR, SEEK_END, SEEK_SET, RawIOBase
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from skiway.errors import Unavailable
from skiway.foundation import extras
from skiway.security.source_access import Location

if TYPE_CHECKING:
    from obstore.store import ObjectStore
    from pyarrow.fs import FileSystem

_SCOPES: Final = ("https://www.googleapis.com/auth/cloud-platform",)
_FRESH: Final = timedelta(minutes=10)
_TIMEOUT_S: Final = 10


class GoogleToken:
    """Access tokens from Google credentials: those in a file, or the default credentials of this machine."""

    def __init__(self, credentials: Any) -> None:
        self._credentials = credentials
        self._lock = Lock()

    def current(self, *, at_least: timedelta = _FRESH) -> tuple[str, datetime]:
        """A token and the time when it expires. If it is not valid for `at_least`, it is renewed first."""
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import Request

        with self._lock:
            if not self._credentials.token or self._expires_at() - datetime.now(UTC) < at_least:
                try:
                    self._credentials.refresh(partial(Request(), timeout=_TIMEOUT_S))
                except GoogleAuthError as error:
                    raise Unavailable(
                        "Google Cloud issues no access token to the server: ask the operator to check storage.gcs",
                        key="warehouse.credentials",
                        detail=str(error),
                    ) from error
            return self._credentials.token, self._expires_at()

    def for_obstore(self) -> Any:
        """The token as obstore expects it."""
        token, expires_at = self.current()
        return {"token": token, "expires_at": expires_at}

    def _expires_at(self) -> datetime:
        expires_at: datetime | None = self._credentials.expiry  # without a time zone
        return expires_at.replace(tzinfo=UTC) if expires_at else datetime.now(UTC) + timedelta(hours=1)


@cache
def google_token(file: str) -> GoogleToken:
    """The credentials in a key file of a service account; without one, the default credentials of this machine."""
    with extras.needed("gcs", "a warehouse in Google Cloud Storage"):
        import google.auth
        from google.auth.exceptions import GoogleAuthError
        from google.oauth2 import service_account
    try:
        if not file:
            return GoogleToken(google.auth.default(scopes=_SCOPES)[0])
        credentials: Any = service_account.Credentials
        return GoogleToken(credentials.from_service_account_file(file, scopes=_SCOPES))
    except (GoogleAuthError, OSError, ValueError) as error:
        raise Unavailable(
            "the server has no valid Google credentials: ask the operator to check storage.gcs.service_account_file, or "
            "the default credentials of its machine",
            key="warehouse.credentials",
            detail=f"{file or 'default credentials'}: {error}",
        ) from error


_CONNECT_S: Final = 5
_REQUEST_S: Final = 30
_RETRY_S: Final = 10
_RETRIES: Final[Any] = {"max_retries": 2, "retry_timeout": timedelta(seconds=_REQUEST_S)}
_CLIENT: Final[Any] = {"allow_http": True, "connect_timeout": f"{_CONNECT_S}s", "timeout": f"{_REQUEST_S}s"}
_MAX_TOKENS: Final = 8
_NO_TOKEN: Final[Any] = lambda: {"token": "none", "expires_at": None}  # noqa: E731


@dataclass(frozen=True)
class ObjectStorage(ABC):
    """One service. `properties` are named as in Iceberg; each class lists those that it uses."""

    properties: Mapping[str, str] = field(repr=False)
    relay: str = ""

    @abstractmethod
    def bucket(self, name: str) -> ObjectStore:
        """The bucket of this name, for obstore."""

    @abstractmethod
    def open(self, place: Location) -> pa.NativeFile:
        """Open a file for random access."""

    @abstractmethod
    def create(self, place: Location) -> pa.NativeFile:
        """Create a file to write to. It exists once it is closed."""


class ObjectReader(RawIOBase):
    """A file in a bucket. Every read is one request for exactly these bytes."""

    def __init__(self, bucket: ObjectStore, path: str) -> None:
        import obstore

        self._bucket, self._path, self._position = bucket, path, 0
        self._size = obstore.head(bucket, path)["size"]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        start = {SEEK_SET: 0, SEEK_CUR: self._position, SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        import obstore

        left = max(0, self._size - self._position)
        length = left if size is None or size < 0 else min(size, left)
        if not length:
            return b""
        found = obstore.get_range(self._bucket, self._path, start=self._position, length=length)
        self._position += len(found)
        return bytes(found)


class ObjectWriter(RawIOBase):
    """A new file in a bucket, which is sent in parts."""

    def __init__(self, bucket: ObjectStore, path: str) -> None:
        import obstore

        self._sink, self._position = obstore.open_writer(bucket, path), 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:
        written = memoryview(data).cast("B")  # buffers of pyarrow have signed bytes
        self._sink.write(written)
        self._position += written.nbytes
        return written.nbytes

    def close(self) -> None:
        if not self.closed:
            self._sink.close()
            super().close()


class S3Storage(ObjectStorage):
    """Properties: `s3.endpoint`, `s3.region`, `s3.access-key-id`, `s3.secret-access-key`, `s3.session-token`.

    Without keys, requests are anonymous, unless `s3.ambient-credentials` is `true`: then they use the credentials of the
    machine. With a `relay`, all requests go through this proxy.
    """

    @property
    def is_anonymous(self) -> bool:
        """Whether requests are not signed."""
        has_keys = "s3.access-key-id" in self.properties
        return not has_keys and self.properties.get("s3.ambient-credentials", "").lower() != "true"

    @cached_property
    def _files(self) -> FileSystem:
        from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

        scheme, _, address = self.properties.get("s3.endpoint", "").rpartition("://")
        return S3FileSystem(
            access_key=self.properties.get("s3.access-key-id"),
            secret_key=self.properties.get("s3.secret-access-key"),
            session_token=self.properties.get("s3.session-token"),
            region=self.properties.get("s3.region"),
            endpoint_override=address or None,
            scheme=scheme or "https",
            anonymous=self.is_anonymous,
            proxy_options=self.relay or None,
            connect_timeout=_CONNECT_S,
            request_timeout=_REQUEST_S,
            retry_strategy=AwsStandardS3RetryStrategy(max_attempts=3),
        )

    def open(self, place: Location) -> pa.NativeFile:
        return self._files.open_input_file(f"{place.bucket}/{place.path}")

    def create(self, place: Location) -> pa.NativeFile:
        return self._files.open_output_stream(f"{place.bucket}/{place.path}")

    def bucket(self, name: str) -> ObjectStore:
        from obstore.store import S3Store

        keys = {"region": "s3.region", "endpoint": "s3.endpoint"}
        config: Any = {name: self.properties[key] for name, key in keys.items() if key in self.properties}
        if "s3.access-key-id" in self.properties:
            # A provider, because the store would complete keys with the session token of the environment.
            config["credential_provider"] = self._credentials
        options: Any = {**_CLIENT, "proxy_url": self.relay} if self.relay else _CLIENT
        return S3Store(
            name,
            **config,
            skip_signature=self.is_anonymous,
            client_options=options,
            retry_config=_RETRIES,
        )

    def _credentials(self) -> Any:
        return {
            "access_key_id": self.properties["s3.access-key-id"],
            "secret_access_key": self.properties["s3.secret-access-key"],
            "token": self.properties.get("s3.session-token"),
            "expires_at": None,
        }


class GcsStorage(ObjectStorage):
    """Google Cloud Storage. Properties: `gcs.service.host` and `gcs.service-account-file`.

    Without a file, Google's default credentials of this machine are used. With a host, which is that of an emulator,
    they are not: such requests are anonymous unless there is a file.
    """

    @property
    def token(self) -> GoogleToken | None:
        """The credentials of the server; None if requests are anonymous."""
        file = self.properties.get("gcs.service-account-file", "")
        return None if "gcs.service.host" in self.properties and not file else google_token(file)

    def open(self, place: Location) -> pa.NativeFile:
        return self._files().open_input_file(f"{place.bucket}/{place.path}")

    def create(self, place: Location) -> pa.NativeFile:
        return self._files().open_output_stream(f"{place.bucket}/{place.path}")

    def _files(self) -> FileSystem:
        token, expires_at = (None, None) if self.token is None else self.token.current()
        return _gcs_files(self.properties.get("gcs.service.host", ""), token, expires_at)

    def bucket(self, name: str) -> ObjectStore:
        from obstore.store import GCSStore

        config: Any = {"base_url": host} if (host := self.properties.get("gcs.service.host")) else {}
        # Without a provider, and even with skip_signature, the store looks for credentials of the machine before it deletes.
        config["credential_provider"] = _NO_TOKEN if self.token is None else self.token.for_obstore
        return GCSStore(name, **config, client_options=_CLIENT, retry_config=_RETRIES)


class AzureStorage(ObjectStorage):
    """Azure Data Lake Storage. Properties: `adls.account-name`, `adls.account-key` and `adls.endpoint`.

    The key is only used for the account of this name. Other accounts are accessed with the default credentials of this
    machine. An endpoint is that of an emulator; the name of the account is the first segment of its paths.
    """

    def key_of(self, account: str) -> str | None:
        """The key of an account; None if the server uses its default credentials."""
        return self.properties.get("adls.account-key") if account == self.properties.get("adls.account-name") else None

    def open(self, place: Location) -> pa.NativeFile:
        return pa.PythonFile(ObjectReader(self.bucket(place.bucket), place.path), "r")

    def create(self, place: Location) -> pa.NativeFile:
        return pa.PythonFile(ObjectWriter(self.bucket(place.bucket), place.path), "w")

    def bucket(self, name: str) -> ObjectStore:
        container, account = azure_account(name)
        return _azure_container(container, account, self.key_of(account), self.properties.get("adls.endpoint", ""))


@lru_cache(maxsize=64)
def _azure_container(container: str, account: str, key: str | None, endpoint: str) -> ObjectStore:
    """The container. It is kept, with its connections, because files are read through it."""
    from obstore.store import AzureStore

    config: Any = {"endpoint": f"{endpoint}/{account}"} if endpoint else {}
    if key:
        # A provider, because the store would prefer a token or a signature of the environment.
        config["credential_provider"] = lambda: {"access_key": key, "expires_at": None}
    else:
        config["credential_provider"] = _azure_provider()
    return AzureStore(container, account_name=account, **config, client_options=_CLIENT, retry_config=_RETRIES)


def azure_account(bucket: str) -> tuple[str, str]:
    """The container and the account in the bucket of a location.

    >>> azure_account("lake@skiway.dfs.core.windows.net")
    ('lake', 'skiway')
    """
    container, _, host = bucket.partition("@")
    return container, host.partition(".")[0]


def etag_of(scheme: str, given: str) -> str:
    """The etag as all responses of the service have it: Azure and GCS quote it in some of them."""
    return given if scheme == "s3" else given.strip('"')


_STORAGES: Final[Mapping[str, Callable[[Mapping[str, str]], ObjectStorage]]] = {
    "s3": S3Storage,
    "gs": GcsStorage,
    "abfss": AzureStorage,
}


def storage_for(scheme: str, properties: Mapping[str, str]) -> ObjectStorage:
    """The service behind a scheme of locations."""
    return _STORAGES[scheme](properties)


@cache
def _azure_provider() -> Any:
    with extras.needed("azure", "a warehouse in Azure with default credentials"):
        from azure.identity import DefaultAzureCredential
        from obstore.auth.azure import AzureCredentialProvider

    return AzureCredentialProvider(DefaultAzureCredential())


_gcs_lock: Final = Lock()
_gcs_by_token: Final[dict[tuple[str, str | None], FileSystem]] = {}


def _gcs_files(host: str, token: str | None, expires_at: datetime | None) -> FileSystem:
    """The file system for a token. There is a new one whenever the token was renewed."""
    from pyarrow.fs import GcsFileSystem

    with _gcs_lock:
        found = _gcs_by_token.get((host, token))
        if found is None:
            scheme, _, address = host.rpartition("://")
            given = {"anonymous": True} if token is None else {"access_token": token}
            found = GcsFileSystem(
                **given,
                credential_token_expiration=expires_at,
                scheme=scheme or "https",
                endpoint_override=address or None,
                retry_time_limit=timedelta(seconds=_RETRY_S),
            )
            while len(_gcs_by_token) >= _MAX_TOKENS:
                del _gcs_by_token[next(iter(_gcs_by_token))]
            _gcs_by_token[host, token] = found
        return found
