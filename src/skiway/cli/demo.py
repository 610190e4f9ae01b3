"""`skiway demo`: create the demo lake, and serve it or run its queries."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from skiway import extras
from skiway.cli.command import READY_FILE
from skiway.cli.options import prepare_grpc

if TYPE_CHECKING:
    from skiway.config import Settings
    from skiway.demo.home import DemoHome
    from skiway.demo.output import Poster
    from skiway.runtime.process import Process

__all__ = ["run"]

INTERRUPTED: Final = 130
"""The exit code of programs that were interrupted by Ctrl-C."""


def run(home: Path, *, once: bool, grpc: str | None, http: str | None) -> None:
    """Create the demo in `home` if it does not exist; then serve it until a signal, or with `once` run three queries."""
    prepare_grpc()
    from skiway.demo.home import DemoHome
    from skiway.demo.output import Poster
    from skiway.runtime.lifecycle import remove_stale
    from skiway.runtime.process import running

    demo_home, poster = DemoHome.at(home), Poster()
    remove_stale(demo_home.path / READY_FILE)
    if not demo_home.is_complete:
        extras.require("datasketches", "pyspark", extra="spark", purpose="building the demo lake")
    settings = _settings(demo_home.path, grpc, http, once=once)
    poster.greet()
    for number in (signal.SIGINT, signal.SIGTERM):  # even if the parent process ignores them
        signal.signal(number, signal.default_int_handler)
    try:
        with _redirect_java(demo_home.path / "spark.log"), running(settings, demo_home.path) as process:
            _create(demo_home, process, poster)
            _run_queries(demo_home, process, poster) if once else _serve(demo_home, process, poster)
    except KeyboardInterrupt:
        sys.stderr.write("skiway: stopped; the next run continues from here\n")
        sys.stderr.flush()
        os._exit(INTERRUPTED)  # a normal exit would wait for Spark to finish


@contextmanager
def _redirect_java(file: Path) -> Iterator[None]:
    """Redirect stderr of child processes to a file for the duration of the block; our own stderr is unchanged."""
    own, saved = sys.stderr, os.dup(2)
    with file.open("ab") as log:
        os.dup2(log.fileno(), 2)
    sys.stderr = os.fdopen(os.dup(saved), "w", buffering=1)
    try:
        yield
    finally:
        sys.stderr.close()
        os.dup2(saved, 2)
        os.close(saved)
        sys.stderr = own


def _settings(home: Path, grpc: str | None, http: str | None, *, once: bool) -> Settings:
    """The settings of the demo, which ignore the environment: the demo is the same everywhere."""
    from skiway.config import load

    addresses = {"server.grpc.address": grpc, "server.http.address": http}
    if once:  # nobody connects, so any port will do
        addresses = {key: address or "127.0.0.1:0" for key, address in addresses.items()}
    given = {key: address for key, address in addresses.items() if address is not None}
    return load(home, flags={"log.level": "ERROR", "pipelines.enabled": "true", **given})


def _create(demo_home: DemoHome, process: Process, poster: Poster) -> None:
    from skiway.demo.build import make, warm_spark

    if demo_home.is_complete:
        return
    with demo_home.making(), poster.making() as watcher:
        warm_spark()
        make(demo_home, rpc=process.addresses["rpc"], airport=process.addresses["airport"], watcher=watcher)
        demo_home.completed()


def _serve(demo_home: DemoHome, process: Process, poster: Poster) -> None:
    from skiway.client import AirportClient
    from skiway.demo.build import CATALOG
    from skiway.demo.queries import contents
    from skiway.runtime.lifecycle import StopSignals, announced

    with StopSignals() as signals, announced(demo_home.path / READY_FILE, process.addresses):
        with AirportClient(process.addresses["airport"], CATALOG) as db:
            poster.lake(contents(db))
        poster.invitation(process.addresses, demo_home.path)
        signals.wait()


def _run_queries(demo_home: DemoHome, process: Process, poster: Poster) -> None:
    from skiway.client import AirportClient
    from skiway.demo.build import CATALOG
    from skiway.demo.queries import QUERIES, answer, contents

    with AirportClient(process.addresses["airport"], CATALOG) as db:
        poster.lake(contents(db))
        for number, query in enumerate(QUERIES, start=1):
            poster.answered(number, query, answer(db, query.sql))
    poster.goodbye(demo_home.path)
