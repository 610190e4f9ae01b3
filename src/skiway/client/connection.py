"""gRPC connections: server addresses, TLS, channels and streams of raw bytes.

Both clients build on this module. `Channel` opens one gRPC channel at the first call; `Connection` adds the call shapes of
the Airport protocol and turns gRPC failures into `skiway.errors`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar, cast
from urllib.parse import parse_qs, unquote, urlsplit
from weakref import WeakSet

import grpc
import grpc.experimental
from google.protobuf.message import DecodeError, Message

from skiway.airport.wire import protocol
from skiway.client.errors import airport_error
from skiway.errors import Cancelled, Internal, InvalidArgument, PermissionDenied

Token: TypeAlias = str | Callable[[], str | None] | None
"""A token, or a function that returns it, which is called for every call: tokens expire, and can be renewed."""

Metadata = Sequence[tuple[str, str]]
M = TypeVar("M", bound=Message)

MAX_PENDING: Final = 8
SCHEMES: Final = ("grpc", "grpc+tcp", "grpc+tls", "grpc+unix")


def current_token(token: Token) -> str | None:
    """The token for a call that begins now."""
    return token() if callable(token) else token


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """PEM files for `grpc+tls://`: root certificates in place of gRPC's defaults, and a client certificate.

    The certificate of the server must have the name `server_name`, or else the host of the location.
    """

    root_certificates: Path | str | None = None
    client_certificate: Path | str | None = None
    client_key: Path | str | None = None
    server_name: str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Return the credentials for grpcio."""
        if (self.client_certificate is None) != (self.client_key is None):
            raise InvalidArgument("a client certificate needs its key and a key its certificate: give both or none")
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
    """A server's address: `text` as the user wrote it, `target` in gRPC's form."""

    text: str
    target: str
    is_tls: bool

    @staticmethod
    def with_scheme(address: str) -> str:
        """An address as a location: `host:port` means `grpc://host:port`."""
        return address if "://" in address else f"grpc://{address}"

    @classmethod
    def parse(cls, text: str) -> Location:
        """Parse `grpc://host:port`, `grpc+tcp://…`, `grpc+tls://…` or `grpc+unix:///path`."""
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
    """Split `grpc://host:port/catalog?auth_token=…` into location, catalog and token; a missing part is None."""
    parts = urlsplit(text)
    if parts.scheme not in ("grpc", "grpc+tls") or not (parts.path.strip("/") or parts.query):
        return text, None, None
    options = parse_qs(parts.query)
    if unknown := options.keys() - {"auth_token"}:
        raise InvalidArgument(f"unknown option {min(unknown)!r} in the location; the only option is auth_token")
    token = options.get("auth_token", [None])[0]
    return f"{parts.scheme}://{parts.netloc}", unquote(parts.path.strip("/")) or None, token


RECONNECT: Final = (
    # By default gRPC waits a second before it reconnects, and up to two minutes later on.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 5000),  # the time that an attempt has: a busy server needs some of it
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.use_local_subchannel_pool", 1),  # otherwise a new client would take over the pause of an older one
)
"""Options of all channels: a client is back soon after its server is."""


class Channel:
    """One gRPC channel to one server, opened at the first call. Thread-safe."""

    def __init__(
        self,
        location: Location,
        *,
        tls: TlsOptions | None,
        max_message_bytes: int,
    ) -> None:
        self.location = location
        self.tls = tls
        self.max_message_bytes = max_message_bytes
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._closed = False

    def open(self) -> grpc.Channel:
        """Return the channel; raise `InvalidArgument` after `close()`."""
        with self._lock:
            if self._closed:
                raise InvalidArgument(f"the client of {self.location.text} is closed; create a new one")
            if self._channel is None:
                self._channel = self._dial()
            return self._channel

    def close(self) -> None:
        """Cancel all running calls and close the connection."""
        with self._lock:
            self._closed = True
            if self._channel is not None:
                self._channel.close()

    def _dial(self) -> grpc.Channel:
        options: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", self.max_message_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", 64 * 1024),
            # The caller's thread reads responses itself. Otherwise gRPC starts a thread for each call, which takes 0.3 ms.
            (grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1),
            *RECONNECT,
        ]
        if self.location.target.startswith("unix:"):
            # By default it is the path, which is not a valid name of a server in HTTP/2.
            options.append(("grpc.default_authority", "localhost"))
        if self.location.is_tls:
            tls = self.tls or TlsOptions()
            if tls.server_name:
                options.append(("grpc.ssl_target_name_override", tls.server_name))
            return grpc.secure_channel(self.location.target, tls.credentials(), options)
        return grpc.insecure_channel(self.location.target, options)


class Stream:
    """The messages of one streaming call. Closing the stream early cancels the call."""

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
            raise airport_error(error, self._location) from error

    def close(self) -> None:
        """Cancel the call if it is still running."""
        self._closed = True
        self._call.cancel()


class Outbox:
    """A bounded queue of messages to send. It blocks the sender while the server is slow."""

    def __init__(self, max_pending: int) -> None:
        self._max_pending = max_pending
        self._changed = threading.Condition()
        self._pending: deque[bytes] = deque()
        self._closed = False

    def put(self, message: bytes) -> bool:
        """Queue a message; return False if the outbox is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._pending) < self._max_pending)
            if not self._closed:
                self._pending.append(message)
                self._changed.notify_all()
            return not self._closed

    def close(self) -> None:
        """Accept no more messages; gRPC still sends the queued ones."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._pending) or self._closed)
            if not self._pending:
                raise StopIteration
            self._changed.notify_all()
            return self._pending.popleft()


class Duplex:
    """A bidirectional call: `send` messages, iterate over the responses, and always `close` it."""

    def __init__(self, invoke: Any, location: str, **options: Any) -> None:
        self._outbox = Outbox(MAX_PENDING)
        call = invoke(self._outbox, **options)
        call.add_done_callback(lambda _: self._outbox.close())
        self._location = location
        self._responses = Stream(call, location)

    def __iter__(self) -> Iterator[bytes]:
        return self._responses

    def __next__(self) -> bytes:
        return next(self._responses)

    def send(self, message: bytes) -> None:
        """Send a message; raise the server's error if it has ended the call."""
        if not self._outbox.put(message):
            for _ in self._responses:  # drain the remaining responses to reach the error
                pass
            raise Internal(
                f"{self._location} ended the call before the client had sent everything", key="answer.missing"
            )

    def half_close(self) -> None:
        """Tell the server that no more messages follow."""
        self._outbox.close()

    def close(self) -> None:
        """Cancel the call if it is still running."""
        self._responses.close()
        self._outbox.close()


C = TypeVar("C", Stream, Duplex)


class Connection(Channel):
    """A channel for Airport calls: Flight's methods, a timeout for each call, errors of `skiway.errors`.

    If the server is not `trusted`, nothing that it sends leads to another place, and its data is validated.
    """

    def __init__(
        self,
        location: Location,
        *,
        tls: TlsOptions | None,
        timeout_s: float | None,
        max_message_bytes: int,
        trusted: bool = True,
    ) -> None:
        super().__init__(location, tls=tls, max_message_bytes=max_message_bytes)
        self.timeout_s = timeout_s
        self.trusted = trusted
        self._running: WeakSet[Stream | Duplex] = WeakSet()
        self._running_lock = threading.Lock()

    def cancel(self) -> None:
        """Cancel all streams and exchanges that are running; their readers get `Cancelled`. The connection stays open."""
        with self._running_lock:
            running = list(self._running)
        for call in running:
            call.close()

    def call(self, method: str, request: Message, metadata: Metadata) -> bytes:
        """Make a unary call and return the response."""
        invoke: Any = self.open().unary_unary(f"/{protocol.SERVICE}/{method}")
        try:
            return cast(bytes, invoke(request.SerializeToString(), **self._call_options(metadata)))
        except grpc.RpcError as error:
            raise airport_error(error, self.location.text) from error

    def stream(self, method: str, request: Message, metadata: Metadata) -> Stream:
        """Make a call with one request and a stream of responses."""
        invoke: Any = self.open().unary_stream(f"/{protocol.SERVICE}/{method}")
        return self._watched(
            Stream(invoke(request.SerializeToString(), **self._call_options(metadata)), self.location.text)
        )

    def exchange(self, method: str, metadata: Metadata) -> Duplex:
        """Open a bidirectional call."""
        invoke: Any = self.open().stream_stream(f"/{protocol.SERVICE}/{method}")
        return self._watched(Duplex(invoke, self.location.text, **self._call_options(metadata)))

    def _watched(self, call: C) -> C:
        with self._running_lock:
            self._running.add(call)
        return call

    def to(self, uri: str) -> Connection:
        """Return a new connection to another server, with the same options."""
        return Connection(
            Location.parse(uri), tls=self.tls, timeout_s=self.timeout_s, max_message_bytes=self.max_message_bytes
        )

    def refuse_elsewhere(self, what: str) -> None:
        """Raise `PermissionDenied` if the server refers to `what`, but is not trusted."""
        if not self.trusted:
            raise PermissionDenied(
                f"{self.location.text} refers to {what}, which is refused, because this server is not trusted",
                key="airport.elsewhere",
            )

    def _call_options(self, metadata: Metadata) -> dict[str, Any]:
        for name, value in metadata:
            if not protocol.can_carry(value):
                # The message leaves out the value, which may be a secret.
                raise InvalidArgument(
                    f"header {name} contains characters other than printable ASCII, which gRPC cannot send",
                    key="header.invalid",
                    header=name,
                )
        return {"timeout": self.timeout_s, "metadata": metadata}


def parse_message(kind: type[M], data: bytes, location: str) -> M:
    """Parse a protobuf message that the server at `location` sent."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise Internal(f"{location} sent a response that is not a {kind.__name__} message") from error
