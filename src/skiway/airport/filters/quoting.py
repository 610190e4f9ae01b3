"""Names and texts as SQL that says exactly them, whatever they hold."""

from __future__ import annotations

__all__ = ["blob_literal", "identifier", "text_literal"]


def identifier(name: str) -> str:
    """`name` as a quoted identifier."""
    return '"' + name.replace('"', '""') + '"'


def text_literal(text: str) -> str:
    """`text` as a VARCHAR literal."""
    if "\0" in text:  # SQL text ends at a NUL, so such a text travels as bytes
        return f"decode({blob_literal(text.encode())})"
    return "'" + text.replace("'", "''") + "'"


def blob_literal(data: bytes) -> str:
    """`data` as a BLOB literal, every byte escaped."""
    return "'" + "".join(f"\\x{byte:02X}" for byte in data) + "'::BLOB"
