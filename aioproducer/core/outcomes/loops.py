"""What kind of event loop it is."""

from __future__ import annotations

from typing import Any

# Where the loops come from that refuse to be run while they run: asyncio's own and uvloop's.
_REFUSING = frozenset({"asyncio.base_events", "uvloop.loop"})


# The method of the last loop that refused: nearly always the next one's too.
_refusing: Any = None


def may_nest(loop: Any) -> bool:
    """Whether a callback may run the loop that has called it, and wait for others there.

    Loops that ``nest_asyncio`` has patched, in notebooks above all, let it; so do those of user interfaces, whose
    dialogs turn them. A loop can be patched at any time.
    """
    global _refusing
    run_forever = getattr(type(loop), "run_forever", None)
    if run_forever is None or run_forever is _refusing:
        return False
    if getattr(run_forever, "__module__", None) not in _REFUSING:
        return True
    _refusing = run_forever
    return False
