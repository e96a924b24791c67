"""The meaning of each of Kafka's error codes, and the remedy for those that a producer's user sees."""

from __future__ import annotations

from aioproducer._common.texts import printable
from aioproducer.error_codes import CODES, RETRIABLE_GROUPS

SUMMARIES: dict[int, str] = {
    -1: "The broker failed with an error that has no specific code.",
    1: "The requested offset is outside the range of the log.",
    2: "The records did not match their checksum, or broke a rule of their format, when they reached the broker.",
    3: "The broker does not host this topic or partition.",
    4: "The requested fetch size is not valid.",
    5: "The partition has no leader at present.",
    6: "The broker is not the partition's leader, or has no replica of it.",
    7: "The broker could not finish the request within the request's timeout.",
    8: "The broker is not available.",
    9: "The requested replica is not available.",
    10: "A record, or the batch that holds it, is larger than the topic or broker accepts.",
    11: "The controller has moved to another broker.",
    12: "The metadata string of the offset commit is too large.",
    13: "The connection to the broker ended before its response arrived.",
    14: "The coordinator is still loading its state.",
    15: "The coordinator is not available.",
    16: "The broker is not the coordinator.",
    17: "The topic's name is invalid, or clients must not write to the topic.",
    18: "The batch is larger than the segment size of the topic's log.",
    19: "The partition has fewer in-sync replicas than min.insync.replicas requires; nothing was written.",
    20: "The records were written, but then fewer replicas were in sync than min.insync.replicas requires.",
    21: "The broker does not know the value of acks.",
    22: "The group's generation is not the current one.",
    23: "The group's members share no protocol with this one.",
    24: "The group id is not valid.",
    25: "The coordinator does not know this group member.",
    26: "The session timeout is outside the range that the broker allows.",
    27: "The group is rebalancing.",
    28: "The offset commit is too large.",
    29: "The client is not allowed to access the topic.",
    30: "The client is not allowed to access the group.",
    31: "The client is not allowed to do this in the cluster.",
    32: "A record's timestamp is outside the range that the topic accepts.",
    33: "The broker does not offer this SASL mechanism.",
    34: "The SASL exchange is not in a state that allows this request.",
    35: "The broker does not support the version, or the feature, that the request needs.",
    36: "A topic of this name exists already.",
    37: "The number of partitions is not valid.",
    38: "The replication factor is not valid: less than one, or more than there are brokers.",
    39: "The assignment of replicas to brokers is not valid.",
    40: "A configuration value sent to the broker is not valid.",
    41: "The broker is not the controller.",
    42: "The broker could not interpret the request.",
    43: "The message format of the topic's log does not support this request.",
    44: "A policy of the cluster forbids the request.",
    45: "The broker received a sequence number that does not follow the last one it has from this producer.",
    46: "The broker already holds a batch with this sequence number.",
    47: "A newer producer epoch has replaced the one in use.",
    48: "The transaction is not in a state that allows this request.",
    49: "The producer id is not the one assigned to this transactional id.",
    50: "transaction.timeout.ms is larger than the broker's transaction.max.timeout.ms.",
    51: "Another operation on the same transaction is still in progress.",
    52: "The transaction coordinator was replaced by a newer one.",
    53: "The client is not allowed to use this transactional id.",
    54: "Security features are disabled in the cluster.",
    55: "The operation was not attempted, because another one of the same request failed.",
    56: "The broker could not reach the disk that holds the partition.",
    57: "The broker has no such log directory.",
    58: "The broker rejected the SASL credentials.",
    59: "The broker has no state of this producer id; retention may have deleted its records.",
    60: "A reassignment of the partition is in progress.",
    61: "Delegation tokens are disabled in the cluster.",
    62: "The broker does not know this delegation token.",
    63: "The delegation token belongs to another principal.",
    64: "Delegation token requests are not allowed on this connection.",
    65: "The client is not allowed to use delegation tokens in this way.",
    66: "The delegation token has expired.",
    67: "The principal type is not supported.",
    68: "The group still has members.",
    69: "The group does not exist.",
    70: "The broker does not know this fetch session.",
    71: "The epoch of the fetch session is not the current one.",
    72: "The partition's leader has no listener with the name that this client connected to.",
    73: "Deleting topics is disabled in the cluster.",
    74: "The leader epoch in the request is older than the broker's.",
    75: "The leader epoch in the request is newer than the broker's.",
    76: "The broker, or the request's version, does not support this compression type.",
    77: "The broker's epoch has changed.",
    78: "The leader does not know its high watermark yet.",
    79: "The group member must join again with the id that the coordinator assigned.",
    80: "The preferred leader is not available.",
    81: "The group has its greatest allowed number of members.",
    82: "Another member with the same group.instance.id has replaced this one.",
    83: "No eligible leader is available for the partition.",
    84: "The partition needs no leader election.",
    85: "No reassignment of the partition is in progress.",
    86: "Members of the group still read the topic, so its offsets cannot be deleted.",
    87: "The broker found an invalid record in the batch.",
    88: "The requested range contains offsets of transactions in progress.",
    89: "The throttling quota is used up.",
    90: "Another producer with the same transactional id has replaced this one.",
    91: "The broker does not know the resource.",
    92: "The resource is named more than once in the request.",
    93: "The credential is not acceptable.",
    94: "The set of voters does not match that of the quorum.",
    95: "The update's version is not valid.",
    96: "The feature update failed.",
    97: "The broker could not read the principal in a forwarded request.",
    98: "The snapshot does not exist.",
    99: "The requested position is outside the snapshot or log.",
    100: "The broker does not know this topic id.",
    101: "Another broker is registered under this id.",
    102: "The broker id is not registered.",
    103: "The topic id in the request does not match the topic.",
    104: "The cluster id in the request does not match the cluster.",
    105: "The transactional id does not exist.",
    106: "The topics of a fetch session were named partly by id and partly by name.",
    107: "The replica is not eligible to be in sync.",
    108: "A new leader was elected by the request.",
    109: "The offset has moved to tiered storage.",
    110: "The group member's epoch is older than the coordinator's; it must rejoin.",
    111: "The instance id is still held by another member.",
    112: "The group does not support this assignor.",
    113: "The group member's epoch is stale.",
    114: "The request went to the wrong kind of endpoint (broker or controller).",
    115: "The kind of endpoint is not supported.",
    116: "The controller id is not known.",
    117: "The telemetry subscription is not the current one.",
    118: "The pushed telemetry is larger than the broker accepts.",
    119: "The broker's registration is not valid.",
    120: "The transaction failed and must be aborted.",
    121: "The state of the record does not allow this operation.",
    122: "The broker does not know this share session.",
    123: "The epoch of the share session is not the current one.",
    124: "The epoch of the share-group state is not the current one.",
    125: "The voter key does not match.",
    126: "The voter is already in the set.",
    127: "The voter is not in the set.",
    128: "The regular expression is not valid.",
    129: "The broker requests that the client starts again from its bootstrap servers.",
    130: "The streams topology is not valid.",
    131: "The epoch of the streams topology is not valid.",
    132: "The streams topology is older than the group's.",
    133: "The broker has its greatest allowed number of share sessions.",
    134: "The group could not be deleted.",
    135: "The description of the streams topology could not be updated.",
    136: "The controller id is not registered.",
}

# What to do, for the errors that a producer's user sees.
HINTS: dict[int, str] = {
    -1: "Check the broker's log; a retry may or may not succeed.",
    2: (
        "The client retries automatically; if the error persists, a device between client and broker alters the bytes."
    ),
    3: "Check the spelling of the topic, create it, or set auto.create.topics.enable on the brokers.",
    5: "A leader election is in progress, or all replicas are down: check the brokers if the error persists.",
    6: "The leader has just moved; the client updates its metadata and retries.",
    7: "The broker or its replicas are slow: check their load, or raise request_timeout_ms.",
    10: (
        "Send smaller records, or raise max.message.bytes of the topic (message.max.bytes of the brokers) and "
        "max_request_size of the producer."
    ),
    13: (
        "The client retries automatically; if the error persists, check the broker, the network, and the idle "
        "timeouts of load balancers."
    ),
    14: "The client retries automatically.",
    15: (
        "If the error persists, check the internal topics (__transaction_state, __consumer_offsets) and their replicas."
    ),
    16: "The coordinator has just moved; the client looks it up again.",
    17: ("Names have 1 to 249 characters: letters, digits, '.', '_' and '-'; clients cannot write to internal topics."),
    18: "Lower batch_size, or raise segment.bytes of the topic.",
    19: "Restart the missing brokers, or lower min.insync.replicas of the topic.",
    20: (
        "Without idempotence a retry may write the records twice; restart the missing brokers, or lower "
        "min.insync.replicas."
    ),
    21: "Use acks 0, 1 or all.",
    29: (
        "Grant the operation WRITE (and DESCRIBE) on the topic to this client's principal, e.g. kafka-acls --add "
        "--producer --topic NAME --allow-principal User:NAME."
    ),
    30: "Grant the operation READ on the group to this client's principal with kafka-acls.",
    31: (
        "Grant IDEMPOTENT_WRITE on the cluster to this client's principal (kafka-acls --add --cluster --operation "
        "IdempotentWrite), which brokers before Kafka 2.8 require in addition to WRITE on a topic, or set "
        "enable_idempotence=False."
    ),
    32: (
        "Correct timestamp_ms, or set message.timestamp.type and message.timestamp.before.max.ms / after.max.ms "
        "of the topic."
    ),
    33: "Choose a sasl.mechanism from the broker's sasl.enabled.mechanisms.",
    34: (
        "Check that security.protocol matches the listener: SASL_PLAINTEXT or SASL_SSL if it requires SASL, otherwise "
        "PLAINTEXT or SSL."
    ),
    35: "Use a newer broker, or disable the feature.",
    36: "Use the existing topic, or choose another name.",
    42: (
        "The fault is in the client, or in a device between client and broker; please report it with the broker's log."
    ),
    43: (
        "Upgrade the topic's message format (message.format.version) on an old broker, or set "
        "enable_idempotence=False and send no headers."
    ),
    44: (
        "Ask the operator of the cluster for the policy (create.topic.policy.class.name, "
        "alter.config.policy.class.name)."
    ),
    45: (
        "Earlier records may be lost; the producer continues with a new epoch, and the order relative to records in "
        "flight is uncertain."
    ),
    46: "The records are in the log; this counts as success.",
    47: "In a transaction: abort it and start again. Otherwise the producer requests a new epoch automatically.",
    48: (
        "The coordinator may have aborted it after transaction_timeout_ms: raise that, or send less in a transaction. "
        "Close the producer and create a new one; calls for one transactional id must not run concurrently."
    ),
    49: (
        "The transactional id has expired (transactional.id.expiration.ms) or is used elsewhere: close the "
        "producer and create a new one."
    ),
    50: "Lower transaction_timeout_ms, or raise transaction.max.timeout.ms of the brokers.",
    51: "The client retries automatically.",
    53: "Grant the operations WRITE and DESCRIBE on the transactional id to this client's principal with kafka-acls.",
    56: "Check the broker's disk; if there is another replica, it takes over.",
    58: "Check user name, password and sasl.mechanism.",
    59: "The producer continues with a new epoch automatically.",
    72: "Give every broker a listener with the same name (listeners, advertised.listeners).",
    74: "The client updates its metadata and retries.",
    75: "The broker will receive the newer epoch; the client retries.",
    76: (
        "Choose another compression_type; zstd needs Kafka 2.1 or newer, and the topic's compression.type may "
        "forbid a codec."
    ),
    87: "A compacted topic needs a key in every record; the broker's message and log name the violated rule.",
    89: "Send less, or raise the quota of this client or user.",
    90: "Close this producer; give each instance its own transactional.id.",
    100: "The topic was deleted or created again; the client updates its metadata.",
    103: "The topic was created again under the same name; the client updates its metadata.",
    120: "Abort the transaction and start again.",
    129: "The client does so automatically.",
}


def broker_text(code: int, broker_message: str | None) -> str:
    """Return the text for ``code``: the summary, the broker's message, the remedy, and the code's name and number."""
    known = code in CODES
    summary = SUMMARIES[code] if known else "The broker returned an error code that this version does not know."
    said = f' The broker\'s message: "{printable(broker_message)}".' if broker_message else ""
    hint = HINTS.get(code)
    if hint is None and known and CODES[code][2] in RETRIABLE_GROUPS:
        hint = "The error may be temporary: retry."
    elif hint is None:
        hint = "A retry without changes is unlikely to help; check the broker's log."
    return f"{summary}{said} {hint} [{CODES[code][0] if known else 'unknown error code'}, {code}]"
