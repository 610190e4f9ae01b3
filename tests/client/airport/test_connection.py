"""Connections to servers: TCP, TLS with and without client certificates, Unix sockets, and unreachable servers."""

from __future__ import annotations

import datetime as dt
import ipaddress
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from skiway.airport import CatalogBuilder, Server, Tls
from skiway.airport.catalog import Catalog
from skiway.client import AirportClient, TlsOptions
from skiway.client.connection import Location, split_url
from skiway.errors import InvalidArgument, Unavailable

PEM = serialization.Encoding.PEM


def catalog() -> Catalog:
    builder = CatalogBuilder("demo")

    @builder.schema("s").table(schema=pa.schema([("a", pa.int64())]))
    def t(scan: object) -> pa.Table:
        return pa.table({"a": [1, 2, 3]})

    return builder.build()


@dataclass(frozen=True)
class Authority:
    """A certificate authority for one test."""

    folder: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def make(cls, folder: Path, name: str) -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        authority = cls(folder, key, _certificate(name, key, name, key, is_authority=True))
        (folder / f"{name}.pem").write_bytes(authority.certificate.public_bytes(PEM))
        return authority

    def sign(self, name: str) -> tuple[Path, Path]:
        """The certificate and key of a subject, as files."""
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = self.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
        certificate = _certificate(name, key, str(issuer), self.key, is_authority=False)
        files = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        files[0].write_bytes(certificate.public_bytes(PEM))
        plain = serialization.NoEncryption()
        files[1].write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, plain))
        return files


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    is_authority: bool,
) -> x509.Certificate:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("tls"), "authority")


def test_tls_server_is_reached_with_its_root_certificate(authority: Authority) -> None:
    certificate, key = authority.sign("server")
    tls = TlsOptions(root_certificates=authority.folder / "authority.pem")
    with Server(catalog(), port=0, tls=Tls(certificate, key)) as server:
        assert server.location.startswith("grpc+tls://")
        with AirportClient(server.location, "demo", tls=tls) as db:
            assert db.count("s.t") == 3


@pytest.mark.parametrize(("name", "is_reached"), [("127.0.0.1", True), ("other.example", False)])
def test_certificate_must_have_the_given_server_name(authority: Authority, name: str, is_reached: bool) -> None:
    certificate, key = authority.sign("server")
    tls = TlsOptions(root_certificates=authority.folder / "authority.pem", server_name=name)
    with (
        Server(catalog(), port=0, tls=Tls(certificate, key)) as server,
        AirportClient(server.location, "demo", tls=tls, timeout_s=20) as db,
    ):
        if is_reached:
            assert db.count("s.t") == 3
        else:
            with pytest.raises(Unavailable, match="cannot reach"):
                db.schemas()


def test_tls_server_of_unknown_authority_is_not_trusted(authority: Authority) -> None:
    certificate, key = authority.sign("server")
    with (
        Server(catalog(), port=0, tls=Tls(certificate, key)) as server,
        AirportClient(server.location, "demo", timeout_s=20) as db,
        pytest.raises(Unavailable, match="cannot reach"),
    ):
        db.schemas()


def test_server_may_require_a_client_certificate(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.sign("server")
    root = authority.folder / "authority.pem"
    own_certificate, own_key = authority.sign("somebody")
    stranger_certificate, stranger_key = Authority.make(tmp_path, "other").sign("stranger")
    with Server(catalog(), port=0, tls=Tls(certificate, key, client_ca=root)) as server:
        with AirportClient(server.location, "demo", tls=TlsOptions(root, own_certificate, own_key)) as db:
            assert db.count("s.t") == 3
        for tls in (TlsOptions(root), TlsOptions(root, stranger_certificate, stranger_key)):
            with (
                AirportClient(server.location, "demo", tls=tls, timeout_s=20) as db,
                pytest.raises(Unavailable, match="cannot reach"),
            ):
                db.schemas()


def test_certificate_without_a_key_is_rejected(authority: Authority) -> None:
    certificate, _ = authority.sign("half")
    with (
        AirportClient("grpc+tls://127.0.0.1:1", tls=TlsOptions(client_certificate=certificate)) as db,
        pytest.raises(InvalidArgument, match="give both or none"),
    ):
        db.schemas()


def test_missing_pem_file_is_named() -> None:
    with (
        AirportClient("grpc+tls://127.0.0.1:1", tls=TlsOptions(root_certificates="no-such.pem")) as db,
        pytest.raises(InvalidArgument, match=r"cannot read the PEM file 'no-such\.pem'"),
    ):
        db.schemas()


def test_unix_socket_is_reached(tmp_path: Path) -> None:
    with Server(catalog(), host=f"unix:{tmp_path}/airport.sock", port=0) as server:
        assert server.location.startswith("grpc+unix://")
        with AirportClient(server.location, "demo") as db:
            assert db.count("s.t") == 3


def test_location_may_contain_catalog_and_token() -> None:
    with (
        Server(catalog(), port=0) as server,
        AirportClient(f"{server.location}/demo?auth_token=T") as db,
    ):
        assert db.location == server.location
        assert db.catalog == "demo"
        assert db.count("s.t") == 3


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("grpc://h:1", ("grpc://h:1", None, None)),
        ("grpc://h:1/cat", ("grpc://h:1", "cat", None)),
        ("grpc+tls://h:1/a%20b?auth_token=T", ("grpc+tls://h:1", "a b", "T")),
        ("grpc://h:1?auth_token=T", ("grpc://h:1", None, "T")),
        ("grpc+unix:///tmp/x", ("grpc+unix:///tmp/x", None, None)),
    ],
)
def test_location_is_parsed_as_in_duckdb(text: str, parts: tuple[str, str | None, str | None]) -> None:
    assert split_url(text) == parts


def test_arguments_take_precedence_over_the_location() -> None:
    with AirportClient("grpc://127.0.0.1:1/there", "here") as db:
        assert db.catalog == "here"


@pytest.mark.parametrize("text", ["", "host:1", "http://h:1", "grpc://h", "grpc://h:x", "grpc+unix://", "grpc://:1"])
def test_invalid_location_is_rejected(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"is not a location: write grpc://host:port"):
        AirportClient(text)


def test_unknown_option_in_the_location_is_rejected() -> None:
    with pytest.raises(InvalidArgument, match="unknown option 'secret'"):
        AirportClient("grpc://h:1/c?secret=x")


def test_ipv6_address_keeps_its_brackets() -> None:
    assert Location.parse("grpc://[::1]:50051").target == "[::1]:50051"


def test_unreachable_server_is_unavailable() -> None:
    with (
        AirportClient("grpc://127.0.0.1:1", "demo", timeout_s=20) as db,
        pytest.raises(Unavailable, match=r"cannot reach grpc://127\.0\.0\.1:1"),
    ):
        db.schemas()


def test_client_survives_a_restart_of_its_server() -> None:
    with Server(catalog(), port=0) as server:
        db = AirportClient(server.location, "demo")
        assert db.count("s.t") == 3
        port = server.port
    with pytest.raises(Unavailable):
        db.version()
    with Server(catalog(), port=port), db:
        assert wait_for_version(db) == 1


def test_new_client_does_not_wait_for_the_pause_of_an_older_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        location = f"grpc://127.0.0.1:{free.getsockname()[1]}"
    with AirportClient(location, "demo") as waiting:
        for _ in range(10):  # its pauses between attempts grow up to two seconds
            with pytest.raises(Unavailable):
                waiting.schemas()
            time.sleep(0.1)
        with Server(catalog(), port=int(location.rpartition(":")[2])), AirportClient(location, "demo") as db:
            assert [schema.name for schema in db.schemas()]


def wait_for_version(db: AirportClient) -> int:
    """gRPC reconnects to a lost server after a delay; calls until then fail immediately."""
    deadline = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=30)
    while True:
        try:
            return db.version().version
        except Unavailable:
            if dt.datetime.now(dt.UTC) > deadline:
                raise


def test_token_that_cannot_be_sent_in_a_header_is_rejected_without_showing_it() -> None:
    with (
        AirportClient("grpc://127.0.0.1:1", "c", token="geheim-ß") as db,
        pytest.raises(
            InvalidArgument, match="header authorization contains characters other than printable ASCII"
        ) as refused,
    ):
        db.schemas()
    assert "geheim" not in str(refused.value)
