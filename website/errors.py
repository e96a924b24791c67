"""The tables of error classes in the API reference, made of the classes themselves.

Most classes of broker errors exist only after their first use, so that no tool that reads the sources finds them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable

from aioproducer import errors
from aioproducer._common.error_texts import HINTS
from aioproducer.error_codes import CODES


def client_errors() -> list[type[errors.KafkaError]]:
    """Return the classes that stand for no error code, in the order of the source."""
    return [
        one
        for one in vars(errors).values()
        if inspect.isclass(one) and issubclass(one, errors.KafkaError) and not issubclass(one, errors.BrokerError)
    ]


def broker_errors(*, with_hint: bool) -> list[type[errors.BrokerError]]:
    """Return the classes of all error codes for which the package has a remedy, or of the others, by code."""
    return [errors.error_class(code) for code in sorted(CODES) if (code in HINTS) == with_hint]


def groups(error: type[errors.KafkaError]) -> str:
    """Return the groups of a class, as the page explains them."""
    flags = {
        "retriable": error.retriable,
        "metadata": error.refresh_metadata,
        "abortable": error.abortable,
        "fatal": error.fatal,
    }
    return ", ".join(name for name, is_set in flags.items() if is_set)


def _table(head: tuple[str, str], errors_of_table: Iterable[type[errors.KafkaError]]) -> str:
    rows = [head, ("---", "---"), *((_name(one), _meaning(one)) for one in errors_of_table)]
    return "\n".join(f"| {name} | {meaning} |" for name, meaning in rows)


def _name(error: type[errors.KafkaError]) -> str:
    """The class with what one looks for beside it; in one column, as a phone has no room for three."""
    code = f"code {error.code}" if issubclass(error, errors.BrokerError) else ""
    return "<br>".join(filter(None, (f"`{error.__name__}`", code, groups(error))))


def _meaning(error: type[errors.KafkaError]) -> str:
    meaning = " ".join((inspect.getdoc(error) or "").split("\n\n")[0].split()).replace("``", "`")
    remedy = HINTS.get(error.code, "") if issubclass(error, errors.BrokerError) else ""
    return "<br>".join(filter(None, (meaning, remedy))).replace("|", r"\|")


TABLES: dict[str, Callable[[], str]] = {
    "<!-- errors of the client -->": lambda: _table(("class", "meaning"), client_errors()),
    "<!-- errors of brokers -->": lambda: _table(("class", "meaning, and what to do"), broker_errors(with_hint=True)),
    "<!-- other error codes -->": lambda: _table(("class", "meaning"), broker_errors(with_hint=False)),
}
"""The tables, by the comments in the page that they replace."""
