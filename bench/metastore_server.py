"""The gRPC servers, each in its own process: `skiway serve` on a home directory, or an echo."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from bench.serving import skiway_serve, started


@dataclass(frozen=True)
class Remote:
    """One connection to a server."""

    channel: grpc.Channel

    def stub(self, path: str, answer: type[Any]) -> Callable[[Any], Any]:
        stub: Callable[[Any], Any] = self.channel.unary_unary(
            path,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        return stub


@contextmanager
def served(home: Path | None) -> Iterator[Remote]:
    """Run `skiway serve` on `home`, or, without a home, an echo with bare grpcio."""
    command = [sys.executable, "-m", "bench.metastore_server"]
    server = started(command) if home is None else skiway_serve(home)
    with server as doors, grpc.insecure_channel(doors["rpc"]) as channel:
        yield Remote(channel)


def echo(ready: Path) -> None:
    """Serve an empty response to every call."""
    server = grpc.server(ThreadPoolExecutor(32))
    handlers = {"Echo": grpc.unary_unary_rpc_method_handler(lambda request, context: b"")}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    unfinished = ready.with_suffix(".part")
    unfinished.write_text(json.dumps({"rpc": f"127.0.0.1:{port}"}))
    unfinished.rename(ready)
    server.wait_for_termination()


if __name__ == "__main__":
    echo(Path(sys.argv[1]))
