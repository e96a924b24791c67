"""The API reference has every public name, and each docstring is valid on a page."""

from __future__ import annotations

import inspect
import runpy
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import aioproducer
from aioproducer import admin, consumer, deserializers, errors, hooks, partitioner, serializers, spark, testing
from aioproducer.error_codes import CODES
from aioproducer.testing import simulation
from tests.docs.blocks import ROOT
from tests.docs.site import Page

# Modules without an underscore because others of the package use them; no page lists them.
INTERNAL = {
    "Producer": {"append_column", "config", "hurrying"},
    "ThreadsafeProducer": {"disown_after_fork", "refuse"},
    "Transaction": {"set_outcome"},
    "EmbeddedCluster": {"broker_cluster"},
    "Delivery": {"set_exception", "set_result"},
    "ProducerConfig": {"originals", "sasl_credentials", "unused", "uses_sasl", "uses_tls"},
    "KafkaError": {"args", "add_note", "fresh", "of_record", "with_traceback"},
    "Simulation": {
        *("add_killed", "disk_of", "is_in_sync", "lose_power", "play", "replicas", "set_failure", "start_later"),
        "wall_ms",
    },
    "Process": {"end"},
    "aioproducer.admin": {"make_client", "partition_count"},
    "aioproducer.deserializers": {"ResolvedDeserializer"},
    "aioproducer.hooks": {"Hooks"},
    "aioproducer.serializers": {"ResolvedSerializer"},
    "aioproducer.partitioner": {"PartitionLoad", "StickyPartitioner", "check_partition", "resolve_partitioner"},
}


@pytest.fixture(scope="module")
def anchors(site: Path) -> set[str]:
    return {anchor for path in (site / "reference").glob("*.html") for anchor in Page(path).anchors}


def _defined_in(module: ModuleType) -> set[str]:
    """Return the public classes and functions that a module without ``__all__`` defines."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    } - INTERNAL[module.__name__]


@pytest.mark.parametrize(
    "module", [aioproducer, consumer, spark, testing, simulation], ids=lambda module: module.__name__
)
def test_every_exported_name_has_an_entry(module: ModuleType, anchors: set[str], site: Path) -> None:
    table = (site / "reference" / "errors.html").read_text()
    for name in module.__all__:
        assert f"{module.__name__}.{name}" in anchors or f"<code>{_broken(name)}</code>" in table, name


@pytest.mark.parametrize(
    "module", [admin, deserializers, hooks, partitioner, serializers], ids=lambda module: module.__name__
)
def test_every_public_definition_has_an_entry(module: ModuleType, anchors: set[str]) -> None:
    defined = _defined_in(module)
    assert defined
    assert {f"{module.__name__}.{name}" for name in defined} <= anchors


@pytest.mark.parametrize(
    "place",
    [
        "aioproducer.Producer",
        "aioproducer._client.threadsafe.ThreadsafeProducer",
        "aioproducer.Transaction",
        "aioproducer.TransactionPool",
        "aioproducer.Delivery",
        "aioproducer.Record",
        "aioproducer.RecordMetadata",
        "aioproducer.errors.KafkaError",
        "aioproducer.interceptors.ProducerInterceptor",
        "aioproducer.admin.Admin",
        "aioproducer.consumer.Consumer",
        "aioproducer.consumer.Reader",
        "aioproducer.testing.EmbeddedClusterThread",
        "aioproducer.testing.EmbeddedCluster",
        "aioproducer.testing.simulation.Process",
        "aioproducer.testing.simulation.Simulation",
        "aioproducer.spark.ExecutorProducer",
    ],
)
def test_every_public_attribute_has_an_entry(place: str, anchors: set[str]) -> None:
    module, _, class_name = place.rpartition(".")
    found = getattr(import_module(module), class_name)
    names = {name for name in dir(found) if not name.startswith("_")}
    assert names - INTERNAL.get(class_name, set())
    assert {f"{place}.{name}" for name in names - INTERNAL.get(class_name, set())} <= anchors


def test_every_error_class_is_in_a_table(site: Path) -> None:
    text = (site / "reference" / "errors.html").read_text()
    classes = {name for _, name, _ in CODES.values()}
    classes |= {
        name for name, one in vars(errors).items() if inspect.isclass(one) and issubclass(one, errors.KafkaError)
    }
    missing = {name for name in classes if f"<code>{_broken(name)}</code>" not in text}
    assert missing == {"AuthenticationError", "AuthorizationError", "BrokerError"}
    assert ">BrokerError<" in text


def _broken(name: str) -> str:
    """Return a class's name as in a table: with possible line breaks between its words."""
    breaks = runpy.run_path(str(ROOT / "website" / "hooks.py"))["_BREAK"]
    return str(breaks.sub("<wbr>", name))


def test_restructured_text_of_docstrings_becomes_markdown() -> None:
    markdown = runpy.run_path(str(ROOT / "website" / "docstrings.py"))["markdown"]
    text = "First.\n\n::\n\n    code()\n\nThen::\n\n    more()\n\n"
    text += "rows\n    Of the\n    table.\nleft, right\n    Ends.\n\nRaises:\n    A: b"
    assert markdown(text) == (
        "First.\n\n\n\n    code()\n\nThen:\n\n    more()\n\nAttributes:\n    rows: Of the\n        table.\n"
        "    left: Ends.\n    right: Ends.\n\nRaises:\n    A: b"
    )
    plain = "Return ``a::b``.\n\nArgs:\n    one: the first."
    assert markdown(plain) == plain


def test_pages_of_the_reference_show_no_restructured_text(site: Path) -> None:
    pages = sorted((site / "reference").glob("*.html"))
    assert len(pages) > 5
    for page in pages:
        text = page.read_text()
        assert "<p>::</p>" not in text, page.name
        assert ":class:" not in text, page.name
        assert "docs/" not in text.partition("<article")[2].partition("</article>")[0], page.name
