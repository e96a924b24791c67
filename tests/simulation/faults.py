"""What can be wrong with a request: given to a cluster, taken by the first request that fits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from aioproducer.protocol import ApiKey


@dataclass(slots=True, kw_only=True)
class Fault:
    """One misfortune, for ``times`` requests of an API at a node (any, where it is None).

    error
        Answer with this code, and do nothing; or, where it is ``appended``, what a leader does first that waits for
        its replicas and answers with the code afterwards.
    delay, answer_delay
        Seconds before the request is looked at, and between that and the answer.
    culprits
        The records that an error blames: places in the batch, and what is said of them.
    disconnect
        End the connection ``before`` anything is done, ``after`` it was done and instead of the answer, or ``half``-way
        through the answer, or as soon as it has ``answered``.
    answer
        ``silence``; ``wrong id``: another correlation id; ``garbage``: the right id, and nonsense; ``oversized``: a
        frame that claims more than there can be; ``omit``: leave the first partition of a produce answer out.
    throttle_time_ms
        What the answer says of throttling.
    """

    api: ApiKey | None = None
    node: int | None = None
    times: float = 1
    topic: str | None = None
    error: int = 0
    appended: bool = False
    culprits: tuple[tuple[int, str], ...] = ()
    delay: float = 0.0
    answer_delay: float = 0.0
    disconnect: Literal["", "before", "after", "half", "answered"] = ""
    answer: Literal["", "silence", "wrong id", "garbage", "oversized", "omit"] = ""
    throttle_time_ms: int = 0

    def fits(self, api: int, node: int) -> bool:
        return self.times > 0 and self.api in (None, api) and self.node in (None, node)
