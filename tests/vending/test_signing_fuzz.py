"""Whatever a client asks the signer to sign: a signed request concerns files of the table only.

Text has no unpaired surrogates, which the REST door refuses.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote, urlsplit

from hypothesis import example, given, settings
from hypothesis import strategies as st

from skiway.errors import InvalidArgument, PermissionDenied
from skiway.vending import S3Request, TableAccess
from vending.test_signing import BUCKET, ENDPOINT, INSIDE, PREFIX, READER, WRITER, signer

HOSTS = {"127.0.0.1:9000": "/lake/", "lake.127.0.0.1:9000": "/"}
OWN = "tables/a1/t1/"
DELETE_OTHER = "<Delete><Object><Key>tables/a1/t2/x</Key></Object></Delete>"
DELETE_BOTH = "<Delete><Object><Key>tables/a1/t1/x</Key></Object><Object><Key>tables/a1/t2/x</Key></Object></Delete>"
Headers = dict[str, tuple[str, ...]]
VALID = (
    INSIDE,
    f"{INSIDE}?partNumber=1&uploadId=u",
    f"{BUCKET}?list-type=2&{PREFIX}",
    "http://lake.127.0.0.1:9000/tables/a1/t1/data/x",
    f"{ENDPOINT}/lake/tables/a1/t1/data/a%20b?x-id=GetObject",
)
PIECES = st.sampled_from(
    [
        *(
            "..",
            ".",
            "/",
            "//",
            "/../",
            "/./",
            "%2e%2e",
            "%2F",
            "%252e%252e%252f",
            "\\",
            "%5C",
            "%00",
            "%",
            "%zz",
            "\x00",
        ),
        *(
            "t2",
            "/t2/",
            "@",
            ":",
            ";",
            "#",
            "?",
            "&",
            "=",
            "+",
            "%20",
            " ",
            "\t",
            "\n",
            "\r\n",
            "é",
            "\u2024",
        ),
        *(
            "prefix=",
            "&prefix=tables/",
            "?acl",
            "&policy",
            "?versionId=1",
            "&list-type=2",
            "other.",
            "evil.com",
            "https://",
        ),
    ]
)


@st.composite
def addresses(draw: st.DrawFn) -> str:
    """A valid address in which pieces were inserted, or parts removed."""
    text = draw(st.sampled_from(VALID))
    for _ in range(draw(st.integers(0, 3))):
        begin = draw(st.integers(0, len(text)))
        end = draw(st.one_of(st.just(begin), st.integers(begin, len(text))))
        text = text[:begin] + draw(PIECES | st.text(max_size=4)) + text[end:]
    return text


SEGMENTS = st.lists(
    st.sampled_from(["data", "x", "t2", "t1", "..", ".", "", "%2e%2e", "%2E.", "..%2Ft2", "%2F", "a%20b", "%C3%BC"]),
    max_size=4,
)


@st.composite
def keys(draw: st.DrawFn) -> str:
    """An address of an object, or of a listing, near the folder of the table."""
    folder = draw(
        st.sampled_from(
            ["tables/a1/t1", "tables/a1/t1", "tables/a1/t11", "tables/a1", "tables/a1/t2", "tables//a1/t1", ""]
        )
    )
    key = "/".join([folder, *draw(SEGMENTS)])
    place = draw(
        st.sampled_from(
            [f"{BUCKET}/", "http://lake.127.0.0.1:9000/", f"{BUCKET}?list-type=2&prefix=", f"{ENDPOINT}/other/"]
        )
    )
    return f"{place}{key}"


def assert_of_table(method: str, uri: str, access: TableAccess) -> None:
    """Read the address as S3 does, independently of the signer."""
    address = urlsplit(uri)
    assert address.scheme == "http"
    assert address.netloc in HOSTS
    bucket = HOSTS[address.netloc]
    parameters = parse_qsl(address.query, keep_blank_values=True)
    names = [name for name, _ in parameters]
    assert len(set(names)) == len(names)
    if f"{address.path.rstrip('/')}/" == bucket:
        if method == "POST":  # DeleteObjects, for which the keys are in the body
            assert access.writes
            return
        assert method == "GET"
        assert dict(parameters)["prefix"].startswith(OWN)
        assert not {"..", "."} & set(dict(parameters)["prefix"].split("/"))
    else:
        assert address.path.startswith(bucket)
        key = unquote(address.path.removeprefix(bucket), errors="strict")
        assert key.startswith(OWN)
        assert not {"..", "."} & set(key.split("/"))
        assert not {"acl", "policy", "tagging", "versionId", "torrent", "retention"} & set(names)
    assert access.writes or method in ("GET", "HEAD")


def check(method: str, uri: str, access: TableAccess, headers: Headers | None = None, body: str | None = None) -> None:
    try:
        signer().sign(S3Request(method, uri, "us-east-1", headers or {}, body), access)
    except (InvalidArgument, PermissionDenied):
        return
    assert_of_table(method, uri, access)
    assert not {"x-amz-copy-source", "x-amz-acl"} & {name.lower() for name in headers or {}}
    assert body is None or "t2" not in body


@given(method=st.sampled_from(["GET", "PUT", "DELETE"]), uri=addresses() | keys())
@settings(max_examples=300, deadline=None)
def test_signed_addresses_are_in_the_folder_of_the_table(method: str, uri: str) -> None:
    check(method, uri, WRITER)


NAMES = ["host", "range", "x-amz-date", "x-amz-content-sha256", "x-amz-copy-source", "x-amz-acl", "X-Amz-Meta-A"]
VALUES = ["127.0.0.1:9000", "evil.com", "UNSIGNED-PAYLOAD"]


@given(
    method=st.sampled_from(["GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "get", "OPTIONS", ""])
    | st.text(max_size=5),
    uri=st.sampled_from([*VALID, f"{BUCKET}?delete"]),
    headers=st.dictionaries(
        st.sampled_from(NAMES) | st.text(max_size=8),
        st.lists(st.sampled_from(VALUES) | st.text(max_size=8), max_size=2).map(tuple),
        max_size=2,
    ),
    body=st.none() | st.text(max_size=20) | st.sampled_from([DELETE_OTHER, DELETE_BOTH]),
    access=st.sampled_from([READER, WRITER]),
)
@settings(max_examples=200, deadline=None)
@example("POST", f"{BUCKET}?delete", {}, DELETE_OTHER, WRITER)
@example("POST", f"{BUCKET}?delete", {}, DELETE_BOTH, WRITER)
def test_signed_requests_do_what_the_caller_may_do(
    method: str, uri: str, headers: Headers, body: str | None, access: TableAccess
) -> None:
    check(method, uri, access, headers, body if uri.endswith("?delete") else None)


def test_check_itself_notices_what_is_outside() -> None:
    for uri in (
        f"{ENDPOINT}/lake/tables/a1/t2/x",
        f"{ENDPOINT}/lake/tables/a1/t1/../t2/x",
        f"{BUCKET}?list-type=2&prefix=t",
    ):
        try:
            assert_of_table("GET", uri, READER)
        except AssertionError:
            continue
        raise AssertionError(uri)
