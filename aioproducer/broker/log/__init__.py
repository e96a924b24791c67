"""The partition log of the embedded broker: Apache Kafka's files and rules, on disk or in memory."""

from __future__ import annotations

from aioproducer.broker.log.append_info import AppendInfo as AppendInfo
from aioproducer.broker.log.config import LogConfig as LogConfig
from aioproducer.broker.log.leader_epochs import EpochEntry as EpochEntry
from aioproducer.broker.log.leader_epochs import LeaderEpochCache as LeaderEpochCache
from aioproducer.broker.log.log import Log as Log
from aioproducer.broker.log.manager import LogManager as LogManager
from aioproducer.broker.log.open_transactions import VerificationGuard as VerificationGuard
from aioproducer.broker.log.producer_state import ProducerStateManager as ProducerStateManager
from aioproducer.broker.log.reading import TimestampOffset as TimestampOffset
from aioproducer.broker.log.storage import DirectoryStorage as DirectoryStorage
from aioproducer.broker.log.storage import MemoryStorage as MemoryStorage
from aioproducer.broker.log.storage import Storage as Storage
from aioproducer.broker.log.transaction_index import AbortedTransaction as AbortedTransaction
from aioproducer.broker.log.validation import OffsetsOutOfOrderError as OffsetsOutOfOrderError
from aioproducer.broker.log.validation import RecordError as RecordError
from aioproducer.broker.log.validation import UnexpectedAppendOffsetError as UnexpectedAppendOffsetError
from aioproducer.broker.log.validation import record_errors as record_errors
