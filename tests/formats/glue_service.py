"""AWS Glue and S3 in moto. Unlike moto, Glue accepts only requests that are signed with known access keys, and records them."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.glue.models import glue_backends
from pyiceberg.catalog.glue import GlueCatalog

from storage.homes import running_aws

REGION = "us-east-1"
KEYS = {"s3.access-key-id": "glue-reader", "s3.secret-access-key": "planted-secret"}
SERVER_KEY = "key-of-the-machine"
_KEY = re.compile(r"Credential=([^/]+)/\d+/[^/]+/glue/")


@dataclass
class GlueService:
    """The address of both services, and the requests to Glue: access key, session token and body.

    With a `failure`, which is the code of an error, Glue does nothing else than to return it.
    """

    endpoint: str = ""
    failure: str = ""
    requests: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)

    @property
    def options(self) -> dict[str, str]:
        """Properties of a connector."""
        return {"glue.region": REGION, "s3.endpoint": self.endpoint, "s3.region": REGION}

    def writer(self) -> GlueCatalog:
        """The catalog as its owner uses it."""
        access = {"glue.access-key-id": "writer", "glue.secret-access-key": "any", "glue.endpoint": self.endpoint}
        return GlueCatalog("writer", warehouse="s3://skiway-test/tables", **access, **self.options, **KEYS)


@contextmanager
def running_glue() -> Iterator[GlueService]:
    service = GlueService()

    def guarded(app: Any) -> Any:
        def serve(environ: Any, start_response: Any) -> Any:
            found = _KEY.search(environ.get("HTTP_AUTHORIZATION", ""))
            if found is None:
                return app(environ, start_response)  # another service
            body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
            environ["wsgi.input"] = io.BytesIO(body)
            if found[1] != "writer":
                token = environ.get("HTTP_X_AMZ_SECURITY_TOKEN", "")
                service.requests.append((found[1], token, json.loads(body)))
            is_known = found[1] in ("writer", "glue-reader", SERVER_KEY)
            if is_known and not service.failure:
                return app(environ, start_response)
            start_response("400 Bad Request", [("content-type", "application/x-amz-json-1.1")])
            code = service.failure or "UnrecognizedClientException"
            return [json.dumps({"__type": code, "message": "so says Glue"}).encode()]

        return serve

    with running_aws(wrap=guarded) as service.endpoint:
        try:
            yield service
        finally:
            glue_backends[DEFAULT_ACCOUNT_ID][REGION].reset()  # all services in this process share it
