"""The supervisor of a query ends all of its processes, limits their memory, and removes their files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runtime.servers import eventually
from skiway.spark_queries.supervisor import OUT_OF_MEMORY, TOO_MANY_PROCESSES, UNPROTECTED, can_protect_attributes
from spark_queries.attacks import ATTACKS

DAEMON = """
import os, subprocess, sys, time
folder = sys.argv[-1]
open(folder + "/spilled", "w").close()
other = subprocess.Popen([sys.executable, "-c", "import os, time; os.fork(); time.sleep(600)"], start_new_session=True)
print(folder, other.pid, flush=True)
while True:
    time.sleep(1)
"""


def supervised(program: str, *, memory_bytes: int = 1 << 30, **more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "skiway.spark_queries.supervisor", str(memory_bytes), sys.executable]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), **more}
    return subprocess.Popen(
        [*command, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def sleepers(folder: str) -> list[str]:
    """The processes that were started in a folder."""
    return [
        each.name
        for each in Path("/proc").iterdir()
        if each.name.isdecimal() and folder in _variables(each) and is_running(int(each.name))
    ]


def _variables(process: Path) -> str:
    try:
        return (process / "environ").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def test_end_of_the_input_ends_everything() -> None:
    """Also processes that left the session, and whose parents have ended."""
    with supervised(DAEMON) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        folder, other = process.stdout.readline().split()
        assert is_running(int(other))
        assert Path(folder, "spilled").exists()
        process.stdin.close()
        process.wait(200)
    assert sleepers(folder) == []
    assert not Path(folder).exists()


def test_end_of_the_worker_ends_everything() -> None:
    with supervised(DAEMON.replace("while True:\n    time.sleep(1)", "raise SystemExit(3)")) as process:
        assert process.stdout is not None
        folder, _ = process.stdout.readline().split()
        assert process.wait(200) == 3
    assert sleepers(folder) == []
    assert not Path(folder).exists()


def test_killed_supervisor_closes_the_input_of_the_worker() -> None:
    with supervised("import sys; print(sys.argv[-1], flush=True); sys.stdin.read()") as process:
        assert process.stdout is not None
        folder = process.stdout.readline().strip()
        process.kill()
    eventually(lambda: sleepers(folder) == [])
    Path(folder).rmdir()


def test_memory_of_all_processes_together_is_limited() -> None:
    hungry = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'x = b\"x\" * (300 << 20); input()'])"
    with supervised(hungry, memory_bytes=200 << 20) as process:
        assert process.wait(200) == OUT_OF_MEMORY


def test_worker_has_only_harmless_variables() -> None:
    program = (
        "import os, json, sys; print(json.dumps(sorted(os.environ)), sys.argv[1:] == [os.environ['HOME']], flush=True)"
    )
    with supervised(program, AWS_SECRET_ACCESS_KEY="planted", SKIWAY__KV="planted") as process:
        assert process.stdout is not None
        said = process.stdout.read()
    assert "planted" not in said
    assert said.strip() == (
        '["HOME", "LC_ALL", "PATH", "PYTHONPATH", "SPARK_CONF_DIR", "SPARK_LOCAL_DIRS", "TMPDIR", "TZ"] True'
    )


@pytest.mark.parametrize("text", ["line\n", "x" * 200_000 + "\n"])
def test_input_reaches_the_worker(text: str) -> None:
    program = "import sys; print(len(sys.stdin.readline()), flush=True)"
    with supervised(program) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(text)
        process.stdin.flush()
        assert process.stdout.readline().strip() == str(len(text))


def test_number_of_processes_is_limited() -> None:
    """Also if they leave the session, and their parents have ended."""
    program = """
import os, sys, time
print(sys.argv[-1], flush=True)
if os.fork() == 0:
    os.setsid()
    for _ in range(300):
        if os.fork() == 0:
            time.sleep(600)
    os._exit(0)
time.sleep(600)
"""
    with supervised(program) as process:
        assert process.stdout is not None
        folder = process.stdout.readline().strip()
        assert process.wait(200) == TOO_MANY_PROCESSES
    assert sleepers(folder) == []


def test_process_that_moves_on_to_new_processes_all_the_time_is_killed() -> None:
    program = """
import os, sys, time
print(sys.argv[-1], flush=True)
if os.fork() == 0:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if os.fork():
            os._exit(0)
"""
    with supervised(program) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.wait(200)
        began = time.monotonic()
        process.stdout.read()  # until the last process that has it open has ended
        assert time.monotonic() - began < 5


@pytest.mark.skipif(not can_protect_attributes(), reason="this user cannot create namespaces; to get it: allow them")
def test_worker_cannot_change_attributes_of_files(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("planted")
    arguments = ["", str(tmp_path), str(os.getpid()), "1"]
    command = [sys.executable, "-P", "-m", "skiway.spark_queries.supervisor", f"--protect={os.geteuid()}", str(1 << 30)]
    program = f"import sys; sys.argv = {arguments!r}\n{ATTACKS}"
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)}
    with subprocess.Popen(
        [*command, sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        found = json.loads(process.stdout.readline())
        assert process.wait(200) == 0
    assert (found["own file"], found["own attributes"]) == ("done", "done")
    attributes = {name: outcome for name, outcome in found.items() if name.startswith("attributes: ")}
    # Without Landlock, the supervisor can be examined, which is outside of the namespace.
    assert attributes.pop("attributes: permissions of the program of the parent")
    assert set(attributes.values()) <= {"OtherMount", "PermissionError"}, attributes


@pytest.mark.parametrize(("server", "code"), [(os.geteuid(), UNPROTECTED), (os.geteuid() + 1, 3)])
def test_worker_without_protection_starts_only_as_another_user(server: int, code: int) -> None:
    program = (
        "import sys\nfrom skiway.spark_queries import supervisor\n"
        "def fail(folder): raise PermissionError(1, 'no namespaces')\n"
        "supervisor.protect_attributes = fail\n"
        f"supervisor.main(['--protect={server}', '1000000000', sys.executable, '-c', 'raise SystemExit(3)'])"
    )
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, env=environment) as process:
        assert process.wait(200) == code
