"""The programs on the page about transactions and events run on a server, and print what the page shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runtime.servers import started

PAGE = (Path(__file__).parents[2] / "docs" / "transactions.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)


def test_examples_print_the_output_on_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(EXAMPLES) == 3
    names: dict[str, object] = {}
    with started(tmp_path / "home") as server:
        for code, printed in EXAMPLES:
            code = code.replace("grpc://127.0.0.1:50051", server.addresses["airport"])
            exec(code.replace("127.0.0.1:50051", server.addresses["rpc"]), names)
            assert capsys.readouterr().out == printed
