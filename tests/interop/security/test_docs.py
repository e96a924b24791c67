"""docs/security.md: each block runs unchanged, against a listener of its kind, and its record arrives.

Replaced are the addresses, the URLs of token endpoints, the id and HMAC of a delegation token, and the folders of
files. Authorities of services in the cloud are trusted by ``SSL_CERT_FILE``, as the system's.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import re
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from aioproducer import Producer, errors, metrics
from aioproducer.config import CONFIG_DEF, ProducerConfig
from aioproducer.config.other_clients import OTHER_NAMES
from aioproducer.gateway import AddressMap, Gateway
from aioproducer.protocol.messages.sasl import SaslAuthenticateResponse
from aioproducer.security import context_source_from
from aioproducer.security.sasl.oauthbearer import BearerToken
from aioproducer.transport.listening import StreamListener
from aioproducer.transport.stream import StreamConnector
from tests.docs.blocks import ROOT, Block, BlockError, Page, blocks_of
from tests.docs.spark_session import Session
from tests.interop.security.aws import UNSET, check_token, environment
from tests.interop.security.provider_files import DOCUMENTED, read_credentials
from tests.kafka.sasl_listener import Received, SaslListener, accepted
from tests.kafka.security import SASL_TLS, SecureCluster, properties_value
from tests.kafka.token_server import TokenServer
from tests.security.authority import Authority

DOCUMENT = ROOT / "docs" / "security.md"
TEXT = DOCUMENT.read_text(encoding="utf-8")
TOPIC = "orders"
CODE = {"python", "sh", "properties"}
SHOWN = {"text", "yaml"}
AWS_REGION = "eu-west-1"

# Ports of the document's hosts, and the listeners of tests/kafka that replace them.
LISTENERS = {
    "kafka.example.com:9093": "SSL",
    "kafka.example.com:9094": "MUTUAL",
    "kafka.example.com:9095": SASL_TLS,
    "pkc-1a2b3.eu-central-1.aws.confluent.cloud:9092": SASL_TLS,
    "b-1.shop.1a2b3c.c2.kafka.eu-west-1.amazonaws.com:9096": SASL_TLS,
    "made-up.servicebus.windows.net:9093": SASL_TLS,
    "kafka-made-up-project.aivencloud.com:12345": SASL_TLS,
    "kafka-made-up-project.aivencloud.com:12346": "MUTUAL",
}
# Ports of Amazon's listener, which is not Apache Kafka.
IAM_PORT = ":9098"
IAM_HOST = re.compile(r"[\w.-]+\.amazonaws\.com:9098")
TOKEN_URL = re.compile(r"https://login\.(?:example\.com/oauth2/token|microsoftonline\.com/TENANT/oauth2/v2\.0/token)")
# Other texts of the table: an OAuth server's error code.
FROM_ELSEWHERE = {"invalid_client"}
REGISTERED = "from aioproducer.spark import register\n\nregister(spark)\n"
ABSOLUTE = re.compile(r"(?<![\w.])/(?=(?:etc|run|var)/)")


def _by_section() -> dict[str, list[Block]]:
    """Return the blocks below each heading of the second level."""
    starts = [(number, line) for number, line in enumerate(TEXT.splitlines(), 1) if line.startswith("## ")]
    found: dict[str, list[Block]] = {}
    for block in blocks_of(DOCUMENT):
        _, heading = max(start for start in starts if start[0] < block.line)
        found.setdefault(heading.removeprefix("## "), []).append(block)
    return found


SECTIONS = {
    heading: blocks for heading, blocks in _by_section().items() if any(block.language in CODE for block in blocks)
}


@pytest.fixture(scope="module")
def replaced(secure: SecureCluster, tokens: TokenServer) -> dict[str, str]:
    """Replacements of the document's values; creates users that are created while the broker runs, and the topic."""
    secure.create_topic(TOPIC)
    secure.set_scram_password(DOCUMENTED.name, "SCRAM-SHA-512", DOCUMENTED.password)
    for file, mechanism in {"aiven.properties": "SCRAM-SHA-256", "msk_scram.properties": "SCRAM-SHA-512"}.items():
        user = read_credentials(file)
        secure.set_scram_password(user.name, mechanism, user.password)
    client = read_credentials("confluent_cloud_oauth.properties", "clientId", "clientSecret")
    tokens.clients[client.name] = client.password
    delegated = secure.delegation_token()
    addresses = {address: secure.listener_bootstrap_servers(name) for address, name in LISTENERS.items()}
    return {**addresses, "MADEUPTOKENID": delegated.id, "bWFkZSB1cCBobWFj": delegated.hmac}


@pytest.fixture
def folder(secure: SecureCluster, tokens: TokenServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the document names; those of absolute paths are below it."""
    certificates = secure.certificates
    assert certificates is not None
    files = {
        "etc/kafka-tls/ca.crt": certificates.authority.read_bytes(),
        "etc/kafka-tls/tls-combined.pem": certificates.client_keystore.read_bytes(),
        "etc/kafka-tls/tls.crt": certificates.client_certificate.read_bytes(),
        "etc/kafka-tls/tls.key": certificates.client_key.read_bytes(),
        "etc/kafka-oauth/key.pem": tokens.assertion_key.pem,
        "etc/kafka/secrets.properties": f"password={properties_value(DOCUMENTED.password)}\n".encode(),
        "run/secrets/kafka-password": f"{DOCUMENTED.password}\n".encode(),
        "run/sidecar/token.json": json.dumps(
            {"access_token": tokens.token(), "expires_at": time.time() + tokens.lifetime}
        ).encode(),
        "var/run/secrets/kafka/token": tokens.token(sub="system:serviceaccount:orders:writer").encode(),
        "ca.pem": certificates.authority.read_bytes(),
        "service.key": certificates.client_key.read_bytes(),
        "service.cert": certificates.client_certificate.read_bytes(),
    }
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    variables = {
        **environment(tmp_path, AWS_REGION),
        "SSL_CERT_FILE": str(certificates.authority),
        "KAFKA_PASSWORD": DOCUMENTED.password,
        "CLIENT_SECRET": tokens.client_secret,
        "CONFLUENT_API_SECRET": read_credentials("confluent_cloud.properties").password,
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for name in UNSET:
        monkeypatch.delenv(name, raising=False)
    # Files without a folder are in the folder of the blocks.
    monkeypatch.chdir(tmp_path)
    return tmp_path


@asynccontextmanager
async def _amazon(secure: SecureCluster) -> AsyncIterator[SaslListener]:
    """A listener like MSK's in front of the broker; a gateway between them advertises the listener's address."""
    certificates = secure.certificates
    assert certificates is not None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.broker)

    async with SaslListener(["OAUTHBEARER"], _check_signature, context) as listener:
        broker = _address(secure.bootstrap_servers)
        address_map = AddressMap({broker: _address(listener.address)})
        async with Gateway(StreamListener(), StreamConnector(), broker, address_map) as gateway:
            await gateway.start("127.0.0.1", 0)
            listener.upstream = f"127.0.0.1:{gateway.port}"
            yield listener


def _check_signature(received: Received) -> SaslAuthenticateResponse:
    check_token(BearerToken.decode(received.message).token, region=AWS_REGION)
    return accepted()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


class Runner:
    """Runs the blocks of one section in order; each one that sends has to store a record."""

    def __init__(self, secure: SecureCluster, folder: Path, replaced: dict[str, str]) -> None:
        self._secure = secure
        self._folder = folder
        self._replaced = replaced
        self._page = Page(folder, secure)

    def close(self) -> None:
        self._page.close()

    async def run(self, blocks: list[Block]) -> None:
        stored = await self._stored()
        for block, following in zip(blocks, [*blocks[1:], None], strict=True):
            if block.language in SHOWN:
                continue
            async with self._adapted(block) as adapted:
                if block.language != "properties":
                    await asyncio.to_thread(self._run, adapted)
                elif not await self._send(adapted, following):
                    continue
            before, stored = stored, await self._stored()
            if stored <= before:
                raise BlockError(f"{block} has stored no record")

    async def _stored(self) -> int:
        partitions = await asyncio.to_thread(self._secure.read_back, TOPIC)
        return sum(map(len, partitions.values()))

    @asynccontextmanager
    async def _adapted(self, block: Block) -> AsyncIterator[Block]:
        text = ABSOLUTE.sub(f"{self._folder}/", TOKEN_URL.sub(self._secure.tokens.token_url, block.text))
        for name, value in self._replaced.items():
            text = text.replace(name, value)
        if IAM_PORT in text:
            async with _amazon(self._secure) as listener:
                yield dataclasses.replace(block, text=IAM_HOST.sub(listener.address, text))
                assert listener.received
        else:
            yield dataclasses.replace(block, text=text)

    def _run(self, block: Block) -> None:
        if "spark." not in block.text:
            # The tool uses the address of the block, not that of the page.
            text = f"unset AIOPRODUCER_BOOTSTRAP_SERVERS\n{block.text}" if block.language == "sh" else block.text
            self._page.run(dataclasses.replace(block, text=text))
            return
        session = Session(self._folder, self._secure.bootstrap_servers)
        try:
            session.run(dataclasses.replace(block, text=f"{REGISTERED}{block.text}"))
        finally:
            session.close()

    async def _send(self, properties: Block, following: Block | None) -> bool:
        """Write a properties file, and send a record with it unless the next block does; return whether it was sent."""
        name = re.match(r"# (\S+\.properties)\n", properties.text)
        assert name is not None, f"{properties} has no name"
        path = self._folder / name[1]
        path.write_text(properties.text)
        if following is not None and following.language != "properties" and name[1] in following.text:
            return False
        async with asyncio.timeout(30), Producer.from_properties(path) as producer:
            await producer.send(TOPIC, b"value")
        return True


@pytest.mark.parametrize("heading", SECTIONS)
@pytest.mark.timeout(300)
def test_each_block_sends(secure: SecureCluster, folder: Path, replaced: dict[str, str], heading: str) -> None:
    runner = Runner(secure, folder, replaced)
    try:
        asyncio.run(runner.run(SECTIONS[heading]))
    finally:
        runner.close()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("print('nothing is sent')\n", "has stored no record"),
        (SECTIONS["TLS"][0].text.replace(":9093", ":9094"), "ended with exit code"),
    ],
    ids=["silent", "refused"],
)
def test_a_block_that_sends_nothing_is_found(
    secure: SecureCluster, folder: Path, replaced: dict[str, str], text: str, error: str
) -> None:
    runner = Runner(secure, folder, replaced)
    # The second one would wait a minute for the cluster.
    text = text.replace('protocol="SSL",', 'protocol="SSL", max_block_ms=1500,')
    try:
        with pytest.raises(BlockError, match=error):
            asyncio.run(runner.run([Block(DOCUMENT, 1, "python", text)]))
    finally:
        runner.close()


def test_every_language_is_run_or_shown() -> None:
    assert {block.language for block in blocks_of(DOCUMENT)} == CODE | SHOWN


def _table(heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading, without its head."""
    _, _, section = TEXT.partition(f"# {heading}\n")
    table = section[section.index("\n|") + 1 :].partition("\n\n")[0]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[2:]]


def _code(cell: str) -> list[str]:
    return re.findall("`([^`]+)`", cell)


def test_errors_have_the_texts_of_the_table() -> None:
    files = (ROOT / "aioproducer").rglob("*.py")
    # The source has texts in pieces of a line each.
    source = "".join(re.sub(r'"\s*\n\s*f?"', "", file.read_text(encoding="utf-8")) for file in files)
    texts = [text for row in _table("The error says") for text in _code(row[0])]
    assert len(texts) > 10
    for text in texts:
        assert text in source or text in FROM_ELSEWHERE, text


def test_metrics_of_the_table_exist() -> None:
    names = {metric.name for metric in metrics.PRODUCER_METRICS}
    rows = [_code(row[0]) for row in _table("Metrics")]
    assert rows
    for first, second in rows:
        assert {first, re.sub("-(total|avg)$", second, first)} <= names


def test_error_classes_of_the_table_exist() -> None:
    found = {name for row in _table("What happens when") for name in _code(row[2])}
    assert len(found) > 4
    for name in found:
        assert issubclass(getattr(errors, name), errors.KafkaError)


def test_other_names_lead_to_those_of_the_table() -> None:
    for aiokafka, confluent, own in _table("Coming from another client"):
        for old in [*_code(aiokafka)[:1], *_code(confluent)[:1]]:
            dotted = old.replace("_", ".")
            if dotted in OTHER_NAMES:
                assert OTHER_NAMES[dotted][0].replace(".", "_") == _code(own)[0], old
            else:
                assert dotted in CONFIG_DEF.keys or old == "ssl_context", old


def test_warnings_of_certificates_are_those_of_the_document(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (block,) = [block for block in blocks_of(DOCUMENT) if block.language == "text"]
    authority = Authority()
    for left in (timedelta(days=6, hours=1), timedelta(hours=-1)):
        path = tmp_path / "tls-combined.pem"
        path.write_bytes(authority.issue("orders", datetime.now(UTC) + left).store)
        config = ProducerConfig.from_mapping(
            {"bootstrap_servers": "a:1", "security_protocol": "SSL", "ssl_keystore_location": str(path)}
        )
        context_source_from(config, 60.0)
    found = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    lines = block.text.splitlines()
    assert len(found) == len(lines) == 2
    for line, message in zip(lines, found, strict=True):
        assert message.startswith("Certificate CN=orders (ssl.keystore.location "), message
        ending = line.partition(" UTC")[2]
        assert ending
        assert message.endswith(ending)
