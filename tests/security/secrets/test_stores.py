"""Secrets: the contract of every store, and the durability of the file store."""

from __future__ import annotations

import base64
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moto import mock_aws

from skiway.errors import Internal, InvalidArgument, LimitExceeded, NotFound, PreconditionFailed, Unavailable
from skiway.foundation import extras
from skiway.security import MemorySecrets, SecretsStore, open_secrets, secret_key
from skiway.security.secrets.files import FileSecrets, KeyRing, key_ring_in, new_encryption_key
from skiway.security.secrets.store import MAX_SECRET_BYTES, SECRETS_STORES

SECRET = b'{"token": "hunter2-hunter2"}'
HERE = ("acme", "connectors", "c1")
AWS = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}


def url_of(scheme: str, folder: Path) -> str:
    return {"memory": "memory://", "file": f"{folder.as_uri()}/secrets", "aws": "aws://lake?region=eu-west-1"}[scheme]


@pytest.fixture(params=["memory", "file", "aws"])
def store(request, tmp_path) -> Iterator[SecretsStore]:
    is_aws = request.param == "aws"
    with mock_aws() if is_aws else nullcontext():
        yield open_secrets(url_of(request.param, tmp_path), options=AWS if is_aws else {})


@pytest.fixture
def directory(tmp_path) -> Path:
    return tmp_path / "secrets"


@pytest.fixture
def files(directory) -> FileSecrets:
    return FileSecrets(directory, key_ring_in(directory / "encryption.key", secrets=directory))


def ring(*keys: str) -> KeyRing:
    return KeyRing.parsed("\n".join(keys))


# every store


@pytest.mark.parametrize("data", [SECRET, b"\x00\xff" * 100, b"x" * MAX_SECRET_BYTES], ids=["text", "bytes", "most"])
def test_secret_is_read_back_unchanged(store, data):
    store.put(*HERE, data)
    assert store.get(*HERE) == data


def test_secret_is_replaced(store):
    store.put(*HERE, SECRET)
    store.put(*HERE, b"two")
    assert store.get(*HERE) == b"two"
    store.update(*HERE, b"three")
    assert store.get(*HERE) == b"three"


def test_missing_secret_is_not_updated(store):
    with pytest.raises(NotFound, match="accounts/acme/connectors/c1") as refused:
        store.update(*HERE, SECRET)
    assert "hunter2" not in refused.value.message
    with pytest.raises(NotFound):
        store.get(*HERE)


def test_deleted_secret_is_not_found_and_deletion_is_idempotent(store):
    store.put(*HERE, SECRET)
    store.delete(*HERE)
    store.delete(*HERE)
    with pytest.raises(NotFound) as refused:
        store.get(*HERE)
    assert refused.value.key == "secret"
    store.put(*HERE, b"anew")
    assert store.get(*HERE) == b"anew"


@pytest.mark.parametrize(
    "other",
    [("globex", "connectors", "c1"), ("acme", "storage-authorities", "c1"), ("acme", "connectors", "c2")],
    ids=["account", "kind", "id"],
)
def test_secrets_are_isolated_by_account_kind_and_id(store, other):
    store.put(*HERE, SECRET)
    store.put(*other, b"theirs")
    assert (store.get(*HERE), store.get(*other)) == (SECRET, b"theirs")
    store.delete(*other)
    assert store.get(*HERE) == SECRET
    with pytest.raises(NotFound):
        store.get(*other)


def test_unusual_ids_do_not_collide(store):
    unusual = ["../../../etc/passwd", "..", ".", "a/b", "a%2Fb", "~a", "ü b\n", "a=2Fb", "%"]
    for each in unusual:
        store.put("acme", "connectors", each, each.encode())
        store.put(each, "connectors", "c1", b"account " + each.encode())
    for each in unusual:
        assert store.get("acme", "connectors", each) == each.encode()
        assert store.get(each, "connectors", "c1") == b"account " + each.encode()


def test_unusual_ids_do_not_escape_the_directory(files, directory):
    files.put("..", "..", "../../escaped", SECRET)
    written = [file.relative_to(directory).as_posix() for file in directory.rglob("*") if file.is_file()]
    assert sorted(written) == ["accounts/%2E%2E/%2E%2E/..%2F..%2Fescaped", "encryption.key", "lock"]
    assert [each.name for each in directory.parent.iterdir()] == ["secrets"]


@pytest.mark.parametrize("blank", [("", "k", "i"), ("a", "", "i"), ("a", "k", "")])
def test_secret_requires_all_parts_of_its_name(store, blank):
    with pytest.raises(InvalidArgument, match="one of them is empty"):
        store.put(*blank, SECRET)


def test_secret_over_the_common_size_limit_is_rejected(store):
    for write in (store.put, store.update):
        with pytest.raises(LimitExceeded, match="65537 bytes"):
            write(*HERE, b"x" * (MAX_SECRET_BYTES + 1))


def test_secrets_do_not_appear_in_repr(store):
    store.put(*HERE, SECRET)
    assert "hunter2" not in repr(store)


@given(*[st.tuples(*[st.text(min_size=1, max_size=4)] * 3)] * 2)
def test_different_secrets_have_different_keys(one, other):
    assert (secret_key(*one) == secret_key(*other)) == (one == other)
    assert secret_key(*one).count("/") == 3


def test_key_is_the_path_of_its_parts():
    assert secret_key("acme", "connectors", "0f3e-7.a") == "accounts/acme/connectors/0f3e-7.a"
    assert secret_key("a b", "k", "~/.") == "accounts/a%20b/k/%7E%2F."


# files


def test_files_are_encrypted_and_accessible_only_to_their_owner(files, directory):
    files.put(*HERE, SECRET)
    for path in [directory, *directory.rglob("*")]:
        allowed = stat.S_IMODE(path.stat().st_mode)
        assert allowed == (0o700 if path.is_dir() else 0o600), path
        assert path.is_dir() or b"hunter2" not in path.read_bytes()


def test_equal_secrets_have_different_ciphertexts(files, directory):
    for each in "ab":
        files.put("acme", "connectors", each, SECRET)
    one, other = (directory / secret_key("acme", "connectors", each) for each in "ab")
    assert one.read_bytes()[-40:] != other.read_bytes()[-40:]


@pytest.mark.parametrize("other", [("globex", "connectors", "c1"), ("acme", "connectors", "c2")])
def test_file_moved_to_another_secret_is_rejected(files, directory, other):
    files.put(*HERE, SECRET)
    files.put(*other, b"theirs")
    (directory / secret_key(*HERE)).replace(directory / secret_key(*other))
    with pytest.raises(Internal, match="damaged or belongs to another secret") as refused:
        files.get(*other)
    assert refused.value.key == "secret.damaged"


def test_every_damaged_byte_is_detected(files, directory):
    files.put(*HERE, SECRET)
    file = directory / secret_key(*HERE)
    intact = file.read_bytes()
    for index in range(len(intact)):
        file.write_bytes(intact[:index] + bytes([intact[index] ^ 1]) + intact[index + 1 :])
        with pytest.raises((Internal, PreconditionFailed)):
            files.get(*HERE)


@pytest.mark.parametrize("size", [0, 1, 20, 40, -1])
def test_truncated_file_is_detected(files, directory, size):
    files.put(*HERE, SECRET)
    file = directory / secret_key(*HERE)
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(Internal, match="store the secret again"):
        files.get(*HERE)


def test_wrong_key_is_distinguished_from_damage(directory):
    right, wrong = new_encryption_key().reveal(), new_encryption_key().reveal()
    FileSecrets(directory, ring(right)).put(*HERE, SECRET)
    with pytest.raises(PreconditionFailed, match="was encrypted with key") as refused:
        FileSecrets(directory, ring(wrong)).get(*HERE)
    assert refused.value.key == "secret.key.unknown"
    assert right not in refused.value.message
    assert wrong not in refused.value.message


def test_keys_are_rotated_by_listing_the_new_one_first(directory):
    old, new = new_encryption_key().reveal(), new_encryption_key().reveal()
    FileSecrets(directory, ring(old)).put(*HERE, SECRET)
    FileSecrets(directory, ring(old)).put("acme", "connectors", "c2", b"two")
    both = FileSecrets(directory, ring(new, old))
    assert both.get(*HERE) == SECRET
    both.put("acme", "connectors", "c2", b"two, anew")
    only_new = FileSecrets(directory, ring(new))
    assert only_new.get("acme", "connectors", "c2") == b"two, anew"
    with pytest.raises(PreconditionFailed):
        only_new.get(*HERE)
    assert both.reencrypt() == 1
    assert both.reencrypt() == 0
    assert only_new.get(*HERE) == SECRET


def test_reencryption_stops_at_an_unreadable_secret(directory):
    old, new = new_encryption_key().reveal(), new_encryption_key().reveal()
    FileSecrets(directory, ring(old)).put(*HERE, SECRET)
    with pytest.raises(PreconditionFailed):
        FileSecrets(directory, ring(new)).reencrypt()
    assert FileSecrets(directory, ring(old)).get(*HERE) == SECRET


def test_interrupted_write_keeps_the_old_secret(files, directory, monkeypatch):
    files.put(*HERE, SECRET)

    def crash(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", crash)
        with pytest.raises(Unavailable, match="the disk is full; free some space"):
            files.put(*HERE, b"never")
    assert files.get(*HERE) == SECRET
    files.put(*HERE, b"later")
    assert files.get(*HERE) == b"later"


def test_secret_is_synced_before_it_is_renamed(files, monkeypatch):
    events = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, name=name, real=real: (events.append(name), real(*a))[1])
    files.put(*HERE, SECRET)
    events.clear()
    files.put(*HERE, b"two")
    assert events == ["fsync", "replace", "fsync"]


def test_name_that_is_too_long_for_a_file_is_explained(files):
    with pytest.raises(LimitExceeded, match="255"):
        files.put("acme", "connectors", "ü" * 100, SECRET)


def test_threads_can_write_concurrently(files, directory):
    def write(name):
        for n in range(20):
            files.put(*HERE, name.encode() * 2000)
            files.put("acme", "connectors", f"{name}{n}", name.encode())

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, "wxyz"))
    assert files.get(*HERE) in {name.encode() * 2000 for name in "wxyz"}
    assert all(files.get("acme", "connectors", f"{name}{n}") == name.encode() for name in "wxyz" for n in range(20))


WRITER = """
import sys
from pathlib import Path
from skiway.security.secrets.files import FileSecrets, key_ring_in
directory, name = Path(sys.argv[1]), sys.argv[2]
secrets = FileSecrets(directory, key_ring_in(directory / "encryption.key", secrets=directory))
for n in range(60):
    secrets.put("acme", "connectors", "shared", name.encode() * 2000)
    assert secrets.get("acme", "connectors", "shared") in (b"a" * 2000, b"b" * 2000)
    secrets.put("acme", "connectors", f"{name}{n}", name.encode())
"""


def test_two_processes_can_write_concurrently_to_a_new_store(directory):
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(directory), name], stderr=subprocess.PIPE) for name in "ab"
    ]
    for writer in writers:
        _, message_pattern = writer.communicate(timeout=60)
        assert writer.returncode == 0, message_pattern.decode()
    found = FileSecrets(directory, key_ring_in(directory / "encryption.key", secrets=directory))
    assert found.get("acme", "connectors", "shared") in (b"a" * 2000, b"b" * 2000)
    for name in "ab":
        assert all(found.get("acme", "connectors", f"{name}{n}") == name.encode() for n in range(60))
    assert {each.name for each in directory.iterdir()} == {"accounts", "encryption.key", "lock"}


# the key file


def test_key_file_is_created_once(directory):
    file = directory / "encryption.key"
    first = key_ring_in(file, secrets=directory)
    made = file.read_text()
    assert key_ring_in(file, secrets=directory).keys == first.keys
    assert file.read_text() == made


def test_loser_of_the_race_to_create_the_key_uses_the_winners_key(directory, monkeypatch):
    file, link = directory / "encryption.key", os.link
    winner = f"{new_encryption_key().reveal()}\n"

    def lose_race(source, target):
        file.touch(mode=0o600)
        file.write_text(winner)
        return link(source, target)

    monkeypatch.setattr(os, "link", lose_race)
    assert key_ring_in(file, secrets=directory).keys == KeyRing.parsed(winner).keys
    assert [each.name for each in directory.iterdir()] == ["encryption.key"]


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o620, 0o660])
def test_key_file_accessible_to_others_is_rejected(directory, mode):
    file = directory / "encryption.key"
    key_ring_in(file, secrets=directory)
    file.chmod(mode)
    with pytest.raises(PreconditionFailed, match=f"mode {mode:o}.*chmod 600"):
        key_ring_in(file, secrets=directory)


def test_lost_key_file_is_not_replaced(files, directory):
    files.put(*HERE, SECRET)
    (directory / "encryption.key").unlink()
    with pytest.raises(PreconditionFailed, match="restore it from a backup") as refused:
        key_ring_in(directory / "encryption.key", secrets=directory)
    assert refused.value.key == "secret.key.lost"


def test_key_file_can_contain_several_keys_and_comments():
    keys = [new_encryption_key().reveal() for _ in range(3)]
    url_safe = keys[2].replace("+", "-").replace("/", "_")
    parsed = KeyRing.parsed(f"# of May, 2031\n{keys[0]}\n\n  # before\n{keys[1]},{url_safe}\n")
    assert [base64.b64encode(key.secret.reveal()).decode() for key in parsed.keys] == keys
    assert not any(key in repr(parsed) for key in keys)


@pytest.mark.parametrize("text", ["", "# nothing\n", "hunter2-hunter2", base64.b64encode(b"x" * 31).decode(), "ü"])
def test_invalid_key_is_rejected_without_showing_it(text):
    with pytest.raises(InvalidArgument, match="openssl rand -base64 32") as refused:
        KeyRing.parsed(text)
    assert "hunter2" not in refused.value.message


def test_unusable_directory_is_explained(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="check the disk and the permissions"):
        FileSecrets(tmp_path / "file" / "secrets", ring(new_encryption_key().reveal()))


# by URL


def test_url_scheme_selects_the_store(tmp_path):
    assert isinstance(open_secrets("memory://"), MemorySecrets)
    assert isinstance(open_secrets(f"{tmp_path.as_uri()}/a%20b"), FileSecrets)
    assert (tmp_path / "a b" / "encryption.key").exists()


def test_key_file_can_be_elsewhere(tmp_path):
    secrets = open_secrets(f"{tmp_path.as_uri()}/secrets?key_file={tmp_path}/keys/k")
    secrets.put(*HERE, SECRET)
    assert (tmp_path / "keys" / "k").exists()
    assert not (tmp_path / "secrets" / "encryption.key").exists()


def test_key_can_come_from_a_setting(tmp_path):
    keys = {"keys": new_encryption_key().reveal()}
    open_secrets(f"{tmp_path.as_uri()}/secrets", options=keys).put(*HERE, SECRET)
    assert open_secrets(f"{tmp_path.as_uri()}/secrets", options=keys).get(*HERE) == SECRET
    assert not (tmp_path / "secrets" / "encryption.key").exists()


@pytest.mark.parametrize(
    ("url", "options", "message_pattern"),
    [
        ("vault://a", {}, "begin the URL with one of aws:, file:, memory:"),
        ("hunter2", {}, "begin the URL"),
        ("memory://hunter2", {}, "use memory://"),
        ("memory://", {"keys": "hunter2"}, "use memory://"),
        ("file://host/a", {}, "use file:///path"),
        ("file:a", {}, "use file:///path"),
        ("file:///tmp/a?moon=hunter2", {}, "no parameter moon"),
        ("file:///tmp/a?keys=hunter2", {}, "URLs are logged"),
        ("aws://?aws_secret_access_key=hunter2", {}, "URLs are logged"),
        ("aws://?moon=hunter2", {}, "no parameter moon"),
    ],
)
def test_invalid_url_is_explained(url, options, message_pattern):
    with pytest.raises(InvalidArgument, match=message_pattern) as refused:
        open_secrets(url, options=options)
    assert url == "hunter2" or "hunter2" not in refused.value.message


def open_vault(url, *, options, clock):
    return (url, options)


def test_package_can_add_a_store(monkeypatch):
    added = EntryPoint("vault", f"{__name__}:open_vault", SECRETS_STORES)
    monkeypatch.setattr(extras, "_installed", lambda path: {added.group: [added]})
    assert open_secrets("vault://a", options={"token": "t"}) == ("vault://a", {"token": "t"})


def test_two_packages_for_one_scheme_are_rejected(monkeypatch):
    added = EntryPoint("file", "elsewhere:open_files", SECRETS_STORES)
    monkeypatch.setattr(extras, "_installed", lambda path: {added.group: [added]})
    with pytest.raises(PreconditionFailed, match="elsewhere:open_files are installed for file in"):
        open_secrets("memory://")


def test_importing_security_loads_no_heavy_library():
    code = "import sys, skiway.security; print(*sys.modules)"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    )
    assert not loaded & {"boto3", "cryptography", "httpx", "jwt"}
