"""Vended credentials and remote signing, as configured in `warehouse.vending`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from skiway import extras
from skiway.config import Settings
from skiway.config.fields import Secret
from skiway.errors import Unavailable
from skiway.formats.object_stores import AzureStorage, GcsStorage
from skiway.vending import CredentialsProvider, S3Keys, S3Service, Signer, StagedTables, StaticKeys, Vending

__all__ = ["vending_of"]


def vending_of(settings: Settings, key: Callable[[], bytes], properties: Mapping[str, str]) -> Vending:
    """How clients get access to files in object stores.

    `key` returns the key that signs tokens of this server. `properties` are those of the warehouse.
    """
    wanted, aws = settings.warehouse.vending, settings.storage.aws
    if not wanted.remote_signing:
        return Vending(_providers(settings, properties))
    signer = Signer(_server_keys(settings), S3Service(aws.s3.endpoint or ""))
    return Vending(_providers(settings, properties), signer, StagedTables(key()))


def _providers(settings: Settings, properties: Mapping[str, str]) -> dict[str, CredentialsProvider]:
    """The providers of credentials by the scheme of locations."""
    vending, found = settings.warehouse.vending, dict[str, CredentialsProvider]()
    if (for_s3 := _s3_provider(settings)) is not None:
        found["s3"] = for_s3
    if vending.gcs.enabled:
        from skiway.vending.gcs_tokens import GcsTokens

        source = GcsStorage(properties).token
        assert source is not None, "settings without credentials are rejected when they are loaded"
        found["gs"] = GcsTokens(source, endpoint=vending.gcs.token_endpoint)
    if vending.azure.enabled:
        from skiway.vending.azure_sas import AzureSignatures

        found["abfss"] = AzureSignatures(AzureStorage(properties), lifetime_s=vending.azure.duration_seconds)
    return found


def _s3_provider(settings: Settings) -> CredentialsProvider | None:
    wanted, aws = settings.warehouse.vending, settings.storage.aws
    match wanted.credentials:
        case "sts":
            from skiway.vending.sts import StsCredentials, StsRole, sts_client

            endpoint = wanted.sts.endpoint or aws.s3.endpoint
            client = sts_client(region=aws.region, endpoint=endpoint, keys=_own_keys(settings))
            role = StsRole(wanted.sts.role_arn or "", wanted.sts.duration_seconds, wanted.sts.external_id or "")
            return StsCredentials(client, role)
        case "static":
            keys = wanted.static
            return StaticKeys(
                accounts=keys.accounts,
                read=_pair(keys.read_access_key_id, keys.read_secret_access_key),
                write=_pair(keys.write_access_key_id, keys.write_secret_access_key),
            )
        case "off":
            return None


def _server_keys(settings: Settings) -> Callable[[], S3Keys]:
    """The keys of the server: those that are configured, or those that boto3 finds and renews."""
    own = _own_keys(settings)
    if own is not None:
        return lambda: own
    with extras.needed("aws", "remote signing with the default credentials of AWS"):
        import boto3

    session = boto3.session.Session(region_name=settings.storage.aws.region)

    def current() -> S3Keys:
        found = session.get_credentials()
        if found is None:
            raise Unavailable("the server has no credentials for S3: ask the operator", key="vending.unavailable")
        frozen = found.get_frozen_credentials()
        return S3Keys(frozen.access_key, frozen.secret_key, frozen.token or "")

    return current


def _own_keys(settings: Settings) -> S3Keys | None:
    aws = settings.storage.aws
    token = aws.session_token.reveal() if aws.session_token else ""
    return _pair(aws.access_key_id, aws.secret_access_key, token)


def _pair(key_id: Secret | None, secret: Secret | None, token: str = "") -> S3Keys | None:
    return None if key_id is None or secret is None else S3Keys(key_id.reveal(), secret.reveal(), token)
