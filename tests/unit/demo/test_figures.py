"""The demo's figures, computed from runs that are made up and so known exactly."""

from statistics import fmean

import pytest

from rota.cli.up import up
from rota.demo.__main__ import POLICIES, RUN_BY_FULL
from rota.demo.cluster import JobRecord, Run
from rota.demo.figures import (
    Lengths,
    compare,
    completions_s,
    measured_costs,
    needs,
    predict,
    settings_of,
    step_time_s,
    whole,
)
from rota.demo.story import average_table, sentences, verdict, write_report
from rota.demo.workload import EQUALS, LONG_MIX, MIX
from rota.model.job import JobSpec
from rota.report.timeline import Segment, Switches, Timeline
from rota.sim.machine import Costs

STEP_S, START_S, STEPS = 0.02, 1.0, 1000
SETTINGS = {policy: settings_of(policy, 1.0) for policy in ("gandiva", "fifo")}


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
        timeline.switches[row] = Switches([], [], [])
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
    compared = compare({"fifo": run}, EQUALS, {"fifo": {}, "fifo-backfill": {}})
    assert compared.columns == ["fifo measured", "fifo predicted", "fifo-backfill predicted"]
    for averages in (compared.first_100_s, compared.completion_s, compared.all_done_s):
        assert averages["fifo predicted"] == pytest.approx(averages["fifo measured"])
    assert all(job.reached for job in compared.jobs)
    assert (
        "fifo-backfill against fifo, both in the simulator: first 100 mini-batches alike, "
        "completion alike, all done alike."
    ) in sentences(compared)


def test_the_result_is_three_lines_that_tell_how_true_the_prediction_was():
    """Jobs that ran one after the other, though they were told to take turns."""
    compared = compare({"gandiva": one_after_the_other()}, EQUALS, SETTINGS)
    first, second, third = verdict(compared)
    assert first == "gandiva, the default, ran: the average job was done after 42.0 s."
    assert second == "fifo, foretold: 42.0 s, as long."
    error, early = compared.errors("gandiva")
    assert error > 0.1
    assert early is not None
    assert third == (
        f"The simulator foretold {42 * (1 + error):.1f} s for gandiva, {error:.0%} off, "
        f"the first 100 steps {early:.0%}: take what it foretells as rough."
    )


def cut_off_after(at_s):
    """The same run, of which jobs that had not ended at that time were cancelled."""
    run = one_after_the_other()
    late = frozenset(row for row, end_s in run.timeline.finish_s.items() if end_s > at_s)
    segments = [s for s in run.timeline.segments if s.start_s < at_s]
    run.timeline.segments = [s._replace(end_s=min(s.end_s, at_s)) for s in segments]
    for row in late:
        run.timeline.finish_s[row] = at_s
        run.jobs[row] = JobRecord(run.jobs[row].name, {}, [])
    return run._replace(cut_off=late)


def test_a_run_that_was_cut_off_is_foretold_from_what_was_measured():
    run = cut_off_after(at_s=30.0)
    assert run.cut_off == {2, 3, 4, 5}
    trainings = [each._replace(steps=STEPS, seconds=STEPS * STEP_S) for each in EQUALS]
    compared = compare({"gandiva": run}, trainings, SETTINGS)
    assert compared.columns == ["gandiva predicted", "fifo predicted"]
    first, second, third = verdict(compared)
    mean_s = compared.completion_s["gandiva predicted"]
    assert first == (
        "gandiva, the default, was cut off when 2 of 6 jobs were done: "
        f"{mean_s:.1f} s on average, foretold."
    )
    assert second.startswith("fifo, foretold: ")
    assert third == "How true that is can't be told; try again when the machine has more time."
    assert [row[0] for row in average_table(compared).rows] == [
        "gandiva, foretold",
        "fifo, foretold",
    ]


def test_a_job_that_was_cut_off_is_taken_to_its_last_step():
    training = MIX[0]._replace(steps=300)
    assert whole(Lengths(1.0, 0.1, 9.0), training) == pytest.approx(Lengths(1.0, 0.1, 31.0))
    assert whole(Lengths(2.0, 0.0, 2.0), training).total_s == 2.0 + training.seconds


def test_the_report_of_a_run_that_was_cut_off_can_be_written(tmp_path):
    compared = compare({"gandiva": cut_off_after(at_s=30.0)}, EQUALS, SETTINGS)
    write_report(tmp_path / "demo.html", compared, "Busy machine.")
    assert "Busy machine. gandiva, the default, was cut off" in (tmp_path / "demo.html").read_text()


def test_the_table_tells_which_figures_were_measured():
    compared = compare({"gandiva": one_after_the_other()}, EQUALS, SETTINGS)
    assert [row[0] for row in average_table(compared).rows] == [
        "gandiva, as it ran",
        "gandiva, foretold",
        "fifo, foretold",
    ]


def test_the_simulator_charges_each_job_for_its_own_launch():
    timeline = Timeline(())
    for row, launch_s in enumerate((1.9, 0.1)):
        timeline.switches[row] = Switches([0.002, 0.004], [0.006], [launch_s])
    of = measured_costs(timeline)
    assert of(JobSpec("0", 1, 0.0)) == Costs(0.003, 0.006, Costs().migrate_s, 1.9)
    assert of(JobSpec("1", 1, 0.0)).cold_start_s == 0.1


def test_a_slow_launch_keeps_a_job_on_its_slots_in_the_prediction_as_it_does_live():
    """``tiresias`` takes no GPUs from a job within ten times what its launch took."""
    lengths = [Lengths(1.0, 0.03, length_s) for length_s in (43.0, 9.0, 11.0, 13.0, 5.0)]
    began_s = {}
    for launch_s in (0.1, 1.9):
        costs = Costs(0.002, 0.006, 0.0, 0.1)
        slow = costs._replace(cold_start_s=launch_s)
        timeline = predict(
            *(LONG_MIX, lengths, 2, "tiresias", settings_of("tiresias", 1.0)),
            lambda job, slow=slow, costs=costs: slow if job.job_id == "0" else costs,
        )
        began_s[launch_s] = min(s.start_s for s in timeline.segments if s.row == 1)
    assert began_s[0.1] == pytest.approx(7.7, abs=0.1)  # when the first one sinks
    assert began_s[1.9] == pytest.approx(11 * 1.9, abs=0.2)


def test_backfill_ends_jobs_sooner_where_one_fits_beside_the_first():
    """A job of two slots waits for the first one, and the third could run beside that."""
    lengths = [Lengths(1.0, 0.03, length_s) for length_s in (43.0, 9.0, 11.0)]
    trainings = [
        each._replace(at_s=0.0, gpus=gpus) for each, gpus in zip(MIX, (1, 2, 1), strict=False)
    ]
    average_s = {
        policy: fmean(completions_s(predict(trainings, lengths, 2, policy, {}, Costs(0, 0, 0, 0))))
        for policy in ("fifo", "fifo-backfill")
    }
    assert average_s == {"fifo": (43 + 52 + 63) / 3, "fifo-backfill": (43 + 52 + 11) / 3}


def test_turns_bring_the_first_100_mini_batches_forward_in_the_prediction():
    lengths = [Lengths(START_S, STEP_S, 21.0)] * 6
    free = Costs(0, 0, 0, 0)
    turns = predict(EQUALS, lengths, 2, "gandiva", settings_of("gandiva", 1.0), free)
    order = predict(EQUALS, lengths, 2, "fifo", {}, free)
    for row in range(2, 6):
        assert turns.time_at_service(row, 3.0) < order.time_at_service(row, 3.0)


@pytest.mark.parametrize("mix", [MIX, LONG_MIX], ids=["short", "long"])
def test_on_the_mix_of_the_demo_turns_end_jobs_sooner_in_the_prediction(mix):
    """With the lengths that its trainings have on two cores."""
    lengths = [Lengths(1.0, 0.03, training.seconds) for training in mix]
    average_s = {}
    for policy in ("gandiva", "tiresias", "fifo"):
        settings = settings_of(policy, 1.0)
        timeline = predict(mix, lengths, 2, policy, settings, Costs(0.002, 0.006, 0.0, 0.0))
        average_s[policy] = fmean(completions_s(timeline))
    assert max(average_s["tiresias"], average_s["gandiva"]) < 0.8 * average_s["fifo"]


def test_the_short_mix_takes_less_than_a_minute_in_the_prediction():
    """On two quiet cores, and with what is left for the start of the cluster and for its end."""
    lengths = [Lengths(1.0, 0.03, training.seconds) for training in MIX]
    timeline = predict(MIX, lengths, 2, "gandiva", settings_of("gandiva", 1.0), Costs())
    assert max(timeline.finish_s.values()) < 45.0


def test_the_demo_runs_the_default_policy_first():
    default = next(option.default for option in up.params if option.name == "policy_name")
    assert POLICIES[0] == RUN_BY_FULL[0] == default
