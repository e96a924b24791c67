"""Checks of user names and passwords, whose errors do not contain them."""

from __future__ import annotations


def check_utf8(name: str, text: str) -> None:
    """
    Raises:
        ValueError: ``text`` has no UTF-8 form.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        # Its text, and that of a cause, would contain the credential.
        raise ValueError(f"the SASL {name} has no UTF-8 form") from None


def check_credentials(mechanism: str, username: str, password: str) -> None:
    """
    Raises:
        ValueError: user name or password is empty or has no UTF-8 form.
    """
    if not username or not password:
        raise ValueError(f"SASL {mechanism} needs a user name and a password")
    check_utf8("user name", username)
    check_utf8("password", password)
