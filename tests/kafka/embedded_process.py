"""An embedded cluster in its own process.

    python tests/kafka/embedded_process.py --data FOLDER --ports 19092 19093 --property min.insync.replicas=2

Prints ``process PID`` and ``ready HOST:PORT,...`` once every node listens, and ends gracefully on SIGTERM and SIGINT.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from aioproducer.broker import BrokerCluster


async def serve(
    nodes: int,
    ports: Sequence[int] | None,
    data_dir: Path | None,
    properties: Mapping[str, str],
    features: Mapping[str, int],
) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with BrokerCluster(
        nodes, ports=ports, data_dir=data_dir, properties=properties, features=features
    ) as cluster:
        print(f"process {os.getpid()}")
        print(f"ready {cluster.bootstrap_servers}", flush=True)
        await stopped.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--ports", type=int, nargs="+", help="one for each node; free ones if not given")
    parser.add_argument("--data", type=Path, help="where the nodes keep their logs; in memory if not given")
    parser.add_argument("--property", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--feature", action="append", default=[], metavar="NAME=LEVEL")
    arguments = parser.parse_args()
    properties = dict(setting.split("=", 1) for setting in arguments.property)
    features = {name: int(level) for name, level in (setting.split("=", 1) for setting in arguments.feature)}
    asyncio.run(serve(arguments.nodes, arguments.ports, arguments.data, properties, features))


if __name__ == "__main__":
    main()
