"""What every call carries beside its request: who calls, and in the course of what."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from skiway.errors import InvalidArgument
from skiway.telemetry.context import CallContext, current_call

__all__ = ["Caller"]

CORRELATION_ID: Final = "x-correlation-id"
QUERY_ID: Final = "x-query-id"
ENGINE_KIND: Final = "x-engine-kind"
ENGINE_VERSION: Final = "x-engine-version"
AUTHORIZATION: Final = "authorization"
ACCOUNT: Final = "x-skiway-account"

_NAME: Final = re.compile(r"[0-9a-z_.-]+")
_VALUE: Final = re.compile(r"[\x20-\x7e]*")


@dataclass(frozen=True, slots=True)
class Caller:
    """The headers of a client. `extra` ones, by names in lower case, win over all others. No repr shows credentials."""

    token: str | None = field(default=None, repr=False)
    account: str | None = None
    query_id: str = ""
    engine_kind: str = ""
    engine_version: str = ""
    extra: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if bool(self.engine_kind) != bool(self.engine_version):
            raise InvalidArgument("an engine is told by its kind and its version: give both, or none")
        for name, value in self.headers(lambda: "").items():
            _check(name, value)

    def headers(self, ids: Callable[[], str]) -> dict[str, str]:
        """The headers of a new call. One that is made while another is served belongs to it, and says so."""
        served = current_call() or CallContext("")
        said = {
            CORRELATION_ID: served.correlation_id or ids(),
            QUERY_ID: self.query_id or served.query_id,
            **self._engine(served),
            ACCOUNT: self.account or "",
            **self._credentials(served),
        }
        return {name: value for name, value in said.items() if value} | dict(self.extra)

    def _engine(self, served: CallContext) -> dict[str, str]:
        for speaker in (self, served):
            if speaker.engine_kind and speaker.engine_version:  # the one says nothing without the other
                return {ENGINE_KIND: speaker.engine_kind, ENGINE_VERSION: speaker.engine_version}
        return {}

    def _credentials(self, served: CallContext) -> Mapping[str, str]:
        """One's own, or those of the call being served: never some of each."""
        if self.token:
            return {AUTHORIZATION: f"Bearer {self.token}"}
        has_own = any(name == AUTHORIZATION or name in served.authorization for name in self.extra)
        return {} if has_own else served.authorization


def _check(name: str, value: str) -> None:
    if not _NAME.fullmatch(name) or name.startswith("grpc-") or name.endswith("-bin"):
        raise InvalidArgument(
            f"{name!r} cannot be the name of a header: use letters, digits, '-', '_' and '.', "
            "but no name that begins with grpc- or ends with -bin",
            key="field",
            field="headers",
        )
    if not isinstance(value, str) or not _VALUE.fullmatch(value):
        # the value may be a credential: it is not repeated
        raise InvalidArgument(f"the value of header {name} is not printable ASCII: check it", key="field", field=name)
