"""What the summary says of a run that left figures undecided: why, and what would decide them."""

from collections import Counter
from collections.abc import Sequence

from pytest_gpuperf.report.units import format_count
from pytest_gpuperf.verdicts.outcome import Outcome, Reason
from pytest_gpuperf.verdicts.verdict import Verdict


def undecided_lines(verdicts: Sequence[Verdict], *, fails: bool) -> list[str]:
    """Return one line for all undecided figures of a run, with each cure once; none if all are decided.

    Args:
        verdicts: Of the run.
        fails: Whether the run fails by them.
    """
    cures = Counter(_cure(one) for one in verdicts if one.outcome is Outcome.UNDECIDED)
    if not cures:
        return []
    told = "; ".join(f"{cure} ({format_count(count, 'figure')})" for cure, count in cures.most_common())
    ends = "so the run fails; --undecided=warn lets it pass" if fails else "--undecided=fail makes the run fail by it"
    return [f"undecided: {told}; {ends}"]


def _cure(verdict: Verdict) -> str:
    match verdict.reason:
        case Reason.ASKED:
            return "make the measurement quieter, or ask for less than at_least="
        case Reason.BUDGET:
            return "raise --race-budget"
        case Reason.CANNOT_RACE:
            return f"no race: {' '.join(verdict.detail.split())}; or record these GPUs with --update-baselines=append"
        case Reason.OPEN:
            return "make the measurement quieter: its launches differ too much"
        case _:
            return "let the run end: it was interrupted before other launches decided"
