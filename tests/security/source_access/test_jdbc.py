"""Addresses of databases: only what was checked gets into the JDBC URL."""

from __future__ import annotations

import pytest

from skiway.config.source_access import AddressRule
from skiway.errors import InvalidArgument, PermissionDenied
from skiway.security.source_access import SourceAccess
from skiway.security.source_access.databases import check_named_database, checked_jdbc

LOOPBACK = SourceAccess(addresses=(AddressRule.parsed("loopback"),), local_roots=("/data",))


@pytest.mark.parametrize(
    ("uri", "url"),
    [
        ("postgresql://me@localhost/db", "jdbc:postgresql://127.0.0.1:5432/db?sslmode=prefer&"),
        (
            "postgresql://me@127.0.0.1:99/d%2Fb%3F?sslmode=require",
            "jdbc:postgresql://127.0.0.1:99/d%2Fb%3F?sslmode=require&",
        ),
        ("mysql://me@127.0.0.1/db", "jdbc:mysql://127.0.0.1:3306/db?sslMode=PREFERRED&"),
        ("mysql://me@[::1]/db?sslmode=verify-ca", "jdbc:mysql://[::1]:3306/db?sslMode=VERIFY_CA&"),
        ("mysql://me@localhost:1/db?sslmode=require", "jdbc:mysql://127.0.0.1:1/db?sslMode=REQUIRED&"),
    ],
)
def test_url_has_the_checked_address(uri, url):
    found = checked_jdbc(uri, LOOPBACK)
    assert found.url.startswith(url)
    assert found.user == "me"


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("postgresql://me:secret@localhost/db", "contains a password"),
        ("postgresql://me@localhost/db?socketFactory=Evil", "socketFactory is not supported"),
        ("mysql://me@localhost/db?allowLoadLocalInfile=true", "allowLoadLocalInfile is not supported"),
        ("mysql://me@localhost/db&autoDeserialize=true/x", "no valid name"),
        ("postgresql://me@localhost/db?sslmode=verify-full", "sslmode"),
        ("postgresql://localhost/db", "no host or no user"),
        ("postgresql://me@/db", "no host or no user"),
        ("postgresql://me@localhost/", "no valid name"),
        ("postgresql://me@localhost/a/b", "no valid name"),
        ("postgresql://me@localhost:abc/db", "cannot be parsed"),
        ("jdbc:postgresql://localhost/db", "its scheme is not one of"),
        ("oracle://me@localhost/db", "its scheme is not one of"),
    ],
)
def test_other_addresses_are_refused_without_their_secrets(uri, reason):
    for check in (checked_jdbc, check_named_database):
        with pytest.raises(InvalidArgument, match=reason) as raised:
            check(uri, LOOPBACK)
        assert "secret" not in raised.value.message.replace("credentials", "")


def test_mysql_gets_no_option_from_the_address():
    url = checked_jdbc("mysql://me@localhost/d%26b%3FallowLoadLocalInfile=true", LOOPBACK).url
    assert "/d%26b%3FallowLoadLocalInfile%3Dtrue?sslMode=PREFERRED&allowLoadLocalInfile=false&" in url


@pytest.mark.parametrize(
    "uri", ["postgresql://me@10.0.0.1/db", "mysql://me@169.254.169.254/db", "sqlite:////etc/passwd"]
)
def test_places_that_are_not_permitted_are_refused(uri):
    for check in (checked_jdbc, check_named_database):
        with pytest.raises(PermissionDenied):
            check(uri, LOOPBACK)
