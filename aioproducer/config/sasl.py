"""The rules between the SASL keys, for the protocols ``SASL_PLAINTEXT`` and ``SASL_SSL``.

In Java ``LoginManager``, ``SaslChannelBuilder`` and the callback handlers raise most of these errors in a connection;
here the configuration does. All functions raise ``ConfigurationError``, and no error contains a secret.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, MutableMapping
from typing import Final, NamedTuple

from aioproducer._common.diagnosis import nearest
from aioproducer._common.texts import has_utf8_form
from aioproducer.config.definition import HiddenValues, Password, Value, logger
from aioproducer.config.jaas import (
    AWS_MSK_IAM,
    EXTENSION_PREFIX,
    GSSAPI_TEXT,
    OAUTHBEARER,
    PLAIN,
    SCRAM,
    UNSECURED_PREFIX,
    JaasEntry,
    LoginModule,
    is_java_class,
    login_module,
    parse_jaas,
)
from aioproducer.config.jaas import KEY as JAAS
from aioproducer.config.keys import PROVIDERS_PREFIX
from aioproducer.config.urls import TOKEN_ENDPOINT, file_path, http_url, is_file, is_loopback
from aioproducer.errors import ConfigurationError

Values = MutableMapping[str, Value]

MECHANISMS: Final = (PLAIN, *SCRAM, OAUTHBEARER, AWS_MSK_IAM)
_PASSWORD_MECHANISMS = (PLAIN, *SCRAM)

USERNAME: Final = "sasl.username"
PASSWORD: Final = "sasl.password"
TOKEN_PROVIDER: Final = "sasl.token.provider"
EXTENSIONS: Final = "sasl.oauthbearer.extensions"
CLIENT_ID: Final = "sasl.oauthbearer.client.credentials.client.id"
CLIENT_SECRET: Final = "sasl.oauthbearer.client.credentials.client.secret"
RETRIEVER: Final = "sasl.oauthbearer.jwt.retriever.class"
ASSERTION_FILE: Final = "sasl.oauthbearer.assertion.file"
ASSERTION_KEY: Final = "sasl.oauthbearer.assertion.private.key.file"

_MSK_HANDLER = "msk.auth.iam.IAMOAuthBearerLoginCallbackHandler"
# The ends of the names of Java classes that mean the built-in behaviour, and the mechanisms they fit.
_HANDLERS = {
    "common.security.authenticator.AbstractLogin$DefaultLoginCallbackHandler": MECHANISMS,
    "common.security.authenticator.SaslClientCallbackHandler": MECHANISMS,
    "common.security.oauthbearer.OAuthBearerLoginCallbackHandler": (OAUTHBEARER,),
    "common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler": (OAUTHBEARER,),
    "common.security.oauthbearer.internals.OAuthBearerSaslClientCallbackHandler": (OAUTHBEARER,),
    "common.security.oauthbearer.internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler": (OAUTHBEARER,),
    "msk.auth.iam.IAMClientCallbackHandler": (AWS_MSK_IAM,),
    _MSK_HANDLER: (OAUTHBEARER,),
}
_LOGINS = {
    "common.security.authenticator.DefaultLogin": MECHANISMS,
    "common.security.oauthbearer.internals.OAuthBearerRefreshingLogin": (OAUTHBEARER,),
}
_JAVA_CLASSES = {
    "sasl.client.callback.handler.class": _HANDLERS,
    "sasl.login.callback.handler.class": _HANDLERS,
    "sasl.login.class": _LOGINS,
}
_CLIENT_CREDENTIALS = "common.security.oauthbearer.ClientCredentialsJwtRetriever"
_JWT_BEARER = "common.security.oauthbearer.JwtBearerJwtRetriever"
_FILE = "common.security.oauthbearer.FileJwtRetriever"
_RETRIEVERS = ("common.security.oauthbearer.DefaultJwtRetriever", _CLIENT_CREDENTIALS, _JWT_BEARER, _FILE)

_MSK_REFUSED = ("awsRoleAccessKeyId", "awsRoleSecretAccessKey", "awsRoleSessionToken", "awsRoleExternalId")
# An option of OAuthBearerLoginModule, and the key that replaces it since Kafka 4.1.
_OPTION_KEYS = {"clientId": CLIENT_ID, "clientSecret": CLIENT_SECRET, "scope": "sasl.oauthbearer.scope"}

# As RFC 4422, section 3.1.
_MECHANISM_NAME = r"[A-Z0-9_-]{1,20}"
_CLASS_NAME = r"[A-Za-z_$][\w$]*(?:\.[\w$]+)+"
_EXTENSION_NAME = r"[A-Za-z]+"
_EXTENSION_VALUE = r"[\x20-\x7e\t\r\n]*"


class SaslCredentials(NamedTuple):
    """A user's name and password for PLAIN and SCRAM; its ``repr`` hides the password."""

    username: str
    password: Password
    is_token: bool = False
    """Whether they are id and HMAC of a delegation token (KIP-48)."""


class Sasl(NamedTuple):
    """What follows from the SASL keys, besides changed values."""

    jaas: JaasEntry | None
    extensions: HiddenValues
    msk_iam: HiddenValues | None


def resolve_sasl(values: Values, explicit: Container[str], hosts: Iterable[str]) -> Sasl:
    """Check the SASL keys and set ``sasl.mechanism`` to the mechanism that connections use."""
    jaas = values[JAAS]
    entry = parse_jaas(jaas.value) if isinstance(jaas, Password) else None
    module = None if entry is None else login_module(entry.login_module)
    mechanism = _mechanism(values, explicit, module)
    has_msk_handler = _resolve_java_classes(values, mechanism)
    if entry is not None and module is not None:
        _warn_of_unknown_options(entry, module)
    values["sasl.mechanism"] = OAUTHBEARER if mechanism == AWS_MSK_IAM else mechanism
    _warn_if_readable(values, hosts)
    if mechanism in _PASSWORD_MECHANISMS:
        _refuse(values, (TOKEN_PROVIDER, EXTENSIONS), f"is for {OAUTHBEARER}, not for {mechanism}")
        _check_password(values, mechanism, entry)
        return Sasl(entry, HiddenValues(), None)
    _refuse(values, (USERNAME, PASSWORD), f"is for {', '.join(_PASSWORD_MECHANISMS)}, not for {mechanism}")
    if mechanism == AWS_MSK_IAM or has_msk_handler:
        _refuse(values, (TOKEN_PROVIDER, EXTENSIONS), f"does not go with {AWS_MSK_IAM}, which makes its own token")
        return Sasl(entry, HiddenValues(), _msk_options(entry))
    _resolve_token_source(values, explicit, entry)
    return Sasl(entry, _extensions(values, entry), None)


def credentials(mechanism: str, originals: Mapping[str, object], providers: tuple[str, ...]) -> SaslCredentials:
    """Return user name and password as the config providers with the names ``providers`` return them now."""
    if mechanism not in _PASSWORD_MECHANISMS:
        fitting = " or ".join(_PASSWORD_MECHANISMS)
        raise ConfigurationError(f"sasl.mechanism {mechanism} has no user name and password; {fitting} has")
    names: tuple[str, ...] = (USERNAME, PASSWORD, JAAS)
    given = {name: originals[name] for name in names if name in originals}
    if providers:
        from aioproducer.config.providers import resolve_placeholders

        parameters = {name: value for name, value in originals.items() if name.startswith(PROVIDERS_PREFIX)}
        given = resolve_placeholders({**given, **parameters}, providers)
    jaas, username, password = given.get(JAAS), given.get(USERNAME), given.get(PASSWORD)
    if jaas is not None:
        return _credentials_of(parse_jaas(_secret(jaas)))
    if callable(password):
        raise ConfigurationError(f"{PASSWORD} is a function: call it for the password")
    return _checked(SaslCredentials(str(username).strip(), Password(_secret(password))))


def _secret(value: object) -> str:
    return value.value if isinstance(value, Password) else str(value).strip()


def _mechanism(values: Values, explicit: Container[str], module: LoginModule | None) -> str:
    mechanism = str(values["sasl.mechanism"])
    if module is not None:
        fitting = module.mechanisms
    elif values[USERNAME] is not None or values[PASSWORD] is not None:
        fitting = _PASSWORD_MECHANISMS
    elif values[TOKEN_PROVIDER] is not None or values[TOKEN_ENDPOINT] is not None:
        fitting = (OAUTHBEARER,)
    else:
        fitting = MECHANISMS
    if "sasl.mechanism" not in explicit:
        raise ConfigurationError(f"sasl.mechanism is missing: set it to {' or '.join(fitting)}, as the broker has it")
    if mechanism == "GSSAPI":
        raise ConfigurationError(f"sasl.mechanism GSSAPI: {GSSAPI_TEXT}")
    if mechanism not in MECHANISMS:
        hint = nearest(mechanism.upper(), MECHANISMS)
        is_name = re.fullmatch(_MECHANISM_NAME, mechanism) or mechanism.upper() in MECHANISMS
        # Anything else may be the password, in the wrong place.
        shown = repr(mechanism) if is_name else "the given value"
        raise ConfigurationError(
            f"sasl.mechanism must be one of {', '.join(MECHANISMS)}, not {shown}{f': {hint}' if hint else ''}"
        )
    if module is not None and mechanism not in fitting:
        raise ConfigurationError(
            f"sasl.mechanism {mechanism} does not fit {module.value} in {JAAS}: set it to {' or '.join(fitting)}, or "
            "use the login module of the mechanism"
        )
    return mechanism


def _resolve_java_classes(values: Values, mechanism: str) -> bool:
    """Accept Java's own classes, which are built in, and return whether one of them is MSK's for OAUTHBEARER."""
    has_msk_handler = False
    for key, known in _JAVA_CLASSES.items():
        given = values[key]
        if given is None:
            continue
        name = given.strip() if isinstance(given, str) else ""
        end = next((end for end in known if is_java_class(name, end)), None)
        if end is None:
            raise ConfigurationError(
                f"{key}: {_shown(given)} has no equivalent, and Python loads no Java class. For tokens set "
                f"{TOKEN_ENDPOINT}, or {TOKEN_PROVIDER} to a function; a function as {PASSWORD} returns passwords"
            )
        if mechanism not in known[end]:
            raise ConfigurationError(f"{key}: {name} is for {known[end][0]}, not for sasl.mechanism {mechanism}")
        has_msk_handler |= end == _MSK_HANDLER
        values[key] = None
    return has_msk_handler


def _shown(given: object) -> str:
    # A value that is not a name may be a secret in the wrong place; the repr of a partial function shows its arguments.
    if isinstance(given, str):
        return repr(given) if re.fullmatch(_CLASS_NAME, given.strip()) else "the given value"
    return f"a {type(given).__name__}"


def _retriever(values: Values) -> str:
    """Return the end of the name of Kafka's retriever, and set the key to its name in Kafka."""
    given = values[RETRIEVER]
    name = given.strip() if isinstance(given, str) else ""
    found = next((end for end in _RETRIEVERS if is_java_class(name, end)), None)
    if found is None:
        raise ConfigurationError(
            f"{RETRIEVER}: {_shown(given)} has no equivalent: use one of "
            f"{', '.join(f'org.apache.kafka.{end}' for end in _RETRIEVERS)}; or set {TOKEN_PROVIDER} to a function"
        )
    values[RETRIEVER] = f"org.apache.kafka.{found}"
    return found


def _warn_of_unknown_options(entry: JaasEntry, module: LoginModule) -> None:
    # Their names are not shown: an unquoted secret with a blank and an equals sign in it ends as one.
    count = sum(not module.knows(option) for option in entry.options)
    if count:
        logger.warning("%s: %s does not know %s of the options; they have no effect", JAAS, module.value, count)


def _warn_if_readable(values: Values, hosts: Iterable[str]) -> None:
    mechanism = values["sasl.mechanism"]
    if values["security.protocol"] != "SASL_PLAINTEXT" or mechanism not in (PLAIN, OAUTHBEARER):
        return
    remote = [host for host in hosts if not is_loopback(host) and not host.lower().endswith(".localhost")]
    if remote:
        logger.warning(
            "security.protocol is SASL_PLAINTEXT: the %s for %s is sent unencrypted to %s: use SASL_SSL",
            "password" if mechanism == PLAIN else "token",
            mechanism,
            ", ".join(remote),
        )


def _refuse(values: Values, names: Iterable[str], why: str) -> None:
    for name in names:
        if values[name] is not None:
            raise ConfigurationError(f"{name} {why}: remove it, or choose another sasl.mechanism")


def _check_password(values: Values, mechanism: str, entry: JaasEntry | None) -> None:
    username, password = values[USERNAME], values[PASSWORD]
    if entry is not None:
        given = [name for name in (USERNAME, PASSWORD) if values[name] is not None]
        if given:
            raise ConfigurationError(f"{JAAS} and {' and '.join(given)} are both given: remove one of them")
        _credentials_of(entry)
        return
    missing = [name for name in (USERNAME, PASSWORD) if values[name] in (None, "", Password(""))]
    if missing:
        raise ConfigurationError(
            f"sasl.mechanism {mechanism} needs {USERNAME} and {PASSWORD}, or {JAAS}: {' and '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing or empty"
        )
    if isinstance(password, Password):
        _checked(SaslCredentials(str(username), password))


def _credentials_of(entry: JaasEntry) -> SaslCredentials:
    missing = [option for option in ("username", "password") if not entry.options.get(option)]
    if missing:
        raise ConfigurationError(f"{JAAS}: the option {' and the option '.join(missing)} must be given, and not empty")
    is_token = entry.options.get("tokenauth", "").lower() == "true"
    is_token = is_token and login_module(entry.login_module) is LoginModule.SCRAM
    return _checked(SaslCredentials(entry.options["username"], Password(entry.options["password"]), is_token))


def _checked(found: SaslCredentials) -> SaslCredentials:
    for name, text in (("user name", found.username), ("password", found.password.value)):
        if not text:
            raise ConfigurationError(f"the SASL {name} is empty")
        if not has_utf8_form(text):
            raise ConfigurationError(f"the SASL {name} has no UTF-8 form")
    return found


def _msk_options(entry: JaasEntry | None) -> HiddenValues:
    options: Mapping[str, str] = {} if entry is None else entry.options
    refused = [option for option in _MSK_REFUSED if option in options]
    if refused:
        raise ConfigurationError(
            f"{JAAS}: {', '.join(refused)}: credentials do not belong here. Put them into a profile of ~/.aws/config, "
            "named by awsProfileName, or into the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
        )
    return HiddenValues(options)


def _resolve_token_source(values: Values, explicit: Container[str], entry: JaasEntry | None) -> None:
    options: Mapping[str, str] = {} if entry is None else entry.options
    for option, key in _OPTION_KEYS.items():
        if options.get(option) and key not in explicit:
            values[key] = Password(options[option]) if key == CLIENT_SECRET else options[option]
    url = values[TOKEN_ENDPOINT]
    if values[TOKEN_PROVIDER] is not None:
        if url:
            raise ConfigurationError(f"{TOKEN_PROVIDER} and {TOKEN_ENDPOINT} are both given: remove one of them")
        return
    if not url:
        # Kafka's unsigned tokens for development, made of these options.
        if any(option.startswith(UNSECURED_PREFIX) for option in options):
            return
        raise ConfigurationError(
            f"sasl.mechanism {OAUTHBEARER} has no source of tokens: set {TOKEN_ENDPOINT}, or {TOKEN_PROVIDER} to a "
            "function that returns a token"
        )
    retriever = _retriever(values)
    names_file = is_file(str(url))
    if retriever == _FILE and not names_file:
        raise ConfigurationError(f"{values[RETRIEVER]} needs a file: URL in {TOKEN_ENDPOINT}")
    # Not the default retriever, which takes both.
    needs_server = retriever in (_CLIENT_CREDENTIALS, _JWT_BEARER)
    if names_file and not needs_server:
        file_path(TOKEN_ENDPOINT, str(url))
    else:
        values[TOKEN_ENDPOINT] = http_url(TOKEN_ENDPOINT, str(url))
    if retriever == _JWT_BEARER:
        if not values[ASSERTION_FILE] and not values[ASSERTION_KEY]:
            raise ConfigurationError(f"{values[RETRIEVER]} needs {ASSERTION_FILE} or {ASSERTION_KEY}: set one")
    elif needs_server or not names_file:
        _require_client_credentials(values)


def _require_client_credentials(values: Values) -> None:
    missing = [name for name in (CLIENT_ID, CLIENT_SECRET) if values[name] in (None, "", Password(""))]
    if not missing:
        return
    hint = ""
    if values[ASSERTION_FILE] or values[ASSERTION_KEY]:
        hint = f"; for an assertion set {RETRIEVER} to org.apache.kafka.{_JWT_BEARER}"
    raise ConfigurationError(
        f"{TOKEN_ENDPOINT} needs client credentials: {' and '.join(missing)} "
        f"{'is' if len(missing) == 1 else 'are'} missing or empty, also as clientId and clientSecret in {JAAS}{hint}"
    )


def _extensions(values: Values, entry: JaasEntry | None) -> HiddenValues:
    """Return the extensions of the own key or of the JAAS options, by name."""
    options: Mapping[str, str] = {} if entry is None else entry.options
    found = {
        option.removeprefix(EXTENSION_PREFIX): value
        for option, value in options.items()
        if option.startswith(EXTENSION_PREFIX)
    }
    source = JAAS
    text = values[EXTENSIONS]
    if text:
        if found:
            raise ConfigurationError(f"{EXTENSIONS} and the options {EXTENSION_PREFIX}... in {JAAS} are both given")
        source = EXTENSIONS
        for pair in str(text).split(","):
            name, equals, value = pair.partition("=")
            if not equals:
                raise ConfigurationError(f'{EXTENSIONS} must have the form "name=value,name=value"')
            found[name.strip()] = value.strip()
    for name, value in found.items():
        if not re.fullmatch(_EXTENSION_NAME, name) or name.lower() == "auth":
            raise ConfigurationError(f"{source}: the name of a SASL extension must be letters other than 'auth'")
        if not re.fullmatch(_EXTENSION_VALUE, value):
            raise ConfigurationError(f"{source}: the value of the SASL extension {name} must be printable ASCII")
    return HiddenValues(found)
