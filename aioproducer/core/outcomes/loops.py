"""Compiled. The kinds of event loops."""

from __future__ import annotations

from typing import Any

# The modules of the loops that cannot be run while they run: those of asyncio and uvloop.
_NOT_NESTING = frozenset({"asyncio.base_events", "uvloop.loop"})


# ``run_forever`` of the last such loop, which is nearly always that of the next one too.
_not_nesting: Any = None


def may_nest(loop: Any) -> bool:
    """Return whether a callback may run the loop that has called it, and wait for other callbacks.

    Loops patched by ``nest_asyncio``, mainly in notebooks, allow it. So do the loops of user interfaces, as dialogs run
    them. A loop can be patched at any time.
    """
    global _not_nesting
    run_forever = getattr(type(loop), "run_forever", None)
    if run_forever is None or run_forever is _not_nesting:
        return False
    if getattr(run_forever, "__module__", None) not in _NOT_NESTING:
        return True
    _not_nesting = run_forever
    return False
