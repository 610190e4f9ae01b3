"""The wire below the SDK: one gRPC channel, dialed at the first call."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import grpc

from skiway.client.airport.connection import Location, TlsOptions
from skiway.errors import InvalidArgument
from skiway.telemetry.context import CallContext, current_call

__all__ = ["CORRELATION_ID", "Caller", "Channel", "located"]


def located(target: str, *, tls: bool) -> Location:
    """Where `host:port` is, or a location with a scheme such as `grpc+tls://host:port`."""
    has_scheme = "://" in target
    try:
        found = Location.parse(target if has_scheme else f"grpc://{target}")
    except InvalidArgument:
        raise InvalidArgument(
            f"{target!r} is no address of a metastore: write host:port, such as 127.0.0.1:50051",
            key="field",
            field="target",
        ) from None
    return replace(found, text=target, is_tls=found.is_tls or tls)


@dataclass(slots=True)
class Channel:
    """One channel to one server. Safe to use from many threads."""

    location: Location
    tls: TlsOptions | None
    max_message_bytes: int
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _channel: grpc.Channel | None = field(default=None, init=False)
    _closed: bool = field(default=False, init=False)

    def open(self) -> grpc.Channel:
        """The channel, made when it is first needed."""
        with self._lock:
            if self._closed:
                raise InvalidArgument(f"the client of {self.location.text} was closed; make a new one")
            if self._channel is None:
                self._channel = self._dial()
            return self._channel

    def close(self) -> None:
        """End all calls and hang up."""
        with self._lock:
            self._closed = True
            if self._channel is not None:
                self._channel.close()

    def _dial(self) -> grpc.Channel:
        options = [
            ("grpc.max_receive_message_length", self.max_message_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", 64 * 1024),
            # gRPC would wait a second before it looks for a lost server again, longer than the first retries do
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.min_reconnect_backoff_ms", 50),
            ("grpc.max_reconnect_backoff_ms", 2000),
        ]
        if self.location.is_tls:
            return grpc.secure_channel(self.location.target, (self.tls or TlsOptions()).credentials(), options)
        return grpc.insecure_channel(self.location.target, options)


# --------------------
# What every call carries beside its request: who calls, and in the course of what.


CORRELATION_ID: Final = "x-correlation-id"
QUERY_ID: Final = "x-query-id"
ENGINE_KIND: Final = "x-engine-kind"
ENGINE_VERSION: Final = "x-engine-version"
AUTHORIZATION: Final = "authorization"
ACCOUNT: Final = "x-skiway-account"

_NAME: Final = re.compile(r"[0-9a-z_.-]+")
_VALUE: Final = re.compile(r"[\x20-\x7e]*")


@dataclass(frozen=True, slots=True)
class Caller:
    """The headers of a client. `extra` ones, by names in lower case, win over all others. No repr shows credentials."""

    token: str | None = field(default=None, repr=False)
    account: str | None = None
    query_id: str = ""
    engine_kind: str = ""
    engine_version: str = ""
    extra: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if bool(self.engine_kind) != bool(self.engine_version):
            raise InvalidArgument("an engine is told by its kind and its version: give both, or none")
        for name, value in self.headers(lambda: "").items():
            _check(name, value)

    def headers(self, ids: Callable[[], str]) -> dict[str, str]:
        """The headers of a new call. One that is made while another is served belongs to it, and says so."""
        served = current_call() or CallContext("")
        said = {
            CORRELATION_ID: served.correlation_id or ids(),
            QUERY_ID: self.query_id or served.query_id,
            **self._engine(served),
            ACCOUNT: self.account or "",
            **self._credentials(served),
        }
        return {name: value for name, value in said.items() if value} | dict(self.extra)

    def _engine(self, served: CallContext) -> dict[str, str]:
        for speaker in (self, served):
            if speaker.engine_kind and speaker.engine_version:  # the one says nothing without the other
                return {ENGINE_KIND: speaker.engine_kind, ENGINE_VERSION: speaker.engine_version}
        return {}

    def _credentials(self, served: CallContext) -> Mapping[str, str]:
        """One's own, or those of the call being served: never some of each."""
        if self.token:
            return {AUTHORIZATION: f"Bearer {self.token}"}
        has_own = any(name == AUTHORIZATION or name in served.authorization for name in self.extra)
        return {} if has_own else served.authorization


def _check(name: str, value: str) -> None:
    if not _NAME.fullmatch(name) or name.startswith("grpc-") or name.endswith("-bin"):
        raise InvalidArgument(
            f"{name!r} cannot be the name of a header: use letters, digits, '-', '_' and '.', "
            "but no name that begins with grpc- or ends with -bin",
            key="field",
            field="headers",
        )
    if not isinstance(value, str) or not _VALUE.fullmatch(value):
        # the value may be a credential: it is not repeated
        raise InvalidArgument(f"the value of header {name} is not printable ASCII: check it", key="field", field=name)
