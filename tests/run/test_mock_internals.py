"""What is relied on of unittest.mock's private names."""

import json
from unittest import mock

from pytest_gpuperf.run.mock_internals import LivePatches


def test_patches_that_were_entered_and_not_left_are_known() -> None:
    live = LivePatches()
    live.watch()
    live.watch()
    try:
        with mock.patch("json.dumps"), mock.patch.multiple(json, loads=mock.DEFAULT, load=mock.DEFAULT):
            assert sorted(name for _, name in live.targets()) == ["dumps", "load", "loads"]
            assert {owner for owner, _ in live.targets()} == {json}
        started = mock.patch.object(json, "dump")
        started.start()
        assert list(live.targets()) == [(json, "dump")]
        started.stop()
        assert list(live.targets()) == []
    finally:
        live.close()
    with mock.patch("json.dumps"):
        assert list(live.targets()) == []
