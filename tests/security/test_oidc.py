"""Mode oidc: which signed tokens are accepted, and which principal they yield."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from security.accounts import KnownAccounts
from security.issuer import AUDIENCE, NOW, STATIC_ISSUER, claims, ec_key, ed_key, pem, rsa_key, token
from skiway.config.server import Session
from skiway.errors import InvalidArgument, Unauthorized
from skiway.security import Roles, TokenHeaders
from skiway.security.oidc import ALGORITHMS, OidcAuthenticator, OidcRules, open_keys
from skiway.security.signing_keys import PublishedKeys, StaticKey, keys_by_url

LEEWAY = timedelta(seconds=30)
SECOND = timedelta(seconds=1)


def authenticator(key=None, *, accounts=None, roles=None, platform_subjects=(), **rules):
    rules = OidcRules(**{"issuer": STATIC_ISSUER, "audiences": (AUDIENCE,), **rules})
    keys = StaticKey(pem(key or rsa_key()))
    return OidcAuthenticator(
        rules,
        keys,
        accounts=accounts or KnownAccounts(),
        roles=roles,
        platform_subjects=platform_subjects,
        clock=lambda: NOW,
    )


def bearer(text):
    return {"authorization": f"Bearer {text}"}


def rejection(sent, **setup):
    """The error for a token, which must reveal nothing of the token."""
    with pytest.raises(Unauthorized) as refused:
        authenticator(**setup).authenticate(bearer(sent))
    shown = f"{refused.value!r} {refused.value.params}"
    assert not [part for part in sent.split(".") if len(part) > 8 and part in shown]
    return refused.value


def segment(content):
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def signed_token(**changes):
    """A correctly signed token with claims that a careful issuer would not use."""
    body = {**claims(exp=4e9, nbf=0, iat=0), **changes}
    return jwt.api_jws.encode(json.dumps(body).encode(), rsa_key(), algorithm="RS256")


@pytest.mark.behavior(78)
def test_valid_token_identifies_its_bearer():
    found = authenticator().authenticate(bearer(token(roles=["Administrator", "offline_access"], locale="de-CH")))
    assert (found.subject, found.account_id, found.locale) == ("ada", "acme", "de-CH")
    assert found.roles == {"administrator", "offline_access"}
    assert found.permissions == Roles().permissions(["administrator"])
    assert found.expires_at == NOW + timedelta(minutes=5)


KEYS: dict[str, Callable[[], Any]] = {
    **dict.fromkeys(["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"], rsa_key),
    "ES256": ec_key,
    "ES384": partial(ec_key, ec.SECP384R1),
    "ES512": partial(ec_key, ec.SECP521R1),
    "EdDSA": ed_key,
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_accepted_algorithm_works(algorithm):
    key = KEYS[algorithm]()
    assert authenticator(key).authenticate(bearer(token(key, algorithm))).subject == "ada"


@pytest.mark.behavior(78)
@pytest.mark.parametrize("headers", [{}, {"authorization": ""}, {"cookie": "a=b"}])
def test_call_without_a_token_is_rejected(headers):
    with pytest.raises(Unauthorized, match="authorization: Bearer <token>") as refused:
        authenticator().authenticate(headers)
    assert refused.value.key == "token.missing"


@pytest.mark.behavior(78)
@pytest.mark.parametrize(
    "sent",
    [
        "hello",
        "a.b",
        "a.b.c",
        "a.b.c.d",
        f"{segment(b'not json')}.{segment({})}.x",
        f"{segment([1])}.{segment({})}.x",
        f"{segment({'alg': ['RS256']})}.{segment({})}.x",
        f"{segment({'alg': 'RS256', 'kid': 7})}.{segment({})}.x",
        f"{segment(b'[' * 9000)}.{segment({})}.x",
        f"{segment({'alg': 'RS256', 'crit': ['moon'], 'moon': 1})}.{segment({})}.x",
    ],
    ids=range(10),
)
def test_text_that_is_not_a_token_is_malformed(sent):
    assert rejection(sent).key == "token.malformed"


def test_signed_token_whose_claims_are_not_an_object_is_malformed():
    sent = jwt.api_jws.encode(b"[1, 2]", rsa_key(), algorithm="RS256")
    assert rejection(sent).key == "token.malformed"


@pytest.mark.behavior(78)
def test_expired_token_is_rejected_after_the_leeway():
    last = NOW - LEEWAY
    assert authenticator().authenticate(bearer(token(exp=last + SECOND))).subject == "ada"
    found = rejection(token(exp=last))
    assert (found.key, "valid until 2031-05-06T07:07:39+00:00" in found.message) == ("token.expired", True)


@pytest.mark.behavior(78)
def test_token_is_rejected_before_its_start_minus_the_leeway():
    assert authenticator().authenticate(bearer(token(nbf=NOW + LEEWAY))).subject == "ada"
    found = rejection(token(nbf=NOW + LEEWAY + SECOND))
    assert (found.key, "compare the clocks" in found.message) == ("token.not_yet_valid", True)


def test_leeway_can_be_zero():
    assert rejection(token(exp=NOW), leeway_s=0).key == "token.expired"


@pytest.mark.parametrize("name", ["exp", "sub"])
def test_token_requires_expiry_and_subject(name):
    found = rejection(token(**{name: None}))
    assert (found.key, found.params) == ("token.claim", {"claim": name})


@pytest.mark.parametrize(
    ("name", "value"), [("exp", "soon"), ("exp", True), ("exp", 10**30), ("nbf", "then"), ("nbf", []), ("exp", 1e300)]
)
def test_times_must_be_valid(name, value):
    assert rejection(signed_token(**{name: value})).params == {"claim": name}


@pytest.mark.parametrize("subject", [7, "", "  "])
def test_subject_must_be_nonempty_text(subject):
    assert rejection(signed_token(sub=subject)).params == {"claim": "sub"}


@pytest.mark.behavior(78)
@pytest.mark.parametrize("audience", ["billing", ["billing", "moon"], None, 7])
def test_token_for_another_audience_is_rejected(audience):
    found = rejection(signed_token(aud=audience))
    assert (found.key, "skiway" in found.message) == ("token.audience", True)


def test_one_matching_audience_is_enough():
    setup = authenticator(audiences=("lake", AUDIENCE))
    assert setup.authenticate(bearer(token(aud=["billing", "lake"]))).subject == "ada"


@pytest.mark.parametrize("issuer", ["https://evil.example.com", None, STATIC_ISSUER + "/"])
def test_token_of_another_issuer_is_rejected(issuer):
    found = rejection(token(iss=issuer))
    assert (found.key, STATIC_ISSUER in found.message) == ("token.issuer", True)


def test_issuer_is_optional_with_a_static_key():
    assert authenticator(issuer="").authenticate(bearer(token(iss=None))).subject == "ada"


@pytest.mark.behavior(78)
def test_token_signed_with_another_key_is_rejected():
    assert rejection(token(rsa_key("stranger"))).key == "token.signature"


@pytest.mark.behavior(78)
def test_token_with_modified_claims_is_rejected():
    head, _, signature = token().split(".")
    changed = segment({**claims(exp=4e9, nbf=0, iat=0), "account_id": "globex"})
    assert rejection(f"{head}.{changed}.{signature}").key == "token.signature"


@pytest.mark.parametrize("name", ["none", "None", "NONE", ""])
def test_unsigned_token_is_rejected(name):
    body = segment(claims(exp=4e9, nbf=0, iat=0))
    assert rejection(f"{segment({'alg': name, 'typ': 'JWT'})}.{body}.").key == "token.algorithm"


def test_public_key_is_not_accepted_as_a_shared_secret():
    signed = f"{segment({'alg': 'HS256', 'typ': 'JWT'})}.{segment(claims(exp=4e9, nbf=0, iat=0))}"
    signature = segment(hmac.new(pem(rsa_key()).encode(), signed.encode(), hashlib.sha256).digest())
    assert rejection(f"{signed}.{signature}").key == "token.algorithm"


def test_only_listed_algorithms_are_accepted():
    found = rejection(token(), algorithms=("ES256",))
    assert (found.key, "use ES256" in found.message) == ("token.algorithm", True)


def test_algorithm_that_does_not_match_the_key_is_rejected():
    assert rejection(token(ec_key(), "ES256")).key == "token.algorithm"
    assert rejection(token(rsa_key()), key=ec_key()).key == "token.algorithm"


@pytest.mark.parametrize("algorithms", [("none",), ("HS256",), ("RS256", "HS512"), ("MOON",), ()])
def test_unsafe_algorithms_cannot_be_configured(algorithms):
    with pytest.raises(InvalidArgument, match="choose from RS256"):
        OidcRules(STATIC_ISSUER, (AUDIENCE,), algorithms=algorithms)


@pytest.mark.parametrize("audiences", [(), "skiway", ("",)])
def test_audience_must_be_configured(audiences):
    with pytest.raises(InvalidArgument, match="list at least one"):
        OidcRules(STATIC_ISSUER, audiences)


def test_published_keys_need_an_issuer():
    with pytest.raises(InvalidArgument, match="name the issuer"):
        OidcAuthenticator(OidcRules("", ("skiway",)), PublishedKeys(list), accounts=None)


# headers


@pytest.mark.behavior(78)
def test_session_header_takes_precedence_over_authorization():
    setup = authenticator(headers=TokenHeaders(session="x-engine-session"))
    both = {"x-engine-session": token(sub="engine"), "authorization": f"Bearer {token(sub='ada')}"}
    assert setup.authenticate(both).subject == "engine"
    assert setup.authenticate({**both, "x-engine-session": " "}).subject == "ada"
    assert setup.authenticate({"x-engine-session": f"bearer {token(sub='engine')}"}).subject == "engine"


def test_invalid_session_token_is_rejected_despite_valid_authorization():
    setup = authenticator(headers=TokenHeaders(session="x-engine-session"))
    with pytest.raises(Unauthorized):
        setup.authenticate({"x-engine-session": "broken", "authorization": f"Bearer {token()}"})


def test_authorization_header_name_is_configurable():
    setup = authenticator(headers=TokenHeaders(authorization="X-Token"))
    assert setup.authenticate({"x-token": token()}).subject == "ada"
    with pytest.raises(Unauthorized):
        setup.authenticate(bearer(token()))


# the account


@pytest.mark.parametrize(
    ("claim", "account"),
    [("acme", "acme"), (" acme ", "acme"), (["acme", "globex"], "acme"), (42, "42"), ([42], "42")],
)
def test_account_claim_is_text_a_number_or_the_first_of_a_list(claim, account):
    setup = authenticator(accounts=KnownAccounts({"acme": "", "globex": "", "42": ""}))
    assert setup.authenticate(bearer(token(account_id=claim))).account_id == account


@pytest.mark.parametrize("claim", [True, {"id": "acme"}, 4.5, [["acme"]]])
def test_account_claim_of_another_type_is_rejected(claim):
    assert rejection(token(account_id=claim)).params == {"claim": "account_id"}


def test_only_the_first_of_a_list_of_accounts_is_used():
    assert rejection(token(account_id=[None, "acme"])).key == "token.account"


@pytest.mark.parametrize("name", ["tenant", "https://example.com/account", "org.tenant"])
def test_account_claim_name_is_configurable(name):
    setup = authenticator(claims=Session(account_claim=name))
    assert setup.authenticate(bearer(token(account_id=None, **{name: "globex"}))).account_id == "globex"


def test_account_claim_can_be_nested():
    setup = authenticator(claims=Session(account_claim="org.tenant"))
    assert setup.authenticate(bearer(token(account_id="acme", org={"tenant": "globex"}))).account_id == "globex"
    with pytest.raises(Unauthorized):
        setup.authenticate(bearer(token(org="globex")))


@pytest.mark.parametrize("claim", ["initech", "Acme Inc."])
def test_unknown_account_is_rejected(claim):
    found = rejection(token(account_id=claim))
    assert (found.key, found.params) == ("token.account", {"account_id": claim})


def test_account_validation_is_optional():
    rules = OidcRules(STATIC_ISSUER, (AUDIENCE,))
    setup = OidcAuthenticator(rules, StaticKey(pem(rsa_key())), accounts=None, clock=lambda: NOW)
    assert setup.authenticate(bearer(token(account_id="initech"))).account_id == "initech"


@pytest.mark.behavior(78)
@pytest.mark.parametrize("missing_account", [None, "", "  ", []])
def test_without_an_account_only_the_platform_role_is_accepted_and_granted(missing_account):
    found = authenticator(platform_subjects=["ada"]).authenticate(
        bearer(token(account_id=missing_account, roles=["Platform-Admin", "administrator", "reconcile-worker"]))
    )
    assert (found.account_id, found.is_platform, found.roles) == ("", True, {"platform-admin"})
    assert found.permissions == Roles().platform_permissions(["platform-admin"])
    assert rejection(token(account_id=missing_account, roles=["administrator"])).key == "token.account"
    assert rejection(token(account_id=missing_account)).key == "token.account"


def test_platform_role_is_only_for_subjects_to_whom_the_operator_assigned_it():
    found = rejection(token(account_id=None, roles="platform-admin"))
    assert (found.key, "auth.platform_admin.subjects" in found.message) == ("token.platform", True)
    setup = authenticator(platform_subjects=["grace"])
    with pytest.raises(Unauthorized):
        setup.authenticate(bearer(token(account_id=None, roles="platform-admin")))
    assert setup.authenticate(bearer(token(account_id=None, sub="grace", roles="platform-admin"))).is_platform


def test_platform_role_in_a_token_for_an_account_is_ignored():
    found = authenticator(platform_subjects=["ada"]).authenticate(bearer(token(roles=["platform-admin"])))
    assert (found.account_id, found.roles, found.permissions) == ("acme", frozenset(), Roles().permissions([]))


def test_platform_role_name_is_configurable():
    setup = authenticator(roles=Roles("cloud-ops"), platform_subjects=["ada"])
    assert setup.authenticate(bearer(token(account_id=None, roles="cloud-ops"))).is_platform
    with pytest.raises(Unauthorized):
        setup.authenticate(bearer(token(account_id=None, roles="platform-admin")))


# the roles


@pytest.mark.parametrize(
    "role_claims",
    [
        {"roles": "administrator"},
        {"roles": ["administrator"]},
        {"roles": '["administrator"]'},
        {"realm_access": {"roles": ["administrator"]}},
    ],
    ids=["text", "list", "JSON in a text", "Keycloak"],
)
def test_roles_are_read_in_every_format(role_claims):
    assert authenticator().authenticate(bearer(token(**role_claims))).roles == {"administrator"}


def test_roles_claim_takes_precedence_over_keycloak_roles():
    found = authenticator().authenticate(bearer(token(roles=[], realm_access={"roles": ["administrator"]})))
    assert (found.roles, "table.write" in found.permissions) == (frozenset(), False)


def test_roles_claim_name_is_configurable():
    setup = authenticator(claims=Session(role_claim="groups"))
    assert setup.authenticate(bearer(token(groups=["administrator"], roles="default"))).roles == {"administrator"}


@pytest.mark.parametrize("roles", [7, [7], {"a": 1}, '["a"', "[1]", "[" * 5000])
def test_roles_claim_of_another_type_is_rejected(roles):
    assert rejection(token(roles=roles)).params == {"claim": "roles"}


def test_bearer_without_roles_can_read():
    assert authenticator().authenticate(bearer(token())).permissions == Roles().permissions([])


@pytest.mark.parametrize("locale", [7, None])
def test_invalid_locale_is_empty(locale):
    assert authenticator().authenticate(bearer(token(locale=locale))).locale == ""


# keys


def test_weak_rsa_key_is_rejected():
    with pytest.raises(InvalidArgument, match="1024 bits"):
        StaticKey(pem(rsa_key("weak", 1024)))


@pytest.mark.parametrize("text", ["", "moon", "-----BEGIN CERTIFICATE-----\nmoon\n-----END CERTIFICATE-----"])
def test_key_must_be_a_public_key(text):
    with pytest.raises(InvalidArgument, match="BEGIN PUBLIC KEY"):
        StaticKey(text)


def test_private_key_is_rejected_without_showing_it():
    private = rsa_key().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    with pytest.raises(InvalidArgument) as refused:
        StaticKey(private)
    assert private.splitlines()[1] not in refused.value.message


def test_keys_are_opened_as_configured():
    assert isinstance(open_keys("", public_key=pem(rsa_key())), StaticKey)
    assert isinstance(open_keys(STATIC_ISSUER, jwks_url="https://login.example.com/keys"), PublishedKeys)
    assert isinstance(open_keys(STATIC_ISSUER), PublishedKeys)
    with pytest.raises(InvalidArgument, match="keep one"):
        open_keys(STATIC_ISSUER, public_key="x", jwks_url="https://a")


@pytest.mark.parametrize(
    "url", ["http://login.example.com/keys", "file:///etc/passwd", "keys", "ftp://a/b", "https://"]
)
def test_keys_are_fetched_over_https_only(url):
    with pytest.raises(InvalidArgument, match="https://"):
        keys_by_url(url)
    with pytest.raises(InvalidArgument):
        open_keys(url)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/k", "http://[::1]/k", "http://localhost:8/k", "https://a.example/k"]
)
def test_keys_can_be_fetched_from_localhost_without_tls(url):
    keys_by_url(url)
    keys_by_url("http://keycloak:8080/k", allow_http=True)


@pytest.mark.parametrize(
    ("changes", "key", "message"),
    [
        (
            {"aud": "billing"},
            "token.audience",
            "the token is for the audience 'billing', but this server requires skiway: get a token for it from the issuer, or "
            "have the operator correct auth.oidc.audience",
        ),
        (
            {"aud": None},
            "token.audience",
            "the token is for the audience none, but this server requires skiway: get a token for it from the issuer, or have "
            "the operator correct auth.oidc.audience",
        ),
        (
            {"iss": "https://other.example.com"},
            "token.issuer",
            f"the token is from the issuer 'https://other.example.com', but this server accepts only {STATIC_ISSUER}: get a "
            "token there, or have the operator correct auth.oidc.issuer",
        ),
        (
            {"exp": NOW - timedelta(hours=1)},
            "token.expired",
            "the token was valid until 2031-05-06T06:08:09+00:00, and it is 2031-05-06T07:08:09+00:00: get a new one from the "
            "issuer",
        ),
        (
            {"nbf": NOW + timedelta(hours=1)},
            "token.not_yet_valid",
            "the token is valid from 2031-05-06T08:08:09+00:00, and it is 2031-05-06T07:08:09+00:00: retry then; if this is "
            "unexpected, compare the clocks of issuer and server",
        ),
        (
            {"sub": None},
            "token.claim",
            "the token's claim sub is missing or invalid: configure the issuer to add it",
        ),
        (
            {"account_id": {"a": 1}},
            "token.claim",
            "the token's claim account_id is neither text nor an integer: correct it at the issuer, or configure another claim",
        ),
    ],
)
def test_rejection_states_what_was_found_and_what_to_do(changes, key, message):
    error = rejection(token(**changes))
    assert (error.key, error.message) == (key, message)


@pytest.mark.parametrize(
    ("made", "key", "message"),
    [
        (
            lambda: token(rsa_key("eve")),
            "token.signature",
            "the token's signature is invalid: get a new token from the issuer",
        ),
        (
            lambda: "not.a.token",
            "token.malformed",
            "the token is not a JSON Web Token: check that it is complete, and that it is the access token",
        ),
    ],
    ids=["signature", "malformed"],
)
def test_rejection_of_what_cannot_be_verified_says_what_to_do(made, key, message):
    error = rejection(made())
    assert (error.key, error.message) == (key, message)


def test_long_claims_are_shortened_in_messages():
    assert len(rejection(token(aud="x" * 10_000)).message) < 400


def test_groups_and_claims_are_those_of_the_token():
    more = {
        "groups": ["emea", 3, "hr"],
        "region": "EU",
        "level": 3,
        "teams": ["x"],
        "nested": {"a": 1},
        "mixed": [1, "a"],
    }
    found = authenticator().authenticate(bearer(token(**more)))
    assert found.groups == {"emea", "hr"}
    assert {name: found.claims.get(name) for name in more} == {
        "groups": None,
        "region": "EU",
        "level": 3,
        "teams": ["x"],
        "nested": None,
        "mixed": None,
    }
    assert found.claims["sub"] == found.subject
    assert authenticator().authenticate(bearer(token(groups="hr"))).groups == {"hr"}
