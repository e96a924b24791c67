"""TxnOffsetCommit, versions 0-6: offsets of a group that become visible if the producer's transaction commits (KIP-98).

* 0, 1: the base. 2: leader epochs (KIP-320). 3: flexible; member, generation and group instance id (KIP-447).
* 4: TRANSACTION_ABORTABLE. 5: adds the group to the transaction, as AddOffsetsToTxn did before (KIP-890).
* 6: topics by id; GROUP_ID_NOT_FOUND instead of ILLEGAL_GENERATION (KIP-1319).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aioproducer.broker.groups.commits import Committer, OpenTransaction
from aioproducer.broker.handlers.committing import CommitAnswer, known_offsets
from aioproducer.errors import BrokerError, CoordinatorLoadInProgressError, CoordinatorNotAvailableError
from aioproducer.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from aioproducer.broker.handlers.context import RequestContext

VERSIONS = range(7)

_FIRST_WITH_LOAD_IN_PROGRESS: Final = 2
_FIRST_WITH_TOPIC_IDS: Final = 6


async def handle(context: RequestContext, request: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
    """Respond when the pending offsets are in the log; each unknown partition has its own error."""
    by_id = context.version >= _FIRST_WITH_TOPIC_IDS
    answer = CommitAnswer(by_id=by_id)
    offsets = known_offsets(context.broker.image, request.topics, answer, by_id=by_id)
    if offsets:
        committer = Committer(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id_or_member_epoch
        )
        transaction = OpenTransaction(request.transactional_id, request.producer_id, request.producer_epoch)
        try:
            codes = await context.broker.groups.commit_in_transaction(
                committer,
                transaction,
                offsets,
                version=context.version,
                verifier=context.broker.transactions,
            )
        except BrokerError as error:
            answer.add_all(offsets, _code(error.code, context.version))
        else:
            answer.add_all(offsets, codes)
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    TxnOffsetCommitResponsePartition(partition_index=index, error_code=code)
                    for index, code in topic.codes
                ],
            )
            for topic in answer.topics
        ]
    )


def _code(code: int, version: int) -> int:
    """Return a code that ``version`` knows; before 2, COORDINATOR_LOAD_IN_PROGRESS is fatal to clients (KAFKA-7296)."""
    if code == CoordinatorLoadInProgressError.code and version < _FIRST_WITH_LOAD_IN_PROGRESS:
        return CoordinatorNotAvailableError.code
    return code
