"""The files that one source, or one managed table, may read."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit
from urllib.request import getproxies

from skiway.errors import PermissionDenied
from skiway.security.source_access import Location, SourceAccess
from skiway.security.source_access.relay import relay_of

__all__ = ["Reach"]


@dataclass(frozen=True, slots=True)
class Reach:
    """The folders that a source may read, of those that `access` permits.

    The metadata of a table may name any file. Local files are read only below `roots`, so that nobody can make the server
    return its own files by writing metadata. In S3 the credentials of the source are the limit, unless `in_s3` is false:
    then only folders in `roots` are read there as well.
    """

    roots: tuple[Location, ...]
    access: SourceAccess = field(default_factory=SourceAccess)
    in_s3: bool = True

    def check(self, place: Location) -> Location:
        """The location to open, without symbolic links; raises PermissionDenied if it is not permitted."""
        real = self.access.check(place)
        if place.scheme == "s3" and self.in_s3:
            return real
        if not any(real.is_below(root.real()) for root in self.roots):
            raise PermissionDenied(
                f"file {str(place)!r} is outside of the folders that this source may read "
                f"({', '.join(map(str, self.roots)) or 'no local folder'}); "
                "if it belongs to the source, add its folder to the option 'allowed-locations'",
                key="location.outside",
                location=str(place),
            )
        return real

    def hidden(self, folder: Location) -> frozenset[str]:
        """The names in `folder` that are left out of listings."""
        return self.access.hidden(folder)

    def relay(self, endpoint: str, region: str) -> str:
        """The URL of the proxy through which object stores at `endpoint` are accessed; empty for direct access.

        An empty endpoint is that of AWS in the region; raises PermissionDenied if sources may not connect to it.
        The endpoints of AWS and a proxy in the environment are trusted. Other endpoints could redirect requests anywhere.
        """
        if self.access.for_callers and not endpoint:
            self.access.check_aws(region)
        if not endpoint or not self.access.for_callers or getproxies().keys() & {"all", urlsplit(endpoint).scheme}:
            return ""
        return relay_of(self.access).url
