"""Settings of what connectors may access."""

from __future__ import annotations

from skiway.config.addresses import ADDRESS_RULES, AddressRule
from skiway.config.fields import FLAG, listed, section, setting

__all__ = ["Sources"]


def _check_root(path: str) -> None:
    """Raise ValueError unless it is an absolute path without `..`."""
    if not path.startswith("/") or ".." in path.split("/"):
        raise ValueError("not an absolute path")


@section
class Sources:
    """What connectors may access. See docs/security.md."""

    local_roots: tuple[str, ...] | None = setting(
        None,
        listed("absolute paths, such as /srv/data; /mnt/{account}", _check_root),
        "Folders on this machine that connectors may read; `{account}` stands for the id of the account. The files of the "
        "server and of the system stay closed. Unless set, none, or in `auth.mode` dev all.",
    )
    writable: tuple[str, ...] = setting(
        (),
        listed("absolute paths, such as /srv/delta; /mnt/{account}", _check_root),
        "Folders on this machine with Delta tables that `skiway tables optimize` and `clean` may change, for callers who may write to the "
        "mirrored tables; `{account}` stands for the id of the account. By default none.",
    )
    addresses: tuple[str, ...] | None = setting(
        None,
        listed(ADDRESS_RULES, AddressRule.parsed),
        "Addresses that connectors may connect to: `[scheme://]where[:port]` with a host, `*.domain`, an IP address, a "
        "network, or `public`, `private` or `loopback`; or `unix:/folder` for sockets. Link-local addresses stay closed. "
        "Unless set, public ones, or in `auth.mode` dev all.",
    )
    ambient_credentials: bool = setting(
        False,
        FLAG,
        "Lend the credentials of the server's machine (AWS, Kerberos, password files) to connectors that ask for them.",
    )
