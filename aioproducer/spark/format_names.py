"""The values of ``key_format`` and ``value_format``, for code that runs without pyarrow."""

from __future__ import annotations

from typing import Final

JSON: Final = "json"
STRING: Final = "string"
FORMATS: Final = (JSON, STRING)
