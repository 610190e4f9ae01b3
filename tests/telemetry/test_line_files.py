"""Line files: no line is lost or torn with concurrent writers and rotation."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from skiway.config.telemetry import Rotation
from skiway.telemetry.audit import LineFile


def line(writer: int, number: int) -> str:
    return f"{writer}:{number}:" + "x" * (number % 50) + ":end"


WRITER = """
import sys
from pathlib import Path
from skiway.config.telemetry import Rotation
from skiway.telemetry.audit import LineFile

file = LineFile(Path(sys.argv[1]), Rotation(max_bytes=2_000, keep=100))
sys.stdin.readline()  # all start together
for number in range(200):
    file.write(f"{sys.argv[2]}:{number}:" + "x" * (number % 50) + ":end")
"""


def lines_in(path: Path) -> list[str]:
    """All lines, from the oldest to the newest file."""
    older = sorted(path.parent.glob(f"{path.name}.[0-9]*"), key=lambda file: -int(file.suffix[1:]))
    texts = [file.read_text() for file in [*older, path]]
    assert all(text.endswith("\n") for text in texts)
    return [each for text in texts for each in text.splitlines()]


def assert_complete(path: Path, writers: int, count: int) -> None:
    found = lines_in(path)
    assert Counter(found) == Counter(line(writer, number) for writer in range(writers) for number in range(count))
    for writer in range(writers):
        mine = [each for each in found if each.startswith(f"{writer}:")]
        assert mine == [line(writer, number) for number in range(count)]


def test_lines_of_concurrent_threads_are_not_lost_or_torn_during_rotation(tmp_path: Path):
    path = tmp_path / "a.log"
    file = LineFile(path, Rotation(max_bytes=2_000, keep=100))

    def write(writer: int) -> None:
        for number in range(200):
            file.write(line(writer, number))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert_complete(path, 8, 200)
    assert len(list(tmp_path.glob("a.log.[0-9]*"))) > 20


def test_lines_of_concurrent_processes_are_not_lost_or_torn_during_rotation(tmp_path: Path):
    path = tmp_path / "a.log"
    commands = [[sys.executable, "-c", WRITER, str(path), str(writer)] for writer in range(3)]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE) for command in commands]
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    assert [process.wait(200) for process in processes] == [0, 0, 0]
    assert_complete(path, 3, 200)


FORKING = """
import os, signal, sys, threading
from pathlib import Path
from skiway.config.telemetry import Rotation
from skiway.telemetry.audit import LineFile

file = LineFile(Path(sys.argv[1]), Rotation(max_bytes=1_000, keep=100), fsync=True)
inside, go_on, real = threading.Event(), threading.Event(), os.fsync

def slow(descriptor):
    inside.set()
    go_on.wait()
    real(descriptor)

os.fsync = slow
thread = threading.Thread(target=file.write, args=("0:0::end",))
thread.start()
inside.wait()                # the thread is in the middle of a write and holds its locks
child = os.fork()
os.fsync = real
writer = 1 if child == 0 else 0
if child == 0:
    signal.alarm(30)         # instead of waiting forever for a thread that does not exist here
else:
    go_on.set()
    thread.join()
for number in range(0 if child == 0 else 1, 300):
    file.write(f"{writer}:{number}:" + "x" * (number % 50) + ":end")
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_child_forked_during_a_write_can_write(tmp_path: Path):
    path = tmp_path / "a.log"
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKING, str(path)], check=True, timeout=60)
    assert_complete(path, 2, 300)


def test_files_respect_the_size_limit_and_the_oldest_is_deleted(tmp_path: Path):
    path = tmp_path / "a.log"
    file = LineFile(path, Rotation(max_bytes=1_000, keep=3))
    for number in range(1_500):
        file.write(f"{number:04d}")
    files = sorted(tmp_path.glob("a.log*"))
    assert [each.name for each in files] == ["a.log", "a.log.1", "a.log.2", "a.log.3", "a.log.lock"]
    assert all(each.stat().st_size <= 1_000 for each in files)
    found = lines_in(path)
    assert found == [f"{number:04d}" for number in range(1_500 - len(found), 1_500)]


def test_line_longer_than_a_file_is_written_completely(tmp_path: Path):
    file = LineFile(tmp_path / "a.log", Rotation(max_bytes=1_000, keep=3))
    for letter in "abc":
        file.write(letter * 3_000)
    assert lines_in(tmp_path / "a.log") == ["a" * 3_000, "b" * 3_000, "c" * 3_000]


def test_newlines_in_a_line_are_escaped(tmp_path: Path):
    file = LineFile(tmp_path / "a.log", Rotation(max_bytes=1_000, keep=3))
    file.write("one\ntwo \udcff")
    assert lines_in(tmp_path / "a.log") == ["one\\ntwo \\udcff"]


def test_line_truncated_by_a_crash_does_not_corrupt_the_next(tmp_path: Path):
    path = tmp_path / "a.log"
    path.write_text("whole\nha")
    LineFile(path, Rotation(max_bytes=1_000, keep=3)).write("next")
    assert lines_in(path) == ["whole", "ha", "next"]


def test_full_disk_leaves_no_partial_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a.log"
    file = LineFile(path, Rotation(max_bytes=1_000, keep=3))
    file.write("one")
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:5]))
    with pytest.raises(OSError, match=r"^only 5 of 11 bytes of a line could be written to "):
        file.write("0123456789")
    monkeypatch.undo()
    file.write("two")
    assert lines_in(path) == ["one", "two"]


def test_moved_file_is_recreated(tmp_path: Path):
    path = tmp_path / "a.log"
    file = LineFile(path, Rotation(max_bytes=1_000, keep=3))
    file.write("one")
    path.rename(tmp_path / "moved")
    file.write("two")
    assert (path.read_text(), (tmp_path / "moved").read_text()) == ("two\n", "one\n")


def test_closed_file_is_reopened(tmp_path: Path):
    file = LineFile(tmp_path / "deep" / "a.log", Rotation(max_bytes=1_000, keep=3))
    file.write("one")
    file.close()
    file.write("two")
    assert lines_in(tmp_path / "deep" / "a.log") == ["one", "two"]


def test_file_is_readable_only_by_its_owner(tmp_path: Path):
    LineFile(tmp_path / "a.log", Rotation(max_bytes=1_000, keep=3)).write("one")
    assert (tmp_path / "a.log").stat().st_mode & 0o077 == 0


def test_line_is_synced_before_the_call_returns_with_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    LineFile(tmp_path / "a.log", Rotation(max_bytes=1_000, keep=3)).write("one")
    assert synced == []
    LineFile(tmp_path / "b.log", Rotation(max_bytes=1_000, keep=3), fsync=True).write("one")
    assert len(synced) == 1


def test_failed_sync_leaves_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "broken disk")

    file = LineFile(tmp_path / "b.log", Rotation(max_bytes=1_000, keep=3), fsync=True)
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="broken disk"):
        file.write("one")
    assert (tmp_path / "b.log").read_text() == ""
