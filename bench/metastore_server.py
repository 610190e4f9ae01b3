"""The servers that are asked over gRPC, each in a process of its own: `skiway serve` on a home, or an echo."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc


@dataclass(frozen=True)
class Remote:
    """A server, by one connection."""

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
    """`skiway serve` on `home`, or, without one, an echo by bare grpcio."""
    with TemporaryDirectory() as folder:
        ready = Path(folder, "ready.json")
        command = [sys.executable, "-m", "bench.metastore_server", str(ready)]
        if home is not None:
            command = [
                sys.executable,
                "-m",
                "skiway.cli",
                "serve",
                "--home",
                str(home),
                "--grpc",
                "127.0.0.1:0",
                "--http",
                "127.0.0.1:0",
            ]
            command += ["--ready-file", str(ready), "--set", "log.level=WARNING"]
        process = subprocess.Popen(command)
        try:
            with grpc.insecure_channel(_address(process, ready)) as channel:
                yield Remote(channel)
        finally:
            process.terminate()
            process.wait()


def _address(process: subprocess.Popen[bytes], ready: Path) -> str:
    while not ready.exists():
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode} before it was ready")
        time.sleep(0.05)
    address: str = json.loads(ready.read_text())["rpc"]
    return address


def echo(ready: Path) -> None:
    """Answer every call with nothing."""
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
