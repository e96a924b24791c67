"""Tokens for Amazon MSK with IAM access control, from the package aws-msk-iam-sasl-signer-python."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from aioproducer.errors import ConfigurationError, TokenProviderError
from aioproducer.security.oauth.packages import require_package
from aioproducer.security.redaction import described
from aioproducer.security.tokens import OAuthBearerToken

_INSTALL = "pip install 'aioproducer[msk]'"
_REGION = re.compile(r"[a-z]{2,}(?:-[a-z0-9]+)+")
_HOST = re.compile(r"\.kafka(?:-serverless)?\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(?:\.cn)?\.?$", re.IGNORECASE)

# These write requests, responses and signatures into their DEBUG log, session tokens and secret keys among them.
_TALKATIVE = ("aws_msk_iam_sasl_signer", "boto3", "botocore", "s3transfer", "urllib3")

_SESSION_NAME = "aioproducer"

_signing = threading.local()


def msk_iam_provider(
    region: str | None = None,
    profile: str | None = None,
    role_arn: str | None = None,
    role_session_name: str | None = None,
    sts_region: str | None = None,
) -> Callable[[], OAuthBearerToken]:
    """Return a ``sasl_token_provider`` that signs tokens with AWS credentials; a token is valid for 15 minutes.

    The provider blocks: it may request credentials from AWS.

    Args:
        region: of the cluster; without it AWS_REGION or AWS_DEFAULT_REGION.
        profile: of the files in ``~/.aws``; without it and ``role_arn`` AWS's default chain of credentials.
        role_arn: a role to assume for each token.
        role_session_name: name of the session of ``role_arn``.
        sts_region: where the role is assumed; without it ``region``.

    Raises:
        ConfigurationError: the package is not installed, the region is missing or malformed, or both a profile and a
            role are given.
    """
    region = region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region:
        raise ConfigurationError(
            "Amazon MSK IAM needs the cluster's region: set AWS_REGION, or msk_iam_provider(region)"
        )
    if not _REGION.fullmatch(region):
        raise ConfigurationError(f"{region!r} is not an AWS region (example: us-east-1)")
    if profile and role_arn:
        raise ConfigurationError("Amazon MSK IAM takes a profile or a role, not both")
    if role_session_name and not role_arn:
        raise ConfigurationError("Amazon MSK IAM: a session name needs a role")
    require_package(
        "aws_msk_iam_sasl_signer", f"Amazon MSK IAM needs the package aws-msk-iam-sasl-signer-python: {_INSTALL}"
    )
    return _MskTokens(region, profile, role_arn, role_session_name, sts_region)


class _MskTokens:
    def __init__(
        self,
        region: str,
        profile: str | None,
        role_arn: str | None,
        role_session_name: str | None,
        sts_region: str | None,
    ) -> None:
        self._region = region
        self._profile = profile
        self._role_arn = role_arn
        self._role_session_name = role_session_name
        self._sts_region = sts_region

    def __call__(self) -> OAuthBearerToken:
        """
        Raises:
            TokenProviderError: AWS has no credentials for this machine, or did not give them.
        """
        _signing.now = True
        try:
            token, expires_at_ms = self._sign()
            return OAuthBearerToken(token, expires_at_ms / 1000, self._role_arn or self._profile or "")
        except Exception as error:
            problem = _problem(error)
        finally:
            _signing.now = False
        # Raised here, so that neither its context nor its frames contain the credentials.
        raise TokenProviderError(problem)

    def _sign(self) -> tuple[str, int]:
        # Imports boto3, which takes up to a second.
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

        _silence()
        signer: Any = MSKAuthTokenProvider
        signed: tuple[str, int]
        if self._role_arn:
            credentials = _role_credentials(
                self._role_arn, self._role_session_name or _SESSION_NAME, self._sts_region or self._region
            )
            signed = signer.generate_auth_token_from_credentials_provider(self._region, credentials)
        elif self._profile:
            signed = signer.generate_auth_token_from_profile(self._region, self._profile)
        else:
            signed = signer.generate_auth_token(self._region)
        return signed


def _role_credentials(role_arn: str, session_name: str, region: str) -> Any:
    """Return a provider of the role's credentials; the signer's own sends its request without a region, which fails."""
    import boto3
    from botocore.credentials import CredentialProvider, Credentials

    class RoleCredentials(CredentialProvider):  # type: ignore[misc]  # an untyped package
        def load(self) -> Any:
            sts = boto3.client("sts", region_name=region)
            found = sts.assume_role(RoleArn=role_arn, RoleSessionName=session_name)["Credentials"]
            return Credentials(found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"])

    return RoleCredentials()


def _problem(error: Exception) -> str:
    # Without credentials the signer fails on None.
    if isinstance(error, AttributeError):
        return (
            "AWS has no credentials for Amazon MSK IAM: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, choose a "
            "profile, or give this machine a role."
        )
    return f"AWS gave no token for Amazon MSK IAM: {described(error)}"


class _NotWhileSigning(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno > logging.DEBUG or not getattr(_signing, "now", False)


_filter = _NotWhileSigning()


def _silence() -> None:
    """Drop DEBUG messages of AWS's packages in this thread while it signs."""
    for name in [*_TALKATIVE, *logging.root.manager.loggerDict]:
        if name.partition(".")[0] in _TALKATIVE:
            # A filter that is there is not added again.
            logging.getLogger(name).addFilter(_filter)


def region_of(hosts: Iterable[str]) -> str | None:
    """Return the region in the host names of MSK brokers, None for other names."""
    found = (_HOST.search(host) for host in hosts)
    return next((match["region"].lower() for match in found if match), None)


def provider_from_options(options: Mapping[str, str], hosts: Iterable[str]) -> Callable[[], OAuthBearerToken]:
    """Return the provider for the options of Amazon's login module.

    The brokers' host names come before AWS_REGION: the program may run in another region than the cluster.

    Raises:
        ConfigurationError: as `msk_iam_provider`.
    """
    return msk_iam_provider(
        region_of(hosts),
        options.get("awsProfileName"),
        options.get("awsRoleArn"),
        options.get("awsRoleSessionName"),
        options.get("awsStsRegion"),
    )
