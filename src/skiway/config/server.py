"""Settings of the doors: addresses, TLS, who may enter, what a refusal tells."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from skiway.config.fields import section, setting
from skiway.config.values import ADDRESS, COUNT, FLAG, PATH, SECONDS, TEXT, WEB_URL, choice, number, pattern, whole

__all__ = ["Auth", "Client", "Errors", "Grpc", "Http", "Interceptor", "Server", "Tls"]

AuthMode = Literal["dev", "token", "oidc"]

MIB = 1024 * 1024
MESSAGE_BYTES = whole(at_least=64 * 1024, at_most=2**31 - 1, of=" of bytes")
ALGORITHMS = pattern(r"\w+(\s*,\s*\w+)*", "names with commas between, such as RS256, ES256")
HEADER = pattern(r"[a-z0-9][a-z0-9_.-]*", "the name of a header in lower case, such as x-account")


@section
class Tls:
    """Certificate of a door."""

    cert: Path | None = setting(None, PATH, "Certificate chain, as a PEM file.")
    key: Path | None = setting(None, PATH, "The certificate's private key, as a PEM file.")


@section
class Grpc:
    """The gRPC door: Airport and the metastore's services."""

    address: str = setting("127.0.0.1:50051", ADDRESS, "Where the gRPC door listens; port 0 takes one that is free.")
    insecure: bool = setting(False, FLAG, "Serve other machines without TLS.")
    tls: Tls = Tls()
    max_message_bytes: int = setting(64 * MIB, MESSAGE_BYTES, "Size of the largest message that is taken.")
    workers: int = setting(32, COUNT, "Calls served at the same time.")
    share_port: bool = setting(
        False, FLAG, "Let other servers of the same store listen on the same port; the system spreads the callers."
    )
    reflection: bool = setting(True, FLAG, "Tell clients which services there are.")
    drain_seconds: float = setting(10.0, SECONDS, "How long running calls may go on after the server was told to stop.")


@section
class Http:
    """The HTTP door: Iceberg REST, the explorer, metrics."""

    address: str | None = setting(
        None,
        ADDRESS,
        "Where the HTTP door listens; port 0 takes one that is free. Unless set, 127.0.0.1:8181, or any free port of "
        "127.0.0.1 while that one is taken.",
    )
    insecure: bool = setting(False, FLAG, "Serve other machines without TLS.")
    tls: Tls = Tls()


@section
class Server:
    """The doors of a server."""

    grpc: Grpc = Grpc()
    http: Http = Http()


@section
class Client:
    """Calls that the server makes to the metastore's own services. It makes none yet, so these have no effect."""

    address: str | None = setting(
        None, ADDRESS, "Where the services are; unless set, this server's gRPC door. Without effect yet."
    )
    timeout_seconds: float = setting(
        30.0, number(at_least=0.001, of=" of seconds"), "How long a call may take. Without effect yet."
    )
    max_message_bytes: int = setting(64 * MIB, MESSAGE_BYTES, "Size of the largest message. Without effect yet.")


@section
class PlatformAdmin:
    """Those who manage accounts."""

    role: str = setting("platform-admin", TEXT, "Role of those who manage accounts.")


@section
class Oidc:
    """Tokens of an identity provider."""

    issuer: str | None = setting(None, WEB_URL, "Issuer of the tokens, whose keys are found through its metadata.")
    audience: str | None = setting(None, TEXT, "Audience that a token must be for.")
    jwks_url: str | None = setting(None, WEB_URL, "Where the issuer's keys are, when its metadata does not say.")
    public_key: Path | None = setting(
        None, PATH, "Public key of the issuer, as a PEM file; it takes the place of keys from the network."
    )
    leeway_seconds: float = setting(30.0, SECONDS, "By how much clocks may differ.")
    algorithms: str | None = setting(
        None, ALGORITHMS, "Algorithms that tokens may be signed with; unless set, the usual ones with a public key."
    )
    allow_http: bool = setting(False, FLAG, "Fetch keys from other machines without TLS: whoever is between can forge.")


@section
class Tokens:
    """Tokens that are made and kept here."""

    file: Path | None = setting(
        None, PATH, "File of the known tokens, as digests, with their accounts and roles.", under_home="tokens.toml"
    )


@section
class Auth:
    """Who a caller is."""

    mode: AuthMode = setting(
        "dev", choice(AuthMode), "How callers authenticate; with `dev` not at all, which is for this machine only."
    )
    insecure: bool = setting(
        False, FLAG, "Serve other machines with `auth.mode` `dev`: whoever comes may do everything."
    )
    platform_admin: PlatformAdmin = PlatformAdmin()
    oidc: Oidc = Oidc()
    tokens: Tokens = Tokens()


@section
class Session:
    """The session header of an engine in front of us."""

    header: str | None = setting(
        None, HEADER, "Header with an engine's session token, which wins over the authorization header."
    )
    account_claim: str = setting("account_id", TEXT, "Claim of a token that names the account.")
    role_claim: str = setting("roles", TEXT, "Claim of a token that lists the roles.")


@section
class Authorization:
    """The usual header."""

    header: str = setting("authorization", HEADER, "Header with the caller's token.")


@section
class DevAccount:
    """Choice of an account without authentication."""

    header: str = setting("x-skiway-account", HEADER, "Header that names the account, with `auth.mode` `dev`.")


@section
class Validate:
    """What is looked up for each call."""

    account: bool = setting(True, FLAG, "Refuse callers whose account does not exist.")


@section
class Interceptor:
    """Headers of calls."""

    session: Session = Session()
    authorization: Authorization = Authorization()
    dev_account: DevAccount = DevAccount()
    validate: Validate = Validate()


@section
class Errors:
    """What callers see of errors."""

    debug_details: bool = setting(False, FLAG, "Tell callers the stack of an error; for development only.")
    max_detail_chars: int = setting(512, whole(at_least=64), "Length of an error's text for callers.")
