"""Why a library failed, where people can do something about it: a full disk, a missing bucket, an untrusted certificate,
a value that Arrow rejects. `suggestion` is for names that do not exist.

Libraries report the same cause in many ways: as an error number, in the text of an error of another language, or in an
error behind the one that they raise.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause: `key` is that of the error, `problem` is a clause, and `remedy` an instruction to the operator."""

    key: str
    problem: str
    remedy: str

    @property
    def sentence(self) -> str:
        """The cause and what to do."""
        return f"{self.problem}; {self.remedy}"


DISK_FULL: Final = Cause(
    "disk.full",
    "the disk is full",
    "free some space, enlarge the disk, or raise the quota, then try again",
)
BUCKET_MISSING: Final = Cause(
    "bucket.missing",
    "the bucket does not exist",
    "create it, or correct its name, the endpoint and the region",
)
CERTIFICATE_UNTRUSTED: Final = Cause(
    "certificate.untrusted",
    "the TLS certificate of the server is not trusted",
    "set SSL_CERT_FILE (and REQUESTS_CA_BUNDLE, for REST catalogs) to a file with the certificate of its authority, and "
    "check that the certificate is valid and for this host name",
)

_NUMBERS: Final = {errno.ENOSPC: DISK_FULL, errno.EDQUOT: DISK_FULL, errno.EFBIG: DISK_FULL}
_TEXTS: Final = (
    (
        re.compile(
            r"No space left on device|Disk quota exceeded|File too large|database or disk is full|"
            r"os error (?:28|122|27)\b|errno (?:28|122|27)\b",
            re.IGNORECASE,
        ),
        DISK_FULL,
    ),
    (
        re.compile(
            r"NoSuchBucket|NO_SUCH_BUCKET|specified bucket does not exist|bucket .{1,100} does not exist|ContainerNotFound",
        ),
        BUCKET_MISSING,
    ),
    (
        re.compile(
            r"CERTIFICATE_VERIFY_FAILED|invalid peer certificate|InvalidCertificate|SSL peer certificate|"
            r"SSL certificate problem|PKIX path|CertificateException",
        ),
        CERTIFICATE_UNTRUSTED,
    ),
)


def cause_of(error: BaseException) -> Cause | None:
    """The cause of an error, as far as it is one of these."""
    for each in _chain(error):
        if isinstance(each, OSError) and each.errno in _NUMBERS:
            return _NUMBERS[each.errno]
        text = str(each)
        for pattern, cause in _TEXTS:
            if pattern.search(text):
                return cause
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and those behind it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


_IN_COLUMN: Final = re.compile(r"In column (\d+): (?:Invalid: )?(.*)", re.DOTALL)
_BEYOND_A_DAY: Final = re.compile(r"\btime(?:32|64)\[\w+\] -?\d+ is not within the acceptable range")


def invalid_values(error: Exception, columns: Sequence[str]) -> str:
    """Why Arrow rejects a batch, with the name of the column, and with advice for times, of which DuckDB has more than Arrow."""
    found = _IN_COLUMN.match(str(error))
    if found is None or int(found[1]) >= len(columns):
        return str(error)
    name, reason = columns[int(found[1])], found[2]
    if _BEYOND_A_DAY.search(reason):
        return (
            f"column {name!r} has a time that is not within a day, such as 24:00:00 or a TIME WITH TIME ZONE; "
            "use 00:00:00, or another type, such as VARCHAR"
        )
    return f"column {name!r}: {reason}"


MAX_SUGGESTIONS: Final = 3


def suggestion(missing: str, names: Iterable[str]) -> str:
    """Return `did you mean …?` with similar names, or the first existing names; "" if there are none."""
    known = list(names)
    lower = {name.lower(): name for name in known}
    similar = get_close_matches(missing.lower(), lower, n=MAX_SUGGESTIONS, cutoff=0.6)
    if similar:
        *others, last = (lower[name] for name in similar)
        return f"did you mean {' or '.join([', '.join(others), last] if others else [last])}?"
    if not known:
        return ""
    return f"existing: {', '.join(known[:MAX_SUGGESTIONS])}{', …' if len(known) > MAX_SUGGESTIONS else ''}"
