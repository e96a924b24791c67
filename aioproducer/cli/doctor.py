"""``aioproducer doctor``: what a bug report needs, and why a cluster cannot be reached."""

from __future__ import annotations

from collections.abc import Sequence

import click

from aioproducer.cli import broker_checks, local_checks
from aioproducer.cli.checks import Check, as_json, failures, section_lines, summary_line
from aioproducer.cli.exits import EXPLANATION, FAILED, SUCCEEDED
from aioproducer.cli.options import ClusterOptions, cluster_options, diagnosis_options
from aioproducer.cli.output import print_json
from aioproducer.cli.running import run_briefly


@click.command("doctor", epilog=EXPLANATION)
@click.option("--local", is_flag=True, help="Check this machine only; contact no broker.")
@click.option("--json", "json_wanted", is_flag=True, help="Print one JSON object.")
@cluster_options
@diagnosis_options
def command(
    local: bool,
    json_wanted: bool,
    cluster: ClusterOptions,
) -> int:
    """Check this installation and the way to a cluster, and print what a bug report needs.

    Versions, build, codecs and event loop; then, for each bootstrap address, its name, TCP, TLS, login and first
    response; then every broker at its advertised address, features, and the clocks. Nothing is written to the cluster,
    and no value of a key is printed. --timeout limits each step. The exit code is 1 if a check failed; its line says
    what to do.

    \b
    Examples:
      aioproducer doctor
      aioproducer doctor --bootstrap-server kafka:9093 --config client.properties --json
    """
    config = cluster.config()

    async def body() -> int:
        sections: dict[str, list[Check]] = {}

        def add(title: str, checks: list[Check]) -> None:
            sections[title] = checks
            if not json_wanted:
                _print_section(title, checks)

        add("versions", local_checks.versions())
        add("packages", local_checks.installed_packages())
        add("build", local_checks.build())
        add("codecs", local_checks.codecs())
        add("event loop", local_checks.event_loop())
        if not local:
            parsed, checks = broker_checks.configuration(config)
            add("configuration", checks)
            if parsed is not None:
                for title, found in (await broker_checks.brokers(config, parsed, cluster.timeout)).items():
                    add(title, found)
        if json_wanted:
            print_json(as_json(sections))
        else:
            print(summary_line(sections))
        return FAILED if failures(sections) else SUCCEEDED

    return run_briefly(body)


def _print_section(title: str, checks: Sequence[Check]) -> None:
    for line in section_lines(title, checks):
        print(line, flush=True)
