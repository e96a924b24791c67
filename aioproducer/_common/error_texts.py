"""What each of Kafka's error codes means, and what to do about those that a producer's user meets."""

from __future__ import annotations

from aioproducer._common.texts import printable
from aioproducer.error_codes import CODES, RETRIABLE_GROUPS

SUMMARIES: dict[int, str] = {
    -1: "The broker met an error that it has no code for.",
    1: "The offset asked for is outside the range that the log holds.",
    2: "The records did not match their checksum, or broke a rule of their format, when they reached the broker.",
    3: "The broker does not host this topic or partition.",
    4: "The size asked for in the fetch is not valid.",
    5: "The partition has no leader at present.",
    6: "The broker asked is not the partition's leader, or no replica of it.",
    7: "The broker could not finish the request within the time that the request gave it.",
    8: "The broker is not available.",
    9: "The replica asked for is not available.",
    10: "A record, or the batch that holds it, is larger than the topic or broker accepts.",
    11: "The controller has moved to another broker.",
    12: "The metadata string of the offset commit is too large.",
    13: "The connection to the broker ended before its answer came.",
    14: "The coordinator is still loading its state.",
    15: "The coordinator is not available.",
    16: "The broker asked is not the coordinator.",
    17: "The topic's name is not legal, or the topic may not be written to.",
    18: "The batch is larger than the segment size of the topic's log.",
    19: "The partition has fewer in-sync replicas than min.insync.replicas demands; nothing was written.",
    20: "The records were written, but then the partition had fewer in-sync replicas than min.insync.replicas demands.",
    21: "The value of acks is none that the broker knows.",
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
    34: "The SASL exchange is not in a state where this request is legal.",
    35: "The broker does not support the version, or the feature, that the request needs.",
    36: "A topic of this name exists already.",
    37: "The number of partitions is not valid.",
    38: "The replication factor is not valid: less than one, or more than there are brokers.",
    39: "The assignment of replicas to brokers is not valid.",
    40: "A configuration value sent to the broker is not valid.",
    41: "The broker asked is not the controller.",
    42: "The broker could not make sense of the request.",
    43: "The message format of the topic's log does not support this request.",
    44: "A policy of the cluster forbids the request.",
    45: "The broker received a sequence number that does not follow the last one it has from this producer.",
    46: "The broker already holds a batch with this sequence number.",
    47: "A newer producer epoch has replaced the one in use.",
    48: "The transaction is not in a state where this request is legal.",
    49: "The producer id is not the one assigned to this transactional id.",
    50: "transaction.timeout.ms is larger than the broker's transaction.max.timeout.ms.",
    51: "Another operation on the same transaction is still under way.",
    52: "The transaction coordinator was replaced by a newer one.",
    53: "The client is not allowed to use this transactional id.",
    54: "Security features are disabled in the cluster.",
    55: "The operation was not attempted, because another one of the same request failed.",
    56: "The broker could not reach the disk that holds the partition.",
    57: "The broker has no such log directory.",
    58: "The broker refused the SASL credentials.",
    59: "The broker holds no state of this producer id; its records may have been deleted by retention.",
    60: "A reassignment of the partition is under way.",
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
    72: "The partition's leader has no listener of the name that this client connected to.",
    73: "Deleting topics is disabled in the cluster.",
    74: "The leader epoch in the request is older than the broker's.",
    75: "The leader epoch in the request is newer than the broker's.",
    76: "The broker, or the request's version, does not support this compression type.",
    77: "The broker's epoch has changed.",
    78: "The leader does not know its high watermark yet.",
    79: "The group member must join again with the id that the coordinator gave it.",
    80: "The preferred leader is not available.",
    81: "The group has its greatest allowed number of members.",
    82: "Another member with the same group.instance.id has replaced this one.",
    83: "No eligible leader is available for the partition.",
    84: "The partition needs no leader election.",
    85: "No reassignment of the partition is under way.",
    86: "Members of the group still read the topic, so its offsets cannot be deleted.",
    87: "The broker found a record in the batch that is not valid.",
    88: "Offsets of transactions still under way stand in the range asked for.",
    89: "The throttling quota is used up.",
    90: "Another producer with the same transactional id has replaced this one.",
    91: "The broker does not know the resource.",
    92: "The resource is named more than once in the request.",
    93: "The credential is not acceptable.",
    94: "The set of voters is not the one that the quorum has.",
    95: "The update's version is not valid.",
    96: "The feature update failed.",
    97: "The broker could not read the principal in a forwarded request.",
    98: "The snapshot does not exist.",
    99: "The position asked for is outside the snapshot or log.",
    100: "The broker does not know this topic id.",
    101: "Another broker is registered under this id.",
    102: "The broker id is not registered.",
    103: "The topic id in the request is not that of the topic.",
    104: "The cluster id in the request is not that of the cluster.",
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
    120: "The transaction failed in a way that aborting it cures.",
    121: "The state of the record does not allow this.",
    122: "The broker does not know this share session.",
    123: "The epoch of the share session is not the current one.",
    124: "The epoch of the share-group state is not the current one.",
    125: "The voter key does not match.",
    126: "The voter is in the set already.",
    127: "The voter is not in the set.",
    128: "The regular expression is not valid.",
    129: "The broker tells the client to start again from its bootstrap servers.",
    130: "The streams topology is not valid.",
    131: "The epoch of the streams topology is not valid.",
    132: "The streams topology is older than the group's.",
    133: "The broker has its greatest allowed number of share sessions.",
    134: "The group could not be deleted.",
    135: "The description of the streams topology could not be updated.",
    136: "The controller id is not registered.",
}

# What to do next, for the errors that a producer's user meets.
HINTS: dict[int, str] = {
    -1: "Look into the broker's log; the same request may work again, or may not.",
    2: "It is sent again by itself; if it persists, something between client and broker changes bytes.",
    3: "Create the topic, or set auto.create.topics.enable on the brokers, and check the spelling of its name.",
    5: "A leader election is under way, or all replicas are down: look at the brokers if it persists.",
    6: "The leader has just moved; fresh metadata is asked for and the request sent again.",
    7: "The broker or its replicas are slow: look at their load, or raise request_timeout_ms.",
    10: (
        "Send smaller records, or raise max.message.bytes of the topic (message.max.bytes of the brokers) and "
        "max_request_size of the producer."
    ),
    13: (
        "It is sent again by itself; if it persists, look at the broker, the network, and at idle timeouts of "
        "load balancers."
    ),
    14: "It is asked again by itself.",
    15: "If it persists, look at the internal topics (__transaction_state, __consumer_offsets) and their replicas.",
    16: "The coordinator has just moved; it is looked up again.",
    17: (
        "Names are 1 to 249 characters out of letters, digits, '.', '_' and '-'; internal topics cannot be written to."
    ),
    18: "Lower batch_size, or raise segment.bytes of the topic.",
    19: "Bring the missing brokers back, or lower min.insync.replicas of the topic.",
    20: (
        "The records may be there more than once unless idempotence is on; bring the missing brokers back, or "
        "lower min.insync.replicas."
    ),
    21: "Use acks 0, 1 or all.",
    29: (
        "Grant the operation WRITE (and DESCRIBE) on the topic to this client's principal, e.g. kafka-acls --add "
        "--producer --topic NAME --allow-principal User:NAME."
    ),
    30: "Grant the operation READ on the group to this client's principal with kafka-acls.",
    31: (
        "Grant IDEMPOTENT_WRITE on the cluster to this client's principal (kafka-acls --add --cluster --operation "
        "IdempotentWrite), needed before Kafka 2.8 also where WRITE on a topic is allowed, or set "
        "enable_idempotence=False."
    ),
    32: (
        "Correct timestamp_ms, or set message.timestamp.type and message.timestamp.before.max.ms / after.max.ms "
        "of the topic."
    ),
    33: "Choose a sasl.mechanism out of the broker's sasl.enabled.mechanisms.",
    34: (
        "Check that security.protocol matches the listener: SASL_PLAINTEXT or SASL_SSL where it wants SASL, none "
        "where it does not."
    ),
    35: "Use a newer broker, or switch the feature off.",
    36: "Use it, or choose another name.",
    42: (
        "This is a fault of the client or of something between client and broker; please report it with the "
        "broker's log."
    ),
    43: (
        "Upgrade the topic's message format (message.format.version) on an old broker, or set "
        "enable_idempotence=False and send no headers."
    ),
    44: (
        "Ask whoever runs the cluster for the policy (create.topic.policy.class.name, alter.config.policy.class.name)."
    ),
    45: (
        "Records before this one may have been lost; the producer goes on with a new epoch, and their order "
        "against those in flight is not certain."
    ),
    46: "The records are in the log; it counts as success.",
    47: "In a transaction: abort it and begin again. Otherwise the producer asks for a new epoch by itself.",
    48: "Close the producer and make a new one; calls on one transactional id must not run side by side.",
    49: (
        "The transactional id has expired (transactional.id.expiration.ms) or is used elsewhere: close the "
        "producer and make a new one."
    ),
    50: "Lower transaction_timeout_ms, or raise transaction.max.timeout.ms of the brokers.",
    51: "It is asked again by itself.",
    53: "Grant the operations WRITE and DESCRIBE on the transactional id to this client's principal with kafka-acls.",
    56: "Look at the broker's disk; another replica takes over where there is one.",
    58: "Check user name, password and sasl.mechanism.",
    59: "The producer goes on with a new epoch by itself.",
    72: "Give every broker a listener of the same name (listeners, advertised.listeners).",
    74: "Fresh metadata is asked for and the request sent again.",
    75: "The broker will learn of the newer epoch; the request is sent again.",
    76: (
        "Choose another compression_type; zstd needs Kafka 2.1 or newer, and the topic's compression.type may "
        "forbid a codec."
    ),
    87: "A compacted topic needs a key in every record; the broker's message and log say which rule was broken.",
    89: "Send less, or raise the quota of this client or user.",
    90: "Close this producer; give each instance a transactional.id of its own.",
    100: "The topic was deleted or made anew; fresh metadata is asked for.",
    103: "The topic was made anew under the same name; fresh metadata is asked for.",
    120: "Abort the transaction and begin again.",
    129: "That is done by itself.",
}


def broker_text(code: int, broker_message: str | None) -> str:
    """The sentences for ``code``: what happened, what the broker adds, what to do, and the name and code to look up."""
    known = code in CODES
    summary = SUMMARIES[code] if known else "The broker answered with an error code that this version does not know."
    said = f' The broker says: "{printable(broker_message)}".' if broker_message else ""
    hint = HINTS.get(code)
    if hint is None and known and CODES[code][2] in RETRIABLE_GROUPS:
        hint = "It may pass by itself: try again."
    elif hint is None:
        hint = "Trying again unchanged will hardly help; look into the broker's log."
    return f"{summary}{said} {hint} [{CODES[code][0] if known else 'unknown error code'}, {code}]"
