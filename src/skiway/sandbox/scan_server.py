"""Serves the relations of a query to its process: rows of scans through pipes, and ranges of remote files."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import pyarrow as pa

from skiway.sandbox.relations import Relation
from skiway.sandbox.remote_files import RemoteFiles, serve_channel

__all__ = ["ScanServer"]

_MAX_LINE: Final = 1 << 20
_MAX_SCANS: Final = 64
"""How many scans of one query may be open at a time."""


@dataclass
class ScanServer:
    """Answers the requests of a process for rows: each gets a pipe, and a thread that writes the batches to it."""

    socket: socket.socket
    relations: Sequence[Relation] = ()
    failures: list[BaseException] = field(default_factory=list)
    context: Context = field(default_factory=Context)
    remote: RemoteFiles = field(default_factory=lambda: RemoteFiles(()))
    _open: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(_MAX_SCANS))

    def __post_init__(self) -> None:
        threading.Thread(target=self._answer, name="query-scans", daemon=True).start()

    def serve(self, relations: Sequence[Relation]) -> None:
        """Serve these relations from now on, in the context of the caller."""
        self.relations, self.failures, self.context = relations, [], copy_context()
        self.remote = RemoteFiles([opens for each in relations for group in each.files for opens in group.remote])

    def check(self) -> None:
        """Raise the first error of a scan, if there is one."""
        if self.failures:
            raise self.failures[0]

    def _answer(self) -> None:
        with contextlib.suppress(OSError, ValueError, KeyError, IndexError), self.socket.makefile("rb") as requests:
            while line := requests.readline(_MAX_LINE):
                wanted = json.loads(line)
                if "files" in wanted:  # a channel in which the process asks for ranges of the remote files of its query
                    channel, own = socket.socketpair()
                    self._hand_over(channel.detach(), partial(serve_channel, own, self.remote, self.failures))
                    continue
                relation = self.relations[int(wanted["relation"])]
                columns = [relation.schema.field(str(name)).name for name in wanted["columns"]]
                pipe, ours = os.pipe()
                self._hand_over(pipe, partial(_send, relation, columns, ours, self.failures))

    def _hand_over(self, descriptor: int, serve: Callable[[], None]) -> None:
        """Give one end of a connection to the process, and serve the other one on a thread, in the context of the caller."""
        self._open.acquire()
        try:
            socket.send_fds(self.socket, [b"."], [descriptor])
        finally:
            os.close(descriptor)

        def run() -> None:
            serve()
            self._open.release()

        threading.Thread(target=self.context.copy().run, args=(run,), name="query-scan", daemon=True).start()


def _send(relation: Relation, columns: Sequence[str], pipe: int, failures: list[BaseException]) -> None:
    """Write the rows of a scan to a pipe, until the process stops reading."""
    schema = pa.schema([relation.schema.field(name) for name in columns])
    batches = _until_failure(relation.scan, columns, failures)
    with (
        contextlib.suppress(OSError),  # the process may stop reading at any time
        contextlib.closing(batches),
        os.fdopen(pipe, "wb") as file,
        pa.ipc.new_stream(file, schema) as writer,
    ):
        for batch in batches:
            writer.write_batch(batch)


def _until_failure(
    scan: Callable[[Sequence[str]], Iterable[pa.RecordBatch]], columns: Sequence[str], failures: list[BaseException]
) -> Generator[pa.RecordBatch]:
    """The batches of a scan. A failure is remembered before the pipe is closed, which would look like the end of the rows."""
    try:
        yield from scan(columns)
    except GeneratorExit:
        raise
    except BaseException as error:  # noqa: BLE001 - raised to the caller by `check`
        failures.append(error)
