"""Parser of ``sasl.jaas.config``: the syntax of ``JaasConfig`` in Kafka 4.4, which is that of Java's StreamTokenizer.

No error contains a part of the text except the names of known options and of login modules: any other part may be a
secret that lacks its quotes.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from typing import Final, NamedTuple, Never

from aioproducer.config.definition import HiddenValues
from aioproducer.errors import ConfigurationError

KEY: Final = "sasl.jaas.config"

PLAIN: Final = "PLAIN"
SCRAM: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
OAUTHBEARER: Final = "OAUTHBEARER"
AWS_MSK_IAM: Final = "AWS_MSK_IAM"

_FORM = 'LOGIN_MODULE required name="value" ...;'
_FLAGS = ("required", "requisite", "sufficient", "optional")
_QUOTES = (
    "an unquoted one has only letters, digits, '_', '$', '.' and '-', and begins with none of the digits, '.' and '-'"
)

_TOKEN = r"""
    (?P<blank>   [\x00-\x20]+                                                      )
  | (?P<comment> //[^\n\r]* | /\*.*?(?:\*/|\Z) | /[^\n\r]*                         )
  | (?P<word>    [A-Za-z_$\u00a0-\U0010ffff] [A-Za-z0-9_$.\-\u00a0-\U0010ffff]*    )
  | (?P<quoted>  "(?:[^"\\\n\r]|\\.)*" | '(?:[^'\\\n\r]|\\.)*'                     )
  | (?P<other>   .                                                                 )
"""
_ESCAPE = r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)"
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_MODULE_NAME = r"[A-Za-z_$][\w$]*(?:\.[\w$]+)*Module"


class JaasEntry(NamedTuple):
    """The one entry of ``sasl.jaas.config``.

    Its ``repr`` hides the options, even their names: one may be a part of a secret that lacks its quotes.
    """

    login_module: str
    options: HiddenValues


class LoginModule(enum.Enum):
    """The login modules that have an equivalent here."""

    PLAIN = "PlainLoginModule"
    SCRAM = "ScramLoginModule"
    OAUTHBEARER = "OAuthBearerLoginModule"
    MSK_IAM = "IAMLoginModule"

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The values of ``sasl.mechanism`` that it fits."""
        return _MECHANISMS[self]

    def knows(self, option: str) -> bool:
        """Return whether Java's module, or a callback handler for it, reads the option."""
        return option in _OPTIONS[self] or (self is LoginModule.OAUTHBEARER and option.startswith(_OAUTH_PREFIXES))


EXTENSION_PREFIX: Final = "extension_"
UNSECURED_PREFIX: Final = "unsecuredLogin"
# The last one is for the token endpoint.
_OAUTH_PREFIXES = (EXTENSION_PREFIX, UNSECURED_PREFIX, "ssl.")

_MECHANISMS = {
    LoginModule.PLAIN: (PLAIN,),
    LoginModule.SCRAM: SCRAM,
    LoginModule.OAUTHBEARER: (OAUTHBEARER,),
    LoginModule.MSK_IAM: (AWS_MSK_IAM,),
}
_MSK_OPTIONS = (
    "awsProfileName",
    "awsRoleArn",
    "awsRoleAccessKeyId",
    "awsRoleSecretAccessKey",
    "awsRoleSessionToken",
    "awsRoleExternalId",
    "awsRoleSessionName",
    "awsStsRegion",
    "awsMaxRetries",
    "awsMaxBackOffTimeMs",
    "awsDebugCreds",
)
_OPTIONS = {
    LoginModule.PLAIN: ("username", "password"),
    LoginModule.SCRAM: ("username", "password", "tokenauth"),
    LoginModule.OAUTHBEARER: ("clientId", "clientSecret", "scope", *_MSK_OPTIONS),
    LoginModule.MSK_IAM: _MSK_OPTIONS,
}
_SHOWN_OPTIONS = frozenset(option for options in _OPTIONS.values() for option in options)

# The ends of class names: libraries that contain Kafka's client prefix its package (kafkashaded., org.apache.flink...).
_CLASSES = {
    "common.security.plain.PlainLoginModule": LoginModule.PLAIN,
    "common.security.scram.ScramLoginModule": LoginModule.SCRAM,
    "common.security.oauthbearer.OAuthBearerLoginModule": LoginModule.OAUTHBEARER,
    "msk.auth.iam.IAMLoginModule": LoginModule.MSK_IAM,
}


class _Token(NamedTuple):
    text: str | None
    """The word, or the content of the quotes; ``None`` for any other character."""
    character: str
    """The other character; empty for words."""
    position: int
    """The token's first character, counted from 1."""


def parse_jaas(text: str) -> JaasEntry:
    """Return the entry in ``text``: a login module, a control flag, options and a semicolon.

    As in Java the last of several options of one name counts. Unlike Java, a quote that is not closed in its line is an
    error, and so is an option that has a number for its name.

    Raises:
        ConfigurationError: the text has another form; the error shows no value of an option.
    """
    tokens = list(_tokens(text))
    if not tokens:
        _fail(f"it has no login module: the form is {_FORM}")
    module = tokens[0].text
    if not module:
        _fail(f"it must begin with the class name of a login module: the form is {_FORM}")
    if len(tokens) == 1 or (tokens[1].text or "").lower() not in _FLAGS:
        _fail(f"the word after the login module must be one of {', '.join(_FLAGS)}: the form is {_FORM}")
    options: dict[str, str] = {}
    rest = iter(tokens[2:])
    before = "the control flag"
    for token in rest:
        if token.character == ";":
            break
        if token.text is None:
            _fail_at(token, before)
        name = token.text
        shown = f"the option {name}" if name in _SHOWN_OPTIONS else "an option"
        equals = next(rest, None)
        if equals is None or equals.character != "=":
            _fail(
                f"after {before}, at character {token.position}, a word has no value: put values in quotes; {_QUOTES}"
            )
        value = next(rest, None)
        if value is None or value.character == ";":
            _fail(f"{shown} has no value")
        if value.text is None:
            _fail_at(value, f"{shown} and '='")
        options[name] = value.text
        before = f"the value of {shown}"
    else:
        hint = "; '/' begins a comment: put a value that has one in quotes" if _has_comment(text) else ""
        _fail(f"the semicolon at its end is missing{hint}")
    if next(rest, None) is not None:
        _fail("there is more text after its semicolon, and it must have exactly one login module")
    return JaasEntry(module, HiddenValues(options))


def _tokens(text: str) -> Iterator[_Token]:
    for match in re.finditer(_TOKEN, text, re.VERBOSE | re.DOTALL):
        found = match[0]
        if match.lastgroup == "word":
            yield _Token(found, "", match.start() + 1)
        elif match.lastgroup == "quoted":
            yield _Token(re.sub(_ESCAPE, _unescape, found[1:-1], flags=re.DOTALL), "", match.start() + 1)
        elif match.lastgroup == "other":
            yield _Token(None, found, match.start() + 1)


def _unescape(match: re.Match[str]) -> str:
    escape = match[1]
    return chr(int(escape, 8)) if escape[0] in "01234567" else _ESCAPES.get(escape, escape)


def _has_comment(text: str) -> bool:
    return any(match.lastgroup == "comment" for match in re.finditer(_TOKEN, text, re.VERBOSE | re.DOTALL))


def _fail_at(token: _Token, before: str) -> Never:
    if token.character in ("'", '"'):
        _fail(f"after {before}, at character {token.position}, a quote is not closed in its line")
    _fail(f"after {before}, at character {token.position}: put values in quotes; {_QUOTES}")


def _fail(problem: str) -> Never:
    raise ConfigurationError(f"{KEY}: {problem}")


def is_java_class(name: str, end: str) -> bool:
    """Return whether ``name`` is the class with a full name that ends with ``end``, perhaps in a package around it."""
    return name == end or name.endswith(f".{end}")


def login_module(name: str) -> LoginModule:
    """Return the equivalent of a Java class.

    Raises:
        ConfigurationError: there is none.
    """
    for end, module in _CLASSES.items():
        if is_java_class(name, end):
            return module
    if name.endswith("Krb5LoginModule"):
        _fail(f"{GSSAPI_TEXT}; Krb5LoginModule has no equivalent")
    shown = f" {name}" if re.fullmatch(_MODULE_NAME, name, re.ASCII) else ""
    _fail(
        f"the login module{shown} has no equivalent: use one of {', '.join(module.value for module in LoginModule)}, "
        "by its full class name; or set sasl.username and sasl.password, or sasl.token.provider, instead"
    )


GSSAPI_TEXT: Final = (
    f"Kerberos (GSSAPI) comes in a later release: use {', '.join((PLAIN, *SCRAM, OAUTHBEARER))} or {AWS_MSK_IAM}"
)
