"""A logger that adds the client's name to each message."""

from __future__ import annotations

import logging
from typing import Any, TypeAlias

from aioproducer._common.texts import printable

Log: TypeAlias = "logging.Logger | logging.LoggerAdapter[logging.Logger]"


class ClientLog(logging.LoggerAdapter[logging.Logger]):
    """A logger that puts the client's name in front of each message, as Kafka's ``LogContext``.

    ``[Producer clientId=orders] Broker kafka-1:9092 (id 1): ...``
    """

    def __init__(self, kind: str, client_id: str, name: str = "aioproducer") -> None:
        super().__init__(logging.getLogger(name), {})
        self._prefix = f"[{kind} clientId={printable(client_id)}] "

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if not self.isEnabledFor(level):
            return
        # The log names the caller of this method, not this method.
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        if args:
            # The client id may contain a %.
            self.logger.log(level, f"%s{msg}", self._prefix, *args, **kwargs)
        else:
            self.logger.log(level, f"{self._prefix}{msg}", **kwargs)
