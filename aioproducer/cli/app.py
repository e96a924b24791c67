"""The group of all commands, and the conversion of an exception to one line and an exit code."""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

import click

from aioproducer import __version__
from aioproducer.cli.exits import EXPLANATION, FAILED, SIGNALLED, SUCCEEDED, USAGE, CommandError, CommandUsageError
from aioproducer.errors import ConfigurationError, KafkaError

# The module of each command; it is imported only when called, so that every call starts quickly.
_COMMANDS = {
    "broker": "aioproducer.cli.broker",
    "config": "aioproducer.cli.config",
    "consume": "aioproducer.cli.consume",
    "doctor": "aioproducer.cli.doctor",
    "groups": "aioproducer.cli.groups",
    "perf": "aioproducer.cli.perf",
    "produce": "aioproducer.cli.produce",
    "rdma-gateway": "aioproducer.cli.rdma_gateway",
    "topics": "aioproducer.cli.topics",
    "spark-sink": "aioproducer.cli.spark_sink",
    "transactions": "aioproducer.cli.transactions",
}


class Commands(click.Group):
    """The commands, each imported on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = _COMMANDS.get(cmd_name)
        if module is None:
            return None
        command = getattr(import_module(module), "command")  # noqa: B009  # of a module known only by name
        assert isinstance(command, click.Command)
        return command


@click.command(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=EXPLANATION,
)
@click.version_option(__version__, prog_name="aioproducer")
def app() -> None:
    """Produce to and read from Apache Kafka, and run an embedded broker.

    \b
    A first try, in two terminals:
      aioproducer broker
      echo hello | aioproducer produce greetings --create && aioproducer consume greetings
    """


def run_command(arguments: Sequence[str]) -> int:
    """Run a command; an exception that ends it becomes one line on stderr and an exit code."""
    # Until an option enables logging, only the command itself reports the library's problems.
    library = logging.getLogger("aioproducer")
    library.addHandler(logging.NullHandler())
    library.propagate = False
    _keep_standard_descriptors()
    command = "aioproducer"
    state = {"debug": False}
    try:
        try:
            with app.make_context("aioproducer", list(arguments), obj=state) as context:
                code = app.invoke(context)
                sys.stdout.flush()
                return code if isinstance(code, int) else SUCCEEDED
        except Exception:
            if state["debug"]:
                traceback.print_exc()
            raise
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return USAGE
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.UsageError as error:
        path = command if error.ctx is None else error.ctx.command_path
        return _say(path, f"{error.format_message()} Try '{path} --help'.", USAGE)
    except (CommandUsageError, ConfigurationError) as error:
        return _say(command, str(error), USAGE)
    except (CommandError, KafkaError) as error:
        return _say(command, str(error), FAILED)
    except BrokenPipeError:
        return _output_closed()
    except KeyboardInterrupt:
        return SIGNALLED + signal.SIGINT
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        return _say(command, f"{where}{error.strerror or error}", FAILED)
    except Exception as error:
        return _say(command, f"internal error: {error!r}. Run with --debug for a traceback, and report it.", FAILED)


def _keep_standard_descriptors() -> None:
    """Reserve the numbers of stdin, stdout and stderr if they are closed, so that no file of a command gets them.

    Messages are then discarded. Writing records there is an error, because the descriptor is read-only.
    """
    while (descriptor := os.open(os.devnull, os.O_RDONLY)) <= 2:
        pass
    os.close(descriptor)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # open until the process ends


def _say(command: str, text: str, code: int) -> int:
    try:
        print(f"{command}: {' '.join(text.split())}", file=sys.stderr, flush=True)
    except BrokenPipeError:
        _silence(sys.stderr.fileno())
    return code


def _output_closed() -> int:
    """Print nothing, as ``cat`` when ``head`` has ended, and return the exit code of an end by SIGPIPE."""
    _silence(sys.stdout.fileno())
    return SIGNALLED + signal.SIGPIPE


def _silence(descriptor: int) -> None:
    """Discard what Python flushes at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
