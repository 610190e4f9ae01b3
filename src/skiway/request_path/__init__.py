"""The request pipeline: every call of every door is authenticated, authorized, observed, run, and its errors mapped.

A door turns what it receives into a `Call` and runs it inside `Pipeline.observe`, which writes metrics, a span, the
audit record and the log. `Pipeline.admit` finds out who calls and whether they may. Each door keeps only its own
table from the error tree to its status codes.
"""

from skiway.foundation import extras

extras.check("lake")

from skiway.request_path.pipeline import (
    CORRELATION_ID,
    Access,
    Call,
    Observers,
    Operation,
    Operators,
    Pipeline,
    Retries,
    echo_headers,
    read_context,
)
from skiway.request_path.quotas import Kind, Lanes, Quotas
