"""Key files of Google service accounts."""

from __future__ import annotations

import json
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa


def written_key_file(folder: Path, token_uri: str) -> Path:
    """Write the key file of a new service account, which gets its tokens from `token_uri`."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    formats = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    fields = {
        "type": "service_account",
        "client_email": "skiway@example.iam.gserviceaccount.com",
        "private_key": key.private_bytes(*formats).decode(),
        "token_uri": token_uri,
    }
    file = folder / "key.json"
    file.write_text(json.dumps(fields))
    return file
