"""Small classes in the shapes of torch's harnesses, as modules for whole runs of pytest."""

PROCESSES = """
import multiprocessing, os, random, sys, time, unittest
from datetime import timedelta
from pathlib import Path

import numpy, torch, torch.distributed as dist
from torch.testing._internal.common_distributed import (
    DistributedTestBase, MultiProcContinuousTest, MultiProcessTestCase, run_subtests, skip_if_lt_x_gpu
)
from torch.testing._internal.common_utils import instantiate_parametrized_tests, parametrize
import pytest, pytest_gpuperf

FILES = Path(__file__).parent
COUNT = 0
GROUP = frozenset()
PATIENT = 1.5
OF_SETUP = os.environ.get("OF_SETUP")  # differs from test to test, as some harnesses have it

def told(case, value):
    (FILES / f"{case.id().rpartition('.')[2]}_{case.rank}").write_text(repr(value))


@pytest_gpuperf.on_ranks
class GlooCase(MultiProcessTestCase):
    calls = 0

    @property
    def world_size(self):
        return 2

    def setUp(self):
        super().setUp()
        self.began = time.monotonic()
        os.environ["OF_SETUP"] = self.file_name
        if self._testMethodName == "test_an_exit_is_seen_by_the_other_rank":
            self.skip_return_code_checks = [getattr(self, self._testMethodName).__wrapped__]
        self._spawn_processes()

    def tearDown(self):
        super().tearDown()
        (FILES / f"{self._testMethodName}_took").write_text(str(time.monotonic() - self.began))

    def group(self):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group(
            "gloo", store=store, rank=self.rank, world_size=self.world_size, timeout=timedelta(minutes=1)
        )

    def test_all_reduce(self):
        self.group()
        x = torch.full((2,), float(self.rank))
        dist.all_reduce(x)
        self.assertEqual(x, torch.ones(2))
        told(self, (os.getpid(), OF_SETUP == os.environ["OF_SETUP"] == self.file_name))

    def test_all_reduce_again(self):
        self.test_all_reduce()
        dist.destroy_process_group()

    def test_draws(self):
        told(self, (random.random(), float(numpy.random.rand()), float(torch.rand(1))))

    def test_has_the_name_and_the_parent_of_a_process(self):
        self.assertEqual(multiprocessing.current_process().name, f"process {self.rank}")
        parent = multiprocessing.parent_process()
        self.assertEqual((parent.name, parent.pid, parent.is_alive()), ("MainProcess", os.getppid(), True))

    def test_sends_an_object_of_this_module(self):
        self.group()
        found = [None] * 2
        dist.all_gather_object(found, Sent(self.rank))
        self.assertEqual([one.rank for one in found], [0, 1])

    @parametrize("turn", [0, 1])
    def test_counts(self, turn):
        global COUNT
        COUNT += 1
        type(self).calls += 1
        torch.set_default_dtype(torch.float64)
        os.environ["OF_THE_TEST"] = "1"
        self.assertEqual((COUNT, type(self).calls), (1, 1))

    @parametrize("k", [1, 2])
    def test_one_value_fails(self, k):
        self.assertEqual(k, 1)

    def test_raises_on_one_rank(self):
        self.group()
        if self.rank == 1:
            raise ValueError("on rank 1")
        dist.barrier()

    def test_skips(self):
        raise unittest.SkipTest("of the test")

    @skip_if_lt_x_gpu(2)
    def test_needs_gpus(self):
        raise AssertionError("there are none")

    @unittest.expectedFailure
    def test_fails_as_expected(self):
        raise ValueError("expected")

    def test_leaves_before_its_assertions(self):
        sys.exit(0)
        self.assertEqual(0, 1)

    def test_one_rank_leaves_before_its_assertions(self):
        if self.rank == 1:
            sys.exit()
        self.assertEqual(self.rank, 0)

    def test_leaves_with_code_3(self):
        sys.exit(3 if self.rank == 1 else 0)

    def test_leaves_by_its_last_statement(self):
        self.group()
        dist.barrier()
        self.assertEqual(self.world_size, 2)
        sys.exit(
            0,
        )

    def test_leaves_within_a_block(self):
        for turn in range(2):
            self.assertEqual(turn, 0)
            sys.exit(0)

    def test_an_exit_is_seen_by_the_other_rank(self):
        self.group()
        dist.barrier()  # both are connected
        if self.rank == 1:
            sys.exit(0)
        with self.assertRaises(RuntimeError):
            dist.all_reduce(torch.ones(1))  # of a minute, if nobody closes the connection

    def test_leaves_at_once(self):
        os._exit(0)

    def test_spawns(self):
        self._spawn_processes()

    def test_subtests_that_fail_on_all_ranks(self):
        self.group()
        def check(number):
            self.assertTrue(number not in (1, 3))
        run_subtests(self, {"number": [0, 1, 2, 3]}, check)

    def test_subtest_that_fails_on_one_rank(self):
        for number in range(3):
            with self.subTest(number=number):
                self.assertFalse(number == 1 and self.rank == 0)

instantiate_parametrized_tests(GlooCase)


class Sent:
    def __init__(self, rank):
        self.rank = rank


@pytest_gpuperf.on_ranks
class Codes(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        test = getattr(self, self._testMethodName).__wrapped__
        if self._testMethodName == "test_an_expected_exit_with_0":
            self.special_return_code_checks = {test: 0}
        elif self._testMethodName in ("test_expected_end", "test_another_end"):
            self.special_return_code_checks = {test: -6}
        else:
            self.skip_return_code_checks = [test]
        self._spawn_processes()

    def test_any_end(self):
        os._exit(7)

    def test_expected_end(self):
        os.abort()

    def test_another_end(self):
        pass

    def test_an_expected_exit_with_0(self):
        sys.exit(0)

    def test_any_end_and_a_failure_of_the_other(self):
        if self.rank == 1:
            os.abort()
        time.sleep(PATIENT)  # longer than ranks get after a failure
        self.assertEqual(self.rank, 1)

    def test_any_end_and_work_of_the_other(self):
        if self.rank == 1:
            os.abort()
        time.sleep(PATIENT)
        told(self, "came to its end")


@pytest_gpuperf.on_ranks(env={"OF": "ranks that no test was on"})
class First(Codes):
    def test_any_end(self):
        global GROUP
        GROUP = object()

    test_another_end = test_an_expected_exit_with_0 = None
    test_expected_end = test_any_end_and_a_failure_of_the_other = test_any_end_and_work_of_the_other = None


@pytest_gpuperf.on_ranks(isolation="process")
class Alone(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def test_pid_of_one(self):
        told(self, os.getpid())

    def test_pid_of_another(self):
        told(self, os.getpid())


@pytest_gpuperf.on_ranks
class Derived(DistributedTestBase):
    world_size = 2

    def test_creates_its_group(self):
        dist.init_process_group(
            "gloo", rank=self.rank, world_size=self.world_size, init_method=f"file://{self.file_name}"
        )
        dist.barrier()
        self.assertEqual(os.environ["WORLD_SIZE"], "2")

    @classmethod
    def _run(cls, rank, test_name, file_name, pipe, **kwargs):
        if test_name == "test_set_up_fails_on_one_rank" and rank == 1:
            raise RuntimeError("set up on rank 1")
        super()._run(rank, test_name, file_name, pipe, **kwargs)
        sys.exit(0)  # as torch's distributed_test.py does

    def test_set_up_fails_on_one_rank(self):
        pass


@pytest_gpuperf.on_ranks
class NoWorld(MultiProcessTestCase):
    world_size = -1

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def test_never(self):
        pass


@pytest_gpuperf.on_ranks
class AsManyAsGPUs(NoWorld):
    world_size = 0  # as torch.cuda.device_count() is here


@pytest_gpuperf.on_ranks(3)
class TwoWorlds(GlooCase):
    pass

@pytest.mark.ranks(2)
class Marked(Alone):
    pass

@pytest_gpuperf.on_ranks(isolation="test")
class BadKeyword(NoWorld):
    world_size = 2

@pytest_gpuperf.on_ranks
class Mixed(MultiProcessTestCase, MultiProcContinuousTest):
    world_size = 2

    def test_it(self):
        pass

@pytest_gpuperf.on_ranks
class Plain(unittest.TestCase):
    def test_it(self):
        pass
"""

CONTINUOUS = """
import sys, torch, torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.common_distributed import MultiProcContinuousTest, MultiThreadedTestCase
from torch.testing._internal.common_fsdp import FSDPTest
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorTestBase, with_comms


class InTurn(MultiProcContinuousTest):
    world_size = 2

    @classmethod
    def backend_str(cls):
        return "gloo"

    def test_all_reduce(self):
        x = torch.full((2,), float(self.rank))
        dist.all_reduce(x)
        self.assertEqual(x, torch.ones(2))

    def test_has_the_name_of_a_process(self):
        import multiprocessing

        self.assertEqual(multiprocessing.current_process().name, f"process {self.rank}")

    def test_fails(self):
        if self.rank == 1:
            raise ValueError("on rank 1")
        dist.barrier()

    def test_leaves_before_its_assertions(self):
        dist.barrier()
        sys.exit()

    def test_runs_after_the_failure(self):
        dist.barrier()


class OnMesh(DTensorTestBase):
    world_size = 2

    @with_comms
    def test_shards(self):
        whole = distribute_tensor(torch.arange(4.0), self.build_device_mesh(), [Shard(0)])
        self.assertEqual((whole + 1).full_tensor(), torch.arange(4.0) + 1)


class Sharded(FSDPTest):
    world_size = 2

    def test_needs_gpus(self):
        raise AssertionError("there are none")


class Threads(MultiThreadedTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_threads()

    def test_stays_on_threads(self):
        import threading
        assert threading.current_thread() is not threading.main_thread()
"""


LAUNCHING = '''
"""A harness of DeepSpeed's shape. What launches processes fails, since ours takes its place."""
import inspect, os
import pytest, torch.distributed as dist


class Exec:
    world_size = 2
    init_distributed = set_dist_env = True
    non_daemonic_procs = False
    exec_timeout = 60

    def __call__(self, request):
        self._fixture_kwargs = self.values(request, self.run)
        self._launch_with_file_store(request, self.world_size)

    def values(self, request, function):
        names = [name for name in inspect.getfullargspec(function).args if name != "self"]
        return {name: request.getfixturevalue(name) for name in names}

    def _launch_daemonic_procs(self, num_procs, init_method):
        raise AssertionError("processes of its own")

    _launch_non_daemonic_procs = _launch_with_file_store = _launch_daemonic_procs

    def _launch_procs(self, num_procs, init_method):
        launch = self._launch_non_daemonic_procs if self.non_daemonic_procs else self._launch_daemonic_procs
        launch(num_procs, init_method)

    def _dist_run(self, local_rank, num_procs, master_port, init_method, skip_msg=""):
        if self.set_dist_env:
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(master_port), RANK=str(local_rank))
            os.environ.update(WORLD_SIZE=str(num_procs))
        if self.init_distributed:
            dist.init_process_group("gloo", init_method=init_method, rank=local_rank, world_size=num_procs)
            dist.barrier()  # a rank that leaves while others still connect to it makes them fail
        try:
            self.run(**self._fixture_kwargs)
        except pytest.skip.Exception as skipped:
            if self.non_daemonic_procs:
                skip_msg.put(skipped.msg)
            else:
                skip_msg = skipped.msg
        return skip_msg

    def _dist_destroy(self):
        if dist.is_initialized():
            dist.barrier()
            dist.destroy_process_group()


class DistributedTest(Exec):
    is_dist_test = True

    def __call__(self, request):
        self._current_test = getattr(self, request.function.__name__)
        self._fixture_kwargs = self.values(request, self._current_test)
        marks = [mark.args[0] for mark in request.node.iter_markers("world_size")]
        self._launch_with_file_store(request, marks[0] if marks else self.world_size)

    def run(self, **values):
        self._current_test(**values)


class DistributedFixture(Exec):
    is_dist_fixture = True
'''

LAUNCHING_CONFTEST = """
import pytest

def pytest_configure(config):
    config.addinivalue_line("markers", "world_size(n): of a test")

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    if getattr(item.cls, "is_dist_test", False):
        item.cls()(item._request)
        item.runtest = lambda: True
"""

LIBRARY = """
backend = None
groups = {}
class Partial:
    _shared_state = {}
"""

LAUNCHED = """
import enum, os, sys
from pathlib import Path
import pytest, torch, torch.distributed as dist
from deepspeed import state
from launching import DistributedFixture, DistributedTest

PIDS = Path(__file__).parent


class Kind(enum.Enum):
    SUM = "sum"


class Saved(DistributedFixture):
    world_size = 3

    def run(self, tmpdir):
        if dist.get_rank() == 0:
            (tmpdir / "saved").write(str(dist.get_world_size()))

@pytest.fixture
def saved(request):
    Saved()(request)


class TestWorlds(DistributedTest):
    world_size = [2, 3]

    @pytest.mark.parametrize("kind", [Kind.SUM])
    def test_sums_in_both_worlds(self, kind, tmpdir):
        assert kind is Kind.SUM
        x = torch.ones(1)
        dist.all_reduce(x)
        assert x.item() == dist.get_world_size() == int(os.environ["WORLD_SIZE"])
        (tmpdir / str(dist.get_world_size())).write("")
        assert (tmpdir / "2").exists()

    @pytest.mark.world_size(2)
    def test_after_a_fixture_of_another_world(self, saved, tmpdir):
        assert ((tmpdir / "saved").read(), dist.get_world_size()) == ("3", 2)

    @pytest.mark.world_size(2)
    def test_skips(self):
        pytest.skip("of the test")

    @pytest.mark.world_size(2)
    def test_fails_on_one_rank(self):
        if dist.get_rank() == 1:
            raise ValueError("on rank 1")
        dist.barrier()


    @pytest.mark.world_size(2)
    def test_leaves_before_its_assertions(self):
        sys.exit(0)


class TestOpensItsGroup(DistributedTest):
    init_distributed = False
    non_daemonic_procs = True

    def test_by_the_environment(self):
        dist.init_process_group("gloo")
        dist.barrier()  # gloo: a rank that leaves before the other has connected breaks its init_process_group
        assert dist.get_world_size() == 2

    def test_skips(self):
        pytest.skip("of the test")


class TestLibrary(DistributedTest):
    # Each needs the library as it is after an import.

    def check(self, tmpdir, name):
        assert (state.backend, state.groups, state.Partial._shared_state) == (None, {}, {})
        assert not hasattr(state, "new")
        state.backend, state.new = object(), object()
        state.groups["ep"] = torch.ones(2)
        state.Partial._shared_state["device"] = "cpu"
        PIDS.joinpath(f"{name}_{dist.get_rank()}").write_text(str(os.getpid()))

    def test_one(self, tmpdir):
        self.check(tmpdir, "one")

    def test_other(self, tmpdir):
        self.check(tmpdir, "other")


class TestWithoutEnvironment(DistributedTest):
    init_distributed = set_dist_env = False

    def test_has_no_rank(self):
        assert "RANK" not in os.environ and "MASTER_ADDR" not in os.environ
"""

TORCHRUN = """
import sys
import pytest, torch, torch.distributed as dist
from pytest_gpuperf import on_ranks


class State:
    opened = 0


@on_ranks(2)
class TestUnderTorchrun:
    @classmethod
    def setup_class(cls):
        cls.of_the_class = True

    def setup_method(self, method):
        dist.init_process_group("gloo")
        dist.barrier()
        State.opened += 1

    def teardown_method(self):
        dist.destroy_process_group()

    @pytest.fixture
    def doubled(self, k):
        return 2 * k

    @pytest.mark.parametrize("k", [1, 2])
    def test_sums(self, k, doubled):
        x = torch.full((1,), float(k))
        dist.all_reduce(x)
        assert x.item() == doubled
        assert (State.opened, self.of_the_class) == (1, True)

    def test_leaves_before_its_assertions(self):
        sys.exit(0)

    def test_fails_on_one_rank(self):
        if dist.get_rank() == 1:
            raise ValueError("on rank 1")
        dist.barrier()


@on_ranks(2, 3)
class TestTwoWorlds(TestUnderTorchrun):
    pass


@on_ranks
class TestNoWorld(TestUnderTorchrun):
    pass
"""
