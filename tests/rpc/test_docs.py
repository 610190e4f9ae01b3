"""The gRPC page matches the code."""

from __future__ import annotations

import re
from pathlib import Path

from rpc.rpc_server import SERVICES, opened
from skiway import errors
from skiway.config.server import Errors
from skiway.foundation.doors import EXPLANATIONS, GRPC_CODES
from skiway.foundation.doors import MAX_HEADER_LENGTH as MAX_LENGTH
from skiway.metastore.records import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE
from skiway.metastore.statistics.api import PAGE, STEP
from skiway.model import v1
from skiway.request_path import Retries
from skiway.rpc import Door
from skiway.security import DevAuthenticator

DOCS = Path(__file__).parents[2] / "docs"
PAGE_TEXT = (DOCS / "rpc.md").read_text()
ERRORS = (DOCS / "reference" / "errors.md").read_text()
(CLIENT,) = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE_TEXT, re.DOTALL)


class OneAccount:
    def find(self, id_or_name: str) -> str | None:
        return "a1"

    def first(self) -> str | None:
        return "a1"


def test_client_example_prints_the_shown_output(stores, capsys):
    code, printed = CLIENT
    with opened(stores, authenticator=DevAuthenticator(OneAccount())) as rpc_server:
        names: dict[str, object] = {}
        exec(code.replace("127.0.0.1:50051", rpc_server.address), names)
        names["channel"].close()  # type: ignore[attr-defined]
    assert capsys.readouterr().out == printed


def test_every_status_is_in_the_reference_with_its_codes():
    shown: dict[str, set[str]] = {}
    for code, statuses, meaning in re.findall(r"^\| `(MC_\w+)` \| (.*?) \| .*? \| (.*?) \| ", ERRORS, re.MULTILINE):
        assert meaning == EXPLANATIONS[code].meaning
        for status in re.findall(r"`(\w+)`", statuses):
            shown.setdefault(status, set()).add(code)
    expected: dict[str, set[str]] = {}
    for kind in (errors.Contention, *GRPC_CODES):
        status = next(GRPC_CODES[each] for each in kind.__mro__ if each in GRPC_CODES)  # type: ignore[attr-defined]
        expected.setdefault(status.name, set()).add(kind.code)  # type: ignore[attr-defined]
    assert shown == expected
    assert {code for codes in shown.values() for code in codes} <= set(v1.ErrorCode.keys())


def test_numbers_on_the_page_match_the_code():
    page = " ".join(PAGE_TEXT.split())
    streams = Door.__init__.__kwdefaults__["max_streams"]
    for text in (
        f"up to {MAX_LENGTH} printable",
        f"up to {Retries().limit} times",
        f"`errors.max_detail_chars` ({Errors().max_detail_chars})",
        f"steps of up to {STEP:_}".replace("_", " "),
        f"takes {streams} such streams",
        f"pages of {DEFAULT_PAGE_SIZE} (statistics {PAGE}) unless asked for up to {MAX_PAGE_SIZE}",
    ):
        assert text in page, text


def test_architecture_lists_the_steps_of_a_call_in_order():
    table = (DOCS / "architecture.md").read_text().partition("| step | |")[2]
    steps = re.findall(r"^\| `(\w+)` \|", table.partition("\n\n")[0], re.MULTILINE)
    source = (DOCS.parent / "src" / "skiway" / "rpc" / "door.py").read_text()
    run = source[source.index("def _open(") :]
    assert [name for name in re.findall(r"\b(\w+)\(", run) if name in steps] == steps


def test_all_services_are_in_the_reference_in_the_order_they_are_served():
    shown = re.findall(r"^## (\w+Service)$", (DOCS / "reference" / "rpc.md").read_text(), re.MULTILINE)
    assert shown == [service.name for service in SERVICES]
