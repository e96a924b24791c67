"""Compiled. The base class of ``Delivery``: a future to a type checker, an empty class at run time."""


class FutureOfMetadata:
    """``asyncio.Future[RecordMetadata]`` to a type checker (see the ``.pyi`` file); an empty class at run time."""

    __slots__ = ()
