"""The classic consumer group: coordinators, rounds of joining and syncing, and errors for members."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aioproducer.protocol.messages import (
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
)
from aioproducer.protocol.messages.groups import (
    JoinGroupRequestProtocol,
    MemberIdentity,
    SyncGroupRequestAssignment,
)
from tests.interop.differential.scenario import Run, latest, scenario, versions
from tests.interop.differential.wire import Connection


async def coordinator(run: Run) -> None:
    """Wait until the groups have a coordinator: the topic of their offsets is created on the first request."""

    async def found() -> bool:
        answer = await run.surely(FindCoordinatorRequest(coordinator_keys=[run.name("g")]))
        if answer.coordinators[0].error_code != 0:
            return False
        beat = HeartbeatRequest(group_id=run.name("no-such-group"), generation_id=1, member_id="nobody")
        # 25 (UNKNOWN_MEMBER_ID) once the coordinator has loaded its offsets.
        return (await run.surely(beat, node=answer.coordinators[0].node_id)).error_code == 25

    await run.eventually(found, "the group coordinator")


def join(
    group: str,
    member_id: str = "",
    *,
    protocols: Sequence[str] = ("range",),
    metadata: bytes = b"m",
    protocol_type: str = "consumer",
    session_ms: int = 10_000,
    rebalance_ms: int = 5_000,
    instance: str | None = None,
) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        member_id=member_id,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata) for name in protocols],
    )


def sync(
    group: str,
    generation: int,
    member_id: str,
    assignments: Sequence[tuple[str, bytes]] = (),
    *,
    protocol_type: str | None = "consumer",
    protocol_name: str | None = "range",
    instance: str | None = None,
) -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        assignments=[
            SyncGroupRequestAssignment(member_id=found, assignment=assignment) for found, assignment in assignments
        ],
    )


def heartbeat(group: str, generation: int, member_id: str, instance: str | None = None) -> HeartbeatRequest:
    return HeartbeatRequest(group_id=group, generation_id=generation, member_id=member_id, group_instance_id=instance)


def leave(group: str, *members: tuple[str, str | None], version: int = 5) -> LeaveGroupRequest:
    if version < 3:
        return LeaveGroupRequest(group_id=group, member_id=members[0][0])
    return LeaveGroupRequest(
        group_id=group,
        members=[MemberIdentity(member_id=found, group_instance_id=instance) for found, instance in members],
    )


async def joined(
    run: Run, label: str, request: JoinGroupRequest, version: int = 9, connection: Connection | None = None
) -> JoinGroupResponse:
    answer = await run.ask(label, request, version, connection=connection)
    assert isinstance(answer, JoinGroupResponse)
    return answer


async def member_id(run: Run, request: JoinGroupRequest, version: int = 9) -> str:
    """Return the id with which the coordinator lets a new member join again."""
    return (await run.surely(request, version)).member_id


@scenario()
async def find_coordinator(run: Run) -> None:
    await coordinator(run)
    for version in versions(FindCoordinatorRequest):
        for kind in (0, 1, 2, 3, -1):
            if kind == 1 or (version == 0 and kind != 0):
                continue
            for key in (run.name("g"), ""):
                request = FindCoordinatorRequest(key=key, key_type=kind, coordinator_keys=[key])
                if version >= 4:
                    request.key = ""
                else:
                    request.coordinator_keys = []
                await run.ask(f"version {version} kind {kind} {'no key' if key == '' else 'key'}", request, version)
    keys = [run.name("a"), run.name("b"), run.name("a")]
    await run.ask("several", FindCoordinatorRequest(coordinator_keys=keys))
    await run.ask("none", FindCoordinatorRequest(coordinator_keys=[]))


@scenario()
async def one_member_in_every_version(run: Run) -> None:
    await coordinator(run)
    for version in versions(JoinGroupRequest):
        group = run.name(f"g{version}")
        first = await joined(run, f"{version} first", join(group), version)
        if first.error_code != 0:
            first = await joined(run, f"{version} with its id", join(group, first.member_id), version)
        member, generation = first.member_id, first.generation_id
        syncing = min(version, latest(SyncGroupRequest))
        beating = min(version, latest(HeartbeatRequest))
        leaving = min(version, latest(LeaveGroupRequest))
        await run.ask(f"{version} beats before syncing", heartbeat(group, generation, member), beating)
        await run.ask(f"{version} syncs", sync(group, generation, member, [(member, b"a")]), syncing)
        await run.ask(f"{version} syncs again", sync(group, generation, member, [(member, b"b")]), syncing)
        await run.ask(f"{version} beats", heartbeat(group, generation, member), beating)
        again = await joined(run, f"{version} joins again", join(group, member), version)
        await run.ask(f"{version} beats in joining", heartbeat(group, again.generation_id, member), beating)
        await run.ask(f"{version} old generation", heartbeat(group, generation, member), beating)
        newer = again.generation_id
        await run.ask(f"{version} syncs the new one", sync(group, newer, member, [(member, b"c")]), syncing)
        await run.ask(f"{version} leaves", leave(group, (member, None), version=leaving), leaving)
        await run.ask(f"{version} beats after that", heartbeat(group, newer, member), beating)
        await run.ask(f"{version} leaves again", leave(group, (member, None), version=leaving), leaving)


@scenario()
async def join_errors(run: Run) -> None:
    await coordinator(run)
    for version in (0, 3, 4, 5, 9):

        async def refused(label: str, request: JoinGroupRequest, version: int = version) -> None:
            await joined(run, f"version {version} {label}", request, version)

        group = run.name(f"g{version}")
        await refused("no group", join(""))
        await refused("unknown member", join(group, "nobody"))
        await refused("short session", join(group, session_ms=10))
        await refused("long session", join(group, session_ms=10_000_000))
        await refused("zero session", join(group, session_ms=0))
        await refused("no protocols", join(group, protocols=()))
        await refused("no protocol type", join(group, protocol_type=""))
        if version >= 5:
            await refused("unknown static member", join(group, "nobody", instance="i"))
            for number, instance in enumerate(("", "a b", "..", "ä", "x" * 249, "x" * 250)):
                own = join(run.name(f"g{version}-{number}"), instance=instance)
                await refused(f"instance {instance[:5]!r} of {len(instance)}", own)
        member = await member_id(run, join(group), version)
        await refused("member", join(group, member))
        await refused("other type", join(group, protocol_type="connect"))
        await refused("other protocol", join(group, protocols=("sticky",)))
        await refused("unknown member of a group", join(group, "nobody"))


@scenario()
async def sync_and_heartbeat_errors(run: Run) -> None:
    await coordinator(run)
    group = run.name("g")
    for version in (0, 3, 5):
        await run.ask(f"version {version} no such group", sync(group, 1, "nobody"), version)
        await run.ask(f"version {version} no group", sync("", 1, "nobody"), version)
        beating = min(version, 4)
        await run.ask(f"version {version} heartbeat of no such group", heartbeat(group, 1, "nobody"), beating)
        await run.ask(f"version {version} heartbeat of no group", heartbeat("", 1, "nobody"), beating)
        leaving = version
        await run.ask(
            f"version {version} leave no such group", leave(group, ("nobody", None), version=leaving), leaving
        )
        await run.ask(f"version {version} leave no group", leave("", ("nobody", None), version=leaving), leaving)
    member = await member_id(run, join(group))
    await run.ask("heartbeat of a member to be", heartbeat(group, -1, member))
    await run.ask("sync of a member to be", sync(group, 0, member))
    joining = await joined(run, "joins", join(group, member))
    generation = joining.generation_id
    for label, request in (
        ("unknown member", sync(group, generation, "nobody")),
        ("old generation", sync(group, generation - 1, member)),
        ("later generation", sync(group, generation + 1, member)),
        ("generation -1", sync(group, -1, member)),
        ("other type", sync(group, generation, member, protocol_type="connect")),
        ("other protocol", sync(group, generation, member, protocol_name="sticky")),
        ("no type", sync(group, generation, member, protocol_type=None)),
        ("no protocol", sync(group, generation, member, protocol_name=None)),
        ("unknown instance", sync(group, generation, member, instance="i")),
    ):
        await run.ask(f"sync {label}", request)
    await run.ask("sync", sync(group, generation, member, [(member, b"a"), ("nobody", b"b")]))
    for label, beat in (
        ("unknown member", heartbeat(group, generation, "nobody")),
        ("old generation", heartbeat(group, generation - 1, member)),
        ("later generation", heartbeat(group, generation + 1, member)),
        ("unknown instance", heartbeat(group, generation, member, "i")),
    ):
        await run.ask(f"heartbeat {label}", beat)
    await run.ask("leave several", leave(group, (member, None), ("nobody", None), ("", "i"), (member, "i")))
    await run.ask("leave none", LeaveGroupRequest(group_id=group))


async def rebalancing(run: Run, group: str) -> None:
    """Wait until a join has arrived that waits for the other members."""

    async def begun() -> bool:
        answer = await run.surely(DescribeGroupsRequest(groups=[group]))
        return answer.groups[0].group_state == "PreparingRebalance"

    await run.eventually(begun, f"rebalance of {group}")


@scenario()
async def two_members(run: Run) -> None:
    await coordinator(run)
    for version in (2, 5, 9):
        group = run.name(f"g{version}")
        one, two = await run.nodes.connect(), await run.nodes.connect()
        syncing, beating, leaving = min(version, 5), min(version, 4), min(version, 5)

        def a_join(member: str = "", metadata: bytes = b"1", group: str = group) -> JoinGroupRequest:
            return join(group, member, metadata=metadata, protocols=("range", "sticky"))

        first_id = await member_id(run, a_join(), version) if version >= 4 else ""
        first = await joined(run, f"{version} one joins", a_join(first_id), version, one)
        first_id = first.member_id
        await run.ask(
            f"{version} one syncs",
            sync(group, first.generation_id, first_id, [(first_id, b"all")]),
            syncing,
            connection=one,
        )
        second_id = await member_id(run, a_join(metadata=b"2"), version) if version >= 4 else ""
        waiting = asyncio.create_task(joined(run, f"{version} two joins", a_join(second_id, b"2"), version, two))
        await rebalancing(run, group)
        await run.ask(
            f"{version} one gets the rebalance",
            heartbeat(group, first.generation_id, first_id),
            beating,
            connection=one,
        )
        await run.ask(
            f"{version} one syncs too late", sync(group, first.generation_id, first_id), syncing, connection=one
        )
        first = await joined(run, f"{version} one joins again", a_join(first_id), version, one)
        second = await waiting
        second_id = second.member_id
        assigned = [(first_id, b"first half"), (second_id, b"second half")]
        early = asyncio.create_task(
            run.ask(f"{version} two syncs", sync(group, second.generation_id, second_id), syncing, connection=two)
        )
        await asyncio.sleep(0.1)
        await run.ask(
            f"{version} one hands in", sync(group, first.generation_id, first_id, assigned), syncing, connection=one
        )
        await early
        await run.ask(f"{version} two beats", heartbeat(group, second.generation_id, second_id), beating)
        await run.ask(f"{version} one leaves", leave(group, (first_id, None), version=leaving), leaving, connection=one)
        await run.ask(f"{version} two gets the rebalance", heartbeat(group, second.generation_id, second_id), beating)
        alone = await joined(run, f"{version} two alone", a_join(second_id, b"2"), version, two)
        await run.ask(
            f"{version} two syncs alone",
            sync(group, alone.generation_id, second_id, [(second_id, b"all")]),
            syncing,
            connection=two,
        )
        await run.quietly(leave(group, (second_id, None), version=leaving), leaving)


@scenario()
async def choosing_a_protocol(run: Run) -> None:
    await coordinator(run)
    group = run.name("g")
    one, two = await run.nodes.connect(), await run.nodes.connect()
    first_id = await member_id(run, join(group))
    first = await joined(
        run, "one joins", join(group, first_id, protocols=("range", "sticky"), metadata=b"1"), connection=one
    )
    await run.ask("one syncs", sync(group, first.generation_id, first_id, [(first_id, b"a")]))
    second_id = await member_id(run, join(group, protocols=("sticky", "roundrobin")))
    request = join(group, second_id, protocols=("sticky", "roundrobin"), metadata=b"2")
    waiting = asyncio.create_task(joined(run, "two joins", request, connection=two))
    await rebalancing(run, group)
    await joined(
        run, "one joins again", join(group, first_id, protocols=("range", "sticky"), metadata=b"1"), connection=one
    )
    await waiting
    await joined(run, "three has none of both", join(group, protocols=("range", "roundrobin")))


@scenario()
async def static_members(run: Run) -> None:
    await coordinator(run)
    for version in (5, 7, 8, 9):
        group = run.name(f"g{version}")
        syncing, beating, leaving = min(version, 5), 4, min(version, 5)
        one = await run.nodes.connect()
        first = await joined(run, f"{version} joins", join(group, instance="i"), version, one)
        member, generation = first.member_id, first.generation_id
        await run.ask(
            f"{version} syncs", sync(group, generation, member, [(member, b"a")], instance="i"), syncing, connection=one
        )
        await run.ask(f"{version} beats", heartbeat(group, generation, member, "i"), beating)
        await run.ask(f"{version} beats as nobody", heartbeat(group, generation, "nobody", "i"), beating)
        back = await joined(run, f"{version} comes back", join(group, instance="i"), version, one)
        await run.ask(f"{version} the old one beats", heartbeat(group, generation, member, "i"), beating)
        await run.ask(f"{version} the old one syncs", sync(group, generation, member, instance="i"), syncing)
        await joined(run, f"{version} the old one joins", join(group, member, instance="i"), version)
        await run.ask(
            f"{version} the new one syncs",
            sync(group, back.generation_id, back.member_id, [(back.member_id, b"b")], instance="i"),
            syncing,
        )
        await run.ask(f"{version} leaves by instance", leave(group, ("", "i"), version=leaving), leaving)
        await run.ask(f"{version} leaves again", leave(group, ("", "i"), version=leaving), leaving)
        await run.ask(f"{version} beats then", heartbeat(group, back.generation_id, back.member_id, "i"), beating)


@scenario()
async def sessions_expire(run: Run) -> None:
    await coordinator(run)
    group = run.name("g")
    member = await member_id(run, join(group))
    first = await joined(run, "joins", join(group, member, rebalance_ms=3000))
    await run.ask("syncs", sync(group, first.generation_id, member, [(member, b"a")]))
    second_id = await member_id(run, join(group))
    two = await run.nodes.connect()
    # The first member is silent, so the second joins after its rebalance timeout.
    request = join(group, second_id, rebalance_ms=3000)
    waiting = asyncio.create_task(joined(run, "two joins", request, connection=two))
    await rebalancing(run, group)
    await run.ask("one beats", heartbeat(group, first.generation_id, member))
    await waiting
    await run.ask("one is gone", heartbeat(group, first.generation_id, member))


@scenario(nodes=3)
async def coordinator_of_three_nodes(run: Run) -> None:
    await coordinator(run)
    keys = [run.name("g")]
    leader = (await run.surely(FindCoordinatorRequest(coordinator_keys=keys))).coordinators[0].node_id
    for node in (1, 2, 3):
        answer = await run.surely(FindCoordinatorRequest(coordinator_keys=keys), node=node)
        run.observe(f"node {node} names the same", answer.coordinators[0].node_id == leader)
    other = leader % 3 + 1
    for version in (2, 5, 9):
        await run.ask(f"version {version} join elsewhere", join(run.name("g")), version, node=other)
    await run.ask("sync elsewhere", sync(run.name("g"), 1, "x"), node=other)
    await run.ask("heartbeat elsewhere", heartbeat(run.name("g"), 1, "x"), node=other)
    await run.ask("leave elsewhere", leave(run.name("g"), ("x", None)), node=other)


@scenario()
async def described_and_listed(run: Run) -> None:
    await coordinator(run)
    group = run.name("g")

    async def look(when: str) -> None:
        for version in versions(DescribeGroupsRequest):
            for label, name in (("it", group), ("none", run.name("none"))):
                request = DescribeGroupsRequest(groups=[name])
                await run.ask(f"{when} version {version} describes {label}", request, version)
        for version in versions(ListGroupsRequest):
            for label, states, types in (
                ("all", [], []),
                ("stable", ["Stable"], []),
                ("empty", ["Empty", "nonsense"], []),
                ("classic", [], ["classic"]),
                ("consumer", [], ["consumer"]),
                ("nonsense", [], ["nonsense"]),
            ):
                if (states and version < 4) or (types and version < 5):
                    continue
                answer = await run.quietly(ListGroupsRequest(states_filter=states, types_filter=types), version)
                if isinstance(answer, ListGroupsResponse):
                    answer.groups = [found for found in answer.groups if found.group_id == group]
                run.observe(f"{when} version {version} lists {label}", answer, version)

    await look("before")
    member = await member_id(run, join(group))
    first = await joined(run, "joins", join(group, member))
    await look("joined")
    await run.ask("syncs", sync(group, first.generation_id, member, [(member, b"a")]))
    await look("stable")
    operations = DescribeGroupsRequest(groups=[group], include_authorized_operations=True)
    await run.ask("operations", operations)
    await run.quietly(leave(group, (member, None)))
    await look("left")
