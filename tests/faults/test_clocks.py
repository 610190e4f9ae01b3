"""The clock of a server's machine jumps: statements keep working, nothing expires twice, and nothing is lost."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from faults.crashing_server import Launcher, launched
from faults.deployments import Deployment
from faults.disturbed import NAME, Writer
from faults.tables import SCHEMA, connected
from runtime.servers import skiway
from skiway.errors import PreconditionFailed

pytestmark = [pytest.mark.timeout(300), pytest.mark.full]

DAY_S = 86400.0


@pytest.mark.parametrize("jump_s", [2 * DAY_S, -2 * DAY_S])
def test_statements_work_after_the_clock_jumped(launcher: Launcher, tmp_path: Path, jump_s: float) -> None:
    """There and back, with gc running. Only an open transaction may notice: it expires when the clock jumps forward."""
    deployment = Deployment(f"sqlite:///{tmp_path}/pointers.db", (tmp_path / "blobs").as_uri(), tmp_path)
    clock = tmp_path / "clock"
    clock.write_text("0")
    with launched(launcher, deployment, "gc.cas.tick_every=200ms", clock=clock) as server:
        server.wait_until_ready()
        with connected(server.addresses) as doors:
            doors.db.create_schema("s")
            doors.db.create_table(NAME, SCHEMA)
            writer = Writer(doors)
            for offset in (0.0, jump_s, 0.0):
                clock.write_text(str(offset))
                for _ in range(2):
                    assert writer.insert(), writer.errors
                with doors.db.transaction():
                    assert doors.db.count(NAME) == writer.attempted
                    clock.write_text(str(offset + jump_s))
                    with pytest.raises(PreconditionFailed, match="has expired") if jump_s > 0 else nullcontext():
                        assert doors.db.count(NAME) == writer.attempted
                    clock.write_text(str(offset))
            writer.check()
        home = tmp_path / "home"
        done = skiway("check", "--home", home, *deployment.settings())
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
