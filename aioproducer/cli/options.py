"""Options that commands share, and what becomes of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from aioproducer.cli.exits import CommandUsageError

F = TypeVar("F", bound=Callable[..., Any])  # Any: click passes options as keyword arguments of every type

DEFAULT_BOOTSTRAP_SERVER = "localhost:9092"
DEFAULT_TIMEOUT = 10.0

_BOOTSTRAP_SERVERS = "bootstrap.servers"


class OneLine(logging.Formatter):
    """A line for each message; of an exception its type and text alone."""

    def formatException(self, ei: Any) -> str:  # noqa: N802  # logging's name
        return ""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        error = record.exc_info[1] if record.exc_info else None
        return " ".join(text.split() if error is None else [*text.split(), f"({error!r})"])


def _log(level: int) -> None:
    handler = logging.StreamHandler()
    layout = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    handler.setFormatter(logging.Formatter(layout) if level == logging.DEBUG else OneLine(layout))
    logger = logging.getLogger("aioproducer")
    logger.addHandler(handler)
    logger.setLevel(level)


def log_warnings() -> None:
    """Show the library's warnings, unless an option asks for more."""
    if logging.getLogger("aioproducer").level == logging.NOTSET:
        _log(logging.WARNING)


def _begin_debugging(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        context.find_root().obj["debug"] = True
        _log(logging.DEBUG)


def _begin_logging(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        _log(logging.INFO)


def diagnosis_options(function: F) -> F:
    """``--verbose`` and ``--debug``."""
    for option in (
        click.option(
            "--debug",
            is_flag=True,
            expose_value=False,
            callback=_begin_debugging,
            help="Log everything; show tracebacks.",
        ),
        click.option(
            "-v", "--verbose", is_flag=True, expose_value=False, callback=_begin_logging, help="Log to stderr."
        ),
    ):
        function = option(function)
    return function


def cluster_options(function: F) -> F:
    """Which cluster, and how to speak to it."""
    for option in (
        click.option(
            "--timeout",
            type=click.FloatRange(min=0, min_open=True),
            default=DEFAULT_TIMEOUT,
            show_default=True,
            metavar="SECONDS",
            help="Time limit for the cluster to answer.",
        ),
        click.option(
            "--config", "config_file", type=click.Path(), metavar="FILE", help="A Java properties file of client keys."
        ),
        click.option(
            "-X",
            "settings",
            multiple=True,
            metavar="NAME=VALUE",
            help="A client key, as -X linger.ms=20; overrides --config. 'aioproducer config' lists the keys.",
        ),
        click.option(
            "-b",
            "--bootstrap-server",
            "--bootstrap-servers",
            envvar="AIOPRODUCER_BOOTSTRAP_SERVERS",
            show_envvar=True,
            metavar="HOST:PORT,...",
            help=f"One or more brokers.  [default: {DEFAULT_BOOTSTRAP_SERVER}]",
        ),
    ):
        function = option(function)
    return function


def pairs(settings: Sequence[str], option: str) -> dict[str, str]:
    """``NAME=VALUE`` settings as a mapping.

    Raises:
        CommandUsageError: one has no ``=``.
    """
    found = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.strip():
            raise CommandUsageError(f"{option} takes NAME=VALUE, not {setting!r}")
        found[name.strip()] = value
    return found


def client_config(bootstrap_server: str | None, settings: Sequence[str], config_file: str | None) -> dict[str, object]:
    """The keys given by file and options, in Kafka's spelling.

    Serializers are left out of the file: the command line sends bytes.

    Raises:
        ConfigurationError, CommandUsageError: something is wrong with them.
    """
    from aioproducer.config.producer import CONFIG_DEF
    from aioproducer.config.properties import load_properties

    given: Mapping[str, str] = {} if config_file is None else load_properties(config_file)
    config: dict[str, object] = {
        name: value for name, value in given.items() if name not in ("key.serializer", "value.serializer")
    }
    attributes = {key.attribute: name for name, key in CONFIG_DEF.keys.items()}
    for name, value in pairs(settings, "-X").items():
        dotted = attributes.get(name, name)
        if dotted in ("key.serializer", "value.serializer"):
            raise CommandUsageError(
                f"-X {dotted}: the command line sends bytes unchanged; remove the key, or serialize with the library"
            )
        config[dotted] = value
    if bootstrap_server is not None:
        config[_BOOTSTRAP_SERVERS] = bootstrap_server
    config.setdefault(_BOOTSTRAP_SERVERS, DEFAULT_BOOTSTRAP_SERVER)
    return config
