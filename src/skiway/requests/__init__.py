"""The request pipeline: every call of every door is authenticated, authorized, observed, run, and its errors mapped.

A door turns what it receives into a `Call` and runs it inside `Pipeline.observe`, which writes metrics, a span, the
audit record and the log. `Pipeline.admit` finds out who calls and whether they may. Each door keeps only its own
table from the error tree to its status codes.
"""

import skiway.extras.lake  # noqa: F401 - names the extra to install
from skiway.requests.calls import (
    CORRELATION_ID,
    MAX_HEADER_LENGTH,
    Call,
    Operation,
    echo_headers,
    is_valid_header,
    read_context,
)
from skiway.requests.errors import disclosed, internal_error, outcome_of, status_in
from skiway.requests.pipeline import Access, Observers, Pipeline, Retries

__all__ = [
    "CORRELATION_ID",
    "MAX_HEADER_LENGTH",
    "Access",
    "Call",
    "Observers",
    "Operation",
    "Pipeline",
    "Retries",
    "disclosed",
    "echo_headers",
    "internal_error",
    "is_valid_header",
    "outcome_of",
    "read_context",
    "status_in",
]
