"""SQL of callers that the server runs."""

from __future__ import annotations

from skiway.config.fields import COUNT, number, pattern, section, setting

__all__ = ["Sql"]

MEMORY = pattern(r"\d+(\.\d+)?\s*([KMG]i?B)", "an amount of memory, such as 512MB or 1GiB")


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
