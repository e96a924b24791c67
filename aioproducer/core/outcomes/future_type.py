"""What a Delivery is to a type checker, and what it is at run time."""


class FutureOfMetadata:
    """``asyncio.Future[RecordMetadata]`` to a type checker (see the ``.pyi`` file); nothing at run time."""

    __slots__ = ()
