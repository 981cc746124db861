"""Versions that do not fit one another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_gpuperf.features.doctor.facts import Facts
from pytest_gpuperf.features.doctor.finding import Finding, make_critical, make_info, make_passed, make_warning
from pytest_gpuperf.features.doctor.words import join_unique

# The oldest Linux driver of each major CUDA by its minor version compatibility: CUDA Compatibility, table 1.
_OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}

# The first CUDA whose compiler makes code for a GPU: CUDA's release notes, by compute capability.
_FIRST_CUDA: Mapping[tuple[int, int], tuple[int, int]] = {
    (8, 0): (11, 0),
    (8, 6): (11, 1),
    (8, 9): (11, 8),
    (9, 0): (11, 8),
    (10, 0): (12, 8),
    (10, 3): (12, 9),
    (12, 0): (12, 8),
}
_VOLTA = (7, 0)  # the last GPUs before 7.5, which CUDA 13 dropped: CUDA 13.0 release notes


def check(facts: Facts) -> Iterator[Finding]:
    """All of the module."""
    software, gpus = facts.software, facts.inspection.gpus
    if "torch" not in software.packages:
        yield make_info("torch", "torch is not installed in this Python", "the plugin needs it to run ranks")
        return
    torch = software.packages["torch"]
    if software.torch_cuda == "" and gpus:
        yield make_critical(
            "torch",
            f"torch {torch} is a build without CUDA, and the machine has GPUs",
            "torch.cuda.is_available() is False: ranks run on CPUs",
            "install a build for CUDA: see pytorch.org/get-started",
        )
    elif software.torch_cuda is None:
        yield make_info("torch", f"torch {torch}; the CUDA that it was built for is unknown")
    else:
        built = f"for CUDA {software.torch_cuda}" if software.torch_cuda else "without CUDA"
        yield make_passed("torch", f"torch {torch}, built {built}")
    if software.torch_cuda and gpus:
        yield from _fit(facts, software.torch_cuda)
    yield from _check_required(facts)
    yield from _find_duplicates(facts)


def _parse_version(version: str) -> tuple[int, int]:
    major, minor, *_ = (int(word) if word.isdigit() else 0 for word in [*version.split("."), "0"])
    return major, minor


def _fit(facts: Facts, cuda: str) -> Iterator[Finding]:
    built = _parse_version(cuda)
    driver = facts.inspection.driver
    oldest = _OLDEST_DRIVER.get(built[0])
    major = int(driver.partition(".")[0]) if driver.partition(".")[0].isdigit() else None
    if oldest is not None and major is not None:
        if major < oldest:
            yield make_critical(
                "driver version",
                f"driver {driver} is older than {oldest}, which CUDA {cuda} needs",
                "torch raises 'the NVIDIA driver on your system is too old'",
                f"update the driver to at least {oldest}, or install torch for CUDA {facts.inspection.cuda or 'of it'}",
            )
        else:
            newer = facts.inspection.cuda and _parse_version(facts.inspection.cuda) < built
            note = " (within CUDA's minor version compatibility)" if newer else ""
            yield make_passed("driver version", f"driver {driver} runs CUDA {cuda}{note}")
    capabilities = {tuple(gpu.compute_capability) for gpu in facts.inspection.gpus if gpu.compute_capability}
    for capability in sorted(capabilities):
        name = ".".join(map(str, capability))
        first = _FIRST_CUDA.get((capability[0], capability[1])) if len(capability) == 2 else None
        if first is not None and built < first:
            yield make_critical(
                "cuda architecture",
                f"torch is built for CUDA {cuda}, and GPUs of compute capability {name} need {first[0]}.{first[1]}",
                "kernels fail with 'no kernel image is available for execution on the device'",
                f"install torch for CUDA {first[0]}.{first[1]} or later",
            )
        elif capability <= _VOLTA and built >= (13, 0):
            yield make_critical(
                "cuda architecture",
                f"torch is built for CUDA {cuda}, which has no code for GPUs of compute capability {name}",
                "kernels fail with 'no kernel image is available for execution on the device'",
                "install torch for CUDA 12.6",
            )


def _check_required(facts: Facts) -> Iterator[Finding]:
    software = facts.software
    other = {
        name: (software.packages[name], wanted)
        for name, wanted in software.required.items()
        if name in software.packages and software.packages[name] != wanted
    }
    if other:
        words = join_unique(f"{name} {got} (torch was built with {wanted})" for name, (got, wanted) in other.items())
        yield make_warning(
            "library versions",
            words,
            "metrics and failures are of a combination that nobody tested; for NCCL it may be on purpose",
            "pip install --force-reinstall the versions that torch requires, or record why",
        )
    elif any(name in software.packages for name in software.required):
        yield make_passed("library versions", "NVIDIA's libraries are those that torch requires")


def _find_duplicates(facts: Facts) -> Iterator[Finding]:
    packages = facts.software.packages
    for library in ("nccl", "cublas", "cudnn", "nvshmem", "cuda-runtime"):
        names = [name for name in packages if name.startswith(f"nvidia-{library}") and _is(name, library)]
        if len(names) > 1:
            yield make_warning(
                "libraries twice",
                f"{join_unique(f'{name} {packages[name]}' for name in names)} are installed side by side",
                "which one is loaded depends on the order of imports",
                "uninstall those that torch does not require",
            )


def _is(name: str, library: str) -> bool:
    return name.removeprefix(f"nvidia-{library}") in ("", "-cu11", "-cu12", "-cu13")
