"""Files of faults are read as they are written, and refused with what is wrong."""

from pathlib import Path

import pytest

from benchmarks.mutants.fault import Fault
from benchmarks.mutants.hunk_file import HunkError, read, read_all
from tests.whole_run import write

HEAD = "name: a mean that is rounded: once\nmodule: suites.scan.programs\n"


def written(folder: Path, text: str) -> Path:
    return write(folder, {"fault.diff": text}) / "fault.diff"


@pytest.mark.parametrize(
    ("hunk", "old", "new"),
    [
        ("@@ lines\n a\n-b\n+c\n\n d\n", "a\nb\n\nd\n", "a\nc\n\nd\n"),
        ("@@ lines\n-    b\n", "    b\n", ""),
        ("@@ lines\n-\n+ c\n", "\n", " c\n"),
        ("@@ part of a line\n-b\n+c\n", "b", "c"),
        ("@@ part of a line\n a\n-b\n", "a\nb", "a"),
        ("@@ part of a line\n+c\n", "", "c"),
    ],
)
def test_context_belongs_to_both_texts(tmp_path: Path, hunk: str, old: str, new: str) -> None:
    expected = Fault(name="a mean that is rounded: once", module="suites.scan.programs", old=old, new=new)
    assert read(written(tmp_path, HEAD + hunk)) == expected


def test_all_facts_are_read(tmp_path: Path) -> None:
    fault = read(written(tmp_path, HEAD + "equivalent: it adds nothing\nneeds: megatron\ngpus: yes\n@@ lines\n-b\n"))
    assert (fault.equivalent, fault.needs, fault.gpus) == ("it adds nothing", "megatron", True)


def test_a_folder_is_a_subject_and_its_files_are_in_order(tmp_path: Path) -> None:
    write(tmp_path, {f"scan/{name}.diff": f"name: {name}\nmodule: torch\n@@ lines\n-x\n" for name in ("b", "a")})
    faults = read_all(tmp_path)
    assert {subject: [fault.name for fault in of_subject] for subject, of_subject in faults.items()} == {
        "scan": ["a", "b"]
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + "-b\n+c\n", "fault.diff has no line '@@ lines' or '@@ part of a line': write one before the changed"),
        ("name: x\n@@ lines\n-b\n", r"fault.diff has \['name'\]: name and module must be there; \['equivalent', "),
        (HEAD + "gpu: yes\n@@ lines\n-b\n", r"fault.diff has \['gpu', 'module', 'name'\]: name and module must be"),
        (HEAD + "@@ lines\n-b\n*c\n", r"fault.diff has a line that begins with neither of ' ', '-' and '\+': '\*c'"),
    ],
)
def test_a_file_that_is_none_of_a_fault_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(HunkError, match=message):
        read(written(tmp_path, text))
