"""The model of a group: owners of partitions in generations, also in one that a new coordinator does not know."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from protocol.testing import FakeKafka
from protocol.testing.fake_kafka.group import Group, Member, Waiting
from protocol.testing.fake_kafka.offsets import Committed
from tests.simulation.group_model import GroupModel


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka() as fake:
        yield fake


@pytest.fixture
def model(fake: FakeKafka) -> GroupModel:
    return GroupModel(fake, "g", lambda text: None)


@pytest.fixture
def group(fake: FakeKafka, model: GroupModel) -> Group:
    """A group after its first generation, which has an assignment and no members."""
    group = fake.groups.create("g")
    group.generation = 1
    group.store()
    return group


def join(group: Group, *names: str) -> None:
    """Complete a round of JoinGroup with these members, and no others."""
    group.members = {
        name: Member(name, None, name, 6000, 6000, [("range", b"")], 6.0, joining=Waiting()) for name in names
    }
    group.complete_join(0.0)


def test_two_owners_in_a_generation_are_found(group: Group, model: GroupModel) -> None:
    join(group, "a", "b")
    model.delivered("process-a", "a", 2, 0, [0, 1])
    model.delivered("process-b", "b", 2, 0, [0, 1])
    assert model.failures == ["process-b in generation 2: t-0 [0, 2) belongs to a as well as b"]


def test_generation_without_assignment_may_have_another_owner_after_coordinator_moves(
    group: Group, model: GroupModel
) -> None:
    join(group, "a", "b")
    model.delivered("process-a", "a", 2, 0, [0, 1])
    group.load(0.0)
    join(group, "b", "c")
    model.delivered("process-b", "b", 2, 0, [0, 1])
    assert model.failures == []
    model.delivered("process-c", "c", 2, 0, [0, 1])
    assert model.failures == ["process-c in generation 2: t-0 [0, 2) belongs to b as well as c"]


def test_generation_with_assignment_has_one_owner_after_coordinator_moves(group: Group, model: GroupModel) -> None:
    join(group, "a", "b")
    model.delivered("process-a", "a", 2, 0, [0, 1])
    group.assign({}, 0.0)
    group.load(0.0)
    group.joined(group.members["b"])
    model.delivered("process-b", "b", 2, 0, [0, 1])
    assert model.failures == ["process-b in generation 2: t-0 [0, 2) belongs to a as well as b"]


@pytest.mark.parametrize("loses_replies", [False, True])
def test_only_a_late_copy_of_a_commit_may_set_the_group_back(fake: FakeKafka, *, loses_replies: bool) -> None:
    model = GroupModel(fake, "g", lambda text: None, loses_replies=loses_replies)
    model.processed("a", 0, list(range(9)))
    for offset in (4, 8, 4):
        fake.offsets.committed["g"]["t", 0] = Committed(offset, -1, "")
    assert len(model.failures) == (not loses_replies)
    fake.offsets.committed["g"]["t", 0] = Committed(3, -1, "")
    assert "went back from 4 to 3" in model.failures[-1]
