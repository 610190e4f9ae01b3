"""Secrets in names and addresses are recognized in unusual spellings, and harmless ones are left alone."""

from __future__ import annotations

import pytest

from skiway.security.redaction import is_secret_name, secret_in_uri, without_secrets


@pytest.mark.parametrize(
    "name",
    [
        *("password", "PASSWORD", "dbPassword", "PGPASSWORD", "password2", "pw", "passcode", "user_pass", "pat"),
        *("s3.secret-access-key", "secret_access_key_2", "s3.access-key-id", "s3.sse.key", "x-amz-security-token"),
        *("adls.account-key", "adls.sas-token", "adls.sas-token.lake", "adls.connection-string", "connectionString"),
        *("fs.azure.account.key.lake.dfs.core.windows.net", "fs.azure.account.oauth2.client.secret.lake", "sas_url"),
        *("header.X-Api-Key", "Ocp-Apim-Subscription-Key", "private_key_pem", "sasl.jaas.config", "hmac-key"),
    ],
)
def test_name_of_a_secret(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("token_type", "password-policy", "kms-key-id", "s3.endpoint", "s3.region", "warehouse", "primary-key"),
        *("oauth2-server-uri", "allowed-locations", "account", "account-name", "s3.sse.type", "path", "partition"),
        *("write.metadata.path", "client.region", "key-prefix", "read.parquet.vectorization.enabled", "v2", "123"),
    ],
)
def test_harmless_name(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    "uri",
    [
        "https://me:planted@host/x",
        "HTTPS://planted@host/x",
        "https:me:planted@host/x",
        "https:\\\\me:planted@host/x",
        "postgresql://me%3Aplanted@host/db",
        "postgresql://me@host/db?pass%77ord=planted",
        "postgresql://me@host/db?options=-c%20my.password%3Dplanted",
        "s3://planted@bucket/x",
        "s3a://key%3Aplanted@bucket/x",
        "https://host/x?s%69g=planted",
        "https://host/x?X-Amz-Signature=planted",
        "jdbc:sqlserver://host;user=me;password=planted",
        "AccountName=lake;AccountKey=planted==",
        "host=db user=me password=planted",
    ],
)
def test_secret_in_an_address(uri: str) -> None:
    assert secret_in_uri(uri)
    assert "planted" not in without_secrets(uri)


@pytest.mark.parametrize(
    "uri",
    [
        "/srv/data/a@b",
        "s3://bucket/a@b/c:d",
        "file:///srv/data/token=1/x",
        "postgresql://me@host:5432/db?sslmode=require",
        "https://host/x?warehouse=lake&region=eu-west-1",
    ],
)
def test_harmless_address(uri: str) -> None:
    assert not secret_in_uri(uri)
    assert without_secrets(uri) == uri
