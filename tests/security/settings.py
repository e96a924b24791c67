"""A stand-in for the part of ``ProducerConfig`` that logins read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from aioproducer.config import Password


@dataclass(frozen=True)
class Entry:
    login_module: str
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class UserAndPassword:
    username: str
    password: Password
    is_token: bool = False


@dataclass
class Settings:
    sasl_mechanism: str = "OAUTHBEARER"
    request_timeout_ms: int = 30_000
    bootstrap_addresses: tuple[tuple[str, int], ...] = (("localhost", 9092),)
    credentials: Callable[[], UserAndPassword] | None = None
    sasl_username: str | None = None
    sasl_password: object = None
    sasl_jaas: Entry | None = None
    sasl_extensions: Mapping[str, str] = field(default_factory=dict)
    sasl_msk_iam: Mapping[str, str] | None = None
    sasl_token_provider: Callable[[], object] | None = None
    sasl_login_connect_timeout_ms: int | None = None
    sasl_login_read_timeout_ms: int | None = None
    sasl_login_refresh_buffer_seconds: int = 300
    sasl_login_refresh_min_period_seconds: int = 60
    sasl_login_refresh_window_factor: float = 0.8
    sasl_login_refresh_window_jitter: float = 0.05
    sasl_login_retry_backoff_ms: int = 100
    sasl_login_retry_backoff_max_ms: int = 10_000
    sasl_oauthbearer_assertion_algorithm: str = "RS256"
    sasl_oauthbearer_assertion_claim_aud: str | None = None
    sasl_oauthbearer_assertion_claim_exp_seconds: int = 300
    sasl_oauthbearer_assertion_claim_iss: str | None = None
    sasl_oauthbearer_assertion_claim_jti_include: bool = False
    sasl_oauthbearer_assertion_claim_nbf_seconds: int = 60
    sasl_oauthbearer_assertion_claim_sub: str | None = None
    sasl_oauthbearer_assertion_file: str | None = None
    sasl_oauthbearer_assertion_private_key_file: str | None = None
    sasl_oauthbearer_assertion_private_key_passphrase: Password | None = None
    sasl_oauthbearer_assertion_template_file: str | None = None
    sasl_oauthbearer_client_credentials_client_id: str | None = None
    sasl_oauthbearer_client_credentials_client_secret: Password | None = None
    sasl_oauthbearer_header_urlencode: bool = False
    sasl_oauthbearer_jwt_retriever_class: object = "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever"
    sasl_oauthbearer_scope: str | None = None
    sasl_oauthbearer_scope_claim_name: str = "scope"
    sasl_oauthbearer_sub_claim_name: str = "sub"
    sasl_oauthbearer_token_endpoint_url: str | None = None
    ssl_truststore_certificates: Password | None = None
    ssl_truststore_location: str | None = None
    ssl_truststore_password: Password | None = None
    ssl_truststore_type: str | None = None

    def sasl_credentials(self) -> UserAndPassword:
        assert self.credentials is not None
        return self.credentials()
