"""An S3 service that checks signatures and session policies, which moto alone does not do.

Requests without a valid signature, and those that the policy of their session does not permit, get 403.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, quote, unquote
from xml.etree import ElementTree

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest

BUCKET = "skiway-test"
SERVER_KEY = {"access_key_id": "server-key", "secret_access_key": "planted-secret"}
REGION = "us-east-1"
OBJECT_ACTIONS = {
    "GET": "s3:GetObject",
    "HEAD": "s3:GetObject",
    "PUT": "s3:PutObject",
    "POST": "s3:PutObject",
    "DELETE": "s3:DeleteObject",
}


@dataclass
class GuardedS3:
    """The address, and what was refused: the access key, the method and the path."""

    endpoint: str
    refused: list[tuple[str, str, str]] = field(default_factory=list)
    used_keys: set[str] = field(default_factory=set)

    @property
    def properties(self) -> dict[str, str]:
        """Properties of a warehouse in it, with the keys of the server."""
        return {
            "s3.endpoint": self.endpoint,
            "s3.region": REGION,
            "client.region": REGION,
            "s3.access-key-id": SERVER_KEY["access_key_id"],
            "s3.secret-access-key": SERVER_KEY["secret_access_key"],
        }


@contextmanager
def guarded_s3() -> Iterator[GuardedS3]:
    from storage.homes import running_aws

    found = GuardedS3("")
    with running_aws(BUCKET, wrap=lambda app: _guarded(app, found)) as endpoint:
        found.endpoint = endpoint
        yield found


def _guarded(app: Any, found: GuardedS3) -> Any:
    def serve(environ: Any, start_response: Any) -> Any:
        authorization = environ.get("HTTP_AUTHORIZATION", "")
        if "/s3/aws4_request" not in authorization and not environ["RAW_URI"].startswith(f"/{BUCKET}"):
            return app(environ, start_response)  # another service
        if "/s3/" in authorization and "Credential=test/" in authorization:
            return app(environ, start_response)  # the fixture, which creates the bucket
        key, why = _checked(environ, authorization)
        if why:
            found.refused.append((key, environ["REQUEST_METHOD"], environ["PATH_INFO"]))
            start_response("403 Forbidden", [("content-type", "application/xml")])
            return [f"<Error><Code>AccessDenied</Code><Message>{why}</Message></Error>".encode()]
        found.used_keys.add(key)
        return app(environ, start_response)

    return serve


def _checked(environ: Any, authorization: str) -> tuple[str, str]:
    """The access key of a request, and why it is refused."""
    parsed = re.fullmatch(
        r"AWS4-HMAC-SHA256 Credential=([^/]+)/.*SignedHeaders=([^,]+), ?Signature=(\w+)", authorization
    )
    if parsed is None:
        return "", "the request is not signed"
    key, names, signature = parsed.groups()
    session = next((each for each in _sessions() if each.access_key_id == key), None)
    if session is None and key != SERVER_KEY["access_key_id"]:
        return key, "the key is unknown"
    secret = session.secret_access_key if session else SERVER_KEY["secret_access_key"]
    if _signature(environ, names.split(";"), key, secret, authorization) != signature:
        return key, "the signature is wrong"
    if session is None:
        return key, ""
    if environ.get("HTTP_X_AMZ_SECURITY_TOKEN") != session.session_token:
        return key, "the session token is wrong"
    return key, "" if _is_permitted(json.loads(session.policy), environ) else "the policy does not permit it"


def _sessions() -> list[Any]:
    from moto.sts.models import sts_backends

    return [role for account in sts_backends.values() for backend in account.values() for role in backend.assumed_roles]


def _signature(environ: Any, names: list[str], key: str, secret: str, authorization: str) -> str:
    headers = {name: _header(environ, name) for name in names}
    path, _, query = environ["RAW_URI"].partition("?")
    request = AWSRequest(environ["REQUEST_METHOD"], f"http://{environ['HTTP_HOST']}{path}?{query}".rstrip("?"), headers)
    request.context["timestamp"] = headers["x-amz-date"]
    request.context["payload_signing_enabled"] = False
    region = authorization.split("Credential=")[1].split("/")[2]
    auth = S3SigV4Auth(SimpleNamespace(access_key=key, secret_key=secret, token=None), "s3", region)
    auth.payload = lambda _: headers["x-amz-content-sha256"]
    canonical = auth.canonical_request(request)
    return str(auth.signature(auth.string_to_sign(request, canonical), request))


def _header(environ: Any, name: str) -> str:
    special = {"content-type": "CONTENT_TYPE", "content-length": "CONTENT_LENGTH"}
    return str(environ.get(special.get(name, f"HTTP_{name.upper().replace('-', '_')}"), ""))


def _is_permitted(policy: Any, environ: Any) -> bool:
    path, _, query = environ["RAW_URI"].partition("?")
    bucket, _, key = unquote(path).removeprefix("/").partition("/")
    parameters = parse_qs(query, keep_blank_values=True)
    if not key and environ["REQUEST_METHOD"] == "POST" and "delete" in parameters:
        return all(permits(policy, "s3:DeleteObject", f"arn:aws:s3:::{bucket}/{each}") for each in _deleted(environ))
    if not key:
        prefix = parameters.get("prefix", [""])[0]
        return environ["REQUEST_METHOD"] == "GET" and permits(policy, "s3:ListBucket", f"arn:aws:s3:::{bucket}", prefix)
    return permits(policy, OBJECT_ACTIONS[environ["REQUEST_METHOD"]], f"arn:aws:s3:::{bucket}/{key}")


def _deleted(environ: Any) -> list[str]:
    """The keys in a request of DeleteObjects, which can be read again afterwards."""
    body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
    environ["wsgi.input"] = BytesIO(body)
    return [each.text or "" for each in ElementTree.fromstring(body).iter() if each.tag.rpartition("}")[2] == "Key"]


def permits(policy: Any, action: str, resource: str, prefix: str = "") -> bool:
    """Evaluate a policy with the elements that ours have: Allow, actions, resources, and a condition on `s3:prefix`."""
    for statement in policy["Statement"]:
        assert statement.keys() <= {"Effect", "Action", "Resource", "Condition"}
        assert statement["Effect"] == "Allow"
        actions = [statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"]
        condition = statement.get("Condition", {"StringLike": {"s3:prefix": "*"}})
        if (
            action in actions
            and _matches(statement["Resource"], resource)
            and _matches(condition["StringLike"]["s3:prefix"], prefix)
        ):
            return True
    return False


def _matches(pattern: str, text: str) -> bool:
    parts = re.split(r"(\$\{[*?$]\}|\*|\?)", pattern)
    wild = {"*": ".*", "?": "."}
    regex = "".join(wild.get(part) or re.escape(part[2:-1] if part.startswith("${") else part) for part in parts)
    return re.fullmatch(regex, text, re.DOTALL) is not None


def url(endpoint: str, key: str) -> str:
    """The address of an object in the bucket."""
    return f"{endpoint}/{BUCKET}/{quote(key)}"
