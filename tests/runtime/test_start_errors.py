"""A server that cannot start prints the reason on one line and exits with code 1."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from airport.certificates import Authority
from runtime.servers import skiway, started
from skiway.storage import open_stores


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def used_address() -> Iterator[str]:
    """An address in use."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def startup_error(home: Path, *arguments: str | Path, grpc: str = "127.0.0.1:0", fresh: bool = False) -> str:
    """The error that a server prints instead of starting."""
    ready = home.parent / "ready.json"
    options = ("--home", home, "--grpc", grpc, "--http", "127.0.0.1:0", "--ready-file", ready, *arguments)
    ended = skiway("serve", *options, fresh=fresh)
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout == ""
    assert not ready.exists()
    (line,) = ended.stderr.splitlines()
    assert line.startswith("skiway: ")
    return line


def test_port_in_use(home, used_address):
    error = startup_error(home, grpc=used_address, fresh=True)
    assert f"cannot listen on {used_address}: address already in use; choose another address" in error


def test_port_of_another_server(home):
    """Linux lets two processes share a port if both request it."""
    with started(home) as server:
        assert "address already in use" in startup_error(home, grpc=server.address)


def test_address_of_another_machine(home):
    insecure = ("--set", "server.grpc.insecure=true", "--set", "auth.insecure=true")
    assert "cannot listen on 192.0.2.1:0: cannot assign" in startup_error(home, *insecure, grpc="192.0.2.1:0")


def test_remote_access_requires_tls_or_insecure_setting(home):
    error = startup_error(home, "--set", "auth.insecure=true", grpc="0.0.0.0:0")
    assert "without TLS" in error
    assert "server.grpc.insecure" in error


def test_remote_access_requires_authentication(home):
    error = startup_error(home, "--set", "server.grpc.insecure=true", grpc="0.0.0.0:0")
    assert "without authentication" in error
    assert "auth.mode" in error


def test_unknown_setting(home):
    assert "did you mean gc.cas.enabled?" in startup_error(home, "--set", "gc.cas.enabledd=true")


def test_invalid_value(home):
    assert "gc.cas.tick_every = 'soon'" in startup_error(home, "--set", "gc.cas.tick_every=soon")


def test_missing_settings_file(home, tmp_path):
    assert f"{tmp_path / 'no.toml'} does not exist" in startup_error(home, "--config", tmp_path / "no.toml")


def test_store_of_a_newer_version(home):
    home.mkdir(mode=0o700)
    with open_stores(f"sqlite:///{home}/pointers.db"):
        pass
    with sqlite3.connect(home / "pointers.db") as database:
        database.execute("UPDATE skiway_format SET version = '99'")
    database.close()
    assert "has format 99, but this version of Skiway reads up to" in startup_error(home)


def test_store_file_that_is_not_a_database(home):
    home.mkdir(mode=0o700)
    (home / "pointers.db").write_bytes(b"this is no database, however long one looks at it" * 100)
    assert "restore the file from a backup" in startup_error(home)


def test_postgresql_that_is_not_running(home):
    with socket.socket() as unused:  # bound, but not listening
        unused.bind(("127.0.0.1", 0))
        port = str(unused.getsockname()[1])
        url = f"postgresql://skiway@127.0.0.1:{port}/skiway"
        error = startup_error(home, "--set", f"kv.url={url}", "--set", f"blob.url={(home / 'blobs').as_uri()}")
    assert "127.0.0.1" in error
    assert "refused" in error.lower()


def test_home_that_is_a_file(home):
    home.write_text("")
    assert f"the home directory {home} cannot be created: File exists; choose another with --home" in startup_error(
        home
    )


def test_ready_file_that_cannot_be_written(home, tmp_path):
    (tmp_path / "file").write_text("")
    ended = skiway("serve", "--home", home, "--grpc", "127.0.0.1:0", "--ready-file", tmp_path / "file" / "ready.json")
    assert ended.returncode == 1
    assert "ready.json cannot be written" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_ready_file_of_a_killed_server_is_not_taken_for_that_of_a_new_one(home, tmp_path):
    """It is removed before the server starts; that of a server that runs stays."""
    ready = tmp_path / "ready.json"
    arguments = ("--home", home, "--set", "auth.mode=token", "--ready-file", ready)  # there is no file with tokens
    for pid, stays in ((4_194_305, False), (os.getppid(), True)):  # above the largest id, and a process that runs
        ready.write_text(json.dumps({"rpc": "127.0.0.1:1", "pid": pid}))
        assert skiway("serve", "--grpc", "127.0.0.1:0", *arguments).returncode == 1
        assert ready.exists() is stays


def test_certificate_with_the_wrong_key(home, tmp_path):
    authority = Authority(tmp_path)
    one, other = authority.issue("one"), authority.issue("other")
    tls = ("--set", f"server.grpc.tls.cert={one.certificate}", "--set", f"server.grpc.tls.key={other.key}")
    assert "cannot be used" in startup_error(home, *tls)


def test_missing_tokens_file(home):
    error = startup_error(home, "--set", "auth.mode=token")
    assert f"the tokens file {home / 'tokens.toml'} does not exist" in error
    assert "skiway tokens create NAME --account default" in error


def test_broken_file_of_system_objects(home, tmp_path):
    folder = tmp_path / "engines"
    folder.mkdir()
    (folder / "myengine.pbtxt").write_text("functions { nome: 1 }")
    error = startup_error(home, "--set", f"system.objects_directory={folder}")
    assert f"{folder / 'myengine.pbtxt'}" in error


def test_missing_directory_of_system_objects(home, tmp_path):
    error = startup_error(home, "--set", f"system.objects_directory={tmp_path / 'none'}")
    assert f"{tmp_path / 'none'}" in error
