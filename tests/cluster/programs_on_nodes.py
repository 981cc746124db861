"""Tests that run on clusters whose nodes have two CPUs each; read as text."""

MODULE = """
def tell(ctx):
    return ctx.rank, ctx.node, ctx.local_rank, ctx.num_nodes
"""

VERDICTS = """
import os, sys, time
import hypothesis, hypothesis.strategies as st
import pytest, torch, torch.distributed as dist
import beside

os.remove(beside.__file__)  # a node has no file of the tests

@pytest.mark.ranks(1, 2, 4)
def test_sums(ranks):
    def program(ctx, x):
        x += ctx.rank
        dist.all_reduce(x)
        return x
    for x in ranks.run(program, torch.ones(3)):
        assert torch.equal(x, torch.full((3,), float(sum(range(1, ranks.world_size + 1)))))

@pytest.mark.ranks(2, 4)
def test_is_packed(ranks):
    nodes = 2 if ranks.world_size == 4 else 1
    assert ranks.run(beside.tell) == [(rank, rank // 2, rank % 2, nodes) for rank in range(ranks.world_size)]

@pytest.mark.ranks(5)
def test_shares_cpus(ranks):
    assert [node for _, node, _, _ in ranks.run(beside.tell)] == [0, 0, 0, 1, 1]

@pytest.mark.ranks(nodes=2)
def test_one_on_each(ranks):
    assert ranks.run(beside.tell) == [(0, 0, 0, 2), (1, 1, 0, 2)]

@pytest.mark.ranks(nodes="all")
def test_one_on_all(ranks):
    assert ranks.run(lambda ctx: (ctx.node, ctx.node_name)) == [(0, "gpu-a"), (1, "gpu-b")]

@pytest.mark.ranks(nodes=2, per_node=2)
def test_outer_axis_is_nodes(ranks):
    def program(ctx):
        mesh = ctx.mesh((ctx.num_nodes, ctx.world_size // ctx.num_nodes), ("node", "local"))
        x = torch.tensor([float(ctx.node)])
        dist.all_reduce(x, group=mesh["local"].get_group())
        return tuple(mesh.get_coordinate()), x.item()
    assert ranks.run(program) == [((0, 0), 0.0), ((0, 1), 0.0), ((1, 0), 2.0), ((1, 1), 2.0)]

@pytest.mark.ranks(2, per_node=1, launcher_env=True)
def test_launched(ranks):
    def program(ctx):
        dist.init_process_group("gloo")
        dist.barrier()  # who closes a group may cut off one that still connects
        names = "RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"
        dist.destroy_process_group()
        return [int(os.environ[name]) for name in names]
    assert ranks.run(program) == [[0, 0, 0, 2, 1, 2], [1, 0, 1, 2, 1, 2]]

@pytest.mark.ranks(nodes=2)
def test_is_as_nice_as_pytest(ranks):
    found = ranks.run(lambda ctx: os.getpriority(os.PRIO_PROCESS, 0))
    assert found == [0, 0] or os.geteuid()  # only root may be less nice than Ray

@pytest.mark.ranks(nodes=3)
def test_needs_three(ranks):
    pass

@pytest.mark.ranks(4)
def test_skips(ranks):
    ranks.run(lambda ctx: pytest.skip("not today"))

@pytest.mark.ranks(4)
def test_raises(ranks):
    def program(ctx):
        if ctx.rank == 3:
            raise ValueError("no")
        dist.barrier()
    ranks.run(program)

@pytest.mark.ranks(4)
def test_dies(ranks):
    def program(ctx):
        print("last words")
        if ctx.rank == 2:
            os._exit(3)
        dist.barrier()
    ranks.run(program)

@pytest.mark.ranks(4, timeout=4)
def test_hangs(ranks):
    def program(ctx):
        if ctx.rank == 1:
            time.sleep(600)
        dist.barrier()
    ranks.run(program)

@pytest.mark.ranks(4)
def test_never_ends(ranks):
    def program(ctx):
        if ctx.rank != 3:
            dist.all_reduce(torch.ones(1))
    ranks.run(program)

@hypothesis.settings(max_examples=8, deadline=None, database=None)
@hypothesis.given(numel=st.integers(1, 100))
@pytest.mark.ranks(nodes=2)
def test_draws(ranks, numel):
    def program(ctx):
        x = torch.full((numel,), float(ctx.node))
        dist.all_reduce(x)
        return x
    assert all(x.sum() == numel for x in ranks.run(program))

@pytest.mark.ranks(4)
def test_sends_much(ranks):
    much = torch.arange(4 * 2**20, dtype=torch.float32)  # 16 MiB
    def program(ctx, x):
        x[0] = ctx.rank  # it is the rank's own
        return x
    for rank, x in enumerate(ranks.run(program, much)):
        assert x[0] == rank and torch.equal(x[1:], much[1:])
        x[1] = 0  # and the result is this process's

def test_what_ray_has_set_here_is_undone():
    assert sys.excepthook is sys.__excepthook__
    assert "RAY_gcs_rpc_server_reconnect_timeout_s" not in os.environ

@pytest.mark.ranks(4)
def test_prints(ranks):
    ranks.run(lambda ctx: print(f"here is rank {ctx.rank}"))
    assert False
"""

_PROCESSES = """
import os, signal, subprocess, sys, time
from pathlib import Path
import pytest, torch.distributed as dist

HERE = Path(__file__).parent

def above(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

def raylet():
    pid = os.getpid()
    while Path(f"/proc/{pid}/comm").read_text().strip() != "raylet":
        pid = above(pid)
    return pid

def below(pid):
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:  # it has ended
        threads = []
    for thread in threads:
        try:
            children = Path(f"/proc/{pid}/task/{thread}/children").read_text().split()
        except OSError:  # the thread has ended
            continue
        for child in children:
            yield int(child)
            yield from below(int(child))

def named(pid):
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:  # the process has ended
        return ""

def kill(name):
    # A process of the head's node.
    there = {named(pid): pid for pid in below(above(raylet()))}
    os.kill(there[name], signal.SIGKILL)

def everybody(ctx):
    dist.barrier()
    return ctx.num_nodes
"""

LOSES = (
    _PROCESSES
    + """
@pytest.mark.ranks(4, timeout=60)
def test_node_is_killed(ranks):
    def program(ctx):
        if ctx.rank == 3:
            (HERE / "child").write_text(str(subprocess.Popen(["sleep", "600"]).pid))
            os.kill(raylet(), signal.SIGKILL)
            time.sleep(600)
        dist.barrier()
    ranks.run(program)

@pytest.mark.ranks(4)
def test_goes_on_with_what_is_left(ranks):
    assert ranks.run(everybody) == [1] * 4
    (HERE / "add").touch()
    # A pipe: its daemon may start for longer than the next test waits for its host.
    (HERE / "added").read_text()

@pytest.mark.ranks(nodes=2)
def test_waits_for_another(ranks):
    assert ranks.run(everybody) == [2] * 2

@pytest.mark.ranks(nodes=2, timeout=4)
def test_node_is_stopped(ranks):
    def program(ctx):
        if ctx.node == 1:
            stopped = raylet()
            (HERE / "stopped").write_text(str(stopped))
            for pid in [stopped, *below(stopped)]:
                if pid != os.getpid():
                    os.kill(pid, signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.barrier()
    ranks.run(program)

@pytest.mark.ranks(2)
def test_goes_on_without_it(ranks):
    assert ranks.run(everybody) == [1] * 2

@pytest.mark.ranks(2)
def test_head_is_killed(ranks):
    def program(ctx):
        if ctx.rank == 0:
            kill("gcs_server")
        dist.barrier()
    ranks.run(program)

@pytest.mark.ranks(1, 2)
def test_goes_on_without_a_head(ranks):
    assert ranks.run(everybody) == [1] * ranks.world_size
"""
)

# The daemons are those of the cluster that the test has started, which notes their processes beside the test.
_DAEMONS = """
import json, os, signal, time
from pathlib import Path
import pytest, torch.distributed as dist

HERE = Path(__file__).parent

def kill(*names, by=signal.SIGKILL):
    daemons = json.loads((HERE / "daemons").read_text())
    for name in names:
        os.kill(daemons[name], by)

def everybody(ctx):
    dist.barrier()
    return ctx.num_nodes
"""

STOPPED_DAEMONS = (
    _DAEMONS
    + """
@pytest.mark.ranks(nodes=2, timeout=30)
def test_daemons_are_stopped(ranks):
    def program(ctx):
        dist.barrier()
        kill(ctx.node_name, by=signal.SIGSTOP)
    ranks.run(program)

@pytest.mark.ranks(nodes=2)
def test_goes_on_without_them(ranks):
    assert ranks.run(everybody) == [2] * 2
"""
)

STOPPED_HEAD = (
    _DAEMONS
    + """
@pytest.mark.ranks(nodes=2, timeout=30)
def test_head_is_stopped(ranks):
    def program(ctx):
        if ctx.rank == 0:
            kill("gcs_server", by=signal.SIGSTOP)
        dist.barrier()
    ranks.run(program)

@pytest.mark.ranks(nodes=2)
def test_goes_on_without_a_head(ranks):
    assert ranks.run(everybody) == [2] * 2

@pytest.mark.ranks(nodes=2, timeout=30)
def test_node_is_killed(ranks):
    def program(ctx):
        if ctx.node == 1:
            kill(ctx.node_name)
            time.sleep(600)
        dist.barrier()
    ranks.run(program)

@pytest.mark.ranks(nodes=2)
def test_has_no_nodes(ranks):
    pass

@pytest.mark.ranks(1)
def test_fits_the_node_that_is_left(ranks):
    assert ranks.run(everybody) == [1]
"""
)

HEADLESS = (
    _DAEMONS
    + """
@pytest.mark.ranks(nodes=2, timeout=30)
def test_head_is_killed(ranks):
    def program(ctx):
        if ctx.rank == 0:
            victims = (HERE / "victims").read_text().split()
            kill(*victims)
            if "gpu-a" in victims:
                time.sleep(600)  # which ends with the daemon of its node
        dist.barrier()
    ranks.run(program)

@pytest.mark.ranks(nodes=2, timeout=30)
def test_runs_until_the_daemons_end(ranks):
    until = time.monotonic() + 60
    while time.monotonic() < until:
        ranks.run(everybody)
        time.sleep(0.5)

@pytest.mark.ranks(nodes=2)
def test_has_no_nodes(ranks):
    pass

@pytest.mark.ranks(1)
def test_has_no_node(ranks):
    pass

def test_needs_none():
    pass
"""
)

# Tests of one world size are neighbours, so each of these has its own.
BETWEEN = """
import time
from pathlib import Path
import pytest, torch.distributed as dist

HERE = Path(__file__).parent

def have(what):
    (HERE / what).touch()
    until = time.monotonic() + 120
    while not (HERE / f"{what}.done").exists():
        assert time.monotonic() < until
        time.sleep(0.05)

def names(ctx):
    dist.barrier()
    return ctx.node_name

@pytest.mark.ranks(nodes=3)
def test_three(ranks):
    assert ranks.run(names) == ["gpu-a", "gpu-b", "gpu-c"]

def test_one_is_removed():
    have("remove gpu-c")

@pytest.mark.ranks(5)
def test_goes_on_with_two(ranks):
    assert ranks.run(names) == ["gpu-a"] * 3 + ["gpu-b"] * 2

def test_another_joins():
    have("add gpu-d")

@pytest.mark.ranks(nodes=3, per_node=2)
def test_has_the_other_in_its_place(ranks):
    assert ranks.run(names) == ["gpu-a"] * 2 + ["gpu-b"] * 2 + ["gpu-d"] * 2

def test_one_joins_without_a_loss():
    have("add gpu-e")

@pytest.mark.ranks(7)
def test_does_not_use_it(ranks):
    assert ranks.run(names) == ["gpu-a"] * 3 + ["gpu-b"] * 2 + ["gpu-d"] * 2
"""

ODD_NODE = """
import os, time
from pathlib import Path
import pytest, torch.distributed as dist

HERE = Path(__file__).parent

@pytest.mark.ranks(nodes=3)
def test_clocks_differ(ranks):
    here, _, odd = ranks.run(lambda ctx: time.monotonic())
    assert odd - here > 4000

@pytest.mark.ranks(nodes=3)
def test_raises(ranks):
    def program(ctx):
        if ctx.rank != 2:
            time.sleep(0.5)
        raise ValueError(f"no, says rank {ctx.rank}")
    ranks.run(program)

@pytest.mark.ranks(nodes=3)
def test_dies(ranks):
    def program(ctx):
        if ctx.rank == 2:
            os._exit(3)
        dist.barrier()
    ranks.run(program)

@pytest.mark.ranks(nodes=3, timeout=4)
def test_hangs(ranks):
    def program(ctx):
        if ctx.rank == 2:
            time.sleep(600)
        dist.barrier()
    ranks.run(program)

def test_the_odd_node_is_to_stop():
    (HERE / "stop").touch()

@pytest.mark.ranks(nodes=3, per_node=2)
def test_node_stops_while_ranks_start(ranks):
    pass

@pytest.mark.ranks(nodes=2)
def test_goes_on(ranks):
    ranks.run(lambda ctx: None)
"""

SITECUSTOMIZE = """
import os, signal, sys, time
from pathlib import Path

HERE = Path(__file__).parents[1]
monotonic = time.monotonic
time.monotonic = lambda: monotonic() + 5000

def stop(host):
    if (HERE / "stop").exists():
        (HERE / "stopped").write_text(str(host))
        os.kill(host, signal.SIGSTOP)

if any("forkserver" in argument for argument in sys.orig_argv):
    os.register_at_fork(after_in_child=lambda host=os.getppid(): stop(host))
"""

KILLED = """
import os, subprocess, time
from pathlib import Path
import pytest

@pytest.mark.ranks(4)
def test_it(ranks):
    def program(ctx, here):
        pid = os.getpid()
        (here / f"{pid}.pid").touch()
        (here / f"{os.getppid()}.pid").touch()
        (here / f"{subprocess.Popen(['sleep', '600']).pid}.pid").touch()
        time.sleep(600)
    ranks.run(program, Path(__file__).parent)
"""
