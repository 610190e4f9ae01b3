"""`POST /v1/oauth/tokens`: access tokens for clients with client credentials, and new ones in exchange for old ones.

The specification of the Iceberg REST catalog has deprecated this endpoint, but Spark and PyIceberg use it for their property
`credential`. It adds no way to authenticate: a client proves with a static token who it is, and gets a token that expires
soon.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl

from skiway.errors import InvalidArgument, SkiwayError, Unauthorized, Unsupported
from skiway.rest.calls import RestRequest, RestResponse, TokenIssuer, json_response
from skiway.rest.errors import failed

CLIENT_CREDENTIALS: Final = "client_credentials"
TOKEN_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105 - a name
ACCESS_TOKEN: Final = "urn:ietf:params:oauth:token-type:access_token"  # noqa: S105 - a name

_ERRORS: Final = {"oauth.grant_type": "unsupported_grant_type", "oauth.off": "unsupported_grant_type"}


def tokens(request: RestRequest) -> RestResponse:
    """Issue an access token for the caller that the form authenticates."""
    issuer = request.lake.tokens
    if issuer is None:
        raise Unsupported(
            "this server does not issue tokens: get one from your operator or identity provider and set it as `token` in the client "
            "(or set the client's oauth2-server-uri to the token endpoint of the identity provider), or leave out `credential`",
            key="oauth.off",
        )
    form = _form(request.body)
    match form.get("grant_type", ""):
        case "client_credentials":
            token = _of_client(request, form)
        case "urn:ietf:params:oauth:grant-type:token-exchange":
            token = _of_subject(request, form, issuer)
        case other:
            raise InvalidArgument(
                f"grant_type is {other[:100]!r}: use {CLIENT_CREDENTIALS} or {TOKEN_EXCHANGE}", key="oauth.grant_type"
            )
    text, seconds = issuer.issue(token)
    answer = {
        "access_token": text,
        "token_type": "bearer",
        "expires_in": int(seconds),
        "issued_token_type": ACCESS_TOKEN,
    }
    return RestResponse(200, json_response(answer).body, {"cache-control": "no-store"})


def token_failed(error: Exception, correlation_id: str) -> RestResponse:
    """The response for an error, in the form that OAuth clients expect."""
    usual = failed(error, correlation_id)
    known = error if isinstance(error, SkiwayError) else None
    description = (
        known.message if known is not None and usual.status < 500 else f"failed, see the log for {correlation_id}"
    )
    if isinstance(error, Unauthorized):
        kind, status = "invalid_client", 401
    else:
        kind = _ERRORS.get(known.key if known else "", "invalid_request")
        status = 400 if isinstance(error, InvalidArgument | Unsupported) else usual.status
    body = json_response({"error": kind, "error_description": description}).body
    return RestResponse(status, body, {**usual.headers, "cache-control": "no-store"})


@dataclass(frozen=True, slots=True)
class _Client:
    name: str
    secret: str


def _of_client(request: RestRequest, form: Mapping[str, str]) -> str:
    """The static token of a client, after it was authenticated."""
    client = _basic(request.headers) or _Client(form.get("client_id", ""), form.get("client_secret", ""))
    if not client.secret:
        raise InvalidArgument("client_secret is missing: send a token of this server as the secret", key="oauth.form")
    _authenticated(request, client)
    return client.secret


def _of_subject(request: RestRequest, form: Mapping[str, str], issuer: TokenIssuer) -> str:
    """The token to issue a new one for: the subject's, even if another acts for it."""
    subject, kind = form.get("subject_token", ""), form.get("subject_token_type", "")
    if not subject or kind != ACCESS_TOKEN:
        raise InvalidArgument(f"subject_token must be a token of this server, of type {ACCESS_TOKEN}", key="oauth.form")
    if form.get("requested_token_type", ACCESS_TOKEN) != ACCESS_TOKEN:
        raise InvalidArgument(f"requested_token_type must be {ACCESS_TOKEN}", key="oauth.form")
    if actor := form.get("actor_token"):
        request.authenticate(actor)
    client = _basic(request.headers)
    if client is not None:  # Iceberg's Java library renews expired tokens in this way
        _authenticated(request, client)
        if issuer.renews(subject, client.secret):
            return client.secret
    request.authenticate(subject)
    return subject


def _authenticated(request: RestRequest, client: _Client) -> None:
    principal = request.authenticate(client.secret)
    if client.name and client.name != principal.subject:
        raise Unauthorized(
            "client_id is not the name of the token's owner: use the name of the token, or leave client_id out",
            key="token.client",
        )


def _basic(headers: Mapping[str, str]) -> _Client | None:
    scheme, _, encoded = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, _, secret = b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (ValueError, binascii.Error):
        raise InvalidArgument(
            "the header authorization is not that of basic authentication", key="oauth.form"
        ) from None
    return _Client(name, secret)


def _form(body: bytes) -> Mapping[str, str]:
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=50)
    except ValueError:
        raise InvalidArgument(
            "the body is not a form: send application/x-www-form-urlencoded", key="oauth.form"
        ) from None
    form = dict(pairs)
    if len(form) < len(pairs):
        raise InvalidArgument("a parameter appears twice", key="oauth.form")
    return form
