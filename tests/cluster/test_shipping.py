"""Large arguments go to Ray's object store once for each task, and from there to each node once."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import ray

from pytest_gpuperf.features.cluster.shipping import Shipping
from pytest_gpuperf.ranks.channel import LARGE, Parcel


@pytest.fixture
def put(monkeypatch: pytest.MonkeyPatch) -> list[Parcel]:
    """What was put into Ray's object store."""
    found: list[Parcel] = []

    def noted(parcel: Parcel) -> str:
        found.append(parcel)
        return f"reference {len(found)}"

    monkeypatch.setattr(ray, "put", noted)
    return found


@pytest.fixture
def shipping() -> Shipping:
    return Shipping()


def large(byte: bytes) -> Parcel:
    return Parcel(b"a program", [bytearray(byte * LARGE)])


def bytes_of(parcel: Any) -> bytes:
    (part,) = parcel.buffers
    return bytes(memoryview(part)[:1])


def test_a_large_task_is_put_once_for_all_nodes(shipping: Shipping, put: list[Parcel]) -> None:
    task = large(b"x")
    assert [shipping.send(task) for _ in range(4)] == ["reference 1"] * 4
    assert [bytes_of(parcel) for parcel in put] == [b"x"]


def test_another_task_is_put_anew(shipping: Shipping, put: list[Parcel]) -> None:
    first, second = large(b"x"), large(b"y")
    assert [shipping.send(task) for task in (first, second, second, first)] == [
        *("reference 1", "reference 2", "reference 2", "reference 3")
    ]
    assert [bytes_of(parcel) for parcel in put] == [b"x", b"y", b"x"]


def test_a_task_in_the_place_of_one_that_is_gone_is_put_anew(shipping: Shipping, put: list[Parcel]) -> None:
    """Its memory may be that of the other one; and the object store keeps nothing for a task that is gone."""
    for number in range(1, 4):
        task = large(b"x")
        assert shipping.send(task) == f"reference {number}"
        del task
        gc.collect()
        assert shipping._shipped is None


def test_a_small_task_goes_with_the_call(shipping: Shipping, put: list[Parcel]) -> None:
    carried = shipping.send(Parcel(b"a program", [bytearray(b"x")]))
    assert bytes_of(carried) == b"x"
    assert put == []
