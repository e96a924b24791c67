"""How Spark finds the data source without ``register``; that it does, test_source.py shows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from pkgutil import iter_modules

import aioproducer

_ROOT = Path(aioproducer.__file__).parents[1]


def _python(program: str) -> subprocess.CompletedProcess[str]:
    start = f"import sys; sys.path.insert(0, {str(_ROOT)!r}); "
    return subprocess.run(
        [sys.executable, "-c", start + program], capture_output=True, text=True, check=True, timeout=60
    )


def test_the_module_is_where_spark_looks() -> None:
    assert "pyspark_aioproducer" in [module.name for module in iter_modules([str(_ROOT)])]


def test_its_default_source_is_the_data_source_by_its_own_name() -> None:
    from pyspark.sql.datasource import DataSource

    import pyspark_aioproducer
    from aioproducer.spark.source import ProducerDataSource

    assert pyspark_aioproducer.DefaultSource is ProducerDataSource
    assert issubclass(ProducerDataSource, DataSource)
    # Found by register as well as by name, it is the same to Spark.
    assert ProducerDataSource.name() == "aioproducer"


def test_spark_imports_nothing_heavy_with_it() -> None:
    """Besides what Spark's own process has: each session on the machine pays for it."""
    program = (
        "import json, pyspark.sql.datasource; before = set(sys.modules); import pyspark_aioproducer; "
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    imported = set(json.loads(_python(program).stdout))
    allowed = {"", "._build", "._common", "._common.texts", ".spark", ".spark.source"}
    assert {name.removeprefix("aioproducer") for name in imported if name.startswith("aioproducer")} <= allowed
    assert not imported & {"asyncio", "pyarrow", "numpy", "pandas", "ssl", "uvloop"}


def test_planning_does_not_import_pandas() -> None:
    """It took longer than all else that the driver does before the first task."""
    program = (
        "from pyspark.sql.types import LongType, StructField, StructType; "
        "from aioproducer.spark import checks, source; "
        "source._parse({'kafka.bootstrap.servers': 'localhost:9092', 'topic': 't', 'value_format': 'json'}, "
        "StructType([StructField('value', LongType())])); print('pandas' in sys.modules)"
    )
    assert _python(program).stdout.strip() == "False"


def test_what_cannot_be_imported_takes_no_other_data_source_away() -> None:
    for missing in ("pyspark.sql.datasource", "aioproducer.spark.source", "aioproducer"):
        done = _python(f"sys.modules[{missing!r}] = None; import pyspark_aioproducer; print(dir(pyspark_aioproducer))")
        assert "DefaultSource" not in done.stdout
        assert "The format 'aioproducer' is not there, because its module cannot be imported" in done.stderr
