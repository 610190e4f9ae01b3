"""Serves the catalog that the programs on a page of the documentation make: page_server.py PAGE HEADING PROGRAM LOCATION."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from skiway.airport import serve

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from examples.pages import PROJECT, programs

    page, heading, continuation, location = sys.argv[1:]
    text = (PROJECT / page).read_text()
    end = text.count("\n", 0, text.index("```sql", text.index(f"# {heading}\n")))
    names: dict[str, Any] = {"__name__": "page"}
    for line, program, _ in programs(PROJECT / page):
        if line < end:
            exec(compile("\n" * line + program, page, "exec"), names)
    exec(continuation, names)
    serve(names["catalog"], location)
