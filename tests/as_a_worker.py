"""Plugin of a run: it collects as one of three workers of xdist does, on a machine with as many GPUs as $GPUS says."""

import os

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Makes it one."""
    from tests import fake_gpus  # now: what is imported before has no assertions of pytest's

    config.workerinput = {"workerid": "gw0", "workercount": 3, "testrunuid": "a run"}  # type: ignore[attr-defined]
    fake_gpus.install(pytest.MonkeyPatch(), visible=int(os.environ["GPUS"]))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Prints which tests run and are long, or isolated, in the order of all, and how many threads a reference has."""
    import torch

    print("threads:", torch.get_num_threads())
    print("order:", "".join(map(_letter, session.items)))


def _letter(item: pytest.Item) -> str:
    ranks = item.get_closest_marker("ranks")
    if item.get_closest_marker("skip"):
        return "."
    if item.get_closest_marker("long"):
        return "L"
    return "." if ranks is None or "isolation" not in ranks.kwargs else "I"
