"""The choice between the transports."""

from __future__ import annotations

from importlib.util import find_spec

from skiway.errors import Unsupported
from skiway.foundation.native import NATIVE, Native
from skiway.foundation.transport import Choice, Grpcio, Options, Transport


def new_server(options: Options, transport: Choice = "grpcio") -> Transport:
    """A server of a transport; `auto` is the native one if it is installed."""
    return Grpcio(options) if chosen(transport) == "grpcio" else Native(options)


def chosen(transport: Choice) -> Choice:
    """What `transport` stands for on this machine."""
    if transport == "auto":
        return "native" if find_spec(NATIVE) is not None else "grpcio"
    if transport == "native" and find_spec(NATIVE) is None:
        raise Unsupported(
            "the native transport is not installed: install skiway-native, or build it with `make native`",
            key="transport.missing",
        )
    return transport
