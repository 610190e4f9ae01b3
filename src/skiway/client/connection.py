"""The wire below the client: one gRPC channel, raw bytes in and out, errors as those of our tree."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import parse_qs, unquote, urlsplit

import grpc
from google.protobuf.message import DecodeError, Message

from skiway.airport.wire import headers
from skiway.client.failures import error_of
from skiway.errors import Cancelled, Internal, InvalidArgument

__all__ = ["Connection", "Location", "Stream", "TlsOptions"]

Metadata = Sequence[tuple[str, str]]

SCHEMES: Final = ("grpc", "grpc+tcp", "grpc+tls", "grpc+unix")


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """PEM files for `grpc+tls://`: who to trust in place of gRPC's default roots, and what to show of oneself."""

    root_certificates: Path | str | None = None
    client_certificate: Path | str | None = None
    client_key: Path | str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """What grpcio takes."""
        if (self.client_certificate is None) != (self.client_key is None):
            raise InvalidArgument("a client certificate needs its key, and a key its certificate: give both or none")
        return grpc.ssl_channel_credentials(
            _content(self.root_certificates), _content(self.client_key), _content(self.client_certificate)
        )


def _content(file: Path | str | None) -> bytes | None:
    if file is None:
        return None
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"cannot read the PEM file {str(file)!r}: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class Location:
    """A server's address: `text` as the user wrote it, `target` as gRPC dials it."""

    text: str
    target: str
    is_tls: bool

    @classmethod
    def parse(cls, text: str) -> Location:
        """From `grpc://host:port`, `grpc+tcp://…`, `grpc+tls://…` or `grpc+unix:///path`."""
        parts = urlsplit(text)
        try:
            port = parts.port
        except ValueError:
            port = None
        if parts.scheme == "grpc+unix" and parts.path:
            return cls(text, f"unix:{parts.path}", is_tls=False)
        if parts.scheme not in SCHEMES or not parts.hostname or port is None:
            raise InvalidArgument(
                f"{text!r} is not a location: write grpc://host:port, grpc+tls://host:port or grpc+unix:///path"
            )
        return cls(text, parts.netloc.rpartition("@")[2], is_tls=parts.scheme == "grpc+tls")


def split_url(text: str) -> tuple[str, str | None, str | None]:
    """Location, catalog and token of `grpc://host:port/catalog?auth_token=…`; None for what it does not name."""
    parts = urlsplit(text)
    if parts.scheme not in ("grpc", "grpc+tls") or not (parts.path.strip("/") or parts.query):
        return text, None, None
    options = parse_qs(parts.query)
    if unknown := options.keys() - {"auth_token"}:
        raise InvalidArgument(f"unknown option {min(unknown)!r} in the location: auth_token is the one there is")
    token = options.get("auth_token", [None])[0]
    return f"{parts.scheme}://{parts.netloc}", unquote(parts.path.strip("/")) or None, token


class Stream:
    """The messages of one streaming call, as they come; closing it early cancels the call."""

    def __init__(self, call: Any, location: str) -> None:
        self._call = call
        self._location = location
        self._closed = False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return cast(bytes, next(self._call))
        except grpc.RpcError as error:
            if self._closed:
                raise Cancelled("the stream was closed before its end") from None
            raise error_of(error, self._location) from error

    def close(self) -> None:
        """Take the call back, if it is still running."""
        self._closed = True
        self._call.cancel()


class Connection:
    """One channel to one server. Safe to use from many threads."""

    def __init__(
        self, location: Location, *, tls: TlsOptions | None, timeout_s: float | None, max_message_bytes: int
    ) -> None:
        self.location = location
        self._tls = tls
        self.timeout_s = timeout_s
        self._max_message_bytes = max_message_bytes
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._closed = False

    def call(self, method: str, request: Message, metadata: Metadata) -> bytes:
        """One message for one message."""
        invoke: Any = self._open().unary_unary(f"/{headers.SERVICE}/{method}")
        try:
            return cast(bytes, invoke(request.SerializeToString(), timeout=self.timeout_s, metadata=metadata))
        except grpc.RpcError as error:
            raise error_of(error, self.location.text) from error

    def stream(self, method: str, request: Message, metadata: Metadata) -> Stream:
        """Many messages for one message."""
        invoke: Any = self._open().unary_stream(f"/{headers.SERVICE}/{method}")
        return Stream(
            invoke(request.SerializeToString(), timeout=self.timeout_s, metadata=metadata), self.location.text
        )

    def elsewhere(self, uri: str) -> Connection:
        """A connection of its own to another server, with the same options."""
        return Connection(
            Location.parse(uri), tls=self._tls, timeout_s=self.timeout_s, max_message_bytes=self._max_message_bytes
        )

    def close(self) -> None:
        """End all calls and hang up."""
        with self._lock:
            self._closed = True
            if self._channel is not None:
                self._channel.close()

    def _open(self) -> grpc.Channel:
        with self._lock:
            if self._closed:
                raise InvalidArgument(f"the client of {self.location.text} was closed; make a new one")
            if self._channel is None:
                self._channel = self._dial()
            return self._channel

    def _dial(self) -> grpc.Channel:
        options = [
            ("grpc.max_receive_message_length", self._max_message_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", 64 * 1024),
        ]
        if self.location.is_tls:
            return grpc.secure_channel(self.location.target, (self._tls or TlsOptions()).credentials(), options)
        return grpc.insecure_channel(self.location.target, options)


def parsed(kind: type[Any], data: bytes, location: str) -> Any:
    """A protobuf message of the server."""
    try:
        return cast(type[Message], kind).FromString(data)
    except DecodeError as error:
        raise Internal(f"{location} answered with something else than a {kind.__name__} message") from error
