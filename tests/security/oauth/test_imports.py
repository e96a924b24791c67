"""Providers import their packages in threads: on the event loop an import would delay every other task."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.security.oauth.identity_provider import identity_provider, jwt, token_response

PROGRAM = """
import asyncio, logging, random, sys, threading
from aioproducer.config import ProducerConfig
from aioproducer.security.login import login_from

PACKAGES = ("httpx", "httpcore", "anyio", "joserfc", "cryptography", "boto3", "botocore", "aws_msk_iam_sasl_signer")
on_loop, in_threads = set(), set()

class Finder:
    def find_spec(self, name, path=None, target=None):
        # A package that is only looked for has no part that is imported.
        package, dot, part = name.partition(".")
        if dot and package in PACKAGES:
            is_on_loop = threading.current_thread() is threading.main_thread()
            (on_loop if is_on_loop else in_threads).add(name)

async def main():
    config = ProducerConfig.from_kwargs(
        bootstrap_servers="b-1.x.kafka.eu-west-1.amazonaws.com:9098", security_protocol="SASL_SSL", **eval(sys.argv[1])
    )
    sys.meta_path.insert(0, Finder())
    login = login_from(config, asyncio.get_running_loop(), random.Random(1), logging.getLogger())
    authenticator = await login.authenticator()
    await login.close()
    print(sorted({name.partition(".")[0] for name in in_threads}))
    print(sorted(on_loop))

asyncio.run(main())
"""

CREDENTIALS = {
    "sasl_oauthbearer_client_credentials_client_id": "client",
    "sasl_oauthbearer_client_credentials_client_secret": "secret",
}


@pytest.mark.parametrize(
    ("kind", "imported"),
    [
        ("client credentials", {"httpx", "httpcore", "anyio"}),
        ("jwt bearer", {"httpx", "joserfc", "cryptography"}),
        ("msk", {"boto3", "botocore"}),
    ],
)
async def test_no_slow_module_is_imported_on_the_loop(kind: str, imported: set[str], tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 2048)
    key_file = tmp_path / "key.pem"
    key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    token = jwt(sub="alice", exp=time.time() + 3600)
    async with identity_provider(token_response(token)) as provider:
        given: dict[str, Any] = {
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauthbearer_token_endpoint_url": provider.url,
            **CREDENTIALS,
        }
        if kind == "jwt bearer":
            given["sasl_oauthbearer_jwt_retriever_class"] = (
                "org.apache.kafka.common.security.oauthbearer.JwtBearerJwtRetriever"
            )
            given["sasl_oauthbearer_assertion_private_key_file"] = str(key_file)
        elif kind == "msk":
            given = {"sasl_mechanism": "AWS_MSK_IAM"}
        environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        environment |= {"AWS_ACCESS_KEY_ID": "AKIDMADEUP", "AWS_SECRET_ACCESS_KEY": "made-up"}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM, repr(given), env=environment, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
    in_threads, on_loop = output.decode().splitlines()
    assert imported <= set(eval(in_threads))
    assert on_loop == "[]"
