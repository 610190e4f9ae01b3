"""SQL of callers that the server runs."""

from __future__ import annotations

from pathlib import Path

from skiway.config.fields import COUNT, FLAG, PATH, TEXT, number, pairs, pattern, section, setting

__all__ = ["MEMORY", "SparkSql", "Sql"]

MEMORY = pattern(r"\d+(\.\d+)?\s*([KMG]i?B)", "an amount of memory, such as 512MB or 1GiB")


@section
class SparkSql:
    """Queries that the server runs on Spark for callers (`skiway.query` with `engine => 'spark'`), each in a process of its own."""

    enabled: bool = setting(False, FLAG, "Run queries on Spark. Read docs/spark-queries.md first.")
    master: str = setting("local[2]", TEXT, "Spark master: this machine, or a cluster such as spark://host:7077.")
    conf: tuple[str, ...] = setting(
        (),
        pairs("spark.driver.memory=2g"),
        "Spark configuration of queries. Callers can read it, so it must contain no secrets.",
    )
    queries: int = setting(2, COUNT, "Queries that run at a time; one account may use all but one of them.")
    timeout_seconds: float = setting(
        600.0,
        number(at_least=1, of=" of seconds"),
        "How long a query may take, including the start of Spark and the transfer of its rows.",
    )
    max_rows: int = setting(10_000_000, COUNT, "Rows that a query may return.")
    memory_limit: str = setting("4GB", MEMORY, "Memory of all processes of a query on this machine.")
    confined: bool = setting(
        True, FLAG, "Confine the processes with Linux' Landlock. Turn it off only if sql.spark.command isolates them."
    )
    unprotected_attributes: bool = setting(
        False,
        FLAG,
        "Accept that code on Spark can change permissions, owners, times and extended attributes of files of the server's user, "
        "on systems without user namespaces.",
    )
    command: str = setting(
        "", TEXT, "The command that starts Python for a query, such as one with sudo or docker; by default this Python."
    )
    location: str | None = setting(
        None,
        TEXT,
        "Where Spark reaches this server, such as grpc+tls://lake.example.org:50051; by default on loopback.",
    )
    root_certificates: Path | None = setting(
        None, PATH, "PEM file that Spark trusts the certificate of this server with."
    )


@section
class Sql:
    """Queries that the server runs for callers (`skiway.query`), each in a worker process."""

    workers: int = setting(4, COUNT, "Queries that run at a time; one account may use all but one of them.")
    memory_limit: str = setting("1GB", MEMORY, "Memory of a query. A query that needs more fails.")
    timeout_seconds: float = setting(
        300.0,
        number(at_least=0.001, of=" of seconds"),
        "How long a query may take, including the transfer of its rows.",
    )
    threads: int = setting(2, COUNT, "Threads of a query.")
    spark: SparkSql = SparkSql()
