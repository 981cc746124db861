"""What a rank tells of its collectives while its first thread is busy."""

import pickle
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pytest_gpuperf.ranks.channel import Channel
from pytest_gpuperf.ranks.collectives import Collective
from pytest_gpuperf.ranks.informant import Informant
from pytest_gpuperf.ranks.messages import Inquiry
from tests.ranks.processes import DEADLINE

ENTRY = {
    "collective_seq_id": 1,
    "input_dtypes": ["Float"],
    "input_sizes": [[4]],
    "process_group": ("0", "default_pg"),
    "profiling_name": "gloo:all_reduce",
    "state": "scheduled",
}


class Recorder:
    """Stands in for torch's, which has one for each backend."""

    def __init__(self, dump: bytes, backend: str = "gloo") -> None:
        self._dump = dump
        setattr(self, {"gloo": "_dump_fr_trace", "nccl": "_dump_nccl_trace"}[backend], self._trace)

    def _trace(self, collectives: bool, stacks: bool, active_alone: bool) -> bytes:
        assert (collectives, stacks, active_alone) == (True, False, False)
        return self._dump


def asked(connection: Channel) -> Any:
    connection.send(Inquiry(7))
    assert connection.poll(DEADLINE)
    account, _ = connection.receive()
    assert account.number == 7
    return account.collectives, account.members


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_it_answers_as_often_as_it_is_asked_with_what_is_not_too_old(
    monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    dump = pickle.dumps({"entries": [{**ENTRY, "time_created_ns": moment} for moment in (10, 20)]})
    monkeypatch.setattr(torch._C, "_distributed_c10d", Recorder(dump, backend))
    ours, theirs = Channel.pair()
    with closing(ours), closing(theirs):
        informant = Informant(theirs, backend)
        one = Collective("0", 1, "all_reduce", "Float[4]", done=False)
        assert asked(ours) == ([one, one], {})
        informant.since = 20
        assert asked(ours) == ([one], {})


@pytest.mark.parametrize("recorder", [object(), Recorder(b"no pickle"), Recorder(pickle.dumps({"entries": [{}]}))])
def test_a_recorder_that_is_missing_or_another_is_no_reason_to_end(
    monkeypatch: pytest.MonkeyPatch, recorder: object
) -> None:
    monkeypatch.setattr(torch._C, "_distributed_c10d", recorder)
    ours, theirs = Channel.pair()
    with closing(ours), closing(theirs):
        Informant(theirs, "gloo")
        assert asked(ours) == (None, {})
        assert asked(ours) == (None, {})


class Destroyed(dict[str, list[int]]):
    """Had a group a moment ago."""

    def __contains__(self, group: object) -> bool:
        return True


def test_a_group_that_the_program_destroys_meanwhile_is_no_reason_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_distributed_c10d", Recorder(pickle.dumps({"entries": []})))
    world = SimpleNamespace(pg_names={"group": "0", "gone": "1"}, pg_group_ranks=Destroyed(group=[0, 1]))
    monkeypatch.setattr(dist.distributed_c10d, "_world", world)
    ours, theirs = Channel.pair()
    with closing(ours), closing(theirs):
        Informant(theirs, "gloo")
        assert asked(ours) == ([], {"0": (0, 1)})


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize(
    ("moments", "silent"), [([10], True), ([10, 19], True), ([10, 20], False), ([10, 25], False), ([], False)]
)
def test_a_run_that_issued_nothing_is_silent_where_the_recorder_records(
    monkeypatch: pytest.MonkeyPatch, backend: str, moments: list[int], silent: bool
) -> None:
    entries = [{**ENTRY, "time_created_ns": moment, "is_p2p": moment == 25} for moment in moments]
    recorder = Recorder(pickle.dumps({"entries": entries}), backend)
    monkeypatch.setattr(torch._C, "_distributed_c10d", recorder)
    ours, theirs = Channel.pair()
    with closing(ours), closing(theirs):
        informant = Informant(theirs, backend)
        informant.since = 20
        assert informant.is_silent() is silent


@pytest.mark.parametrize(
    "recorder", [object(), Recorder(b"no pickle", "nccl"), Recorder(pickle.dumps({"entries": [{}]}), "nccl")]
)
def test_silence_is_not_assumed(monkeypatch: pytest.MonkeyPatch, recorder: object) -> None:
    monkeypatch.setattr(torch._C, "_distributed_c10d", recorder)
    ours, theirs = Channel.pair()
    with closing(ours), closing(theirs):
        assert not Informant(theirs, "nccl").is_silent()
