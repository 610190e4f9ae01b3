"""An account directory for tests."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class KnownAccounts:
    """Accounts by id, with their names; `first` is the first one listed."""

    names: dict[str, str] = field(default_factory=lambda: {"acme": "Acme Inc.", "globex": "Globex"})

    def find(self, id_or_name: str) -> str | None:
        if id_or_name in self.names:
            return id_or_name
        return next((key for key, name in self.names.items() if name == id_or_name), None)

    def first(self) -> str | None:
        return next(iter(self.names), None)
