"""The system table `tokens`: the access tokens of the account, without the tokens themselves."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from skiway.lake.system.scanning import SystemScan, arrow_table
from skiway.metastore.platform import token_uses
from skiway.security import TokenFile
from skiway.security.token_changes import token_id

__all__ = ["TOKENS", "tokens"]

TOKENS: Final = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("id", pa.string()),
        pa.field("roles", pa.list_(pa.string())),
        pa.field("state", pa.string()),
        pa.field("expires_at", pa.timestamp("us", "UTC")),
        pa.field("last_used_at", pa.timestamp("us", "UTC")),
    ]
)


def tokens(scan: SystemScan) -> pa.Table:
    """The tokens of the account for its administrators, and nothing for all others."""
    file = scan.context.settings.auth.tokens.file
    if not scan.realm.administers or file is None or not file.exists():
        return TOKENS.empty_table()
    uses = token_uses(scan.realm.stores)

    def rows() -> Iterator[tuple[Any, ...]]:
        for entry in sorted(TokenFile(file).entries(), key=lambda each: each.name):
            if entry.account == scan.realm.account_id:
                expired = entry.expires_at is not None and entry.expires_at <= datetime.now(UTC)
                state = "expired" if expired else "valid"
                yield entry.name, token_id(entry), [*entry.roles], state, entry.expires_at, uses.get(entry.sha256)

    return arrow_table(TOKENS, rows())
