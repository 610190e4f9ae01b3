"""Settings of the servers, authentication, quotas, and SQL of callers."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path
from typing import Literal

from skiway.config.fields import (
    ADDRESS,
    COUNT,
    FLAG,
    PATH,
    SECONDS,
    SECRET,
    TEXT,
    WEB_URL,
    Secret,
    choice,
    listed,
    number,
    pairs,
    pattern,
    section,
    setting,
    whole,
)

Transport = Literal["auto", "native", "grpcio"]
AuthMode = Literal["dev", "token", "oidc"]

NO_CLIENT = "the server calls the metastore in process"

MIB = 1024 * 1024
MESSAGE_BYTES = whole(at_least=64 * 1024, at_most=2**31 - 1, of=" of bytes")
DECODED_BYTES = whole(at_least=1024 * 1024, of=" of bytes")
DEADLINE = number(at_least=0.001, of=" of seconds")
ALGORITHMS = pattern(r"\w+(\s*,\s*\w+)*", "names separated by commas, such as RS256, ES256")
HEADER = pattern(r"[a-z0-9][a-z0-9_.-]*", "a header name in lower case, such as x-account")


@section
class Tls:
    """The TLS certificate of a server."""

    cert: Path | None = setting(None, PATH, "Certificate chain, as a PEM file.")
    key: Path | None = setting(None, PATH, "The certificate's private key, as a PEM file.")


@section
class Grpc:
    """The gRPC server: Airport and the metastore services."""

    address: str = setting("127.0.0.1:50051", ADDRESS, "Address of the gRPC server; port 0 picks a free port.")
    insecure: bool = setting(False, FLAG, "Accept connections from other machines without TLS.")
    tls: Tls = Tls()
    max_message_bytes: int = setting(64 * MIB, MESSAGE_BYTES, "Maximum size of a received message.")
    max_decoded_bytes: int = setting(
        256 * MIB, DECODED_BYTES, "Maximum size of a received batch after decompression, with values that it repeats."
    )
    opening_seconds: float = setting(
        30.0, DEADLINE, "How long a client may take to send its request after it has opened a call."
    )
    idle_seconds: float = setting(
        1800.0, DEADLINE, "How long a stream may be idle: its client neither sends nor reads. Then it is ended."
    )
    workers: int = setting(32, COUNT, "Maximum number of concurrent calls.")
    share_port: bool = setting(
        False,
        FLAG,
        "Allow several servers of the same store to share the port; the operating system distributes connections.",
    )
    reflection: bool = setting(
        True, FLAG, "Enable gRPC reflection, which lists the services, for callers that authenticate and operators."
    )
    drain_seconds: float = setting(
        10.0, SECONDS, "How long running calls may continue during shutdown, on both servers."
    )


@section
class Http:
    """The HTTP server: Iceberg REST, health checks and metrics."""

    address: str | None = setting(
        None,
        ADDRESS,
        "Address of the HTTP server; port 0 picks a free port. Unless set, 127.0.0.1:8181, or a free port of 127.0.0.1 if "
        "8181 is in use.",
    )
    insecure: bool = setting(False, FLAG, "Accept connections from other machines without TLS.")
    tls: Tls = Tls()
    public_url: str | None = setting(
        None,
        WEB_URL,
        "URL under which browsers reach the server, such as https://lake.example.com, if a proxy is in between.",
    )
    allowed_hosts: tuple[str, ...] = setting(
        (),
        listed("a list, such as lake.example.com; skiway", str),
        "Host names under which the server may be addressed with `auth.mode` `dev`, besides localhost and IP addresses.",
    )
    header_seconds: float = setting(15.0, DEADLINE, "How long a client may take to send the headers of a request.")
    body_seconds: float = setting(60.0, DEADLINE, "How long a client may take to send the body of a request.")
    keep_alive_seconds: float = setting(
        75.0,
        SECONDS,
        "How long a connection stays open without a request. Proxies must keep theirs for a shorter time.",
    )
    max_connections: int = setting(
        1000, COUNT, "Maximum number of open connections. One more replaces a connection without a complete request."
    )
    max_unfinished_per_address: int = setting(
        200, COUNT, "Maximum number of connections of one address that have not sent a complete request."
    )
    health_address: str | None = setting(
        None,
        ADDRESS,
        "Address of a second HTTP server with `/healthz` and `/readyz` only, without TLS, for probes; port 0 picks a free port. "
        "Unless set, there is none.",
    )


@section
class Server:
    """The servers of a process."""

    grpc: Grpc = Grpc()
    http: Http = Http()
    transport: Transport = setting(
        "auto",
        choice(Transport),
        "What serves gRPC: `native` is faster and needs `skiway-native`, `grpcio` is always there, and `auto` is the native one if "
        "it is installed.",
    )
    processes: int = setting(
        1,
        whole(at_least=1, at_most=256),
        "How many processes serve gRPC calls. Python runs on one core per process. HTTP and background work stay in the first.",
    )
    operator_networks: tuple[str, ...] = setting(
        (),
        listed("a list, such as 10.1.0.0/16; 127.0.0.1", ip_network),
        "IP addresses and networks that may read metrics and use gRPC reflection without a token. Requests that were "
        "forwarded by a proxy need a token.",
    )
    memory_budget_bytes: int | None = setting(
        None,
        whole(at_least=0, of=" of bytes"),
        "Memory of a process above which new calls are rejected while running ones continue; 0 means no limit. Unless set, "
        "three quarters of the memory of the container or machine, divided by `server.processes`.",
    )


@section
class Client:
    """Calls from the server to the metastore services. There are none, so these settings have no effect."""

    address: str | None = setting(None, ADDRESS, "Address of the metastore services.", without_effect=NO_CLIENT)
    timeout_seconds: float = setting(
        30.0, number(at_least=0.001, of=" of seconds"), "Timeout of a call.", without_effect=NO_CLIENT
    )
    max_message_bytes: int = setting(64 * MIB, MESSAGE_BYTES, "Maximum size of a message.", without_effect=NO_CLIENT)


@section
class PlatformAdmin:
    """The administrators of all accounts."""

    role: str = setting("platform-admin", TEXT, "Name of the role that manages accounts.")
    subjects: tuple[str, ...] = setting(
        (),
        listed("a list, such as ops@example.com; oncall@example.com", str),
        "Subjects of the identity provider that may use platform roles, with `auth.mode` `oidc`.",
    )


@section
class Oidc:
    """Tokens issued by an identity provider."""

    issuer: str | None = setting(None, WEB_URL, "Issuer of the tokens; its keys are found by OpenID Connect discovery.")
    audience: str | None = setting(None, TEXT, "Required audience of a token.")
    jwks_url: str | None = setting(None, WEB_URL, "URL of the issuer's key set, for an issuer without discovery.")
    public_key: Path | None = setting(
        None, PATH, "Public key of the issuer, as a PEM file; used instead of fetching keys."
    )
    leeway_seconds: float = setting(30.0, SECONDS, "Accepted clock difference between issuer and server.")
    algorithms: str | None = setting(
        None, ALGORITHMS, "Accepted signature algorithms; unless set, all supported public-key algorithms."
    )
    client_id: str | None = setting(
        None,
        TEXT,
        "Client ID of the explorer at the issuer: visitors can then log in there instead of entering a token.",
    )
    client_secret: Secret | None = setting(None, SECRET, "Secret of that client, unless it is a public one.")
    device_client_id: str | None = setting(
        None,
        TEXT,
        "Client ID of `skiway login` at the issuer, a public client that may use the device flow; unless set, `client_id`, "
        "if that has no secret.",
    )
    scopes: str = setting(
        "openid",
        TEXT,
        "Scopes that the explorer and `skiway login` request, separated by spaces. With `offline_access`, many issuers let "
        "`skiway login` renew its token.",
    )
    allow_http: bool = setting(
        False, FLAG, "Fetch keys over plain http from other machines; anyone on the network path can then forge tokens."
    )


@section
class Tokens:
    """Static tokens, issued by the operator."""

    file: Path | None = setting(
        None, PATH, "File of the tokens' digests, accounts and roles.", under_home="tokens.toml"
    )


@section
class Oauth:
    """Access tokens for Iceberg clients with client credentials, in mode `token`."""

    enabled: bool = setting(
        True,
        FLAG,
        "Issue access tokens at `/iceberg/v1/oauth/tokens` in exchange for static tokens, with `auth.mode` `token`.",
    )
    lifetime_seconds: int = setting(
        3600, whole(at_least=60, at_most=86400, of=" of seconds"), "How long an access token is valid."
    )
    session_seconds: int = setting(
        43200,
        whole(at_least=60, at_most=604800, of=" of seconds"),
        "How long an access token can be exchanged for a new one, before the client must send its static token again.",
    )


@section
class Auth:
    """Authentication."""

    mode: AuthMode = setting(
        "dev",
        choice(AuthMode),
        "How callers authenticate; `dev` requires no authentication and is meant for local use.",
    )
    insecure: bool = setting(
        False, FLAG, "Accept other machines with `auth.mode` `dev`: every caller may do everything."
    )
    authorizer: str = setting(
        "roles",
        TEXT,
        "What decides about permissions: `roles`, or the name of an entry point of the group `skiway.authorizers`.",
    )
    platform_admin: PlatformAdmin = PlatformAdmin()
    oidc: Oidc = Oidc()
    tokens: Tokens = Tokens()
    oauth: Oauth = Oauth()


@section
class Session:
    """The session header of an engine that calls on behalf of its users."""

    header: str | None = setting(
        None, HEADER, "Header with an engine's session token; it takes precedence over the authorization header."
    )
    account_claim: str = setting("account_id", TEXT, "Claim that holds the account id.")
    role_claim: str = setting("roles", TEXT, "Claim that lists the roles.")


@section
class Authorization:
    """The authorization header."""

    header: str = setting("authorization", HEADER, "Header with the caller's token.")


@section
class DevAccount:
    """How a caller selects an account in mode `dev`."""

    header: str = setting("x-skiway-account", HEADER, "Header that selects the account in mode `dev`.")


@section
class Validate:
    """Checks made for each call."""

    account: bool = setting(
        True, FLAG, "Reject callers whose account does not exist.", without_effect="they are always rejected"
    )


@section
class Interceptor:
    """Request headers."""

    session: Session = Session()
    authorization: Authorization = Authorization()
    dev_account: DevAccount = DevAccount()
    validate: Validate = Validate()


@section
class Errors:
    """Error details in responses."""

    debug_details: bool = setting(
        False, FLAG, "Include the stack trace of an error in the response; for development only."
    )
    max_detail_chars: int = setting(512, whole(at_least=64), "Maximum length of an error message in a response.")


CALLS = "Open calls of all kinds that are not listed here."
SCANS = "Open scans."
EXCHANGES = "Open exchanges: INSERT, UPDATE, DELETE and functions over rows."
HANDSHAKES = "Open handshakes."
QUERIES = "Open calls about queries: planning, and reading scan bundles."
PER_SECOND = "Calls per second of all kinds; twice as many at once after a pause."
BYTES = "Bytes per second, received and sent. They count when a call ends; calls are rejected while too many were used."
AMOUNT = whole(at_least=0)
RATE = number(at_least=0)


@section
class Quota:
    """What a caller may use of each server process; 0 means no limit."""

    calls: int = setting(64, AMOUNT, CALLS)
    scans: int = setting(48, AMOUNT, SCANS)
    exchanges: int = setting(48, AMOUNT, EXCHANGES)
    handshakes: int = setting(4, AMOUNT, HANDSHAKES)
    queries: int = setting(64, AMOUNT, QUERIES)
    per_second: float = setting(5000.0, RATE, PER_SECOND)
    bytes_per_second: int = setting(0, AMOUNT, BYTES)


@section
class AccountQuota(Quota):
    """What all callers of an account together may use of each server process; 0 means no limit."""

    calls: int = setting(128, AMOUNT, CALLS)
    scans: int = setting(56, AMOUNT, SCANS)
    exchanges: int = setting(56, AMOUNT, EXCHANGES)
    handshakes: int = setting(6, AMOUNT, HANDSHAKES)
    queries: int = setting(128, AMOUNT, QUERIES)
    per_second: float = setting(10_000.0, RATE, PER_SECOND)
    bytes_per_second: int = setting(0, AMOUNT, BYTES)


@section
class Quotas:
    """The quotas of each caller, and of all callers of an account together, in each server process."""

    caller: Quota = Quota()
    account: AccountQuota = AccountQuota()


MEMORY = pattern(r"\d+(\.\d+)?\s*([KMG]i?B)", "an amount of memory, such as 512MB or 1GiB")


@section
class SparkSql:
    """Queries that the server runs on Spark for callers (`skiway.query` with `engine => 'spark'`), each in a process of its own."""

    enabled: bool = setting(False, FLAG, "Run queries on Spark. Read docs/spark-queries.md first.")
    master: str = setting("local[2]", TEXT, "Spark master: this machine, or a cluster such as spark://host:7077.")
    conf: tuple[str, ...] = setting(
        (),
        pairs("spark.driver.memory=2g"),
        "Spark configuration of queries. Callers can read it, so it must contain no secrets.",
    )
    queries: int = setting(2, COUNT, "Queries that run at a time; one account may use all but one of them.")
    timeout_seconds: float = setting(
        600.0,
        number(at_least=1, of=" of seconds"),
        "How long a query may take, including the start of Spark and the transfer of its rows.",
    )
    max_rows: int = setting(10_000_000, COUNT, "Rows that a query may return.")
    memory_limit: str = setting("4GB", MEMORY, "Memory of all processes of a query on this machine.")
    confined: bool = setting(
        True, FLAG, "Confine the processes with Linux' Landlock. Turn it off only if sql.spark.command isolates them."
    )
    unprotected_attributes: bool = setting(
        False,
        FLAG,
        "Accept that code on Spark can change permissions, owners, times and extended attributes of files of the server's user, "
        "on systems without user namespaces.",
    )
    command: str = setting(
        "", TEXT, "The command that starts Python for a query, such as one with sudo or docker; by default this Python."
    )
    location: str | None = setting(
        None,
        TEXT,
        "Where Spark reaches this server, such as grpc+tls://lake.example.org:50051; by default on loopback.",
    )
    root_certificates: Path | None = setting(
        None, PATH, "PEM file that Spark trusts the certificate of this server with."
    )


@section
class Sql:
    """Queries that the server runs for callers (`skiway.query`), each in a worker process."""

    workers: int = setting(4, COUNT, "Queries that run at a time; one account may use all but one of them.")
    memory_limit: str = setting("1GB", MEMORY, "Memory of a query. A query that needs more fails.")
    timeout_seconds: float = setting(
        300.0,
        number(at_least=0.001, of=" of seconds"),
        "How long a query may take, including the transfer of its rows.",
    )
    threads: int = setting(2, COUNT, "Threads of a query.")
    spark: SparkSql = SparkSql()
