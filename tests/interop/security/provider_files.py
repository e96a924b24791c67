"""The client files of managed Kafka, as in their consoles and documentation, with invented secrets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parents[2] / "data" / "security"

# In the value of sasl.jaas.config, in either kind of quotes, or as a separate key.
_OPTION = r"""(?:^|\s)(?:sasl\.)?{name}\s*=\s*(?:"(?P<double>[^"]*)"|'(?P<single>[^']*)'|(?P<bare>[^\s"';][^\n]*))"""


class Credentials(NamedTuple):
    """A name and its password."""

    name: str
    password: str


DOCUMENTED = Credentials("orders-service", "made up for docs/security.md")
"""The user in the blocks of that page."""


def read_credentials(file: str, name: str = "username", password: str = "password") -> Credentials:
    """Return the contents of a file, read by a regular expression instead of the tested code."""
    text = (FOLDER / file).read_text()
    return Credentials(_option(text, name), _option(text, password))


def _option(text: str, name: str) -> str:
    found = re.search(_OPTION.format(name=name), text, re.MULTILINE)
    assert found is not None, name
    return found["double"] or found["single"] or found["bare"]


def adapted(file: str, into: Path, **changes: str) -> Path:
    """Write the file to ``into``, for another address and trust store, with the keys in ``changes`` replaced."""
    lines = (FOLDER / file).read_text().splitlines()
    keys = {name.replace("_", "."): value for name, value in changes.items()}
    # The trust store is replaced by one of another type, without a password.
    removed = (*keys, "ssl.truststore.")
    kept = [line for line in lines if not line.startswith(removed)]
    path = into / file
    path.write_text("\n".join([*kept, *(f"{name}={value}" for name, value in keys.items()), ""]))
    return path
