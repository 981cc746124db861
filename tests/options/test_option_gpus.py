"""``--gpus``: which machine a run uses, and what does not fit it."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

import pytest

from pytest_gpuperf import options
from pytest_gpuperf.features.doctor.glance import Glance
from pytest_gpuperf.features.recording.options import check_recording_options
from pytest_gpuperf.hardware.device import Gpu, HardwareError
from pytest_gpuperf.hardware.linkage import Linkage
from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.options import LEASES, Options
from tests import fake_gpus
from tests.fake_gpus import without_ranks
from tests.hardware.fake_devices import FakeDevices
from tests.whole_run import environment

TESTS = """
import pytest
@pytest.mark.ranks(2, 4)
def test_ranks(ranks): pass
@pytest.mark.ranks(4, device="cpu")
def test_cpu(ranks): pass
@pytest.mark.ranks(2, device="cuda")
def test_cuda(ranks): pass
@pytest.mark.perf
@pytest.mark.ranks(2, 4)
def test_speed(perf): pass
def test_plain(): pass
"""


@pytest.fixture
def tests(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(test_it=TESTS)
    return pytester


@pytest.fixture(autouse=True)
def _no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:  # they are not what these tests are about
    without_ranks(monkeypatch)


def usage_error(result: pytest.RunResult) -> str:
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.errlines if line.startswith("ERROR: ")]
    return line.removeprefix("ERROR: ")


@pytest.mark.parametrize("value", ["many", "-1", "1.5", ""])
def test_anything_but_a_number_or_auto_is_refused(pytester: pytest.Pytester, value: str) -> None:
    result = pytester.runpytest_inprocess(f"--gpus={value}")
    assert usage_error(result) == f"--gpus takes a number of GPUs, 'auto' or 0, got {value!r}"


@pytest.mark.usefixtures("eight_gpus")
def test_more_gpus_than_there_are_is_refused(pytester: pytest.Pytester) -> None:
    assert usage_error(pytester.runpytest_inprocess("--gpus=9")) == "--gpus 9: 8 GPUs are visible"


@pytest.mark.usefixtures("eight_gpus")
def test_more_gpus_than_are_visible_names_the_variable(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    message = usage_error(pytester.runpytest_inprocess("--gpus=9"))
    assert message == "--gpus 9: 8 GPUs are visible through CUDA_VISIBLE_DEVICES"


@pytest.mark.usefixtures("no_gpus")
def test_any_gpu_on_a_machine_without_is_refused(pytester: pytest.Pytester) -> None:
    assert (
        usage_error(pytester.runpytest_inprocess("--gpus=1"))
        == "--gpus 1: no GPU is visible: check nvidia-smi and CUDA_VISIBLE_DEVICES"
    )


def test_gpus_that_cannot_be_described_are_a_usage_error(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(FakeDevices):
        def visible(self, environ: object) -> tuple[Gpu, ...]:
            raise HardwareError("NVML did not start: check that nvidia-smi runs")

    fake_gpus.use(monkeypatch, Broken())
    assert usage_error(pytester.runpytest_inprocess("--gpus=1")) == "NVML did not start: check that nvidia-smi runs"
    assert pytester.runpytest_inprocess("--gpus=0").ret == pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.mark.usefixtures("eight_gpus")
@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("8", "ranks run on 8 GPUs with NCCL, hardware key 8x-nvidia-h200-nv18"),
        ("auto", "ranks run on 8 GPUs with NCCL, hardware key 8x-nvidia-h200-nv18"),
        ("2", "ranks run on 2 GPUs with NCCL, hardware key 2x-nvidia-h200-nv18"),
        ("1", "ranks run on 1 GPUs with NCCL, hardware key 1x-nvidia-h200"),
    ],
)
def test_the_header_says_what_ranks_run_on(pytester: pytest.Pytester, value: str, line: str) -> None:
    pytester.runpytest_inprocess(f"--gpus={value}").stdout.fnmatch_lines([f"gpuperf: {line}"])


@pytest.mark.parametrize("quiet", [(), ("-q",), ("--no-header",)])
def test_on_cpus_it_is_said_behind_the_header_once_a_test_uses_ranks(
    pytester: pytest.Pytester, quiet: tuple[str, ...]
) -> None:
    pytester.makepyfile(test_plain="def test_it(): pass")
    pytester.runpytest_inprocess(*quiet).stdout.no_fnmatch_line("gpuperf: *")
    pytester.makepyfile(test_ranks="import pytest\n@pytest.mark.ranks(1)\ndef test_it(ranks): pass")
    result = pytester.runpytest_inprocess(*quiet, "--collect-only")
    said = [line for line in result.outlines if line.startswith("gpuperf: ranks run on")]
    assert len(said) == (0 if quiet else 1)


@pytest.mark.usefixtures("eight_gpus")
def test_the_header_has_the_doctors_line_if_gpus_are_in_use(pytester: pytest.Pytester) -> None:
    pytester.runpytest_inprocess("--gpus=2").stdout.fnmatch_lines(["gpuperf: doctor: *"])
    pytester.runpytest_inprocess("--gpus=0").stdout.no_fnmatch_line("gpuperf: doctor: *")


@pytest.mark.usefixtures("no_gpus")
def test_auto_without_gpus_is_gloo(pytester: pytest.Pytester) -> None:
    cores = len(os.sched_getaffinity(0))
    result = pytester.runpytest_inprocess("--gpus=auto")
    result.stdout.fnmatch_lines([f"gpuperf: ranks run on {cores} CPU cores with gloo; correctness only"])


@pytest.mark.usefixtures("no_gpus")
def test_cores_that_the_run_may_not_use_are_not_counted(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 4, 7})
    result = pytester.runpytest_inprocess("--gpus=auto")
    result.stdout.fnmatch_lines(["gpuperf: ranks run on 3 CPU cores with gloo; correctness only"])


@pytest.mark.usefixtures("eight_gpus")
def test_what_needs_more_gpus_than_are_in_use_is_skipped(tests: pytest.Pytester) -> None:
    result = tests.runpytest_inprocess("--gpus=2", "-rs", "-v")
    reason = "needs 4 GPUs, 2 in use (--gpus)"
    skipped = sorted(line.split()[0] for line in result.outlines if f"SKIPPED ({reason})" in line)
    assert skipped == ["test_it.py::test_ranks[4ranks]", "test_it.py::test_speed[4ranks]"]
    result.stdout.fnmatch_lines(["test_it.py::test_cpu[[]4ranks[]] PASSED*"])
    # Both have a variant that ran.
    assert "did not run" not in result.stdout.str()


@pytest.mark.usefixtures("eight_gpus")
def test_tests_that_ran_in_no_world_are_told_with_the_reason(tests: pytest.Pytester) -> None:
    result = tests.runpytest_inprocess("--gpus=1")
    assert [line for line in result.outlines if "did not run" in line or line.startswith("  test_it.py")] == [
        "3 tests did not run: needs 2 GPUs, 1 in use (--gpus)",
        "  test_it.py::test_cuda",
        "  test_it.py::test_ranks",
        "  test_it.py::test_speed",
        "2 tests did not run: needs 4 GPUs, 1 in use (--gpus)",
        "  test_it.py::test_ranks",
        "  test_it.py::test_speed",
    ]


def test_without_gpus_what_is_bound_to_cuda_or_measures_is_skipped(tests: pytest.Pytester) -> None:
    result = tests.runpytest_inprocess("-v")
    result.assert_outcomes(passed=4, skipped=3)
    bound = "the test needs GPUs (device='cuda') and none are in use: add --gpus N"
    measures = (
        "perf tests measure GPUs and none are in use: pass --gpus N, --against REF to race two commits on CPUs, or "
        "--smoke to try each body unjudged"
    )
    for lines in (
        [f"2 tests did not run: {measures}", "  test_it.py::test_speed (2)"],
        [f"1 test did not run: {bound}", "  test_it.py::test_cuda"],
    ):
        result.stdout.fnmatch_lines(lines, consecutive=True)


@pytest.mark.parametrize("marked", [True, False])
def test_the_reason_for_the_skip_is_in_the_usual_summary_too(pytester: pytest.Pytester, marked: bool) -> None:
    mark = "@pytest.mark.perf\n" if marked else ""
    pytester.makepyfile(f"import pytest\n{mark}@pytest.mark.ranks(2)\ndef test_speed(perf): pass")
    result = pytester.runpytest_inprocess("-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["1 test did not run: perf tests measure GPUs and none are in use*"])
    result.stdout.fnmatch_lines(
        ["SKIPPED [[]1[]] *: perf tests measure GPUs and none are in use: pass --gpus N, --against*"]
    )


@pytest.mark.parametrize("name", ["perf", "ranks"])
def test_a_folder_of_that_name_makes_no_tests_on_ranks(pytester: pytest.Pytester, name: str) -> None:
    folder = pytester.mkpydir(name)
    (folder / "test_it.py").write_text("import pytest\n@pytest.mark.skip(reason='later')\ndef test_plain(): pass")
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(skipped=1)
    assert "did not run" not in result.stdout.str()


@pytest.mark.usefixtures("eight_gpus")
def test_perf_tests_come_last_and_by_world_size(tests: pytest.Pytester) -> None:
    tests.makepyfile(
        test_another="import pytest\n@pytest.mark.ranks(8, 2)\ndef test_first(perf): pass\ndef test_b(): pass"
    )
    result = tests.runpytest_inprocess("--gpus=8", "--collect-only", "-q")
    names = [line.partition("::")[2] for line in result.outlines if "::" in line]
    # Which of two files comes first differs between versions of pytest.
    assert sorted(names[-4:-2]) == ["test_first[2ranks]", "test_speed[2ranks]"]
    assert names[-2:] == ["test_speed[4ranks]", "test_first[8ranks]"]
    assert {"test_b", "test_plain", "test_ranks[2ranks]"} < set(names[:-4])


@pytest.mark.usefixtures("fresh_python")
def test_help_and_tests_without_ranks_do_not_load_torch(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(
        "import sys\ndef pytest_unconfigure(config): print('loaded', 'torch' in sys.modules)"
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", "not cpu and not ranks"]
    for option, expected in [("--help", "--update-baselines"), ("-v", "1 passed")]:
        done = subprocess.run(
            [*command, option], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
        )
        assert expected in done.stdout
        assert "loaded False" in done.stdout


@pytest.mark.parametrize(
    ("environ", "multicast"), [({}, True), ({"NCCL_NVLS_ENABLE": "1"}, True), ({"NCCL_NVLS_ENABLE": "0"}, False)]
)
@pytest.mark.usefixtures("eight_gpus")
def test_the_environment_says_whether_nccl_may_multicast(environ: dict[str, str], multicast: bool) -> None:
    assert Machine.of(8, environ).multicast is multicast


@pytest.mark.parametrize("kind", ["nvlink", "pcie"])
def test_multicast_is_nvlinks(kind: Literal["nvlink", "pcie"]) -> None:
    gpus = fake_gpus.machine_of(2).gpus
    assert Machine(gpus, Linkage(kind, "", None), environ_multicast=True).multicast is (kind == "nvlink")


def test_a_machine_knows_its_key_its_facts_and_its_driver() -> None:
    machine = fake_gpus.machine_of(2)
    assert machine.gpu_uuids == ("GPU-0", "GPU-1")
    assert machine.key == "2x-nvidia-h200-nv18"
    assert machine.match["gpu_count"] == 2
    assert machine.software == {"driver": "570.86"}
    nothing = Machine((), None, False)
    assert (nothing.key, nothing.match, nothing.software, nothing.multicast) == ("cpu", {}, {}, False)


@pytest.mark.usefixtures("eight_gpus")
@pytest.mark.parametrize("more", [("-n2",), ("--tx=2*popen", "--dist=load")], ids=["-n", "--tx"])
def test_gpus_go_with_xdist_and_a_recording_does_not(pytester: pytest.Pytester, more: tuple[str, ...]) -> None:
    assert Options.from_config(pytester.parseconfig("--gpus=2", *more)).gpus == 2
    with pytest.raises(pytest.UsageError) as caught:
        check_recording_options(pytester.parseconfig("--gpus=2", "--update-baselines", *more))
    assert str(caught.value) == (
        "--update-baselines records launches one after another, and xdist's workers would each record some: drop -n"
    )


@pytest.mark.parametrize(
    "key",
    [
        "gpuperf_timeout",
        "gpuperf_example_timeout",
        "gpuperf_grace",
        "gpuperf_lease_timeout",
        "gpuperf_node_timeout",
        "gpuperf_minimum_slowdown",
        "gpuperf_minimum_effect",
    ],
)
@pytest.mark.parametrize("value", ["0", "-1", "soon", "inf", "nan", ""])
def test_an_ini_key_that_is_no_positive_number_is_refused(pytester: pytest.Pytester, key: str, value: str) -> None:
    result = pytester.runpytest_inprocess("-o", f"{key}={value}")
    assert usage_error(result) == f"ini key {key} must be a positive number, got {value!r}"


def test_leases_lie_in_one_folder_whatever_tmpdir_is_unless_the_ini_key_says_otherwise(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "LEASES", LEASES)  # the tests' own stands in for it
    monkeypatch.setenv("TMPDIR", str(pytester.path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert Options.from_config(pytester.parseconfig()).leases == Path("/tmp/gpuperf-leases")
    assert Options.from_config(pytester.parseconfig("-o", "gpuperf_leases=near")).leases == pytester.path / "near"
    assert Options.from_config(pytester.parseconfig("-o", "gpuperf_leases=/far")).leases == Path("/far")


def test_a_finding_of_the_doctor_that_came_too_late_for_the_header_is_told_at_the_end(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gpus.install(monkeypatch, visible=2)
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    # The header tells nothing, and the doctor is ready before the run ends.
    monkeypatch.setattr(Glance, "header", lambda glance: glance._thread.join() or "")
    pytester.makepyfile(test_it="def test_a(): ...")
    result = pytester.runpytest_inprocess("--gpus=2")
    result.stdout.fnmatch_lines(["test_it.py .*", "gpuperf: doctor: critical: *", "*1 passed*"])
