"""Live background jobs beside a foreground training, and every death around them."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from rota.flow.page import SLOTS, Page
from rota.share.marks import OTHER
from rota.share.page import PageReader, read_fill
from rota.share.weight import Autogroup

from .conftest import PROMPT, is_gone, until

ANY = {"max_slowdown": 100.0}  # whatever else this machine does, no trial is undone for it
TREE = """
import os, sys
for _ in range(2):
    os.fork()
folder, turns = sys.argv[1], 0
while True:
    turns += 1
    if turns % 20_000 == 0:
        with open(f"{folder}/{os.getpid()}", "w") as told:
            told.write(f"{turns:12d}")
"""


SWARM = """
import os
import torch, rota.train
torch.set_num_threads(1)
with rota.train.session() as s:
    model = torch.nn.Linear(8, 1)
    model, optimizer = s.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    for _ in range(8):
        if os.fork() == 0:
            while True:
                pass
    for step in s.steps(10**9):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
"""


@pytest.fixture
def cluster(make_cluster):
    return make_cluster("fifo-backfill", 1, environment=PROMPT)


def background(cluster, out, *arguments, **more):
    return cluster.train(out, "--until", *arguments, share={"role": "background"}, **more)


def tree(cluster):
    """A background job of four processes that know nothing of Rota; the folder of their turns."""
    folder = cluster.base / "turns"
    folder.mkdir()
    script = cluster.base / "tree.py"
    script.write_text(TREE)
    job = cluster.submit(f"python {script} {folder}", share={"role": "background"})
    until(lambda: len(list(folder.iterdir())) == 4, "all four run")
    return job, folder


def enough(cluster, out):
    (cluster.base / out / "enough").touch()


def link(cluster, job):
    """The background job's link to the page that it follows."""
    [node] = cluster.node_names()
    return cluster.folder.attempt(node, job, 1) / "fills"


def mark(page):
    reader = PageReader(page)
    try:
        return reader.read(0.0).mark
    finally:
        reader.close()


def stands_beside(cluster, job, other):
    """Wait until a background job follows the page of another job; the page."""
    page = link(cluster, other).with_name("rank0.marks")
    until(lambda: os.path.realpath(link(cluster, job)) == str(page.resolve()), "it is followed")
    return page


def throttled(cluster, job):
    """The guard of a job that runs in slices of time; None if it does not."""
    shim = cluster.pids(job)["shim"]
    words = ["-IS", "-c", str(shim)]
    for process in cluster.processes():
        with suppress(psutil.Error):
            line = process.cmdline()
            if line[1:3] == words[:2] and line[-1:] == words[2:]:
                return process
    return None


def guards(cluster, job):
    """The processes that have the trees of a gang go on, should its agent die."""
    shims = {str(cluster.pids(job, rank)["shim"]) for rank in range(2)}
    found = []
    for process in cluster.processes():
        with suppress(psutil.Error):
            line = process.cmdline()
            found += [process] if "-IS" in line and set(line[-2:]) == shims else []
    return found


def turns(folder):
    return sorted((file.name, file.read_text()) for file in folder.iterdir())


def goes_on(folder):
    before = turns(folder)
    until(lambda: turns(folder) != before, "it goes on")


@pytest.mark.live_path("fill")
def test_a_background_job_runs_beside_a_training_and_alone_after_it(cluster):
    front = cluster.train("front", "--until", "--steps", 100_000, share=ANY)
    cluster.until_step_advances("front")
    back = background(cluster, "back", "--steps", 100_000, "--pace", 0)
    cluster.until_step_advances("back")
    page = stands_beside(cluster, back, front)
    assert mark(page).limit == ANY["max_slowdown"]
    filling = until(
        lambda: (told := cluster.show(back)["filling"]) and told["slowdown"] and told,
        "it is told how both fare",
    )
    assert (filling["with"], filling["limit"]) == ([front], 100.0)
    low, high = filling["interval"]
    assert 0 < low <= filling["slowdown"] <= high
    assert 0 < filling["harvest"] <= 1
    assert cluster.show(front)["filling"]["with"] == [back]
    [node] = cluster.client.nodes()
    assert [each["id"] for each in node["fillers"]] == [back]
    cluster.until_step_advances("front")
    enough(cluster, "front")
    assert cluster.ends(front)["attempt"] == 1
    until(lambda: not os.path.lexists(link(cluster, back)), "it follows nobody")
    cluster.until_step_advances("back", 20)
    enough(cluster, "back")
    assert cluster.ends(back)["attempt"] == 1
    assert read_fill(link(cluster, back)).pieces > 0


def turns_taken(cluster, gpus):
    """The turns that were given out on each GPU: of the foreground, and of the background."""
    [node] = cluster.node_names()
    path = cluster.folder.island(node) / "page"
    if not path.exists():
        return [0] * gpus, [0] * gpus
    page = Page(path, gpus, SLOTS)
    try:
        rings = [page.issued(ring) for ring in page.rings]
    finally:
        page.close()
    return rings[:gpus], rings[gpus:]


@pytest.mark.live_path("fill-gang")
def test_a_background_gang_takes_turns_in_the_gaps_of_a_gang_and_goes_on_alone(make_cluster):
    cluster = make_cluster("fifo-backfill", 2, environment=PROMPT)
    front = cluster.train("front", "--until", "--steps", 100_000, gpus=2, share=ANY)
    cluster.until_step_advances("front")
    back = background(cluster, "back", "--steps", 100_000, "--pace", 0, gpus=2)
    cluster.until_step_advances("back")
    [node] = cluster.client.nodes()
    assert [each["id"] for each in node["fillers"]] == [back, back]
    until(lambda: min(turns_taken(cluster, 2)[1]) > 2, "its steps take turns")
    cluster.until_step_advances("back")
    cluster.until_step_advances("front")
    ours, theirs = turns_taken(cluster, 2)
    assert ours == [0, 0]
    assert abs(theirs[0] - theirs[1]) <= 1
    filling = until(
        lambda: (told := cluster.show(back)["filling"]) and told["slowdown"] and told,
        "it is told how both fare",
    )
    assert (filling["with"], filling["on"].rpartition(":")[2]) == ([front], "0,1")
    enough(cluster, "front")
    assert cluster.ends(front)["attempt"] == 1
    until(lambda: not os.path.lexists(link(cluster, back)), "it follows nobody")
    cluster.until_step_advances("back", 20)
    enough(cluster, "back")
    assert cluster.ends(back)["attempt"] == 1


def test_the_foreground_does_not_notice_a_rank_of_a_background_gang_that_dies(make_cluster):
    cluster = make_cluster("fifo-backfill", 2, environment=PROMPT)
    front = cluster.train("front", "--until", "--steps", 100_000, gpus=2, share=ANY)
    cluster.until_step_advances("front")
    back = background(cluster, "back", "--steps", 100_000, gpus=2, retries=0)
    until(lambda: min(turns_taken(cluster, 2)[1]) > 2, "its steps take turns")
    cluster.kill(cluster.pids(back)["worker"])
    cluster.ends(back, "FAILED")
    cluster.until_step_advances("front")
    enough(cluster, "front")
    assert cluster.ends(front)["attempt"] == 1


def test_a_gang_without_a_session_runs_in_slices_on_all_of_its_gpus(make_cluster):
    cluster = make_cluster("fifo-backfill", 2, environment=PROMPT)
    front = cluster.train("front", "--until", "--steps", 100_000, share=ANY)
    cluster.until_step_advances("front")
    folder, script = cluster.base / "turns", cluster.base / "tree.py"
    folder.mkdir()
    script.write_text(TREE)
    back = cluster.submit(f"python {script} {folder}", share={"role": "background"}, gpus=2)
    until(lambda: len(list(folder.iterdir())) == 8, "both processes have their four")
    until(lambda: guards(cluster, back), "it runs in slices")
    goes_on(folder)
    cluster.client.suspend(back)
    cluster.until_state(back, "SUSPENDED")
    assert not guards(cluster, back)
    before = turns(folder)
    cluster.until_step_advances("front", 20)
    assert turns(folder) == before
    cluster.client.cancel(back)
    cluster.ends(back, "CANCELLED")
    enough(cluster, "front")
    assert cluster.ends(front)["attempt"] == 1


def test_beside_a_program_that_tells_nothing_pieces_are_rare_and_not_none(cluster):
    front = cluster.submit("while :; do :; done", share=ANY)
    cluster.until_state(front, "RUNNING")
    back = background(cluster, "back", "--steps", 100_000)
    page = stands_beside(cluster, back, front)
    assert (mark(page).segment, mark(page).pid) == (OTHER, cluster.pids(front)["worker"])
    cluster.until_step_advances("back")
    enough(cluster, "back")
    cluster.ends(back)
    cluster.client.cancel(front)
    cluster.ends(front, "CANCELLED")


def test_a_program_without_a_session_runs_in_slices_and_stays_suspended(cluster):
    front = cluster.train("front", "--until", "--steps", 100_000, share=ANY)
    cluster.until_step_advances("front")
    back, folder = tree(cluster)
    until(lambda: throttled(cluster, back), "it runs in slices")
    goes_on(folder)
    cluster.client.suspend(back)
    cluster.until_state(back, "SUSPENDED")
    assert throttled(cluster, back) is None
    before = turns(folder)
    cluster.until_step_advances("front", 50)
    assert turns(folder) == before
    cluster.client.resume(back)
    goes_on(folder)
    until(lambda: throttled(cluster, back), "it runs in slices again")
    cluster.client.cancel(back)
    cluster.ends(back, "CANCELLED")
    assert folder.exists()
    enough(cluster, "front")
    assert cluster.ends(front)["attempt"] == 1


def test_a_tree_in_slices_goes_on_when_its_agent_dies_and_the_next_one_holds_it(cluster):
    front = cluster.train("front", "--until", "--steps", 100_000, share=ANY)
    cluster.until_step_advances("front")
    back, folder = tree(cluster)
    guard = until(lambda: throttled(cluster, back), "it runs in slices")
    cluster.kill(cluster.agent())
    until(lambda: is_gone(guard), "the guard has done its work")
    goes_on(folder)
    until(lambda: throttled(cluster, back), "the next agent holds it")
    goes_on(folder)
    cluster.until_step_advances("front")
    enough(cluster, "front")
    assert cluster.ends(front)["attempt"] == 1
    until(lambda: throttled(cluster, back) is None, "alone it is not held")
    goes_on(folder)
    cluster.client.cancel(back)
    cluster.ends(back, "CANCELLED")


def test_a_session_that_computes_beside_its_pieces_is_held_in_slices(cluster):
    """Processes that its gate does not hold."""
    front = cluster.train("front", "--until", "--steps", 100_000)
    cluster.until_step_advances("front")
    script = cluster.base / "swarm.py"
    script.write_text(SWARM)
    back = cluster.submit(f"python {script}", share={"role": "background"})
    until(lambda: len(cluster.of_job(back)) > 8, "all are there")

    def computes_and_is_held():
        with suppress(OSError):  # whoever else computes here leaves something to it
            Autogroup().restore(cluster.pids(back)["shim"])
        return throttled(cluster, back)

    until(computes_and_is_held, "it runs in slices")
    cluster.until_step_advances("front")
    cluster.client.cancel(back)
    cluster.ends(back, "CANCELLED")
    until(lambda: not cluster.of_job(back), "nobody is left")
    enough(cluster, "front")
    assert cluster.ends(front)["attempt"] == 1


@pytest.mark.parametrize("victim", ["worker", "shim"])
def test_the_foreground_does_not_notice_the_death_of_its_background(cluster, victim):
    front = cluster.train("front", "--until", "--steps", 100_000, share=ANY)
    cluster.until_step_advances("front")
    back = background(cluster, "back", "--steps", 100_000, retries=0)
    cluster.until_step_advances("back")
    stands_beside(cluster, back, front)
    cluster.kill(cluster.pids(back)[victim])
    until(lambda: cluster.show(back)["state"] != "RUNNING" or cluster.show(back)["attempt"] > 1, "")
    cluster.until_step_advances("front")
    assert cluster.show(front)["state"] == "RUNNING"
    enough(cluster, "front")
    assert cluster.ends(front)["attempt"] == 1


def test_a_background_is_free_while_the_foreground_is_stopped_or_its_page_is_garbage(cluster):
    front = cluster.train("front", "--until", "--steps", 100_000, share=ANY)
    cluster.until_step_advances("front")
    back = background(cluster, "back", "--steps", 100_000)
    page = stands_beside(cluster, back, front)
    worker = psutil.Process(cluster.pids(front)["worker"])
    worker.send_signal(signal.SIGSTOP)
    cluster.until_step_advances("back", 20)
    worker.send_signal(signal.SIGCONT)
    cluster.until_step_advances("front")
    with open(page, "r+b") as file:
        file.write(b"\x07" * Path(page).stat().st_size)
    cluster.until_step_advances("back")
    cluster.until_step_advances("front")
    for out, job in (("front", front), ("back", back)):
        enough(cluster, out)
        assert cluster.ends(job)["attempt"] == 1


def test_a_controller_that_comes_back_hears_how_they_fare(cluster):
    front = cluster.train("front", "--until", "--steps", 100_000, share=ANY)
    cluster.until_step_advances("front")
    back = background(cluster, "back", "--steps", 100_000, "--pace", 0)
    cluster.until_step_advances("back")
    cluster.kill_controller()
    before = [cluster.step(each) for each in ("front", "back")]
    until(lambda: cluster.step("front") > before[0] + 20, "the foreground goes on without it")
    cluster.up()
    until(
        lambda: (told := cluster.show(back)["filling"]) and told["slowdown"],
        "it is told how both fare",
    )
    for out, job in (("front", front), ("back", back)):
        enough(cluster, out)
        assert cluster.ends(job)["attempt"] == 1
