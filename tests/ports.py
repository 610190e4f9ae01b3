"""A port of this machine on which nobody listens."""

from __future__ import annotations

import random
import socket

__all__ = ["free_port", "lasting_port"]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def lasting_port() -> int:
    """A free port that the system does not give to outgoing connections, so that a server can listen on it later, and again."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as found:
            if found.connect_ex(("127.0.0.1", port)):
                return port
