"""A MariaDB server for the tests of copies: it speaks the protocol of MySQL, and Debian has a package of it."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from airport.certificates import Authority
from ports import free_port
from runtime.servers import eventually
from spark_jobs.ingest_sources import PASSWORD, USER

__all__ = ["MariaDb", "running_mariadb"]

STARTS_WITHIN_S = 60.0


@dataclass(frozen=True)
class MariaDb:
    """A server on TCP, where the user of copies needs a password, and with TLS. Its certificate is not a trusted one."""

    socket: Path
    port: int

    @property
    def _client(self) -> list[str]:
        return ["mariadb", "--no-defaults", f"--socket={self.socket}", "--user=root", "--default-character-set=utf8mb4"]

    def uri(self, database: str, *, user: str = USER, more: str = "") -> str:
        return f"mysql://{user}@127.0.0.1:{self.port}/{database}{more}"

    def run(self, *statements: str, database: str = "mysql") -> str:
        """What the command line prints, as tab-separated lines without a header."""
        command = [*self._client, "--batch", "--skip-column-names"]
        # Tests also store values that the strict mode refuses, as older servers did.
        told = "SET sql_mode = ''; " + ";\n".join(statements) + ";"
        done = subprocess.run([*command, database], input=told, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def transaction(self, database: str, *statements: str) -> Iterator[None]:
        """Run statements in a transaction that commits at the end of the block."""
        command = [*self._client, "--batch", "--skip-column-names", "--unbuffered", database]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdin is not None
            assert client.stdout is not None
            client.stdin.write(";\n".join(["START TRANSACTION", *statements, "SELECT 'ready'"]) + ";\n")
            client.stdin.flush()
            assert client.stdout.readline() == "ready\n"
            yield
            client.stdin.write("COMMIT;\n")
            client.stdin.close()
            assert client.wait(200) == 0

    def rows(self, sql: str, database: str) -> list[tuple[str, ...]]:
        """The rows of a query as text, sorted."""
        return sorted(tuple(line.split("\t")) for line in self.run(sql, database=database).splitlines())

    def new_database(self, name: str, *statements: str) -> str:
        self.run(f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        self.run(f"GRANT SELECT ON {name}.* TO {USER}", *(f"GRANT SELECT ON {name}.* TO {each}" for each in ("tls",)))
        if statements:
            self.run(*statements, database=name)
        return name


@contextmanager
def running_mariadb() -> Iterator[MariaDb]:
    """Start a server with an empty data folder. The user `tls` may connect only with TLS."""
    with tempfile.TemporaryDirectory(prefix="mariadb-") as temporary:  # names of sockets must be short
        folder = Path(temporary)
        pair = Authority(folder).issue("mariadb")
        create = ["mariadb-install-db", "--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]
        owner = f"--user={subprocess.run(['id', '-un'], capture_output=True, text=True, check=True).stdout.strip()}"
        data = f"--datadir={folder / 'data'}"
        subprocess.run([*create, owner, data], capture_output=True, check=True, timeout=STARTS_WITHIN_S)
        users = folder / "users.sql"
        users.write_text(
            f"CREATE USER {USER} IDENTIFIED BY '{PASSWORD}';\nCREATE USER tls IDENTIFIED BY '{PASSWORD}' REQUIRE SSL;\n"
        )
        server = MariaDb(folder / "s", free_port())
        options = [
            *("--no-defaults", owner, data, f"--socket={server.socket}", f"--init-file={users}"),
            *("--bind-address=127.0.0.1", f"--port={server.port}", "--default-time-zone=+05:00"),
            *(f"--ssl-cert={pair.certificate}", f"--ssl-key={pair.key}", "--skip-name-resolve"),
            *("--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=32M", "--skip-log-bin"),
        ]
        with (
            (folder / "log").open("wb") as log,
            subprocess.Popen(["mariadbd", *options], stdout=log, stderr=log) as process,
        ):
            try:
                eventually(lambda: _answers(server, process), within_s=STARTS_WITHIN_S)
                yield server
            finally:
                process.kill()  # nothing in it is needed any more


def _answers(server: MariaDb, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "MariaDB has ended; its log says why"
    command = ["mariadb", "--no-defaults", f"--socket={server.socket}", "--user=root", "--execute=SELECT 1"]
    return subprocess.run(command, capture_output=True, check=False, timeout=10).returncode == 0
