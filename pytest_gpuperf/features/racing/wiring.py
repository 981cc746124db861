"""Makes the parts of a run that launch tests again, and registers those that have hooks of pytest's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pytest_gpuperf.features.racing.arm_loop import ArmLoop
from pytest_gpuperf.features.racing.arms.arms import Arms
from pytest_gpuperf.features.racing.arms.blueprint import Blueprint
from pytest_gpuperf.features.racing.arms.child import Link
from pytest_gpuperf.features.racing.arms.node_checkout import NodeClone
from pytest_gpuperf.features.racing.contest import Contest
from pytest_gpuperf.features.racing.means import MEANS, Means
from pytest_gpuperf.features.racing.options import RaceOptions
from pytest_gpuperf.features.racing.raced_run import RacedRun
from pytest_gpuperf.features.racing.racing import Racing
from pytest_gpuperf.features.racing.relaunching import Relaunching
from pytest_gpuperf.features.racing.same_code import SameCode
from pytest_gpuperf.features.racing.spending import Spending
from pytest_gpuperf.features.racing.suspect_judge import SuspectJudge
from pytest_gpuperf.features.racing.suspects import Held, HeldReports
from pytest_gpuperf.report.results_file import Raced
from pytest_gpuperf.report.run_journal import make_journal_path
from pytest_gpuperf.repository import CannotRace, Repository
from pytest_gpuperf.run.current_launch import CurrentLaunch
from pytest_gpuperf.run.session import Session


def register_arm(config: pytest.Config, run: Session, link: Link) -> None:
    """Has this process launch the tests that its controller asks for."""
    relaunching = Relaunching(run.launch, link.name)
    config.pluginmanager.register(relaunching, "gpuperf-relaunching")
    config.pluginmanager.register(ArmLoop(link, run.ranks, relaunching), "gpuperf-arm")


def register_race(config: pytest.Config, run: Session, options: RaceOptions) -> Racing | None:
    """Has later launches decide about suspects; None if the run's judge has none."""
    deciding: SuspectJudge | Contest
    if isinstance(run.judging, Contest):
        deciding = run.judging
    elif run.judge is not None:
        deciding = SuspectJudge(run.judge)
    else:
        return None
    here = Relaunching(run.launch)

    def require_on_nodes(repository: Repository, sha: str) -> None:
        if run.nodes.option:  # others than this machine, whose clone it is
            run.nodes.keep(NodeClone, str(repository.top), sha, repository.state()).close()

    means = config.stash[MEANS] = Means(
        here,
        lambda tests: Arms(Blueprint.of(config, run.options), tests, run.nodes, run.console.print_line),
        run.ranks.vacate,
        run.console.print_line,
        Spending(options.budget),
        config.rootpath,
        # Of all tests only the commit that the user names races on a cluster: the others have the baseline.
        run.nodes.no_race if options.against is None else "",
        require_on_nodes,
    )

    def notify_moved(tests: Sequence[Held]) -> None:
        config.hook.pytest_gpuperf_moved(config=config, tests=tests)

    same_code = None
    if isinstance(deciding, SuspectJudge) and options.python is None and options.build is None:
        same_code = SameCode(deciding, config.rootpath, _list_written(config, run))
    held = HeldReports(run.commands, gains=any(config.hook.pytest_gpuperf_holds_gains(config=config)))
    racing = Racing(held, deciding, means, options, notify_moved, same_code)
    config.pluginmanager.register(RacedRun(racing), "gpuperf-raced-run")
    config.pluginmanager.register(here, "gpuperf-relaunching")
    if run.results is not None:
        run.results.raced = lambda: _name_raced(options, run.launch, config.rootpath)
    return racing


def _list_written(config: pytest.Config, run: Session) -> Iterator[Path]:
    """The files and folders that runs with such options write, which are no code of the tests."""
    yield run.options.baselines
    if run.options.results is not None:
        yield from (run.options.results, make_journal_path(run.options.results))
    for of_feature in config.hook.pytest_gpuperf_writes(config=config):
        yield from of_feature


def _name_raced(race: RaceOptions, launch: CurrentLaunch, root: Path) -> Raced | None:
    """Return the codes of a race of all tests; None if nothing raced."""
    info = launch.info
    if race.against is None or info is None:
        return None
    try:
        old = Repository.of(root).resolve(race.against) if race.against else ""
    except CannotRace:
        old = ""
    named = " under ".join(filter(None, (race.against, race.python)))
    return Raced(info.at, info.host, named, old, info.commit, info.dirty)
