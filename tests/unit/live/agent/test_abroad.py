"""Processes of an attempt on other nodes than its agent."""

import asyncio
import gc

import pytest
from tests.support.attempts import attempt_in

from rota.errors import AgentError
from rota.live.agent.ending import has_failed
from rota.live.wire.places import place_of


@pytest.fixture
def attempt(tmp_path):
    """An attempt on this node and another one, not started yet."""
    nodes = [{"name": "here", "address": "127.0.0.1"}, {"name": "there", "address": "127.0.0.1"}]
    record = {"job_id": "5", "attempt": 2, "launch": None, "program": {}, "name": "gang"}
    record |= {"slots": 2, "members": [0, 1], "generation": 0, "max_world": 2, "far": {"1": 1}}
    record |= {"suspension": "process", "movable": False, "visible": None, "nodes": nodes}
    return attempt_in(tmp_path, record | {"gpus": [0, place_of(1, 0)]}, lambda message: None)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_an_attempt_that_is_to_end_waits_for_no_other_node_and_starts_nothing(attempt, how):
    told, forked = [], []
    attempt.abroad.tell = lambda node, body, **_: told.append((node, body["do"]))

    async def story():
        opening = asyncio.create_task(attempt.abroad.open_to(attempt.record.gpus))
        await asyncio.sleep(0)
        assert told == [("there", "prepare")]
        getattr(attempt, how)()
        with pytest.raises(AgentError, match="told to end before it had started"):
            await opening
        with pytest.raises(AgentError, match="told to end before it had started"):
            await attempt.launch(forked.append, [{}, {}])

    asyncio.run(story())
    assert forked == []


def test_the_others_go_on_while_a_newcomer_on_another_node_is_dismissed(attempt):
    """It counts as gone before its end is heard, and is no rank that has failed."""
    attempt.abroad.tell = lambda *_, **__: None
    newcomer = attempt.new_rank(1)
    attempt.ranks[:] = [attempt.new_rank(0), newcomer]

    async def story():
        newcomer.find()
        newcomer.watch(lambda: None)
        assert newcomer.alive
        attempt.elastic._dismiss([newcomer.index])
        assert not newcomer.alive
        assert not has_failed(newcomer)

    asyncio.run(story())


def test_an_error_of_a_node_for_which_nobody_waits_any_more_is_no_fault(attempt):
    faults = []

    async def story():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, fault: faults.append(fault))
        attempt.abroad._met["there"] = loop.create_future()
        attempt.abroad.hear("there", {"said": "met", "error": "node here does not answer"})
        attempt.abroad._met.clear()  # as the agent's own try to reach it has failed, too
        gc.collect()

    asyncio.run(story())
    assert not faults


@pytest.mark.parametrize("trained", [False, True])
def test_the_others_wait_for_a_process_that_its_node_never_started(attempt, trained):
    """They meet at their start: only those that have trained can go on without one."""
    attempt.ranks[:] = [attempt.new_rank(0), attempt.new_rank(1)]
    attempt.progress = {"step": 1} if trained else {}
    attempt.check_end = lambda: None

    async def story():
        far = attempt.ranks[1]
        far.find()
        attempt.watch(far)
        attempt.abroad.hear("there", {"said": "seen", "slots": []})
        assert not far.alive
        assert far.survived == trained

    asyncio.run(story())


@pytest.mark.parametrize("since", ["it was asked to", "the attempt is suspended", "it goes on"])
def test_what_a_new_agent_of_another_node_has_let_go_on_is_stopped_again(attempt, since):
    told = []
    attempt.abroad.tell = lambda node, body, **_: told.append(body)
    far = attempt.ranks[1] = attempt.new_rank(1)
    far.find()
    if since == "the attempt is suspended":
        attempt.record.frozen, attempt.record.suspended_s = True, 5.0
    elif since == "it was asked to":
        assert not far.stop(spared=7)
    told.clear()
    attempt.abroad.is_anew("there")
    spared = {"it was asked to": [7], "the attempt is suspended": [0], "it goes on": []}[since]
    assert [each["spared"] for each in told] == spared
