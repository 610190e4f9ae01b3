"""Locations of files on this machine or in object stores, and the decision whether this process may open a location or connect
to an address, and with which credentials.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from ipaddress import IPv4Address, ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from skiway.config.source_access import AddressRule, IpAddress, is_never_permitted
from skiway.errors import InvalidArgument, PermissionDenied, Unavailable
from skiway.security.redaction import without_secrets

_SCHEMES: Final = {"": "file", "file": "file", "s3": "s3", "s3a": "s3", "s3n": "s3", "gs": "gs", "abfss": "abfss"}
_CONTROL_CHARACTER: Final = re.compile(r"[\x00-\x1f\x7f]")
_SCHEME: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?P<rest>.*)", re.DOTALL)
_BUCKETS: Final = {
    "s3": (re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"), "bucket name; write s3://bucket/path"),
    "gs": (re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]"), "bucket name; write gs://bucket/path"),
    "abfss": (
        re.compile(r"[a-z0-9](?:-?[a-z0-9]){2,62}@[a-z0-9]{3,24}\.dfs\.core\.windows\.net"),
        "container and account; write abfss://container@account.dfs.core.windows.net/path",
    ),
}
"""The valid names of buckets by scheme, and how an error describes them."""


@dataclass(frozen=True, slots=True)
class Location:
    """A file or folder. `path` has no trailing slash; in an object store it is the key, on disk an absolute path.

    In Azure, the bucket is a container and the host of its account: `lake@account.dfs.core.windows.net`.
    """

    scheme: str
    bucket: str
    path: str

    def __str__(self) -> str:
        return self.path if self.scheme == "file" else f"{self.scheme}://{self.bucket}/{self.path}"

    def __truediv__(self, name: str) -> Location:
        return Location(self.scheme, self.bucket, f"{self.path}/{name}" if self.path else name)

    @property
    def name(self) -> str:
        """The last segment of the path."""
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> Location:
        return Location(self.scheme, self.bucket, self.path.rpartition("/")[0])

    def real(self) -> Location:
        """The location without symbolic links; object stores have none."""
        return Location("file", "", _without_links(self.path)) if self.scheme == "file" else self

    def is_below(self, folder: Location) -> bool:
        """Is it `folder`, or below it, by name?"""
        if (self.scheme, self.bucket) != (folder.scheme, folder.bucket):
            return False
        return self.path == folder.path or not folder.path or self.path.startswith(f"{folder.path.rstrip('/')}/")

    def is_within(self, folder: Location) -> bool:
        """Is it `folder`, or below it? On disk, symbolic links are resolved first."""
        real = self.real()
        # A folder in a path without links has none itself, so it need not be resolved.
        return real.is_below(folder) or real.is_below(folder.real())


def _without_links(path: str) -> str:
    """What `os.path.realpath` returns. Linux knows it for what exists, in a tenth of the time."""
    if sys.platform != "linux":
        return os.path.realpath(path)
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:  # unless it is a link to nowhere, only what exists above it can contain links
        above, _, name = path.rpartition("/")
        return os.path.realpath(path) if os.path.lexists(path) else f"{_without_links(above or '/').rstrip('/')}/{name}"
    except OSError:
        return os.path.realpath(path)
    try:
        found = os.readlink(f"/proc/self/fd/{opened}")  # noqa: PTH115 - Path takes longer than the rest
        # Something that has just been deleted has another name there.
        return os.path.realpath(path) if found.endswith(" (deleted)") else found
    except OSError:
        return os.path.realpath(path)
    finally:
        os.close(opened)


def location(uri: str) -> Location:
    """Parse `uri`: a path on this machine, or a `file:`, `s3:`, `s3a:`, `s3n:`, `gs:` or `abfss:` location.

    Sources can be neither in `gs:` nor in `abfss:`; `SourceAccess` refuses them.

    >>> str(location("s3a://lake/sales/people/"))
    's3://lake/sales/people'
    """
    # A relative path depends on the working directory, so it is parsed every time.
    return _parsed(uri) if uri.startswith("/") or ":" in uri else _parsed.__wrapped__(uri)


@lru_cache(maxsize=2_000)  # each call of a table needs two or three of them, at 20 µs each
def _parsed(uri: str) -> Location:
    found = _SCHEME.fullmatch(uri)
    scheme, rest = (found["scheme"].lower(), found["rest"]) if found else ("", uri)
    if scheme == "thrift":
        raise _invalid(uri, "it is the address of a Hive Metastore, which needs a connector of kind hive")
    if scheme not in _SCHEMES:
        raise _invalid(
            uri,
            f"unsupported scheme {scheme!r}; give a path, or a file: or s3: location; a warehouse can "
            "also be at a gs: or abfss: location",
        )
    if not rest or (_SCHEMES[scheme] != "file" and not rest.strip("/")):
        raise _invalid(uri, "it is empty")
    if _CONTROL_CHARACTER.search(uri):
        raise _invalid(uri, "it contains control characters")
    if ".." in re.split(r"[/\\]", rest):
        raise _invalid(uri, "'..' is not allowed; write the resolved path")
    if _SCHEMES[scheme] == "file":
        return _on_disk(uri, rest, bare=not scheme)
    return _in_bucket(uri, _SCHEMES[scheme], rest)


def _in_bucket(uri: str, scheme: str, rest: str) -> Location:
    bucket, _, key = rest.removeprefix("//").partition("/")
    valid, wanted = _BUCKETS[scheme]
    if not rest.startswith("//") or not valid.fullmatch(bucket):
        raise _invalid(uri, f"it has no valid {wanted}")
    if "." in key.split("/"):
        raise _invalid(uri, "'.' is not allowed as a part of the path, because some clients remove it")
    return Location(scheme, bucket, key.strip("/"))


def _on_disk(uri: str, rest: str, *, bare: bool) -> Location:
    if not bare and rest.startswith("//"):
        host, _, path = rest[2:].partition("/")
        if host not in ("", "localhost"):
            raise _invalid(uri, f"it is on another host ({host}); write file:///path")
        rest = f"/{path}"
    if not bare and not rest.startswith("/"):
        raise _invalid(uri, "the path of a file: location must be absolute; write file:///path")
    if rest.startswith("/"):
        rest = f"/{rest.lstrip('/')}"  # two slashes would survive normalization
    return Location("file", "", os.path.abspath(rest))  # noqa: PTH100 - Path.resolve would follow symbolic links


def _invalid(uri: str, reason: str) -> InvalidArgument:
    shown = without_secrets(uri)
    return InvalidArgument(f"invalid location {shown!r}: {reason}", key="location.refused", location=shown)


def web_address(uri: str) -> str:
    """Return `uri` if it is the http or https address of a service; raise InvalidArgument otherwise."""
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _invalid(uri, "the address of a catalog service begins with http:// or https://")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise _invalid(
            uri, "user names, passwords and queries are not allowed in the address; pass credentials separately"
        )
    return uri.rstrip("/")


ACCOUNT: Final = "{account}"

EVERY_ADDRESS: Final = tuple(map(AddressRule.parsed, ("public", "private", "loopback")))

SYSTEM_FOLDERS: Final = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run", "/sbin", "/sys", "/usr"),
    *("/var/backups", "/var/cache", "/var/log", "/var/mail", "/var/run", "/var/spool", "/System", "/Library"),
)
"""Folders of the operating system. They contain keys, passwords, logs and the memory of processes."""

_OBJECT_STORES: Final = ("s3",)
"""The object stores that sources can be in. Others would be read with credentials of the server."""
_MEMORY: Final = Location("file", "", "/dev/shm")  # noqa: S108 - not a temporary file
_PORTS: Final = {"http": 80, "https": 443, "postgresql": 5432}


@dataclass(frozen=True)
class SourceAccess:
    """What sources may access. The default is what a program may access that reads its own sources.

    `local_roots` are folders on this machine; `{account}` in them stands for the id of the account. `closed` are the
    server's own locations, on this machine and in S3, which are closed even inside a root; `own_roots` are open folders
    inside of them, where the server writes examples. `addresses` are rules for the network. With `ambient_credentials`,
    sources may use the credentials of this machine. `account` is the account on whose behalf a source is opened. `writable` are
    folders on this machine whose tables may be maintained; like `local_roots`, they can have an `{account}`.

    With `for_callers`, sources are named by callers of a server: the folders of the operating system and the hidden
    folders of users are closed as well, and redirects of object stores are checked.
    """

    local_roots: tuple[str, ...] = ("/",)
    closed: tuple[str, ...] = ()
    own_roots: tuple[str, ...] = ()
    addresses: tuple[AddressRule, ...] = EVERY_ADDRESS
    ambient_credentials: bool = True
    account: str = ""
    for_callers: bool = False
    writable: tuple[str, ...] = ()

    def of_account(self, account_id: str) -> SourceAccess:
        """The same rules for a source of this account."""
        return self if account_id == self.account else replace(self, account=account_id)

    # --- files --------------------------------------------------------------------------------------------------------

    def check(self, place: Location) -> Location:
        """The location to open, without symbolic links; raises PermissionDenied if it is not permitted."""
        real = place.real()
        if not self._permits(real):
            raise PermissionDenied(
                f"location {str(place)!r} is not open to sources; {self._advice(place)}",
                key="location.refused",
                location=str(place),
            )
        return real

    def check_writable(self, place: Location) -> Location:
        """The location to change, without symbolic links; raises PermissionDenied if the operator has not opened it for that."""
        real = self.check(place)
        if real.scheme != "file" or not any(real.is_below(each) for each in self._located(self.writable)):
            raise PermissionDenied(
                f"location {str(place)!r} is not open for maintenance: ask the operator to add a folder on the server's machine to "
                "sources.writable, or maintain the table with the program that writes it",
                key="location.read_only",
                location=str(place),
            )
        return real

    def hidden(self, folder: Location) -> frozenset[str]:
        """The names in `folder` that are left out of listings, because they are the server's own."""
        real = folder.real()
        return frozenset(each.name for each in self._closed if each.parent == real)

    def _permits(self, real: Location) -> bool:
        """Whether the most specific rule for a location permits it."""
        if real.scheme not in ("file", *_OBJECT_STORES):
            return False
        if real.scheme != "file":
            # Some clients, such as Hadoop's, remove empty segments.
            plain = Location(real.scheme, real.bucket, re.sub("/+", "/", real.path))
            return not any(each.is_below(closed) for each in (real, plain) for closed in self._closed)
        closed = max((len(each.path) for each in self._closed if real.is_below(each)), default=-1)
        opened = max((len(root.path) for root in self._own_roots if real.is_below(root)), default=-1)
        if opened > closed:
            return True
        if closed >= 0 or (self.for_callers and (is_of_system(real) or _is_private(real.path))):
            return False
        return any(real.is_below(root) for root in self._roots)

    def _advice(self, place: Location) -> str:
        if place.scheme not in ("file", *_OBJECT_STORES):
            return f"only the warehouse can be in {place.scheme}:, sources are local or in S3: copy the data there"
        if place.scheme != "file":
            return "it belongs to the server itself: use another bucket or folder"
        roots = ", ".join(str(root) for root in self._roots) or "none"
        return (
            f"sources may read {roots}, except for the files of the server and of the system: move the data there, or ask "
            "the operator to add its folder to sources.local_roots"
        )

    @cached_property
    def _roots(self) -> tuple[Location, ...]:
        return self._located(self.local_roots)

    def _located(self, roots: Sequence[str]) -> tuple[Location, ...]:
        known = [root for root in roots if self.account or ACCOUNT not in root]
        return tuple(location(each.replace(ACCOUNT, _segment(self.account))).real() for each in known)

    @cached_property
    def _own_roots(self) -> tuple[Location, ...]:
        return tuple(location(root).real() for root in self.own_roots)

    @cached_property
    def _closed(self) -> tuple[Location, ...]:
        return tuple({location(each).real() for each in self.closed})

    # --- the network --------------------------------------------------------------------------------------------------

    def check_url(self, url: str) -> str:
        """Return `url` if its host resolves to permitted addresses; raises PermissionDenied or Unavailable otherwise."""
        scheme, host, port = _parts(url)
        self.checked_addresses(scheme, host, port)
        return url

    def checked_addresses(self, scheme: str, host: str, port: int) -> Sequence[IpAddress]:
        """The addresses of a host, all of which are permitted."""
        found = list(resolved(host, port))
        for address in found:
            self.check_address(scheme, host, port, address)
        return found

    def check_address(self, scheme: str, host: str, port: int, address: IpAddress) -> None:
        """Raise PermissionDenied unless sources may connect to `address`, which is one of `host`."""
        named = any(rule.matches_name(scheme, host, port) for rule in self.addresses)
        inside = any(rule.matches_address(scheme, address, port) for rule in self.addresses)
        if is_never_permitted(address) or not (named or inside):
            raise self._refused(scheme, host, port, str(address))

    def check_named(self, url: str) -> str:
        """Return `url` unless its host is a forbidden IP address or localhost; host names are not resolved."""
        scheme, host, port = _parts(url)
        address = _address_in(host)
        if address is None:
            self.check_name(scheme, host, port)
        else:
            self.check_address(scheme, host, port, address)
        return url

    def check_name(self, scheme: str, host: str, port: int) -> None:
        """Raise PermissionDenied if no address of the host could be permitted."""
        groups = any(not rule.name and not rule.folder for rule in self.addresses)
        if not groups and not any(rule.matches_name(scheme, host, port) for rule in self.addresses):
            raise self._refused(scheme, host, port, host)

    def check_aws(self, region: str) -> None:
        """Raise PermissionDenied unless sources may connect to S3 of AWS, which has public addresses."""
        host = f"s3.{region or 'us-east-1'}.amazonaws.com"
        public = any(
            rule.word == "public" and rule.scheme in ("", "https") and rule.port in (0, 443) for rule in self.addresses
        )
        if not public and not any(rule.matches_name("https", host, 443) for rule in self.addresses):
            raise self._refused("https", host, 443, host)

    def check_socket(self, folder: str) -> str:
        """Return the folder of a Unix socket if the operator has named it."""
        real = os.path.realpath(folder)
        if self.for_callers and not any(
            rule.folder and os.path.realpath(rule.folder) == real for rule in self.addresses
        ):
            raise PermissionDenied(
                f"sockets in {folder!r} are not open to sources; give a host name, or ask the operator to add unix:{folder} "
                "to sources.addresses",
                key="address.refused",
                address=folder,
            )
        return real

    def _refused(self, scheme: str, host: str, port: int, found: str) -> PermissionDenied:
        rules = "; ".join(rule.text for rule in self.addresses) or "none"
        return PermissionDenied(
            f"{scheme}://{host}:{port} is at {found}, where sources may not be (sources.addresses is {rules}; link-local "
            "addresses are never permitted); use another address, or ask the operator to permit it",
            key="address.refused",
            address=found,
        )

    # --- credentials --------------------------------------------------------------------------------------------------

    def check_ambient(self, what: str) -> None:
        """Raise PermissionDenied unless sources may use credentials of this machine; `what` would use them."""
        if not self.ambient_credentials:
            raise PermissionDenied(
                f"{what} would use credentials of the server, which are not lent to connectors; store credentials with the "
                "connector, or ask the operator to set sources.ambient_credentials",
                key="credentials.ambient",
            )

    def s3_properties(self, given: Mapping[str, str]) -> dict[str, str]:
        """The S3 properties among `given`, after checking the endpoint and whose credentials they use."""
        found = {key: value for key, value in given.items() if key.startswith("s3.")}
        if ("s3.access-key-id" in found) != ("s3.secret-access-key" in found):
            raise InvalidArgument(
                "s3.access-key-id and s3.secret-access-key belong together: give both or neither",
                key="source.credentials",
            )
        if found.get("s3.ambient-credentials", "").lower() == "true":
            self.check_ambient("s3.ambient-credentials")
        if endpoint := found.get("s3.endpoint"):
            found["s3.endpoint"] = self.check_url(endpoint if "://" in endpoint else f"https://{endpoint}")
        return found


@cache
def _system() -> tuple[Location, ...]:
    return tuple({location(each).real() for each in SYSTEM_FOLDERS})


def is_of_system(real: Location) -> bool:
    """Whether a location without links is in a folder of the operating system. Memory used as a disk is not."""
    return any(real.is_below(each) for each in _system()) and not real.is_below(_MEMORY)


def resolved(host: str, port: int) -> Iterator[IpAddress]:
    """The addresses of a host; raises Unavailable if it has none."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Unavailable(
            f"host {host!r} cannot be resolved; check the address of the source, then try again",
            key="source.unavailable",
            detail=str(error),
        ) from error
    for *_, address in found:
        yield ip_address(str(address[0]).partition("%")[0])


def _address_in(host: str) -> IpAddress | None:
    """The address that a host name contains, also in the old spellings that resolvers accept; None for other names."""
    if host == "localhost" or host.endswith(".localhost"):
        return IPv4Address("127.0.0.1")
    with suppress(ValueError):
        return ip_address(host)
    with suppress(OSError):
        return IPv4Address(socket.inet_aton(host))
    return None


def _parts(url: str) -> tuple[str, str, int]:
    """The scheme, host and port of a URL."""
    try:
        parts = urlsplit(url if "://" in url else f"https://{url}")
        port = parts.port
    except ValueError:
        raise InvalidArgument(f"{url!r} is not a valid address", key="location.refused", location=url) from None
    return parts.scheme, (parts.hostname or "").rstrip("."), port or _PORTS.get(parts.scheme, 443)


def _segment(account_id: str) -> str:
    """The id as one segment of a path."""
    if "/" in account_id or account_id in (".", ".."):
        raise InvalidArgument(f"the account id {account_id!r} cannot be part of a path", key="location.refused")
    return account_id


def _is_private(path: str) -> bool:
    """Whether it is, or is in, a hidden file or folder in the home of a user, such as ~/.ssh and ~/.aws."""
    parts = Path(path).parts
    homes: list[tuple[str, ...]] = [("/", "root")]
    with suppress(RuntimeError):  # the user of the process has no home
        homes.append(Path.home().parts)
    if parts[1:2] in (("home",), ("Users",)):
        homes.append(parts[:3])
    inside = [parts[len(home)] for home in homes if parts[: len(home)] == home and len(parts) > len(home)]
    return any(name.startswith(".") for name in inside)
