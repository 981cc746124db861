"""The markers ranks and perf: what they take, and what is said of anything else."""

import pytest

from pytest_gpuperf.markers import RanksMarker, parse_ranks
from pytest_gpuperf.ranks.nccl_debug import LOGGED
from pytest_gpuperf.report import results_file
from tests.fake_gpus import without_ranks
from tests.whole_run import WholeRun, run_pytest, write

TEST = "import pytest\n@pytest.mark.ranks({arguments})\ndef test_it({fixtures}): pass\n"

WRONG = [
    (
        "2, size=3",
        "has no keyword 'size'; it takes world sizes, and timeout, device, isolation, env, largest, nccl_log, "
        "launcher_env, nodes and per_node",
    ),
    ("0", "takes world sizes of 1 or more as integers, got 0"),
    ("-1", "takes world sizes of 1 or more as integers, got -1"),
    ("'four'", "takes world sizes of 1 or more as integers, got 'four'"),
    ("True", "takes world sizes of 1 or more as integers, got True"),
    ("2.0", "takes world sizes of 1 or more as integers, got 2.0"),
    ("[2, 4]", "takes world sizes of 1 or more as integers, got [2, 4]"),
    ("2, 4, 2", "names a world size twice: 2, 4, 2"),
    ("", "names no world size; write for example @pytest.mark.ranks(2, 4)"),
    ("2, timeout=0", "takes a timeout in seconds above 0, got 0"),
    ("2, timeout=-1", "takes a timeout in seconds above 0, got -1"),
    ("2, timeout='x'", "takes a timeout in seconds above 0, got 'x'"),
    ("2, timeout=True", "takes a timeout in seconds above 0, got True"),
    ("2, timeout=float('inf')", "takes a timeout in seconds above 0, got inf"),
    ("2, timeout=float('nan')", "takes a timeout in seconds above 0, got nan"),
    ("2, device='tpu'", "takes device='cuda' or device='cpu', got 'tpu'"),
    ("2, device=0", "takes device='cuda' or device='cpu', got 0"),
    ("2, device=['cpu']", "takes device='cuda' or device='cpu', got ['cpu']"),
    ("2, isolation='test'", "takes isolation='group', isolation='file' or isolation='process', got 'test'"),
    ("2, isolation=True", "takes isolation='group', isolation='file' or isolation='process', got True"),
    ("2, nccl_log='yes'", "takes nccl_log=True or nccl_log=False, got 'yes'"),
    ("2, env='A=1'", "takes env as a dict of strings, got 'A=1'"),
    ("2, env=['A']", "takes env as a dict of strings, got ['A']"),
    ("2, env={1: 'x'}", "takes env with names that a variable can have, got 1"),
    ("2, env={'': 'x'}", "takes env with names that a variable can have, got ''"),
    ("2, env={'A=B': 'x'}", "takes env with names that a variable can have, got 'A=B'"),
    (
        "2, env={'A': 'is {rank==}'}",
        "takes env with {rank} or, for one rank apart, {rank==2} in a value, got A='is {rank==}'",
    ),
    (
        "2, env={'A': '{rank}{rank == 1}'}",
        "takes env with {rank} or, for one rank apart, {rank==2} in a value, got A='{rank}{rank == 1}'",
    ),
    ("2, env={'A\\0': 'x'}", "takes env with names that a variable can have, got 'A\\x00'"),
    ("2, env={'NCCL_NTHREADS': 64}", "takes env with strings as values, got NCCL_NTHREADS=64: write '64'"),
    ("2, env={'A': None}", "takes env with strings as values, got A=None: write 'None'"),
    ("2, env={'A': 'x\\0'}", "takes env with values that a variable can have, got A='x\\x00'"),
    (
        "2, env={'PYTHONHASHSEED': 'many'}",
        "takes env with PYTHONHASHSEED as a whole number up to 4294967295, 'random' or '{rank}', got 'many'",
    ),
    (
        "2, env={'PYTHONHASHSEED': '5000000{rank}00'}",
        "takes env with PYTHONHASHSEED as a whole number up to 4294967295, 'random' or '{rank}', got '5000000{rank}00'",
    ),
    (
        "2, env={'CUDA_VISIBLE_DEVICES': '0'}",
        "cannot set CUDA_VISIBLE_DEVICES to '0': a test has the GPUs that it leased; write '{gpu}' to show each rank "
        "its own GPU alone",
    ),
    ("2, largest=1", "takes largest=True or largest=False, got 1"),
    ("2, largest=None", "takes largest=True or largest=False, got None"),
    ("2, launcher_env=1", "takes launcher_env=True or launcher_env=False, got 1"),
    ("2, launcher_env=True, env={'MASTER_PORT': '1'}", "takes env without MASTER_PORT, which launcher_env=True sets"),
    ("2, launcher_env=True, env={'RANK': '0'}", "takes env without RANK, which launcher_env=True sets"),
    ("2, nodes=0", "takes nodes as an integer of 1 or more, got 0"),
    ("2, per_node=True", "takes per_node as an integer of 1 or more, got True"),
    ("nodes='every'", "takes nodes as an integer of 1 or more, or 'all', got 'every'"),
    ("4, nodes='all'", "takes nodes='all' without world sizes, which the cluster's nodes say, got 4"),
    ("3, nodes=2", "cannot deal 3 ranks evenly with nodes=2"),
    ("8, nodes=2, per_node=2", "cannot deal 8 ranks evenly with nodes=2"),
]


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    """A run of a module for each wrong marker."""
    modules = {
        f"test_{index}.py": TEST.format(arguments=wrong, fixtures="ranks") for index, (wrong, _) in enumerate(WRONG)
    }
    return run_pytest(write(tmp_path_factory.mktemp("wrong"), modules))


@pytest.mark.parametrize("index", range(len(WRONG)), ids=[f"{arguments}-{problem}" for arguments, problem in WRONG])
def test_a_wrong_marker_is_a_collection_error_that_names_the_test(refused: WholeRun, index: int) -> None:
    problem = WRONG[index][1]
    assert refused.result.outlines.count(f"test_{index}.py::test_it: marker ranks {problem}") == 1
    assert sum(line.startswith(f"ERROR test_{index}.py") for line in refused.result.outlines) == 1


def test_wrong_markers_are_all_that_is_told(refused: WholeRun) -> None:
    refused.result.assert_outcomes(errors=len(WRONG))
    assert "Traceback" not in refused.text


@pytest.mark.parametrize("fixtures", ["", "tmp_path"])
def test_a_wrong_marker_is_one_error_of_a_test_that_uses_no_ranks(pytester: pytest.Pytester, fixtures: str) -> None:
    pytester.makepyfile(test_wrong=TEST.format(arguments="'four'", fixtures=fixtures))
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(errors=1)
    assert "test_wrong.py::test_it: marker ranks takes world sizes of 1 or more as integers, got 'four'" in (
        result.stdout.str()
    )
    assert "RuntimeError" not in result.stdout.str()


@pytest.mark.parametrize("fixture", ["ranks", "perf"])
def test_a_test_that_uses_ranks_has_to_say_how_many(pytester: pytest.Pytester, fixture: str) -> None:
    pytester.makepyfile(test_unmarked=f"def test_it({fixture}): pass")
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(errors=1)
    assert (
        "test_unmarked.py::test_it: the test uses ranks and does not say how many: mark it, for example, "
        "@pytest.mark.ranks(2)"
    ) in result.outlines


def test_a_test_with_the_marker_and_without_ranks_would_pass_unseen(pytester: pytest.Pytester) -> None:
    """The marker of a module or a class may stand above tests without ranks."""
    pytester.makepyfile(
        test_marked="import pytest\n@pytest.mark.ranks(2)\ndef test_it(): pass",
        test_module="import pytest\npytestmark = pytest.mark.ranks(2)\ndef test_plain(): pass\n"
        "@pytest.mark.ranks(3)\nclass TestClass:\n    def test_plain(self): pass",
    )
    result = pytester.runpytest_inprocess("--continue-on-collection-errors")
    result.assert_outcomes(errors=1, passed=2)
    assert (
        "test_marked.py::test_it: the test has the marker ranks and does not use ranks: add the fixture ranks or perf "
        "to its arguments, or remove the marker"
    ) in result.outlines


@pytest.mark.parametrize(
    ("arguments", "keywords", "meaning"),
    [
        ((2,), {}, RanksMarker((2,), None, None)),
        ((8, 2, 4), {"timeout": 3, "device": "cuda"}, RanksMarker((8, 2, 4), 3.0, "cuda")),
        ((1,), {"timeout": None, "device": "cpu"}, RanksMarker((1,), None, "cpu")),
        ((1,), {"timeout": 0.25, "device": None}, RanksMarker((1,), 0.25, None)),
        ((2,), {"isolation": "process"}, RanksMarker((2,), isolation="process")),
        ((2,), {"isolation": "group", "env": {}}, RanksMarker((2,))),
        ((2,), {"isolation": None, "env": None}, RanksMarker((2,))),
        ((2,), {"nccl_log": True, "env": {"A": "1"}}, RanksMarker((2,), env=(("A", "1"), *sorted(LOGGED.items())))),
        ((2,), {"nccl_log": True}, RanksMarker((2,), env=tuple(sorted(LOGGED.items())))),
        ((2,), {"env": {"B": "2", "A": ""}}, RanksMarker((2,), env=(("A", ""), ("B", "2")))),
        ((2, 4), {"largest": True}, RanksMarker((2, 4), largest=True)),
        ((2, 4), {"largest": False}, RanksMarker((2, 4))),
    ],
)
def test_a_marker_means_what_it_says(
    arguments: tuple[int, ...], keywords: dict[str, object], meaning: RanksMarker
) -> None:
    mark = pytest.mark.ranks(*arguments, **keywords).mark
    assert parse_ranks(mark, "test_x.py::test_it") == meaning


@pytest.mark.parametrize(
    ("marker", "own"),
    [
        (RanksMarker((2,)), False),
        (RanksMarker((2,), isolation="process"), True),
        (RanksMarker((2,), env=(("A", "1"),)), False),  # tests of the same environment share them
    ],
)
def test_a_test_has_processes_of_its_own_if_it_asks_for_them(marker: RanksMarker, own: bool) -> None:
    assert marker.own_processes is own


@pytest.mark.parametrize(
    ("marker", "gpus", "sizes"),
    [
        (RanksMarker((8, 2, 4)), 4, (8, 2, 4)),
        (RanksMarker((8, 2, 4), largest=True), 4, (8, 4)),  # 8 to be skipped with its reason
        (RanksMarker((8, 2, 4), largest=True), 7, (8, 4)),
        (RanksMarker((8, 2, 4), largest=True), 8, (8,)),
        (RanksMarker((8, 2, 4), largest=True), 16, (8,)),
        (RanksMarker((8, 2, 4), largest=True), 1, (8, 2, 4)),
        (RanksMarker((8, 2, 4), largest=True), 0, (8, 2, 4)),
        (RanksMarker((8, 2, 4), device="cpu", largest=True), 8, (8, 2, 4)),
        (RanksMarker((8, 2, 4), device="cuda", largest=True), 2, (8, 2, 4)),
    ],
)
def test_the_largest_world_that_the_gpus_hold_stands_for_smaller_ones(
    marker: RanksMarker, gpus: int, sizes: tuple[int, ...]
) -> None:
    assert marker.choose_sizes(gpus) == sizes


@pytest.mark.parametrize(
    ("marker", "gpus", "nodes", "sizes"),
    [
        (RanksMarker((), nodes=2), 16, 2, (16,)),
        (RanksMarker((), nodes=2), 32, 4, (16,)),
        (RanksMarker((), nodes=2), 8, 1, (16,)),  # to be skipped with its reason
        (RanksMarker((), nodes=2), 0, 2, (2,)),
        (RanksMarker((), nodes=2, device="cpu"), 16, 2, (2,)),
        (RanksMarker((), nodes="all"), 24, 3, (24,)),
        (RanksMarker((), nodes="all", per_node=2), 24, 3, (6,)),
        (RanksMarker((), nodes="all"), 0, 3, (3,)),
        (RanksMarker((), per_node=8), 16, 2, (16,)),
        (RanksMarker((), per_node=2), 0, 3, (6,)),
        (RanksMarker((), per_node=4, nodes=2), 0, 1, (8,)),
        (RanksMarker((4, 8), nodes=2), 16, 2, (4, 8)),
        (RanksMarker((2, 4, 8), nodes=1, largest=True), 4, 2, (2, 4, 8)),  # a node has 2; more are skipped
        (RanksMarker((2, 4, 8), nodes=1, largest=True), 16, 2, (8,)),
        (RanksMarker((2, 4, 8), nodes=2, largest=True), 16, 4, (8,)),
        (RanksMarker((2, 4, 8), nodes=1, largest=True), 4, 1, (4, 8)),
    ],
)
def test_without_world_sizes_the_nodes_say_how_many_ranks_there_are(
    marker: RanksMarker, gpus: int, nodes: int, sizes: tuple[int, ...]
) -> None:
    assert marker.choose_sizes(gpus, nodes) == sizes


@pytest.mark.parametrize(
    ("marker", "gpus", "nodes", "sizes"),
    [
        (RanksMarker((8, 2, 4)), 0, 1, (8,)),
        (RanksMarker((2,)), 0, 1, (2,)),
        (RanksMarker((8, 2, 4), largest=True), 0, 1, (8,)),
        (RanksMarker((8, 2, 4), device="cuda"), 0, 1, (8,)),  # to be skipped with its reason
        (RanksMarker((8, 2, 4)), 4, 1, (8, 4)),  # 8 to be skipped with its reason
        (RanksMarker((8, 2, 4)), 1, 1, (8, 2, 4)),
        (RanksMarker((8, 2, 4), device="cpu"), 4, 1, (8,)),
        (RanksMarker((2, 4, 8), nodes=1), 16, 2, (8,)),
        (RanksMarker((2, 4, 8), nodes=1), 8, 2, (4, 8)),
        (RanksMarker((2, 4, 8), per_node=2), 16, 2, (4, 8)),  # 8 would be on four nodes
        (RanksMarker((2, 4, 8), per_node=2), 0, 2, (4, 8)),
        (RanksMarker((), nodes=2), 16, 2, (16,)),
    ],
)
def test_a_run_may_have_the_largest_world_of_each_test_alone(
    marker: RanksMarker, gpus: int, nodes: int, sizes: tuple[int, ...]
) -> None:
    assert marker.choose_sizes(gpus, nodes, largest=True) == sizes


def test_the_option_leaves_one_world_of_each_test(pytester: pytest.Pytester, eight_gpus: None) -> None:
    pytester.makepyfile(test_sizes=TEST.format(arguments="2, 16, 4", fixtures="ranks"))
    for gpus, expected in ((0, [16]), (2, [2, 16, 4]), (8, [16, 4])):
        result = pytester.runpytest_inprocess("--collect-only", "-q", f"--gpus={gpus}", "--largest-worlds")
        names = [line for line in result.outlines if "::" in line]
        assert names == [f"test_sizes.py::test_it[{size}ranks]" for size in expected]


def test_a_run_has_what_its_gpus_hold(pytester: pytest.Pytester, eight_gpus: None) -> None:
    pytester.makepyfile(test_sizes=TEST.format(arguments="2, 4, 8, largest=True", fixtures="ranks"))
    for gpus, expected in ((0, [2, 4, 8]), (2, [2, 4, 8]), (4, [4, 8]), (8, [8])):
        result = pytester.runpytest_inprocess("--collect-only", "-q", f"--gpus={gpus}")
        names = [line for line in result.outlines if "::" in line]
        assert names == [f"test_sizes.py::test_it[{size}ranks]" for size in expected]


def test_each_world_size_is_a_test_with_its_own_name(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_sizes=TEST.format(arguments="1, 2, 8", fixtures="ranks"))
    result = pytester.runpytest_inprocess("--collect-only", "-q")
    assert result.outlines[:3] == [f"test_sizes.py::test_it[{size}]" for size in ("1rank", "2ranks", "8ranks")]


def test_the_closest_marker_counts(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_closest="""
        import pytest
        pytestmark = pytest.mark.ranks(2)
        class TestThree:
            pytestmark = pytest.mark.ranks(3)
            def test_class(self, ranks): pass
            @pytest.mark.ranks(4)
            def test_own(self, ranks): pass
        def test_module(ranks): pass
        """
    )
    result = pytester.runpytest_inprocess("--collect-only", "-q")
    assert result.outlines[:3] == [
        "test_closest.py::TestThree::test_class[3ranks]",
        "test_closest.py::TestThree::test_own[4ranks]",
        "test_closest.py::test_module[2ranks]",
    ]


def test_markers_are_listed(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess("--markers")
    result.stdout.fnmatch_lines(
        [
            "@pytest.mark.ranks(*world_sizes, timeout=None, device=None, isolation='group', env=None, largest=False, "
            "nccl_log=False, launcher_env=False, nodes=None, "
            "per_node=None)*",
            "@pytest.mark.perf: *",
        ]
    )


def test_fixtures_are_listed(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess("--fixtures")
    result.stdout.fnmatch_lines(
        ["ranks *", "*``ranks`` marker*", "perf *", "*``measure``, ``compare``, and ``check``*"]
    )


def test_the_markers_satisfy_strict_markers(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.perf\n@pytest.mark.ranks(2)\ndef test_it(perf): pass\n")
    result = pytester.runpytest_inprocess("--strict-markers", "--collect-only", "-q")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*::test_it[[]2ranks[]]"])


UNITTEST = """
import unittest
import pytest

@pytest.mark.ranks(2)
class TestOfMarkedClass(unittest.TestCase):
    def test_it(self): pass

class TestMarked(unittest.TestCase):
    @pytest.mark.ranks(2)
    def test_it(self): pass

class TestWithRanks(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def _ranks(self, ranks): pass

    def test_it(self): pass

@pytest.mark.ranks(2)
class TestWithOtherRanks(unittest.TestCase):
    @pytest.fixture
    def ranks(self): pass

    @pytest.fixture(autouse=True)
    def _ranks(self, ranks): pass

    def test_it(self): pass

class TestPlain(unittest.TestCase):
    def test_it(self): pass
"""


def test_a_test_case_that_is_to_run_on_ranks_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=UNITTEST)
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(passed=2, errors=3)
    cure = "make it a function, or its class one that is no TestCase"
    problem = "a test of a unittest.TestCase cannot run on ranks, since pytest makes no variants of it"
    assert result.outlines.count(f"{problem}: {cure}") == 3
    for name in ("TestOfMarkedClass", "TestMarked", "TestWithRanks"):
        result.stdout.fnmatch_lines([f"ERROR test_it.py::{name}::test_it - a test of a unittest.T*"])


SKIPPED = """
import unittest
import pytest

@pytest.mark.skip(reason="here")
@pytest.mark.ranks(2)
class TestByMark(unittest.TestCase):
    def test_it(self): pass

@unittest.skip("here")
@pytest.mark.ranks(2)
class TestByUnittest(unittest.TestCase):
    def test_it(self): pass

@pytest.mark.ranks(2)
class TestMethods(unittest.TestCase):
    @pytest.mark.skipif(True, reason="here")
    def test_by_mark(self): pass

    @unittest.skip("here")
    def test_by_unittest(self): pass

    @pytest.mark.skipif(False, reason="here")
    def test_runs(self): pass
"""


def test_a_test_case_that_is_skipped_need_not_run_on_ranks(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SKIPPED)
    pytester.runpytest_inprocess().assert_outcomes(skipped=4, errors=1)


def test_a_module_may_mark_its_tests_for_ranks_and_have_test_cases(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import unittest, pytest\npytestmark = pytest.mark.ranks(2)\n" + UNITTEST.split("\n\n")[-1])
    pytester.runpytest_inprocess().assert_outcomes(passed=1)


DEPENDS = """
import pytest
from pytest_gpuperf import Metric

pytestmark = [pytest.mark.perf, pytest.mark.ranks(2), pytest.mark.depends("gpu")]

def both(perf):
    perf.check(read=Metric(1.0, "s", "lower", by_rank=(1.0, 2.0)), sent=Metric(1.0, "s", "lower", by_rank=(1.0, 2.0)))

@pytest.mark.depends("pair", "sent")
def test_pair(perf):
    both(perf)

@pytest.mark.depends("gpus")
def test_gpus(perf):
    both(perf)
"""


def test_a_marker_says_what_figures_depend_on(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, eight_gpus: None
) -> None:
    without_ranks(monkeypatch)
    pytester.makepyfile(test_it=DEPENDS)
    pytester.runpytest_inprocess("--gpus=2", "--no-strict-baselines", "--gpuperf-json=results.json").assert_outcomes(
        passed=2
    )
    verdicts = results_file.load(pytester.path / "results.json").verdicts
    told = {
        (one.test.partition("::")[2], one.metric_name): (one.metric.scope, len(one.metric.by_rank)) for one in verdicts
    }
    assert told == {
        ("test_pair[2ranks]", "read"): ("gpu", 2),
        ("test_pair[2ranks]", "sent"): ("pair", 2),
        ("test_gpus[2ranks]", "read"): ("gpus", 0),  # no rank has a figure of its own
        ("test_gpus[2ranks]", "sent"): ("gpus", 0),
    }


@pytest.mark.parametrize("arguments", ["", "'gpu', 3", "'node'", "'gpu', name='read'"])
def test_a_wrong_marker_of_what_figures_depend_on_names_the_test(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, eight_gpus: None, arguments: str
) -> None:
    without_ranks(monkeypatch)
    pytester.makepyfile(
        test_it=DEPENDS.replace("depends('gpu')", "").replace('depends("gpus")', f"depends({arguments})")
    )
    result = pytester.runpytest_inprocess("--gpus=2", "--no-strict-baselines")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*ValueError: test_it.py::test_gpus*: marker depends takes one of 'gpu', 'pair', *"])
