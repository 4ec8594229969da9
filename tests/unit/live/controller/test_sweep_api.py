"""Searches on the controller: what it takes and tells, and that a restart changes nothing."""

import asyncio

import pytest

from rota.errors import JobFileError, NeverFitsError, NotFoundError, TransitionError
from rota.model.allocation import on_node
from rota.model.commands import Resize
from rota.model.events import CommandSent, JobFinished, JobResized, MetricReported
from rota.model.job import JobState
from rota.model.sweep import Report
from rota.model.view import View
from rota.request.sweepfile import parse_sweep

from .test_loop import Agent, controlled, done, submit, until_state

FIELDS = {
    "name": "digits",
    "run": "python train.py --lr {lr}",
    "sweep": {
        "metric": "val_acc",
        "goal": "maximize",
        "space": {"lr": {"log": [1e-4, 0.1]}},
        "algorithm": "random",
        "max_trials": 40,
    },
}


def request(**fields):
    return parse_sweep(FIELDS | fields, workdir="/")


async def submit_sweep(controller, key=None, body="a", **fields):
    return await controller.sweeps.submit_sweep(
        request(**fields), user="me", key=key, body_hash=body
    )


def test_trials_are_jobs_with_their_number_and_a_repeated_number_is_the_same_job(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            name = await submit_sweep(controller)
            assert name == "digits"
            row = await controller.sweeps.submit_trial(name, 3, {"lr": 0.01})
            assert await controller.sweeps.submit_trial(name, 3, {"lr": 0.05}) == row
            assert await controller.sweeps.submit_trial(name, None, {"lr": 0.02}) == row + 1
            spec = controller.state.spec[row]
            assert (spec.name, spec.user) == ("digits.3", "me")
            assert spec.program.run == "python train.py --lr 0.01"
            assert spec.trial.params == (("lr", 0.01),)
            assert (spec.trial.sweep.metric, spec.trial.sweep.maximize) == ("val_acc", True)
            told = controller.record.searches.tell("@last")
        async with controlled(tmp_path) as controller:
            assert await controller.sweeps.submit_trial(name, 3, {"lr": 0.09}) == row
            again = controller.record.searches.tell(name)
            assert again | {"cursor": None} == told | {"cursor": None}
            assert [trial["number"] for trial in again["trials"]] == [3, 4]
            assert again["trials"][0]["params"] == {"lr": 0.01}
            assert controller.state.sweeps == {"digits": [row, row + 1]}

    asyncio.run(scenario())


def test_names_are_unique_for_ever_and_keys_give_the_same_search(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            assert await submit_sweep(controller, "k") == "digits"
            assert await submit_sweep(controller, "k") == "digits"
            await controller.sweeps.end_sweep("digits", "DONE", "all trials have ended")
            assert await submit_sweep(controller, "other") == "digits-2"
            await submit(controller, "job")
        async with controlled(tmp_path) as controller:
            assert await submit_sweep(controller, "k") == "digits"
            assert await submit_sweep(controller) == "digits-3"
            with pytest.raises(JobFileError, match="was used for something else"):
                await submit_sweep(controller, "k", body="b")
            with pytest.raises(JobFileError, match="was used for something else"):
                await submit_sweep(controller, "job")
            with pytest.raises(JobFileError, match="was used for another job"):
                await submit(controller, "k")
            assert [each["name"] for each in controller.record.searches.tell_page()[0]] == [
                "digits",
                "digits-2",
                "digits-3",
            ]

    asyncio.run(scenario())


def test_a_key_gives_the_same_trial_also_where_the_number_is_the_next_one(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            name = await submit_sweep(controller)
            trial = {"key": "t", "body_hash": "x"}
            row = await controller.sweeps.submit_trial(name, None, {"lr": 0.01}, **trial)
            assert await controller.sweeps.submit_trial(name, None, {"lr": 0.01}, **trial) == row
            assert await controller.sweeps.submit_trial(name, 7, {"lr": 0.01}, **trial) == row
            with pytest.raises(JobFileError, match="was used for another job"):
                await controller.sweeps.submit_trial(
                    name, None, {"lr": 0.02}, key="t", body_hash="y"
                )
            assert len(controller.state.spec) == 1

    asyncio.run(scenario())


def test_what_makes_no_sense_is_refused_and_changes_nothing(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            agent.hello()
            await agent.hears("welcome")
            with pytest.raises(NeverFitsError, match="this cluster has 2"):
                await submit_sweep(controller, resources={"gpus": 3})
            with pytest.raises(NotFoundError, match="there is no sweep 'digits'"):
                controller.record.searches.tell("digits")
            name = await submit_sweep(controller)
            with pytest.raises(NotFoundError, match="did you mean"):
                controller.record.searches.tell("digit")
            with pytest.raises(JobFileError, match="lr"):
                await controller.sweeps.submit_trial(name, 0, {"lr": 7.0})
            for number in (-1, 1.5, True, "1", 10**9):
                with pytest.raises(JobFileError, match="number"):
                    await controller.sweeps.submit_trial(name, number, {"lr": 0.01})
            with pytest.raises(NotFoundError, match="no trial 0"):
                await controller.sweeps.stop_trial(name, 0, "why not")
            with pytest.raises(JobFileError, match="outcome"):
                await controller.sweeps.end_sweep(name, "WON", "")
            with pytest.raises(JobFileError, match="message"):
                await controller.sweeps.end_sweep(name, "DONE", None)
            for text in ("half a pair: \ud800", "\0", "x" * 2001):
                with pytest.raises(JobFileError, match="message"):
                    await controller.sweeps.end_sweep(name, "DONE", text)
            assert controller.record.searches.tell(name)["state"] == "RUNNING"
            assert not controller.state.spec
            await controller.sweeps.submit_trial(name, 999_999, {"lr": 0.01})
            with pytest.raises(JobFileError, match=r"number: None .* give a number"):
                await controller.sweeps.submit_trial(name, None, {"lr": 0.01})
            with pytest.raises(JobFileError, match="why"):
                await controller.sweeps.stop_trial(name, 999_999, "half a pair: \udc80")
            assert [
                trial["state"] for trial in controller.record.searches.tell(name)["trials"]
            ] == ["PENDING"]
            await agent.leave()

    asyncio.run(scenario())


def test_the_end_of_a_search_stops_its_open_trials_and_takes_no_more(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            name = await submit_sweep(controller)
            first, second, third = [
                await controller.sweeps.submit_trial(name, number, {"lr": 0.01})
                for number in range(3)
            ]
            assert await controller.sweeps.stop_trial(name, 0, "it is not among the best third")
            assert not await controller.sweeps.stop_trial(name, 0, "once more")
            await controller.jobs.cancel(second)
            assert await controller.sweeps.end_sweep(name, "TARGET", "trial 1 reached 0.95")
            assert not await controller.sweeps.end_sweep(name, "DONE", "")
            with pytest.raises(TransitionError, match="ended as TARGET"):
                await controller.sweeps.submit_trial(name, 3, {"lr": 0.01})
            assert await controller.sweeps.submit_trial(name, 2, {"lr": 0.01}) == third
            assert any("it is not among" in line for _, line in controller.state.story(first))
        async with controlled(tmp_path) as controller:
            told = controller.record.searches.tell(name)
            assert (told["state"], told["outcome"]) == ("ENDED", "TARGET")
            assert told["message"] == "trial 1 reached 0.95"
            assert [(trial["state"], trial["why"]) for trial in told["trials"]] == [
                ("CANCELLED", "it is not among the best third"),
                ("CANCELLED", None),
                ("CANCELLED", "the search is over (TARGET): trial 1 reached 0.95"),
            ]
            assert controller.record.searches.tell_page()[0][0]["trials"] == {
                "done": 0,
                "running": 0,
                "waiting": 0,
                "failed": 0,
                "stopped": 3,
            }

    asyncio.run(scenario())


def test_when_a_trial_worked_and_what_it_used_is_told(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            agent.hello()
            await agent.hears("welcome")
            name = await submit_sweep(controller, resources={"gpus": 2})
            row = await controller.sweeps.submit_trial(name, 0, {"lr": 0.01})
            assert controller.record.searches.tell(name)["trials"][0]["ran"] == []
            launch = await agent.hears("launch")
            agent.says(**done(launch))
            await until_state(controller, row, JobState.RUNNING)
            ((since_s, until_s),) = controller.record.searches.tell(name)["trials"][0]["ran"]
            assert until_s is None
            await controller.jobs.suspend(row)
            suspend = await agent.hears("suspend")
            stopped_s = controller.state.changed_s[row] + 0.5
            agent.says(**done(suspend, at_s=stopped_s + 1, stopped_s=stopped_s))
            await until_state(controller, row, JobState.SUSPENDED)
            (span,) = controller.record.searches.tell(name)["trials"][0]["ran"]
            assert span[0] == since_s
            assert since_s < span[1] <= stopped_s
            await controller.jobs.resume(row)
            agent.says(**done(await agent.hears("resume")))
            await until_state(controller, row, JobState.RUNNING)
            agent.says(
                type="ended",
                job_id="1",
                attempt=1,
                at_s=0.0,
                exit_code=0,
                message="",
                stop_asked=False,
            )
            await until_state(controller, row, JobState.SUCCEEDED)
            told = controller.record.searches.tell(name)
            (trial,) = told["trials"]
            assert trial["gpu_s"] == pytest.approx(2 * sum(b - a for a, b in trial["ran"]))
            assert trial["ran_on"] == [[{"node": "n", "gpus": [0, 1]}]] * 2
            assert told["gpu_s"] == trial["gpu_s"]
            assert told["gpus"] == 2
            await agent.leave()
        async with controlled(tmp_path) as controller:
            assert controller.record.searches.tell(name)["trials"] == told["trials"]

    asyncio.run(scenario())


def test_a_trial_that_gets_another_gpu_begins_another_turn_when_it_works_there(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            agent = Agent(controller)
            agent.hello()
            await agent.hears("welcome")
            name = await submit_sweep(controller, resources={"gpus": "1..2"})
            row = await controller.sweeps.submit_trial(name, 0, {"lr": 0.01})
            agent.says(**done(await agent.hears("launch")))
            await until_state(controller, row, JobState.RUNNING)
            state, now_s, both = controller.state, controller.now_s(), on_node(0, 0b11)
            resize = Resize(state.next_command_id, row, 1, state.epoch, both)
            controller.journal.note(CommandSent(now_s, resize))
            assert len(controller.record.searches.tell(name)["trials"][0]["ran"]) == 1
            controller.journal.note(JobResized(now_s + 1, row, both))
            (trial,) = controller.record.searches.tell(name)["trials"]
            (_, until_s), later = trial["ran"]
            assert [until_s, None] == later == [now_s + 1, None]
            assert trial["ran_on"] == [[{"node": "n", "gpus": gpus}] for gpus in ([0], [0, 1])]
            await agent.leave()

    asyncio.run(scenario())


def test_curves_are_what_was_told_and_the_best_value_counts(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            name = await submit_sweep(controller)
            rows = [
                await controller.sweeps.submit_trial(name, n, {"lr": 0.01 * (n + 1)})
                for n in (0, 1)
            ]
            one = (Report(1, 10.0, 0.5, True), Report(2, 11.0, 0.9), Report(3, 12.0, None))
            controller.journal.note(MetricReported(12.0, rows[0], one))
            controller.journal.note(MetricReported(13.0, rows[1], (Report(1, 13.0, 0.7, True),)))
            controller.journal.note(JobFinished(14.0, rows[1], JobState.LOST))
            silent = await controller.sweeps.submit_trial(name, 2, {"lr": 0.03})
            controller.journal.note(JobFinished(14.0, silent, JobState.SUCCEEDED))
            controller.turn()
            assert list(View(controller.state, 20.0, None).curve(rows[0])) == [0.5, 0.9]
        async with controlled(tmp_path) as controller:
            told = controller.record.searches.tell(name)
            assert told["best"] == {
                "number": 0,
                "value": 0.9,
                "at_s": 11.0,
                "params": {"lr": 0.01},
            }
            first, second, _ = told["trials"]
            assert first["curve"] == [(1, 10.0, 0.5), (2, 11.0, 0.9), (3, 12.0, None)]
            assert (first["value"], second["value"]) == (0.9, 0.7)
            assert (
                controller.record.searches.tell_page()[0][0]["trials"]["failed"] == 2
            )  # one is lost, one told nothing
            await controller.sweeps.stop_trial(name, 0, "its last report is no number")
            assert controller.record.searches.tell(name)["trials"][0]["state"] == "CANCELLED"
            counts = controller.record.searches.tell_page()[0][0]["trials"]
            assert (counts["failed"], counts["stopped"]) == (3, 0)

    asyncio.run(scenario())


def test_of_a_metric_to_minimize_the_least_value_is_the_best(tmp_path):
    async def scenario():
        async with controlled(tmp_path) as controller:
            block = FIELDS["sweep"] | {"goal": "minimize", "metric": "loss"}
            name = await submit_sweep(controller, sweep=block)
            row = await controller.sweeps.submit_trial(name, 0, {"lr": 0.01})
            told = tuple(Report(i, float(i), value) for i, value in enumerate((3.0, 1.0, 2.0)))
            controller.journal.note(MetricReported(3.0, row, told))
            assert controller.record.searches.tell(name)["best"]["value"] == 1.0

    asyncio.run(scenario())
