"""Options that commands share, and the configuration made from them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast

import click
from click.core import ParameterSource

from aioproducer.cli.exits import CommandUsageError

F = TypeVar("F", bound=Callable[..., Any])  # Any: click passes options as keyword arguments of every type

DEFAULT_BOOTSTRAP_SERVER = "localhost:9092"
DEFAULT_TIMEOUT = 10.0

_BOOTSTRAP_SERVERS = "bootstrap.servers"


class OneLine(logging.Formatter):
    """One line for each message; an exception as its type and text."""

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
    """Show the library's warnings, or more if an option requests it."""
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


secret_option = click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="NAME=SOURCE",
    help="A client key whose value is read from env:VARIABLE or file:PATH; overrides --config.",
)


class FromEnvironment(str):
    """A value of an environment variable, which files and other options override."""

    __slots__ = ()


def _mark_source(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    source = context.get_parameter_source(parameter.name or "")
    return FromEnvironment(value) if value is not None and source is ParameterSource.ENVIRONMENT else value


class ClusterOptions(NamedTuple):
    """The values of ``cluster_options``."""

    bootstrap_server: str | None
    settings: tuple[str, ...]
    secrets: tuple[str, ...]
    config_file: str | None
    timeout: float
    """Seconds."""

    def config(self) -> dict[str, object]:
        """Return the client's keys.

        Raises:
            ConfigurationError, CommandUsageError: as ``client_config``.
        """
        return client_config(self.bootstrap_server, self.settings, self.secrets, self.config_file)


def cluster_options(function: F) -> F:
    """Options for the cluster and its connection, passed together as ``cluster``."""

    @wraps(function)
    def gather(**values: Any) -> Any:  # Any: click passes options of every type
        cluster = ClusterOptions(*(values.pop(name) for name in ClusterOptions._fields))
        return function(cluster=cluster, **values)

    gathering = cast("F", gather)
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
        secret_option,
        click.option(
            "-b",
            "--bootstrap-server",
            "--bootstrap-servers",
            envvar="AIOPRODUCER_BOOTSTRAP_SERVERS",
            show_envvar=True,
            callback=_mark_source,
            metavar="HOST:PORT,...",
            help=f"One or more brokers; -X and --config override the variable.  [default: {DEFAULT_BOOTSTRAP_SERVER}]",
        ),
    ):
        gathering = option(gathering)
    return gathering


def pairs(settings: Sequence[str], option: str) -> dict[str, str]:
    """Return ``NAME=VALUE`` settings as a mapping.

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


def secret_values(secrets: Sequence[str], names: Mapping[str, str]) -> dict[str, str]:
    """Return the values that ``NAME=env:VARIABLE`` and ``NAME=file:PATH`` refer to; a file without its last line end.

    ``names`` translates names in snake_case.

    Raises:
        CommandUsageError: the form is another one, or the value does not exist. The text shows no value, and no source
            that may be a value by mistake.
    """
    found: dict[str, str] = {}
    for secret in secrets:
        name, _, source = secret.partition("=")
        name = names.get(name.strip(), name.strip())
        kind, colon, location = source.partition(":")
        if not (name and colon and location and kind in ("env", "file")):
            shown = f" for {name}" if source else ""
            raise CommandUsageError(f"--secret takes NAME=env:VARIABLE or NAME=file:PATH{shown}, not the value itself")
        if name in found:
            raise CommandUsageError(f"--secret {name} is given twice: remove one of them")
        found[name] = _environment_value(name, location) if kind == "env" else _file_value(name, location)
    return found


def _environment_value(name: str, variable: str) -> str:
    value = os.environ.get(variable)
    if value is None:
        raise CommandUsageError(f"--secret {name}: the environment has no variable {variable}")
    return value


def _file_value(name: str, path: str) -> str:
    try:
        with open(path, encoding="utf-8", newline="") as file:
            value = file.read()
    except OSError as error:
        raise CommandUsageError(f"--secret {name}: {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        # The text of this exception would contain bytes of the file.
        raise CommandUsageError(f"--secret {name}: {path} is not UTF-8") from None
    return value.removesuffix("\r\n") if value.endswith("\r\n") else value.removesuffix("\n")


def client_config(
    bootstrap_server: str | None, settings: Sequence[str], secrets: Sequence[str], config_file: str | None
) -> dict[str, object]:
    """Return the keys of file and options, in Kafka's spelling.

    Serializers in the file are ignored: the command line sends bytes.

    Raises:
        ConfigurationError, CommandUsageError: a key, a value or an option is wrong.
    """
    from aioproducer.config import CONFIG_DEF, Password, Type
    from aioproducer.config.client_files import load_client_file

    given: Mapping[str, str] = {} if config_file is None else load_client_file(config_file, CONFIG_DEF)
    config: dict[str, object] = {
        name: value for name, value in given.items() if name not in ("key.serializer", "value.serializer")
    }
    attributes = {key.attribute: name for name, key in CONFIG_DEF.keys.items()}
    options = {attributes.get(name, name): value for name, value in pairs(settings, "-X").items()}
    for dotted, value in options.items():
        if dotted in ("key.serializer", "value.serializer"):
            raise CommandUsageError(
                f"-X {dotted}: the command line sends bytes unchanged; remove the key, or serialize with the library"
            )
        config[dotted] = value
    for name, value in secret_values(secrets, attributes).items():
        if name in options:
            raise CommandUsageError(f"{name} is given by -X and by --secret: remove one of them")
        key = CONFIG_DEF.keys.get(name)
        # A Password is used unchanged: its blanks are not stripped, and its placeholders are not replaced.
        config[name] = Password(value) if key is not None and key.type is Type.PASSWORD else value
    if isinstance(bootstrap_server, FromEnvironment):
        # If a file has credentials, it also names their cluster.
        config.setdefault(_BOOTSTRAP_SERVERS, bootstrap_server)
    elif bootstrap_server is not None:
        config[_BOOTSTRAP_SERVERS] = bootstrap_server
    config.setdefault(_BOOTSTRAP_SERVERS, DEFAULT_BOOTSTRAP_SERVER)
    return config
