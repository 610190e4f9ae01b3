"""Connections of the JDBC driver for Flight SQL, in a Java that Python calls through py4j."""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import maven
from skiway.spark_jobs.java import ensure_java

__all__ = ["array_of", "cause_of", "connected", "driver_jar", "java_machine", "rows_of"]

VERSION: Final = "18.3.0"
SHA256: Final = "3f418b46c880e263558c5de669bdbede2c5d4375527ced116fb29f795b03704c"
JARS: Final = Path(__file__).parents[2] / ".cache" / f"flight-sql-jdbc-{VERSION}"


def driver_jar(*, timeout_s: float = 240) -> Path | None:
    """The driver, which is downloaded once; None if that is not possible."""
    jar = JARS / f"flight-sql-jdbc-driver-{VERSION}.jar"
    JARS.parent.mkdir(exist_ok=True)
    with JARS.with_name("flight-sql-jdbc.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test workers may need it at once
        if not jar.exists():
            coordinates = f"org.apache.arrow:flight-sql-jdbc-driver:{VERSION}"
            if not maven.fetch(coordinates, JARS, timeout_s=timeout_s, transitive=False):
                return None
        found = hashlib.sha256(jar.read_bytes()).hexdigest()
        assert found == SHA256, f"{jar.name} has the SHA-256 {found}, not {SHA256}: remove it, and fetch it again"
    return jar


@contextmanager
def java_machine(jar: Path, *options: str) -> Iterator[Any]:
    """A Java with the driver; its classes are attributes, such as `java.sql.DriverManager`."""
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    [py4j] = maven.spark_jars().glob("py4j-*.jar")
    opened = ["--add-opens=java.base/java.nio=ALL-UNNAMED", "-Xmx512m", *options]
    port, token = launch_gateway(
        jarpath=str(py4j), classpath=str(jar), javaopts=opened, java_path=str(ensure_java()), die_on_exit=True,
        enable_auth=True,
    )  # fmt: skip
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True))
    try:
        yield gateway.jvm
    finally:
        gateway.shutdown()
        gateway.java_process.wait() if gateway.java_process else None


@contextmanager
def connected(jvm: Any, location: str, token: str = "", **properties: str) -> Iterator[Any]:
    """A connection to the server at a location. Other `properties` than those of the driver are headers of its calls."""
    given = jvm.java.util.Properties()
    for name, value in {"useEncryption": "false", **({"token": token} if token else {}), **properties}.items():
        given.setProperty(name.replace("_", "-"), value)
    jvm.java.lang.Class.forName("org.apache.arrow.driver.jdbc.ArrowFlightJdbcDriver")
    connection = jvm.java.sql.DriverManager.getConnection(
        f"jdbc:arrow-flight-sql://{location.rpartition('/')[2]}/", given
    )
    try:
        yield connection
    finally:
        connection.close()


def array_of(jvm: Any, connection: Any, kind: str, values: Sequence[Any]) -> Any:
    """An array for `setArray`."""
    items = jvm.java.lang.reflect.Array.newInstance(jvm.java.lang.Class.forName("java.lang.Object"), len(values))
    for index, value in enumerate(values):
        items[index] = value
    return connection.createArrayOf(kind, items)


def cause_of(error: Any) -> str:
    """The innermost cause of an error of Java."""
    found = error.java_exception
    while found.getCause() is not None:
        found = found.getCause()
    return str(found.toString())


def rows_of(results: Any) -> list[dict[str, Any]]:
    """The rows of a result set, by the labels of its columns; times and nested values as text."""
    facts = results.getMetaData()
    labels = [facts.getColumnLabel(number) for number in range(1, facts.getColumnCount() + 1)]
    rows = []
    while results.next():
        rows.append({label: _plain(results.getObject(number)) for number, label in enumerate(labels, 1)})
    results.close()
    return rows


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (str, int, float, bool, bytes)) else str(value)
