"""Suites that know nothing of this plugin and have fixtures or parameters of its names."""

import pytest

OWN = """
import pytest

@pytest.fixture
def ranks():
    return ["first", "second"]

@pytest.fixture
def perf():
    return 7

def test_own_ranks(ranks):
    assert ranks == ["first", "second"]

@pytest.mark.perf
@pytest.mark.ranks("of another plugin", unknown=True)
def test_own_perf(ranks, perf):
    assert perf == 7
"""


def test_fixtures_of_the_same_names_are_left_alone(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(OWN)
    pytester.runpytest("--strict-markers").assert_outcomes(passed=2)


def test_a_perf_test_of_another_suite_is_no_benchmark(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # with it pytest-benchmark disables itself
    pytester.makepyfile(OWN)
    pytester.runpytest("--benchmark-only").assert_outcomes(skipped=2)


@pytest.mark.parametrize("indirect", [False, True])
def test_parameters_of_the_same_names_are_left_alone(pytester: pytest.Pytester, indirect: bool) -> None:
    fixture = "@pytest.fixture\ndef ranks(request):\n    return request.param\n" if indirect else ""
    pytester.makepyfile(f"""
        import pytest
        {fixture.replace(chr(10), chr(10) + " " * 8)}
        @pytest.mark.parametrize("ranks", [[3], [3, 4]], indirect={indirect})
        def test_own(ranks):
            assert ranks[0] == 3
    """)
    pytester.runpytest().assert_outcomes(passed=2)


def test_a_fixture_that_extends_this_plugins_is_this_plugins(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.fixture
        def ranks(ranks):
            return ranks.world_size

        @pytest.mark.ranks(1, 2)
        def test_sizes(ranks):
            assert ranks in (1, 2)
    """)
    pytester.runpytest().assert_outcomes(passed=2)


def test_ranks_that_are_asked_for_later_are_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        pytestmark = pytest.mark.ranks(2)

        def test_it(request):
            request.getfixturevalue("ranks")
    """)
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "ranks must be among the arguments of the test or of its fixtures: its world sizes become tests when "
            'those are collected, and request.getfixturevalue("ranks") comes later'
        ]
    )
