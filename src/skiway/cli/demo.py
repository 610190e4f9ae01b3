"""`skiway demo`."""

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
"""The exit code of programs that Ctrl-C has ended before they were done."""


def run(home: Path, *, once: bool, grpc: str | None, http: str | None) -> None:
    """Make the demo in `home` unless it is there, and serve it until a signal ends that; or answer three questions."""
    prepare_grpc()
    from skiway.demo.home import DemoHome
    from skiway.demo.output import Poster
    from skiway.runtime.process import running

    kept, poster = DemoHome.at(home), Poster()
    if not kept.is_complete:
        extras.require("datasketches", "pyspark", extra="spark", purpose="building the demo lake")
    settings = _settings(kept.path, grpc, http, once=once)
    poster.greet()
    for number in (signal.SIGINT, signal.SIGTERM):  # also where whoever started us has them ignored
        signal.signal(number, signal.default_int_handler)
    try:
        ready_file = None if once else kept.path / READY_FILE
        with _java_told_in(kept.path / "spark.log"), running(settings, kept.path, ready_file=ready_file) as process:
            _make(kept, process, poster)
            _answer(kept, process, poster) if once else _serve(kept, process, poster)
    except KeyboardInterrupt:
        sys.stderr.write("skiway: stopped; the next start goes on where this one was\n")
        sys.stderr.flush()
        os._exit(INTERRUPTED)  # not by the usual way, which would wait for what Spark has still to do


@contextmanager
def _java_told_in(file: Path) -> Iterator[None]:
    """While inside, programs that are started from here have this file as their error stream; ours stays what it was."""
    ours, kept = sys.stderr, os.dup(2)
    with file.open("ab") as to:
        os.dup2(to.fileno(), 2)
    sys.stderr = os.fdopen(os.dup(kept), "w", buffering=1)
    try:
        yield
    finally:
        sys.stderr.close()
        os.dup2(kept, 2)
        os.close(kept)
        sys.stderr = ours


def _settings(home: Path, grpc: str | None, http: str | None, *, once: bool) -> Settings:
    """Those of a server, and nothing from the environment: the demo is the same everywhere."""
    from skiway.config import load

    doors = {"server.grpc.address": grpc, "server.http.address": http}
    if once:  # nobody is told where they are, so any will do
        doors = {door: address or "127.0.0.1:0" for door, address in doors.items()}
    given = {door: address for door, address in doors.items() if address is not None}
    return load(home, flags={"log.level": "WARNING", **given})


def _make(kept: DemoHome, process: Process, poster: Poster) -> None:
    from skiway.demo.build import make, warm_spark

    if kept.is_complete:
        return
    with kept.making(), poster.making() as watcher:
        warm_spark()
        make(kept, rpc=process.addresses["rpc"], airport=process.addresses["airport"], watcher=watcher)
        kept.completed()


def _serve(kept: DemoHome, process: Process, poster: Poster) -> None:
    from skiway.client import AirportClient
    from skiway.demo.build import CATALOG
    from skiway.demo.queries import contents
    from skiway.runtime.lifecycle import StopSignals

    with StopSignals() as signals:
        with AirportClient(process.addresses["airport"], CATALOG) as db:
            poster.lake(contents(db))
        poster.invitation(process.addresses, kept.path)
        signals.wait()


def _answer(kept: DemoHome, process: Process, poster: Poster) -> None:
    from skiway.client import AirportClient
    from skiway.demo.build import CATALOG
    from skiway.demo.queries import QUERIES, answer, contents

    with AirportClient(process.addresses["airport"], CATALOG) as db:
        poster.lake(contents(db))
        for number, query in enumerate(QUERIES, start=1):
            poster.answered(number, query, answer(db, query.sql))
    poster.goodbye(kept.path)
