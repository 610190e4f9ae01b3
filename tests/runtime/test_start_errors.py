"""A server that cannot start says why in one sentence, and ends with 1."""

from __future__ import annotations

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
def taken() -> Iterator[str]:
    """An address that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def refused(home: Path, *arguments: str | Path, grpc: str = "127.0.0.1:0", fresh: bool = False) -> str:
    """The sentence that a server says instead of starting."""
    ready = home.parent / "ready.json"
    asked = ("--home", home, "--grpc", grpc, "--http", "127.0.0.1:0", "--ready-file", ready, *arguments)
    ended = skiway("serve", *asked, fresh=fresh)
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout == ""
    assert not ready.exists()
    (sentence,) = ended.stderr.splitlines()
    assert sentence.startswith("skiway: ")
    return sentence


def test_a_port_in_use(home, taken):
    said = refused(home, grpc=taken, fresh=True)
    assert f"cannot listen on {taken}: address already in use; choose another address" in said


def test_the_port_of_another_server(home):
    """Linux lets two processes share a port where both ask for it."""
    with started(home) as server:
        assert "address already in use" in refused(home, grpc=server.address)


def test_an_address_that_is_not_ours(home):
    insecure = ("--set", "server.grpc.insecure=true", "--set", "auth.insecure=true")
    assert "cannot listen on 192.0.2.1:0: cannot assign" in refused(home, *insecure, grpc="192.0.2.1:0")


def test_other_machines_need_tls_or_the_word_insecure(home):
    said = refused(home, "--set", "auth.insecure=true", grpc="0.0.0.0:0")
    assert "without TLS" in said
    assert "server.grpc.insecure" in said


def test_other_machines_need_authentication(home):
    said = refused(home, "--set", "server.grpc.insecure=true", grpc="0.0.0.0:0")
    assert "without authentication" in said
    assert "auth.mode" in said


def test_an_unknown_setting(home):
    assert "did you mean gc.cas.enabled?" in refused(home, "--set", "gc.cas.enabledd=true")


def test_a_value_that_is_not_possible(home):
    assert "gc.cas.tick_every = 'soon'" in refused(home, "--set", "gc.cas.tick_every=soon")


def test_a_settings_file_that_is_not_there(home, tmp_path):
    assert f"{tmp_path / 'no.toml'} does not exist" in refused(home, "--config", tmp_path / "no.toml")


def test_a_store_of_a_newer_skiway(home):
    home.mkdir()
    with open_stores(f"sqlite:///{home}/pointers.db"):
        pass
    with sqlite3.connect(home / "pointers.db") as database:
        database.execute("UPDATE skiway_format SET version = '99'")
    database.close()
    assert "has format 99, but this version of Skiway reads up to" in refused(home)


def test_a_store_that_is_something_else(home):
    home.mkdir()
    (home / "pointers.db").write_bytes(b"this is no database, however long one looks at it" * 100)
    assert "restore the file from a backup" in refused(home)


def test_a_postgresql_that_is_not_there(home):
    with socket.socket() as unused:  # bound, and nobody listens
        unused.bind(("127.0.0.1", 0))
        port = str(unused.getsockname()[1])
        url = f"postgresql://skiway@127.0.0.1:{port}/skiway"
        said = refused(home, "--set", f"kv.url={url}", "--set", f"blob.url={(home / 'blobs').as_uri()}")
    assert "127.0.0.1" in said
    assert "refused" in said.lower()


def test_a_home_that_is_a_file(home):
    home.write_text("")
    assert f"the home directory {home} cannot be created: File exists; choose another with --home" in refused(home)


def test_a_ready_file_that_cannot_be_written(home, tmp_path):
    (tmp_path / "file").write_text("")
    ended = skiway("serve", "--home", home, "--grpc", "127.0.0.1:0", "--ready-file", tmp_path / "file" / "ready.json")
    assert ended.returncode == 1
    assert "ready.json cannot be written" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_certificate_with_the_key_of_another(home, tmp_path):
    authority = Authority(tmp_path)
    one, other = authority.issue("one"), authority.issue("other")
    tls = ("--set", f"server.grpc.tls.cert={one.certificate}", "--set", f"server.grpc.tls.key={other.key}")
    assert "cannot be used" in refused(home, *tls)


def test_tokens_without_a_file_of_them(home):
    said = refused(home, "--set", "auth.mode=token")
    assert f"the tokens file {home / 'tokens.toml'} does not exist" in said
    assert "skiway tokens new NAME --account default" in said
