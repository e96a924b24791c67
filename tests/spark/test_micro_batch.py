"""``write_batch`` checks its arguments before anything is written."""

from __future__ import annotations

from typing import Any, cast

import pytest

from aioproducer.errors import ConfigurationError
from aioproducer.spark import write_batch

NO_FRAME = cast(Any, None)


@pytest.mark.parametrize("batch_id", [None, "7", True, 1.0])
def test_the_batch_id_is_the_number_that_foreach_batch_passes(batch_id: Any) -> None:
    with pytest.raises(ConfigurationError, match="the number that foreachBatch passes"):
        write_batch(NO_FRAME, batch_id, options={"sink.id": "s"})


@pytest.mark.parametrize("option", ["write.id", "write.name", "Write.Batch"])
def test_the_write_is_named_by_the_argument(option: str) -> None:
    with pytest.raises(ConfigurationError, match="names the write by its argument name"):
        write_batch(NO_FRAME, 1, options={"sink.id": "s", option: "x"})
