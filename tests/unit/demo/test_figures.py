"""The demo's figures, computed from runs that are made up and so known exactly."""

from statistics import fmean

import pytest

from rota.demo.cluster import JobRecord, Run
from rota.demo.figures import (
    BASELINE,
    Lengths,
    compare,
    completions_s,
    needs,
    predict,
    settings_of,
    step_time_s,
)
from rota.demo.story import sentences
from rota.demo.workload import EQUALS, MIX
from rota.report.timeline import Segment, Switches, Timeline
from rota.sim.machine import Costs

STEP_S, START_S, STEPS = 0.02, 1.0, 1000


def report(at_s, step, **extra):
    return {
        "at_s": at_s,
        "step": step,
        "step_time_s": STEP_S if step else None,
        "metrics": {},
        "loss": 1.0,
        "first_100_s": None,
        **extra,
    }


def one_after_the_other(slots=2):
    """Every job runs START_S + STEPS * STEP_S seconds, in order, on the slot that frees first."""
    timeline = Timeline(())
    timeline.num_gpus = slots
    length_s = START_S + STEPS * STEP_S
    jobs = []
    for row, training in enumerate(EQUALS):
        begin_s = row // slots * length_s
        timeline.segments.append(Segment(row, ((0, row % slots),), begin_s, begin_s + length_s))
        timeline.submit_s.append(0.0)
        timeline.finish_s[row] = begin_s + length_s
        timeline.switches[row] = Switches([], [])
        first_100_s = begin_s + START_S + 100 * STEP_S
        reports = [
            report(begin_s + START_S + 50 * STEP_S, 50),
            report(
                begin_s + length_s,
                STEPS,
                first_100_s=first_100_s,
                metrics={training.metric: training.target},
            ),
        ]
        jobs.append(JobRecord(training.name, reports[-1], reports))
    return Run(timeline, jobs)


def test_step_time_weighs_each_report_by_its_steps():
    reports = [report(1, 10), report(2, 40) | {"step_time_s": 0.04}]
    assert step_time_s(JobRecord("x", reports[-1], reports)) == pytest.approx(0.035)


def test_what_a_job_needs_is_start_up_and_steps():
    run = one_after_the_other()
    assert needs(run.timeline, 0, run.jobs[0]) == pytest.approx(
        Lengths(START_S, STEP_S, START_S + STEPS * STEP_S)
    )


def test_a_job_that_reported_no_step_is_all_start_up():
    run = one_after_the_other()
    silent = JobRecord("x", {"step": 0}, [])
    assert needs(run.timeline, 0, silent).step_s == 0.0


def test_the_prediction_of_fifo_is_what_such_jobs_do():
    run = one_after_the_other()
    compared = compare({"fifo": run}, EQUALS, {"fifo": {}})
    assert compared.columns == ["fifo measured", "fifo predicted"]
    for averages in (compared.first_100_s, compared.completion_s, compared.all_done_s):
        assert averages["fifo predicted"] == pytest.approx(averages["fifo measured"])
    assert all(job.reached for job in compared.jobs)
    assert compared.baseline_s == pytest.approx(compared.completion_s["fifo predicted"])
    assert "fifo-backfill against fifo, both in the simulator: completion alike." in sentences(
        compared
    )


def test_backfill_ends_jobs_sooner_where_one_fits_beside_the_first():
    """A job of two slots waits for the first one, and the third could run beside that."""
    lengths = [Lengths(1.0, 0.03, length_s) for length_s in (43.0, 9.0, 11.0)]
    trainings = [
        each._replace(at_s=0.0, gpus=gpus) for each, gpus in zip(MIX, (1, 2, 1), strict=False)
    ]
    average_s = {
        policy: fmean(completions_s(predict(trainings, lengths, 2, policy, {}, Costs(0, 0, 0, 0))))
        for policy in ("fifo", BASELINE)
    }
    assert average_s == {"fifo": (43 + 52 + 63) / 3, BASELINE: (43 + 52 + 11) / 3}


def test_turns_bring_the_first_100_mini_batches_forward_in_the_prediction():
    lengths = [Lengths(START_S, STEP_S, 21.0)] * 6
    free = Costs(0, 0, 0, 0)
    turns = predict(EQUALS, lengths, 2, "gandiva", settings_of("gandiva", 1.0), free)
    order = predict(EQUALS, lengths, 2, "fifo", {}, free)
    for row in range(2, 6):
        assert turns.time_at_service(row, 3.0) < order.time_at_service(row, 3.0)


def test_on_the_mix_of_the_demo_turns_end_jobs_sooner_in_the_prediction():
    """With the lengths that its trainings have on two cores."""
    lengths = [Lengths(1.0, 0.03, length_s) for length_s in (43.0, 9.0, 11.0, 13.0, 5.0)]
    average_s = {}
    for policy in ("gandiva", "tiresias", "fifo"):
        settings = settings_of(policy, 1.0)
        timeline = predict(MIX, lengths, 2, policy, settings, Costs(0.002, 0.006, 0.0, 0.0))
        average_s[policy] = fmean(completions_s(timeline))
    assert average_s["tiresias"] < average_s["gandiva"] < 0.75 * average_s["fifo"]
