"""All that was recorded on H200 is plausible; what has lost its links or its power is not; V100 to B200 have models."""

from dataclasses import replace

import pytest

from pytest_gpuperf.features.day_zero.model import table
from pytest_gpuperf.features.day_zero.model.expecting import form_opinion
from pytest_gpuperf.features.day_zero.model.rates import Rates
from pytest_gpuperf.figures.metric import Metric
from pytest_gpuperf.figures.sweep import NEIGHBOURS
from pytest_gpuperf.figures.work import Exchange, Work
from pytest_gpuperf.hardware.datasheets import NVLINK, PEAKS
from pytest_gpuperf.hardware.linkage import Linkage
from pytest_gpuperf.hardware.machine import Machine
from pytest_gpuperf.verdicts.opinion import Saying
from tests import fake_gpus
from tests.hardware.fake_devices import FakeDevices
from tests.model.recorded import H200, collective, figures

GIB, MIB, KIB = 2**30, 2**20, 2**10


def test_every_recorded_figure_is_plausible() -> None:
    said = {name: form_opinion(metric, H200) for name, metric in figures()}
    assert len(said) == 92
    assert {name: one for name, one in said.items() if one.saying is not Saying.PLAUSIBLE} == {}


def test_at_a_third_of_its_speed_nearly_nothing_is() -> None:
    """What stays plausible are messages of 1 KiB, whose latency the model knows to a factor of 3 only."""
    said = {name: form_opinion(metric, H200).saying for name, metric in figures(1 / 3)}
    left = {name for name, saying in said.items() if saying is Saying.PLAUSIBLE}
    assert all("1KiB" in name or "send_recv-64MiB" in name for name in left), left


@pytest.mark.parametrize(
    ("op", "gigabytes"),
    [("all_reduce", 358), ("all_gather", 343), ("reduce_scatter", 343), ("all_to_all", 329), ("send_recv", 351)],
)
def test_8_h200(op: str, gigabytes: int) -> None:
    assert form_opinion(collective(op, 8, GIB, gigabytes * 1e9), H200).saying is Saying.PLAUSIBLE


@pytest.mark.parametrize(("nbytes", "gigabytes"), [(256 * MIB, 345), (64 * MIB, 323), (16 * MIB, 245)])
def test_8_h200_at_other_sizes(nbytes: int, gigabytes: int) -> None:
    assert form_opinion(collective("all_reduce", 8, nbytes, gigabytes * 1e9), H200).saying is Saying.PLAUSIBLE


def test_the_dip_of_sends_at_64_mib_is_plausible() -> None:
    assert form_opinion(collective("send_recv", 8, 64 * MIB, 78e9), H200).saying is Saying.PLAUSIBLE


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"])
def test_without_direct_access_it_is_below_and_the_links_are_named(op: str) -> None:
    """With P2P disabled a pair of H100 has 37 GB/s: https://github.com/NVIDIA/nccl/issues/1264."""
    for nbytes in (64 * MIB, GIB):
        said = form_opinion(collective(op, 2, nbytes, 37e9), H200)
        assert (said.saying, said.component) == (Saying.BELOW, "links between GPUs (NV18)")


def test_half_of_the_links_is_below() -> None:
    assert form_opinion(collective("all_reduce", 4, GIB, 355e9 / 2), H200).saying is Saying.BELOW


def test_a_time_that_no_hardware_has_is_above() -> None:
    work = Work(2, (Exchange("all_reduce", GIB),))
    assert form_opinion(Metric(1e-3, "s", "lower", work=work), H200).saying is Saying.ABOVE


def test_the_range_of_a_collective_by_hand() -> None:
    said = form_opinion(collective("all_reduce", 4, GIB, 355e9), H200)
    wire = 1.5 * GIB
    slowest = (8.4e-6 + 6 * 3.4e-6) / 0.8 + wire / (0.8 * 0.89 * 370.8e9)
    assert said.low == pytest.approx(wire / slowest)
    assert said.high == pytest.approx(1.02 * 450e9)


def test_a_roofline_by_hand() -> None:
    work = Work(flop=989.4e12, memory_bytes=1e9)
    said = form_opinion(Metric(1.3, "s", "lower", work=work), H200)
    assert said.low == pytest.approx(1 / 1.02)
    assert said.high == pytest.approx(1 / (0.8 * 0.65) + 1e9 / (0.8 * 0.82 * 4.917e12), rel=1e-3)
    assert (said.saying, said.component) == (Saying.PLAUSIBLE, "matrix units")


def test_a_lower_power_limit_expects_less() -> None:
    slow = Metric(2.5, "s", "lower", work=Work(flop=989.4e12))
    assert form_opinion(slow, H200).saying is Saying.BELOW
    assert form_opinion(slow, replace(H200, power=0.7)).saying is Saying.PLAUSIBLE


@pytest.mark.parametrize(
    ("metric", "saying", "component"),
    [
        (
            Metric(380e9, "B/s", "higher", limit=450e9, limit_name="nv18", plain=True),
            Saying.PLAUSIBLE,
            "links between GPUs (NV18)",
        ),
        (
            Metric(200e9, "B/s", "higher", limit=450e9, limit_name="nv18", plain=True),
            Saying.BELOW,
            "links between GPUs (NV18)",
        ),
        (Metric(55e9, "B/s", "higher", limit=63e9, limit_name="PCIe", plain=True), Saying.PLAUSIBLE, "PCIe"),
        (Metric(27e9, "B/s", "higher", limit=63e9, limit_name="PCIe", plain=True), Saying.BELOW, "PCIe"),
        (Metric(4.1e12, "B/s", "higher", limit=4.9e12, limit_name="memory", plain=True), Saying.PLAUSIBLE, "memory"),
        (
            Metric(790e12, "FLOP/s", "higher", limit=989e12, limit_name="matrix units", plain=True),
            Saying.PLAUSIBLE,
            "matrix units",
        ),
        (
            Metric(300e12, "FLOP/s", "higher", limit=989e12, limit_name="matrix units", plain=True),
            Saying.BELOW,
            "matrix units",
        ),
        (Metric(1.0, "x", "lower", clock="counter"), Saying.PLAUSIBLE, "links between GPUs (NV18)"),
        (Metric(1.25, "x", "lower", clock="counter"), Saying.BELOW, "links between GPUs (NV18)"),
        (Metric(1.2, "x", "higher", interval=(1.1, 1.3)), Saying.PLAUSIBLE, "the technique"),
        (Metric(0.7, "x", "higher", interval=(0.6, 0.8)), Saying.BELOW, "the technique"),
        (Metric(0.3, "x", "higher", limit_name=NEIGHBOURS), Saying.PLAUSIBLE, "one size among its neighbours"),
        (Metric(0.1, "x", "higher", limit_name=NEIGHBOURS), Saying.BELOW, "one size among its neighbours"),
    ],
)
def test_figures_with_a_limit_and_ratios(metric: Metric, saying: Saying, component: str) -> None:
    said = form_opinion(metric, H200)
    assert (said.saying, said.component) == (saying, component)


@pytest.mark.parametrize(("ranks", "microseconds"), [(2, 6.5), (4, 9.4), (8, 27.0)])
def test_latencies_of_h200(ranks: int, microseconds: float) -> None:
    """What was measured of an all_reduce of 1 KiB is plausible, and three times of that is not."""
    work = Work(ranks, (Exchange("all_reduce", KIB),))
    assert form_opinion(Metric(microseconds * 1e-6, "s", "lower", work=work), H200).saying is Saying.PLAUSIBLE
    assert form_opinion(Metric(4 * microseconds * 1e-6, "s", "lower", work=work), H200).saying is Saying.BELOW


@pytest.mark.parametrize(
    ("metric", "rates", "why"),
    [
        (Metric(1.0, "s", "lower"), H200, "the test does not say what work it is"),
        (Metric(1.0, "x", "higher"), H200, "the test does not say what work it is"),
        (Metric(1.0, "s", "lower", work=Work()), H200, "the test's work is empty"),
        (collective("all_reduce", 2, GIB, 1e9), Rates(), "no line rate of the links between these GPUs is known"),
        (
            Metric(1.0, "s", "lower", work=Work(2, (Exchange("all_thing", 1),))),
            H200,
            "nothing is known of 'all_thing' on 2 ranks",
        ),
        (
            Metric(1.0, "s", "lower", work=Work(flop=1.0, dtype="int8")),
            H200,
            "no peak of NVIDIA H200 for int8 is known",
        ),
        (Metric(1.0, "s", "lower", work=Work(flop=1.0)), Rates(), "no peak of these GPUs for bfloat16 is known"),
        (Metric(1.0, "s", "lower", work=Work(memory_bytes=1.0)), Rates(), "the rate of the GPUs' memory is unknown"),
        (
            Metric(1.0, "B/s", "higher", limit=2.0, limit_name="disk"),
            H200,
            "no share of disk is known that healthy hardware reaches",
        ),
        (
            Metric(200e9, "B/s", "higher", limit=450e9, limit_name="nv18"),
            H200,
            "the test does not say that its step does nothing but use the links: plain=True",
        ),
    ],
)
def test_no_model_says_why(metric: Metric, rates: Rates, why: str) -> None:
    said = form_opinion(metric, rates)
    assert (said.saying, said.why, said.low, said.high) == (Saying.NONE, why, None, None)


def machine(name: str, capability: tuple[int, int], linkage: Linkage, watts: float | None = None) -> Machine:
    gpus = tuple(
        replace(fake_gpus.gpu(index), name=name, compute_capability=capability, power_limit_watts=watts)
        for index in range(2)
    )
    return Machine(gpus, linkage, False, "580", devices=FakeDevices(gpus))


@pytest.mark.parametrize(
    ("name", "capability", "links", "nccl"),
    [
        ("Tesla V100-SXM2-32GB", (7, 0), 6, 120e9),
        ("NVIDIA A100-SXM4-80GB", (8, 0), 12, 240e9),
        ("NVIDIA H100 80GB HBM3", (9, 0), 18, 370.8e9),
        ("NVIDIA H200", (9, 0), 18, 370.8e9),
        ("NVIDIA B200", (10, 0), 18, 721.8e9),
        ("NVIDIA GB200", (10, 0), 18, 721.8e9),
    ],
)
def test_nvlink_machines_from_v100_to_b200_have_rates(
    name: str, capability: tuple[int, int], links: int, nccl: float
) -> None:
    line = links * NVLINK[capability]
    rates = Rates.of(machine(name, capability, Linkage("nvlink", f"nv{links}", line)))
    assert rates.nccl == pytest.approx(nccl)
    assert rates.peak("float16")
    assert form_opinion(collective("all_reduce", 2, GIB, 0.85 * nccl), rates).saying is Saying.PLAUSIBLE
    assert form_opinion(collective("all_reduce", 2, GIB, 0.3 * nccl), rates).saying is Saying.BELOW


@pytest.mark.parametrize(("label", "share"), [("pix", 12 / 15.754), ("pxb", 12 / 15.754), ("phb", 0.3), ("sys", 0.3)])
def test_pcie_boxes_have_rates(label: str, share: float) -> None:
    rates = Rates.of(machine("NVIDIA L4", (8, 9), Linkage("pcie", label, 31.5e9)))
    assert rates.nccl == pytest.approx(31.5e9 * share)
    assert rates.links == f"links between GPUs (PCIe, {label.upper()})"


def test_a_lowered_power_limit_is_a_share_of_the_data_sheets() -> None:
    link = Linkage("nvlink", "nv18", 450e9)
    assert Rates.of(machine("NVIDIA H200", (9, 0), link, 350.0)).power == 0.5
    assert Rates.of(machine("NVIDIA H200", (9, 0), link, 900.0)).power == 1.0
    assert Rates.of(machine("NVIDIA H200", (9, 0), link)).power == 1.0


def test_two_kinds_of_gpus_and_none_have_no_rates() -> None:
    first = machine("NVIDIA H200", (9, 0), Linkage("nvlink", "nv18", 450e9))
    mixed = replace(first, gpus=(first.gpus[0], replace(first.gpus[1], name="NVIDIA L4")))
    assert Rates.of(mixed) == Rates.of(Machine((), None, False)) == Rates()


def test_longer_names_come_before_their_beginnings() -> None:
    for names in (list(PEAKS), list(table.WATTS)):
        for index, name in enumerate(names):
            assert not any(name.startswith(earlier) for earlier in names[:index]), name
