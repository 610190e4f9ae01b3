"""The export of one account, applied to an empty one, yields an equal export."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runtime.servers import skiway, started
from setup.example import CREDENTIAL, HOSTILE, SECRET, SIGNING, everything, text_of
from skiway.setup import read
from skiway.setup.declarations import Setup


@pytest.fixture(params=["accounts", pytest.param("servers", marks=pytest.mark.full)])
def targets(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[list[dict[str, str]]]:
    """Two empty accounts, on one server or on two, as environments of commands."""
    with ExitStack() as stack:
        first = stack.enter_context(started(tmp_path / "one")).address
        if request.param == "servers":
            second = stack.enter_context(started(tmp_path / "two")).address
            yield [{"SKIWAY_SERVER": first}, {"SKIWAY_SERVER": second}]
            return
        found = []
        for account in ("first", "second"):
            made = skiway("accounts", "create", account, "--id", account, SKIWAY_SERVER=first)
            assert made.returncode == 0, made.stderr
            found.append({"SKIWAY_SERVER": first, "SKIWAY_ACCOUNT": account})
        yield found


@pytest.mark.timeout(120)
def test_export_applied_to_an_empty_account_yields_an_equal_export(
    targets: list[dict[str, str]], tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"id": [1], "name": ["Ada"]}), tmp_path / "data" / "people.parquet")
    declared = everything(tmp_path / "data")
    declared["tags"].append({"table": "mirror.raw.persons", "columns": {"name": ["pii"]}})
    declared["grants"].append({"to": "user:bob", "privilege": "read", "on": {"table": "mirror.raw.persons"}})
    (tmp_path / "first.yaml").write_text(text_of(declared))

    exports = []
    source = tmp_path / "first.yaml"
    for target in targets:
        env = {**target, **SIGNING, CREDENTIAL: f"type=bearer,token={SECRET}"}
        applied = skiway("setup", "apply", source, "--sync", **env)
        assert applied.returncode == 0, applied.stderr
        source = tmp_path / "export.yaml"
        exported = skiway("setup", "export", source, **env)
        assert exported.returncode == 0, exported.stderr
        again = skiway("setup", "plan", tmp_path / "first.yaml", **env)
        assert (again.returncode, again.stdout) == (0, "the server matches the file\n"), again.stderr + again.stdout
        exports.append(source.read_text())
        assert SECRET not in applied.stdout + applied.stderr + exports[-1]
        assert "canary-that-signs" not in applied.stdout + applied.stderr + exports[-1]
    assert exports[0] == exports[1]
    found = read(exports[0]).setup
    for section in Setup.__struct_fields__:
        assert getattr(found, section), f"the export has no {section}"
    assert {each.name for each in found.connectors or ()} == {"raw", HOSTILE, "copied"}
