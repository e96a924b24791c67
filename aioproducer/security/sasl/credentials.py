"""User names and passwords: their checks, and the common parts of the clients of PLAIN and SCRAM."""

from __future__ import annotations

from aioproducer._common.texts import has_utf8_form, printable
from aioproducer.errors import SaslAuthenticationError
from aioproducer.security.redaction import without_secrets


def check_utf8(name: str, text: str) -> None:
    """
    Raises:
        ValueError: ``text`` has no UTF-8 form; the error does not contain it.
    """
    if not has_utf8_form(text):
        raise ValueError(f"the SASL {name} has no UTF-8 form")


class PasswordClient:
    """The part of a mechanism's client that does not depend on the mechanism.

    Raises:
        ValueError: user name or password is empty or has no UTF-8 form; the error contains neither.
    """

    def __init__(self, mechanism: str, username: str, password: str) -> None:
        if not username or not password:
            raise ValueError(f"SASL {mechanism} needs a user name and a password")
        check_utf8("user name", username)
        check_utf8("password", password)
        self.mechanism = mechanism
        self._username = username
        self._password = password

    def hidden(self, text: str | None) -> str | None:
        """Return a broker's text in printable form, without the password and parts of it; None for None."""
        return None if text is None else without_secrets(text, (self._password,))

    def rejection(self, message: str | None) -> SaslAuthenticationError:
        """Return the error for a broker that rejects the credentials, with its message if it sent one."""
        said = self.hidden(message)
        reason = f' The broker\'s message: "{said}".' if said else ""
        return SaslAuthenticationError(
            f"The broker rejected user {printable(self._username)} with SASL {self.mechanism}.{reason} Check user name "
            "and password (sasl_username and sasl_password, or sasl_jaas_config), and whether this user exists for "
            "this mechanism."
        )
