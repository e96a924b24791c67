"""An embedded cluster in a process of its own.

    python tests/kafka/embedded_process.py --data FOLDER --ports 19092 19093 --property min.insync.replicas=2

Prints ``process PID`` and ``ready HOST:PORT,...`` when every node listens, and ends gracefully on SIGTERM and SIGINT.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from aioproducer.broker import BrokerCluster


async def serve(nodes: int, ports: Sequence[int] | None, data_dir: Path | None, properties: Mapping[str, str]) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with BrokerCluster(nodes, ports=ports, data_dir=data_dir, properties=properties) as cluster:
        print(f"process {os.getpid()}")
        print(f"ready {cluster.bootstrap_servers}", flush=True)
        await stopped.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--ports", type=int, nargs="+", help="one for each node; free ones if not given")
    parser.add_argument("--data", type=Path, help="where the nodes keep their logs; in memory if not given")
    parser.add_argument("--property", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    properties = dict(setting.split("=", 1) for setting in arguments.property)
    asyncio.run(serve(arguments.nodes, arguments.ports, arguments.data, properties))


if __name__ == "__main__":
    main()
