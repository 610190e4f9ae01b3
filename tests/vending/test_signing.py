"""The signer signs requests about files of a table, and refuses all others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest

from skiway.errors import InvalidArgument, PermissionDenied
from skiway.formats import location
from skiway.vending import S3Keys, S3Request, S3Service, Signer, TableAccess

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
KEYS = S3Keys("AKID", "secret", "session")
FOLDER = location("s3://lake/tables/a1/t1")
READER = TableAccess("a1", "ada", FOLDER, writes=False)
WRITER = TableAccess("a1", "ada", FOLDER, writes=True)
ENDPOINT = "http://127.0.0.1:9000"
INSIDE = f"{ENDPOINT}/lake/tables/a1/t1/data/x"
BUCKET = f"{ENDPOINT}/lake"
PREFIX = "prefix=tables/a1/t1/"


def signer(endpoint: str = ENDPOINT) -> Signer:
    return Signer(lambda: KEYS, S3Service(endpoint), clock=lambda: NOW)


def signed(
    method: str, uri: str, access: TableAccess = WRITER, *, endpoint: str = ENDPOINT, **more: Any
) -> dict[str, str]:
    headers = {name: [value] for name, value in more.pop("headers", {}).items()}
    return dict(signer(endpoint).sign(S3Request(method, uri, "us-east-1", headers, **more), access).headers)


@pytest.mark.parametrize(
    ("method", "uri"),
    [
        ("GET", INSIDE),
        ("GET", f"{ENDPOINT}/lake/tables/a1/t1/data/a%20b%2Bc%3D%C3%BC.parquet?x-id=GetObject"),
        ("GET", f"{ENDPOINT}/lake/tables/a1/t1/data/%252e%252e%252F.parquet"),
        ("PUT", f"{INSIDE}?partNumber=2&uploadId=a%2Bb%3D"),
        ("POST", f"{INSIDE}?uploads"),
        ("GET", f"{BUCKET}?list-type=2&prefix=tables%2Fa1%2Ft1%2Fdata%2F&delimiter=%2F&max-keys=1"),
        ("DELETE", "http://lake.127.0.0.1:9000/tables/a1/t1/data/x"),
    ],
)
def test_signature_is_that_of_botocore(method: str, uri: str) -> None:
    given = {
        "x-amz-checksum-crc32": "AAAAAA==",
        "content-type": "text/plain",
        "x-amz-content-sha256": "UNSIGNED-PAYLOAD",
    }
    found = signed(method, uri, headers=given)
    wanted = {
        "x-amz-checksum-crc32": "AAAAAA==",
        "x-amz-content-sha256": "UNSIGNED-PAYLOAD",
        "x-amz-date": "20260102T030405Z",
    }
    request = AWSRequest(method, uri, {**wanted, "x-amz-security-token": "session"})
    request.context["timestamp"] = "20260102T030405Z"
    auth = S3SigV4Auth(SimpleNamespace(access_key="AKID", secret_key="secret", token="session"), "s3", "us-east-1")
    auth.payload = lambda _: "UNSIGNED-PAYLOAD"
    expected = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
    assert found["authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKID/20260102/us-east-1/s3/aws4_request, "
        "SignedHeaders=host;x-amz-checksum-crc32;x-amz-content-sha256;x-amz-date;x-amz-security-token, "
        f"Signature={expected}"
    )
    assert found.keys() == {"authorization", "x-amz-date", "x-amz-security-token"}, (
        "headers of the request are not repeated"
    )


@pytest.mark.parametrize(
    ("method", "uri"),
    [
        ("GET", INSIDE),
        ("HEAD", INSIDE),
        ("GET", f"{BUCKET}?list-type=2&{PREFIX}"),
        ("GET", f"{BUCKET}/?list-type=2&{PREFIX}"),
    ],
)
def test_reader_may_read(method: str, uri: str) -> None:
    assert signed(method, uri, READER)


@pytest.mark.parametrize(
    ("method", "uri"),
    [
        ("PUT", INSIDE),
        ("PUT", f"{INSIDE}?partNumber=1&uploadId=u"),
        ("POST", f"{INSIDE}?uploads="),
        ("POST", f"{INSIDE}?uploadId=u"),
        ("DELETE", INSIDE),
        ("DELETE", f"{INSIDE}?uploadId=u"),
    ],
)
def test_only_a_writer_may_change(method: str, uri: str) -> None:
    assert signed(method, uri, WRITER)
    with pytest.raises(PermissionDenied, match=r"table\.write") as caught:
        signed(method, uri, READER)
    assert caught.value.key == "signing.read_only"


@pytest.mark.parametrize(
    "uri",
    [
        f"{ENDPOINT}/lake/tables/a1/t2/data/x",
        f"{ENDPOINT}/lake/tables/a1/t11/data/x",
        f"{ENDPOINT}/lake/tables/a1/t1",
        f"{ENDPOINT}/lake/tables/a1/t1/../t2/data/x",
        f"{ENDPOINT}/lake/tables/a1/t1/%2e%2e/t2/data/x",
        f"{ENDPOINT}/lake/tables/a1/t1/./x",
        f"{ENDPOINT}/lake/tables/a1/t1/x%0Ay",
        f"{ENDPOINT}/lake/tables/a1/t1/x%5Cy",
        f"{ENDPOINT}/lake//tables/a1/t1/x",
        f"{ENDPOINT}//lake/tables/a1/t1/x",
        f"{ENDPOINT}/other/tables/a1/t1/data/x",
        "http://other.127.0.0.1:9000/tables/a1/t1/data/x",
        "http://other.127.0.0.1:9000/lake/tables/a1/t1/data/x",
        f"{BUCKET}?list-type=2&prefix=tables/a1/t1",
        f"{BUCKET}?list-type=2&prefix=tables/a1/",
        f"{BUCKET}?list-type=2&prefix=",
        f"{ENDPOINT}/other?list-type=2&{PREFIX}",
    ],
)
def test_other_tables_and_buckets_are_refused(uri: str) -> None:
    with pytest.raises(PermissionDenied) as caught:
        signed("GET", uri)
    assert caught.value.key in ("signing.outside", "signing.operation")


@pytest.mark.parametrize(
    "uri",
    [
        "http://127.0.0.1:9001/lake/tables/a1/t1/data/x",
        "https://127.0.0.1:9000/lake/tables/a1/t1/data/x",
        "http://example.com/lake/tables/a1/t1/data/x",
        "http://127.0.0.1.example.com:9000/lake/tables/a1/t1/data/x",
    ],
)
def test_other_hosts_are_refused(uri: str) -> None:
    with pytest.raises(PermissionDenied) as caught:
        signed("GET", uri)
    assert caught.value.key == "signing.host"


def test_nothing_is_signed_for_a_table_that_is_a_whole_bucket() -> None:
    everything = TableAccess("a1", "ada", location("s3://lake"), writes=True)
    for uri in (INSIDE, f"{BUCKET}//x", f"{BUCKET}?list-type=2&prefix=/"):
        with pytest.raises(PermissionDenied, match="not in the folder"):
            signed("GET", uri, everything)


def test_ports_of_an_endpoint_without_one() -> None:
    endpoint, path = "http://s3.example.com", "lake/tables/a1/t1/x"
    assert signed("GET", f"{endpoint}:80/{path}", endpoint=endpoint)
    assert signed("GET", f"{endpoint}/{path}", endpoint=f"{endpoint}:80")
    for other in (f"{endpoint}:9000/{path}", f"https://s3.example.com/{path}"):
        with pytest.raises(PermissionDenied) as caught:
            signed("GET", other, endpoint=endpoint)
        assert caught.value.key == "signing.host"


@pytest.mark.parametrize(
    ("uri", "is_permitted"),
    [
        ("https://s3.eu-west-1.amazonaws.com/lake/tables/a1/t1/x", True),
        ("https://lake.s3.eu-west-1.amazonaws.com/tables/a1/t1/x", True),
        ("https://lake.s3.amazonaws.com/tables/a1/t1/x", True),
        ("https://lake.s3.dualstack.us-gov-west-1.amazonaws.com/tables/a1/t1/x", True),
        ("https://s3.cn-north-1.amazonaws.com.cn/lake/tables/a1/t1/x", True),
        ("http://lake.s3.amazonaws.com/tables/a1/t1/x", False),
        ("https://other.s3.eu-west-1.amazonaws.com/lake/tables/a1/t1/x", False),
        ("https://lake.s3.eu-west-1.amazonaws.com/lake/tables/a1/t1/x", False),
        ("https://lake.s3-accesspoint.eu-west-1.amazonaws.com/tables/a1/t1/x", False),
        ("https://lake.s3-accesspoint.amazonaws.com/tables/a1/t1/x", False),
        ("https://lake.s3.vpce-1a2b.amazonaws.com/tables/a1/t1/x", False),
        ("https://lake.s3.amazonaws.com.example.com/tables/a1/t1/x", False),
        ("https://s3.example.com/lake/tables/a1/t1/x", False),
    ],
)
def test_hosts_of_aws(uri: str, is_permitted: bool) -> None:
    if is_permitted:
        assert signed("GET", uri, endpoint="")
    else:
        with pytest.raises(PermissionDenied):
            signed("GET", uri, endpoint="")


@pytest.mark.parametrize(
    ("method", "uri"),
    [
        ("GET", f"{INSIDE}?acl"),
        ("PUT", f"{INSIDE}?acl"),
        ("GET", f"{INSIDE}?versionId=1"),
        ("PUT", f"{INSIDE}?tagging"),
        ("POST", f"{INSIDE}?select&select-type=2"),
        ("GET", f"{INSIDE}?X-Amz-Expires=604800"),
        ("GET", BUCKET),
        ("GET", f"{BUCKET}?{PREFIX}"),
        ("GET", f"{BUCKET}?policy"),
        ("GET", f"{BUCKET}?versions&{PREFIX}"),
        ("GET", f"{BUCKET}?list-type=2&versions&{PREFIX}"),
        ("PUT", BUCKET),
        ("DELETE", BUCKET),
        ("PATCH", INSIDE),
        ("get", INSIDE),
    ],
)
def test_other_operations_are_refused(method: str, uri: str) -> None:
    with pytest.raises(PermissionDenied) as caught:
        signed(method, uri)
    assert caught.value.key == "signing.operation"


@pytest.mark.parametrize(
    "name",
    [
        "x-amz-copy-source",
        "X-Amz-Copy-Source",
        "x-amz-acl",
        "x-amz-grant-read",
        "x-amz-security-token",
        "x-amz-tagging",
        "x-amz-copy-source-range",
        "x-amz-date-of-birth",
        "x-amz-object-lock-mode",
    ],
)
def test_headers_that_do_more_are_refused(name: str) -> None:
    with pytest.raises(PermissionDenied, match=name.lower()):
        signed("PUT", INSIDE, headers={name: "/lake/tables/a1/t2/data/x"})


@pytest.mark.parametrize(
    "headers",
    [
        {"x-amz-meta-a": ["1"], "X-Amz-Meta-A": ["2"]},
        {"x-amz-meta-a": ["1\nx-amz-acl:public-read"]},
        {"range": ["\x7f"]},
    ],
)
def test_headers_that_appear_twice_or_are_invalid_are_refused(headers: dict[str, list[str]]) -> None:
    with pytest.raises(InvalidArgument, match="appears twice or is invalid"):
        signer().sign(S3Request("PUT", INSIDE, "us-east-1", headers), WRITER)


def test_headers_are_signed_in_their_canonical_form() -> None:
    one = signer().sign(S3Request("PUT", INSIDE, "us-east-1", {"x-amz-meta-a": [" 1  2 ", "3"]}), WRITER).headers
    other = signer().sign(S3Request("PUT", INSIDE, "us-east-1", {"X-Amz-Meta-A": ["1 2,3"]}), WRITER).headers
    assert "SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-meta-a;" in one["authorization"]
    assert one["authorization"] == other["authorization"]


def test_keys_without_a_session() -> None:
    plain = Signer(lambda: S3Keys("AKID", "secret", ""), S3Service(ENDPOINT), clock=lambda: NOW)
    assert "x-amz-security-token" not in plain.sign(S3Request("GET", INSIDE, "us-east-1"), READER).headers


@pytest.mark.parametrize(
    "uri",
    [
        "http://[",
        f"{INSIDE}\\y",
        "ftp://127.0.0.1/x",
        "http://u:p@127.0.0.1:9000/lake/x",
        f"{INSIDE}#x",
        f"{INSIDE}?x-id=1&x-id=2",
        f"{INSIDE}%ff",
        f"{INSIDE}\n",
        "http://127.0.0.1:x/",
    ],
)
def test_invalid_addresses_are_refused(uri: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        signed("GET", uri)
    assert caught.value.key == "signing.uri"


def test_time_of_the_client_must_be_close() -> None:
    for minutes, is_close in ((-6, False), (-4, True), (4, True), (6, False), (60 * 24, False)):
        given = {"x-amz-date": (NOW + timedelta(minutes=minutes)).strftime("%Y%m%dT%H%M%SZ")}
        if is_close:
            assert f"/{given['x-amz-date'][:8]}/" in signed("GET", INSIDE, headers=given)["authorization"]
        else:
            with pytest.raises(PermissionDenied, match="x-amz-date"):
                signed("GET", INSIDE, headers=given)
    with pytest.raises(InvalidArgument, match="x-amz-date"):
        signed("GET", INSIDE, headers={"x-amz-date": "now"})


def test_region_and_payload_are_checked() -> None:
    with pytest.raises(InvalidArgument, match="region"):
        signer().sign(S3Request("GET", INSIDE, "us/east"), WRITER)
    with pytest.raises(InvalidArgument, match="x-amz-content-sha256"):
        signed("PUT", INSIDE, headers={"x-amz-content-sha256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"})
    assert signed("PUT", INSIDE)["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    assert signed("PUT", INSIDE, body="x")["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD", "only bodies of deletes count"
    digest = {"x-amz-content-sha256": sha256(b"x").hexdigest()}
    assert "x-amz-content-sha256" not in signed("PUT", INSIDE, headers=digest), "it is signed as the client sends it"


DELETE = '<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Object><Key>{}</Key></Object><Object><Key>{}</Key></Object></Delete>'
OWN = "tables/a1/t1/data/x"


def test_several_objects_are_deleted_if_all_are_of_the_table() -> None:
    body = DELETE.format(OWN, "tables/a1/t1/data/y")
    found = signed("POST", f"{BUCKET}?delete", body=body)
    for harmless in (
        f'<?xml version="1.0" encoding="UTF-8"?>\n{body}',
        f"<Delete>\n <Quiet>true</Quiet>\n <Object>\n  <Key>{OWN}&amp;&#x62;</Key>\n </Object>\n</Delete>",
    ):
        assert signed("POST", f"{BUCKET}?delete", body=harmless)
    assert found["x-amz-content-sha256"] == sha256(body.encode()).hexdigest(), "the body cannot be replaced"
    with pytest.raises(PermissionDenied, match=r"table\.write"):
        signed("POST", f"{BUCKET}?delete", READER, body=body)
    with pytest.raises(PermissionDenied, match="not the hash"):
        signed("POST", f"{BUCKET}?delete", body=body, headers={"x-amz-content-sha256": "UNSIGNED-PAYLOAD"})
    for other in ("tables/a1/t2/data/x", "tables/a1/t1/../t2/x", ""):
        with pytest.raises(PermissionDenied, match="not in the folder"):
            signed("POST", f"{BUCKET}?delete", body=DELETE.format(OWN, other))


@pytest.mark.parametrize(
    "body",
    [
        None,
        "",
        "no XML",
        "<Delete/>",
        f"<Other><Object><Key>{OWN}</Key></Object></Other>",
        f"<Delete><Object><Key>{OWN}</Key></Object><More/></Delete>",
        f"<Delete><Object><Key>{OWN}</Key><Key>{OWN}</Key></Object></Delete>",
        f"<Delete><Object><Key>{OWN}</Key><VersionId>3</VersionId></Object></Delete>",
        f"<Delete><Object><VersionId>3</VersionId><Key>{OWN}</Key></Object></Delete>",
        f"<Delete><Object><Key>{OWN}</Key><ETag>x</ETag></Object></Delete>",
        f"<Delete><Object><Key>{OWN}<b>../t2/x</b></Key></Object></Delete>",
        f"<Delete><Object><Key>{OWN}<Key>tables/a1/t2/x</Key></Key></Object></Delete>",
        f"<Delete><Object><Key>{OWN}<?x y?></Key></Object></Delete>",
        f"<Delete><Object><Key>{OWN}</Key></Object><Object><Key>{OWN}</Key></Object></Delete>",
        f"<Delete><Object><Key>{OWN}</Key></Object><Object><Key>{OWN.replace('t1', '&#x74;1')}</Key></Object></Delete>",
        f"<Delete><Object VersionId='3'><Key>{OWN}</Key></Object></Delete>",
        f"<Delete><Object>tables/a1/t2/x<Key>{OWN}</Key></Object></Delete>",
        f"<Delete><Object><Key>{OWN}</Key>tables/a1/t2/x</Object></Delete>",
        f"<Delete><Object><a:Key xmlns:a='x'>{OWN}</a:Key></Object></Delete>",
        f"<Delete xmlns='other'><Object><Key>{OWN}</Key></Object></Delete>",
        f"<Delete><Quiet>true</Quiet><Quiet>false</Quiet><Object><Key>{OWN}</Key></Object></Delete>",
        f"<Delete><Quiet><Object/></Quiet><Object><Key>{OWN}</Key></Object></Delete>",
        f"<?xml version='1.0' encoding='UTF-7'?><Delete><Object><Key>{OWN}</Key></Object></Delete>",
        f"<Delete><Object><Key>{OWN}&e;</Key></Object></Delete>",
        f"<Delete><Object><Key>{OWN}</Key></Object><!-- <Object/> --></Delete>",
        f"<!DOCTYPE x SYSTEM 'http://example.com/x'><Delete><Object><Key>{OWN}</Key></Object></Delete>",
        f"<!DOCTYPE x [<!ENTITY e 'tables/a1/t2/x'>]><Delete><Object><Key>{OWN}</Key></Object></Delete>",
    ],
)
def test_invalid_bodies_are_refused(body: str | None) -> None:
    with pytest.raises(InvalidArgument) as caught:
        signed("POST", f"{BUCKET}?delete", body=body)
    assert caught.value.key == "signing.body"
