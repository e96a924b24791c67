"""``aioproducer doctor``: this machine, the steps to a cluster, and the lines of failed checks."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import trustme

from aioproducer import __version__
from aioproducer._build import COMPILED_MODULES
from aioproducer.broker import BrokerCluster
from aioproducer.cli import local_checks
from aioproducer.cli.broker_checks import ClockSample, clock_check, features, leader_time
from aioproducer.cli.checks import Check, Status
from aioproducer.cli.exits import FAILED, SUCCEEDED, USAGE
from aioproducer.errors import KafkaError, KafkaTimeoutError
from aioproducer.io.client import BrokerClient
from aioproducer.protocol.messages import ApiVersionsResponse, DescribeQuorumResponse
from aioproducer.protocol.messages.api_versions import FinalizedFeatureKey
from aioproducer.protocol.messages.quorum import PartitionData, ReplicaState, TopicData

SECRET = "made-up-secret-7f"
TIMEOUT = ("--timeout", "20")
SOON = ("--timeout", "0.3")


def section(text: str, title: str) -> dict[str, str]:
    """Return the lines of a section by the names of their checks; of several with one name the last."""
    lines = text.split(f"{title}\n", 1)[1].split("\n\n", 1)[0].splitlines()
    pairs = (line.strip().split("  ", 1) for line in lines)
    return {name: rest.strip() for name, rest in pairs}


@contextmanager
def loop_in_a_thread() -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    """Yield a function that runs a coroutine on a loop in another thread: the command has a loop in this one."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls_port(authority: trustme.CA) -> Iterator[int]:
    """A TLS listener that ends each connection at its first request."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    async def start() -> asyncio.Server:
        return await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)

    async def stop(server: asyncio.Server) -> None:
        server.close()
        await server.wait_closed()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    with loop_in_a_thread() as run:
        server = run(start())
        yield server.sockets[0].getsockname()[1]
        run(stop(server))


class TestThisMachine:
    def test_the_report_has_versions_build_codecs_and_loop(self, call):
        ended = call("doctor", "--local")
        assert (ended.code, ended.err) == (SUCCEEDED, "")
        assert section(ended.out, "versions")["aioproducer"] == __version__
        assert section(ended.out, "versions")["Python"].startswith(".".join(map(str, sys.version_info[:3])))
        assert section(ended.out, "build").keys() >= {"folder", "modules"}
        codecs = section(ended.out, "codecs")
        assert codecs.keys() == {"gzip", "snappy", "lz4", "zstd"}
        assert all(line.endswith("and back") for line in codecs.values())
        assert "UnixSelectorEventLoop" in section(ended.out, "event loop")["default"]
        assert ended.out.endswith("\nAll checks passed.\n")

    def test_scripts_get_one_json_object(self, call):
        ended = call("doctor", "--local", "--json")
        report = json.loads(ended.out)
        assert (ended.code, report["ok"]) == (SUCCEEDED, True)
        assert report["sections"]["versions"][0] == {"name": "aioproducer", "status": "ok", "text": __version__}
        assert {check["status"] for checks in report["sections"].values() for check in checks} <= {
            status.value for status in Status
        }

    def test_a_codec_without_its_library_fails_and_names_the_package(self, call, monkeypatch):
        monkeypatch.setitem(sys.modules, "lz4.frame", None)
        monkeypatch.setitem(sys.modules, "lz4", None)
        ended = call("doctor", "--local")
        assert ended.code == FAILED
        assert "pip install lz4" in section(ended.out, "codecs")["lz4"]
        assert "1 check failed: codecs: lz4." in ended.out

    def test_a_codec_that_returns_other_bytes_fails(self, call, monkeypatch):
        monkeypatch.setattr("aioproducer.compression.gzip.GzipCodec.decompress", lambda *_: b"other")
        assert "returns other bytes than it was given" in section(call("doctor", "--local").out, "codecs")["gzip"]

    def test_packages_are_compared_with_what_is_installed(self):
        requirements = [
            "lz4>=4.3",
            "zstandard>=0.22",
            'click>=8.2; extra == "cli"',
            'rich>=13; extra == "cli"',
            'pyarrow>=16; extra == "arrow"',
            'aioproducer[cli,uvloop]; extra == "demo"',
            'ruff>=0.8; extra == "lint"',
        ]
        found = local_checks.packages(requirements, {"lz4": "4.4", "click": "8.3"}.get)
        assert found == [
            Check.ok("lz4", "4.4 (needs >=4.3)"),
            Check.failed("zstandard", "not installed, needs >=0.22: pip install 'zstandard>=0.22'"),
            Check.ok("[arrow]", "not installed"),
            Check.note(
                "[cli]",
                "click 8.3 (needs >=8.2), rich not installed (needs >=13): "
                "pip install 'aioproducer[cli]' for all of it",
            ),
        ]

    def test_a_package_that_is_not_installed_has_no_list_of_dependencies(self):
        (check,) = local_checks.packages(None, lambda name: None)
        assert (check.status, "pip install aioproducer" in check.text) == (Status.NOTE, True)

    def test_every_requirement_of_the_project_is_understood(self):
        assert not [check for check in local_checks.installed_packages() if check.status is Status.FAILED]

    @pytest.mark.parametrize(
        ("compiled", "pure", "status", "text"),
        [
            (3, False, Status.OK, "compiled, all 3"),
            (2, False, Status.FAILED, "2 of 3 modules are compiled"),
            (0, True, Status.NOTE, "uncompiled, because AIOPRODUCER_PURE is set"),
            (0, False, Status.NOTE, "uncompiled"),
        ],
    )
    def test_the_kind_of_build_is_named(self, compiled, pure, status, text, tmp_path, monkeypatch):
        monkeypatch.setenv("AIOPRODUCER_PURE", "1" if pure else "0")
        check = local_checks.build_checks(tmp_path, compiled, 3)[0]
        assert (check.status, text in check.text) == (status, True)

    def test_a_profile_guided_build_is_one_library(self, tmp_path):
        assert local_checks.build_checks(tmp_path, 3, 3)[1] == Check.ok("profile-guided", "no")
        (tmp_path / "libaioproducer-cpython-311.so").touch()
        assert local_checks.build_checks(tmp_path, 3, 3)[1] == Check.ok("profile-guided", "yes")

    def test_the_running_build_is_of_one_kind(self):
        assert not [check for check in local_checks.build() if check.status is Status.FAILED]
        assert len(COMPILED_MODULES) > 40


class TestCluster:
    def test_a_cluster_that_works_passes_every_check(self, call, cluster):
        ended = call("doctor", *TIMEOUT)
        assert (ended.code, ended.err) == (SUCCEEDED, "")
        address = cluster.bootstrap_servers
        steps = section(ended.out, f"bootstrap {address}")
        assert list(steps) == ["name", "TCP", "first request", "ApiVersions"]
        assert steps["name"] == "127.0.0.1"
        found = section(ended.out, "cluster")
        assert found["brokers"] == "1"
        assert found["broker 1"].startswith(f"advertised as {address}, round trip ")
        assert found["clock"].startswith("unknown: the brokers do not support DescribeQuorum")

    def test_nothing_is_created_in_the_cluster(self, call, cluster):
        before = cluster.topics()
        assert call("doctor", *TIMEOUT).code == SUCCEEDED
        assert cluster.topics() == before

    def test_a_closed_port_fails_at_once(self, call, closed_port):
        ended = call("doctor", "-b", f"127.0.0.1:{closed_port}", *TIMEOUT)
        assert ended.code == FAILED
        assert section(ended.out, f"bootstrap 127.0.0.1:{closed_port}")["TCP"] == (
            f"FAILED: Nothing listens at 127.0.0.1:{closed_port} (connection refused). Check that the broker runs and "
            "that bootstrap_servers names its host and port."
        )
        assert section(ended.out, "cluster") == {"metadata": "unknown: no bootstrap address works: see above"}

    def test_a_silent_port_fails_within_the_timeout(self, call, silent_port):
        ended = call("doctor", "-b", f"127.0.0.1:{silent_port}", *SOON)
        assert ended.code == FAILED
        steps = section(ended.out, f"bootstrap 127.0.0.1:{silent_port}")
        assert list(steps) == ["name", "TCP", "first request"]
        assert steps["first request"] == (
            "FAILED: No broker answered within 0.3 s. Check that this is the port of a Kafka listener, and the "
            "broker's log."
        )

    def test_a_host_name_that_does_not_exist_fails_the_check_of_the_name(self, call, monkeypatch):
        async def resolve(*_):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        monkeypatch.setattr("aioproducer.transport.stream.StreamConnector.resolve", resolve)
        ended = call("doctor", "-b", "kafka.example:9092", *TIMEOUT)
        assert (ended.code, section(ended.out, "bootstrap kafka.example:9092")) == (
            FAILED,
            {
                "name": "FAILED: The host name 'kafka.example' could not be resolved (Name or service not known): "
                "check its spelling and this machine's DNS."
            },
        )

    def test_a_resolver_that_does_not_answer_ends_with_the_timeout(self, call, monkeypatch):
        async def resolve(*_):
            await asyncio.Event().wait()

        monkeypatch.setattr("aioproducer.transport.stream.StreamConnector.resolve", resolve)
        ended = call("doctor", "-b", "kafka.example:9092", *SOON)
        name = section(ended.out, "bootstrap kafka.example:9092")["name"]
        assert (ended.code, name.startswith("FAILED: kafka.example:9092 did not answer within 0.3 s")) == (FAILED, True)

    def test_an_address_of_a_name_that_refuses_is_a_note_if_another_accepts(self, call, cluster, monkeypatch):
        async def resolve(*_):
            return ["127.0.0.2", "127.0.0.1"]

        monkeypatch.setattr("aioproducer.transport.stream.StreamConnector.resolve", resolve)
        port = cluster.bootstrap_servers.rpartition(":")[2]
        ended = call("doctor", "-b", f"kafka.example:{port}", "--json", *TIMEOUT)
        checks = json.loads(ended.out)["sections"][f"bootstrap kafka.example:{port}"]
        assert [(check["name"], check["status"]) for check in checks][:3] == [
            ("name", "ok"),
            ("TCP", "note"),
            ("TCP", "ok"),
        ]

    def test_each_bootstrap_address_is_checked_and_one_that_works_leads_to_the_cluster(
        self, call, cluster, closed_port
    ):
        ended = call("doctor", "-b", f"127.0.0.1:{closed_port},{cluster.bootstrap_servers}", "--json", *TIMEOUT)
        report = json.loads(ended.out)["sections"]
        assert ended.code == FAILED
        assert [check["status"] for check in report[f"bootstrap 127.0.0.1:{closed_port}"]] == ["ok", "failed"]
        assert {check["status"] for check in report[f"bootstrap {cluster.bootstrap_servers}"]} == {"ok"}
        assert "failed" not in {check["status"] for check in report["cluster"]}

    def test_a_client_with_tls_at_a_listener_without_fails_the_check_of_tls(self, call, cluster):
        ended = call("doctor", "-X", "security.protocol=SSL", *TIMEOUT)
        steps = section(ended.out, f"bootstrap {cluster.bootstrap_servers}")
        assert (ended.code, list(steps)) == (FAILED, ["name", "TCP", "TLS"])
        assert "or a security_protocol without TLS" in steps["TLS"]

    def test_a_client_without_tls_at_a_listener_with_it_fails_the_first_request(self, call, tls_port):
        ended = call("doctor", "-b", f"127.0.0.1:{tls_port}", *TIMEOUT)
        steps = section(ended.out, f"bootstrap 127.0.0.1:{tls_port}")
        assert (ended.code, list(steps)) == (FAILED, ["name", "TCP", "first request"])
        assert "TLS" in steps["first request"]

    def test_an_untrusted_certificate_fails_the_check_of_tls(self, call, tls_port):
        ended = call("doctor", "-b", f"localhost:{tls_port}", "-X", "security.protocol=SSL", *TIMEOUT)
        tls = section(ended.out, f"bootstrap localhost:{tls_port}")["TLS"]
        assert (ended.code, tls.startswith("FAILED: The certificate of localhost:")) == (FAILED, True)

    def test_a_trusted_certificate_passes_the_check_of_tls(self, call, tls_port, authority, tmp_path):
        file = tmp_path / "authority.pem"
        authority.cert_pem.write_to_path(str(file))
        ended = call(
            *("doctor", "-b", f"localhost:{tls_port}", *TIMEOUT, "-X", "security.protocol=SSL"),
            *("-X", f"ssl.truststore.location={file}", "-X", "ssl.truststore.type=PEM"),
        )
        steps = section(ended.out, f"bootstrap localhost:{tls_port}")
        assert steps["TLS"].startswith("connection and handshake in ")
        assert steps["first request"].startswith("FAILED: ")

    def test_a_login_at_a_listener_without_one_shows_no_secret(self, call, cluster):
        login = ("-X", "security.protocol=SASL_PLAINTEXT", "-X", "sasl.mechanism=PLAIN")
        login += ("-X", "sasl.username=anna", "-X", f"sasl.password={SECRET}")
        for format_ in ((), ("--json",)):
            ended = call("doctor", *login, *format_, *TIMEOUT)
            assert ended.code == FAILED
            assert "does not use SASL" in ended.out
            assert SECRET not in ended.out + ended.err
        assert "anna" not in section(call("doctor", *login, *TIMEOUT).out, "configuration")["given keys"]

    def test_an_unreachable_advertised_address_fails_the_check_of_its_broker(self, call):
        with ExitStack() as stack:
            run = stack.enter_context(loop_in_a_thread())
            # It listens only at 127.0.0.1.
            cluster = BrokerCluster(1, host="127.0.0.1", advertised_host="127.0.0.2")
            run(cluster.start())
            stack.callback(lambda: run(cluster.stop()))
            port = cluster.bootstrap_servers.rpartition(":")[2]
            ended = call("doctor", "-b", f"127.0.0.1:{port}", *TIMEOUT)
        assert ended.code == FAILED
        assert "FAILED" not in str(section(ended.out, f"bootstrap 127.0.0.1:{port}"))
        broker = section(ended.out, "cluster")["broker 1"]
        assert broker.startswith(f"FAILED: advertised as 127.0.0.2:{port}. Nothing listens at 127.0.0.2:{port}")
        assert "advertised.listeners" in broker

    def test_a_broker_that_does_not_answer_at_its_advertised_address_fails_its_check(self, call, cluster, monkeypatch):
        """The bootstrap address answers, but no broker does at the addresses in the metadata."""
        request = BrokerClient.request

        async def only_bootstrap(self, sent, *, node_id=None, timeout, **options):
            if node_id == 1:
                raise KafkaTimeoutError(f"No broker answered within {timeout:.3g} s.")
            return await request(self, sent, node_id=node_id, timeout=timeout, **options)

        monkeypatch.setattr(BrokerClient, "request", only_bootstrap)
        ended = call("doctor", *TIMEOUT)
        assert (ended.code, section(ended.out, "cluster")["broker 1"]) == (
            FAILED,
            f"FAILED: advertised as {cluster.bootstrap_servers}. No broker answered within 20 s. Check "
            "advertised.listeners of that broker, routes and firewalls, and its log.",
        )

    def test_a_wrong_configuration_is_a_failed_check_after_those_of_this_machine(self, call):
        ended = call("doctor", "-X", "linger.ms=five")
        assert (ended.code, ended.err) == (FAILED, "")
        assert section(ended.out, "configuration")["keys"].startswith("FAILED: linger.ms must be a whole number")
        assert "codecs\n" in ended.out

    def test_a_file_that_is_missing_is_a_failed_check(self, call):
        ended = call("doctor", "-X", "security.protocol=SSL", "-X", "ssl.truststore.location=/no/such.pem")
        assert ended.code == FAILED
        assert "/no/such.pem" in section(ended.out, "configuration")["keys"]

    def test_warnings_about_the_configuration_are_shown(self, call):
        ended = call("doctor", "-X", "sasl.username=anna", *TIMEOUT)
        assert ended.code == SUCCEEDED
        assert "these keys have no effect: sasl.username" in section(ended.out, "configuration")["warning"]

    def test_wrong_options_are_wrong_usage(self, call):
        assert call("doctor", "-X", "linger.ms").code == USAGE
        assert call("doctor", "--timeout", "0").code == USAGE


class TestClock:
    def test_the_offset_is_exact_to_half_of_the_round_trip(self):
        sample = ClockSample(sent=100.0, remote=105.0, received=102.0)
        assert (sample.offset, sample.uncertainty) == (4.0, 1.0)

    def test_the_shortest_round_trip_decides(self):
        samples = [ClockSample(100, 140, 110), ClockSample(120.0, 122.0, 120.2), ClockSample(130, 190, 150)]
        assert clock_check(samples) == Check.ok("clock", "the controller is 1.901 s ahead of this machine, ± 0.101 s")

    def test_a_clock_behind_is_reported_as_behind(self):
        assert "1.000 s behind this machine" in clock_check([ClockSample(101, 100, 101)]).text

    @pytest.mark.parametrize(
        ("remote", "status"), [(29.0, Status.OK), (31.9, Status.OK), (32.1, Status.FAILED), (-40, Status.FAILED)]
    )
    def test_only_a_difference_that_is_certainly_too_large_fails(self, remote, status):
        check = clock_check([ClockSample(sent=0.0, remote=remote, received=2.0)])
        assert check.status is status
        assert ("NTP" in check.text) == (status is Status.FAILED)

    def response(self, leader: int, *replicas: ReplicaState, **fields: object) -> DescribeQuorumResponse:
        partition = PartitionData(leader_id=leader, current_voters=list(replicas), **fields)
        return DescribeQuorumResponse(topics=[TopicData(topic_name="__cluster_metadata", partitions=[partition])])

    def test_the_time_is_that_of_the_leader(self):
        follower = ReplicaState(replica_id=1, last_caught_up_timestamp=1_000)
        leader = ReplicaState(replica_id=2, last_caught_up_timestamp=1_700_000_000_500)
        assert leader_time(self.response(2, follower, leader)) == 1_700_000_000.5
        assert leader_time(self.response(3, follower, leader)) is None
        # Version 0 has no times.
        assert leader_time(self.response(2, ReplicaState(replica_id=2))) is None

    def test_an_error_of_the_response_is_raised(self):
        with pytest.raises(KafkaError):
            leader_time(DescribeQuorumResponse(error_code=31))
        with pytest.raises(KafkaError):
            leader_time(self.response(-1, error_code=6))


def test_features_are_those_that_the_cluster_has_finalized() -> None:
    levels = [FinalizedFeatureKey(name=name, max_version_level=level) for name, level in (("b", 2), ("a", 27))]
    known = ApiVersionsResponse(finalized_features_epoch=4, finalized_features=levels)
    assert features(known) == Check.ok("features", "a 27, b 2")
    assert features(ApiVersionsResponse()).status is Status.UNKNOWN


def test_a_broker_cannot_forge_lines() -> None:
    assert Check.failed("x", "a\nb  c").line(3) == "  x    FAILED: a b c"
