"""Messages between processes: whole, whatever their size, and without leaving memory or descriptors behind."""

from __future__ import annotations

import errno
import os
import pickle
import re
import resource
from collections.abc import Iterator
from contextlib import closing

import pytest

from pytest_gpuperf.ranks.channel import LARGE, PACKET, Channel, Letter, Parcel
from tests.ranks.processes import open_files

SIZES = [0, 1, 1000, PACKET - 200, PACKET, PACKET + 1, 10 * PACKET]


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = Channel.pair()
    with closing(ours), closing(theirs):
        yield ours, theirs


def some(size: int) -> bytes:
    return bytes(i * i % 251 for i in range(size))


@pytest.mark.parametrize("size", SIZES)
def test_a_message_of_any_size_arrives_with_its_enclosure(ends: tuple[Channel, Channel], size: int) -> None:
    ours, theirs = ends
    before = open_files()
    buffers = [some(3), some(0), some(size), some(LARGE)]
    ours.send(("text", some(size)), Parcel(some(size), [pickle.PickleBuffer(data) for data in buffers]))
    message, parcel = theirs.receive()
    assert message == ("text", some(size))
    assert bytes(memoryview(parcel.stream)) == some(size)
    assert [bytes(memoryview(data)) for data in parcel.buffers if not isinstance(data, pickle.PickleBuffer)] == buffers
    assert open_files() == before


def test_messages_arrive_one_by_one(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    assert not theirs.poll(0)
    for number, size in enumerate((5, 2 * PACKET, 7)):
        ours.send(number, Parcel(some(size)))
    assert theirs.poll(10)
    assert [(number, bytes(memoryview(parcel.stream))) for number, parcel in (theirs.receive() for _ in range(3))] == [
        (0, some(5)),
        (1, some(2 * PACKET)),
        (2, some(7)),
    ]


def test_all_receivers_of_a_letter_read_it_whole_and_may_change_what_they_read() -> None:
    pairs = [Channel.pair() for _ in range(3)]
    with Letter("to all", Parcel(b"", [some(2 * LARGE)])) as letter:
        for ours, _ in pairs:
            ours.post(letter)
    for ours, theirs in pairs:
        message, parcel = theirs.receive()
        (data,) = parcel.buffers
        assert (message, bytes(memoryview(data))) == ("to all", some(2 * LARGE))
        memoryview(data)[:] = bytes(2 * LARGE)
        ours.close()
        theirs.close()


def test_a_large_message_is_sent_though_nobody_reads(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    ours.send("large", Parcel(bytes(1 << 26)))  # a pipe would wait for its reader
    assert theirs.receive()[0] == "large"


def test_the_end_of_the_peer_is_told(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    ours.send("before")
    ours.close()
    assert theirs.receive()[0] == "before"
    with pytest.raises(EOFError):
        theirs.receive()
    with pytest.raises(BrokenPipeError):
        theirs.send("after")


def test_what_the_peer_did_not_read_is_told(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    theirs.send("unread")
    ours.close()
    with pytest.raises(ConnectionResetError):
        theirs.receive()


def test_a_message_that_was_cut_short_is_an_end(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    before = open_files()
    with Letter("large", Parcel(bytes(1 << 20))) as letter:
        assert letter.file is not None
        os.ftruncate(letter.file, 1 << 19)
        ours.post(letter)
    with pytest.raises(EOFError):
        theirs.receive()
    assert open_files() == before


@pytest.fixture
def no_more_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_large_message_needs_a_descriptor_to_be_sent(ends: tuple[Channel, Channel], no_more_files: None) -> None:
    ours, theirs = ends
    with pytest.raises(OSError) as caught:
        ours.send("large", Parcel(bytes(1 << 20)))
    assert caught.value.errno == errno.EMFILE
    (note,) = caught.value.__notes__
    assert re.fullmatch(r"raised as 1048\d{3} bytes were laid down in memory, on their way to another process", note)
    ours.send("small")
    assert theirs.receive()[0] == "small"


def test_a_large_message_needs_a_descriptor_to_be_read(
    ends: tuple[Channel, Channel], request: pytest.FixtureRequest
) -> None:
    ours, theirs = ends
    ours.send("large", Parcel(bytes(1 << 20)))
    request.getfixturevalue("no_more_files")
    with pytest.raises(OSError, match=r"^\[Errno 24\] a large message was lost: Too many open files$"):
        theirs.receive()


def test_a_file_that_cannot_take_a_message_is_closed(ends: tuple[Channel, Channel]) -> None:
    before = open_files()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            ends[0].send("large", Parcel(bytes(1 << 20)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert open_files() == before
