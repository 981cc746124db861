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
    """Prints which tests are marked as long and run, in the order of all, and how many threads a reference has."""
    import torch

    marks = [(item.get_closest_marker("long"), item.get_closest_marker("skip")) for item in session.items]
    print("threads:", torch.get_num_threads())
    print("order:", "".join("L" if is_long and not skipped else "." for is_long, skipped in marks))
