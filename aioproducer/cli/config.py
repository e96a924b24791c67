"""``aioproducer config``: the table of keys."""

from __future__ import annotations

import sys

import click

from aioproducer._common.diagnosis import nearest
from aioproducer.cli.exits import EXPLANATION, SUCCEEDED, CommandError
from aioproducer.cli.options import diagnosis_options
from aioproducer.cli.output import print_json, print_table
from aioproducer.config.definition import NO_DEFAULT, ConfigKey
from aioproducer.config.producer import CONFIG_DEF


def _default(key: ConfigKey) -> object:
    if key.default is NO_DEFAULT:
        return None
    return list(key.default) if isinstance(key.default, tuple) else key.default


def as_mapping(key: ConfigKey) -> dict[str, object]:
    """Return a key for the JSON output."""
    return {
        "name": key.name,
        "type": key.type.value,
        "required": key.default is NO_DEFAULT,
        "default": _default(key),
        "valid": key.validator.description if key.validator is not None else "",
        "importance": key.importance.value,
        "status": key.status.value,
        "doc": f"{key.doc} {key.reason}".strip(),
    }


def _shown(key: ConfigKey) -> str:
    if key.default is NO_DEFAULT:
        return "(required)"
    value = _default(key)
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)


@click.command("config", epilog=EXPLANATION)
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array with one object a key.")
@diagnosis_options
def command(name: str | None, as_json: bool) -> int:
    """Show the configuration keys with NAME in their name, or all of them.

    \b
    Examples:
      aioproducer config compression
      aioproducer config --json | jq -r '.[].name'
    """
    wanted = (name or "").replace("_", ".").lower()
    keys = [key for key in CONFIG_DEF.keys.values() if wanted in key.name]
    if not keys:
        hint = nearest(wanted, list(CONFIG_DEF.keys))
        raise CommandError(f"no key has {name!r} in its name{f': {hint}' if hint else ''}")
    if as_json:
        print_json([as_mapping(key) for key in keys])
    elif len(keys) == 1:
        for title, value in as_mapping(keys[0]).items():
            if value not in (None, ""):
                print(f"{title}: {str(value).lower() if isinstance(value, bool) else value}")
    else:
        print_table(
            ["key", "default", "meaning"],
            [
                (key.name, _shown(key), f"{key.doc} {key.reason}".strip() if sys.stdout.isatty() else key.doc)
                for key in keys
            ],
        )
    return SUCCEEDED
