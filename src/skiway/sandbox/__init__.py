"""Runs SQL that nobody trusts, in processes that can be killed.

DuckDB's own limits do not hold in every case: a single function can allocate more than the memory limit, and cannot be
interrupted. So the SQL runs in a pooled worker process. The kernel limits its memory, it can neither write files nor start
DuckDB extensions, it has none of the server's environment, and it is killed when it takes too long.

    sandbox = Sandbox(memory_limit="1GB", timeout_s=60)
    sandbox.select(rows, "upper(name)")                      # an expression over rows
    sandbox.run(["SELECT count(*) FROM rows"], rows=rows)    # statements

All sandboxes of a process with the same memory limit share their workers.
"""

from skiway.sandbox.processes import Sandbox

__all__ = ["Sandbox"]
