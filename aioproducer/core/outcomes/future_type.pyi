from asyncio import Future

from aioproducer.record import RecordMetadata

class FutureOfMetadata(Future[RecordMetadata]): ...
