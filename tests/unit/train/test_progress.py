"""What a report tells of the batch, and of the processor where that is the device."""

import time

from rota.train.progress import Progress


def steps(progress, *samples):
    """Do steps with so many samples, and report after each, as a session does; the reports."""
    reports = []
    for count in samples:
        progress.begin_step()
        progress.note(None, count, {})
        progress.end_step()
        reports.append(progress.message())
        progress.sent()
    return reports


def test_the_batch_is_the_most_samples_that_a_step_has_had():
    assert [r["batch"] for r in steps(Progress(), 32, 32, 8, 64, 32)] == [32, 32, 32, 64, 64]


def test_samples_of_a_step_that_come_in_pieces_are_one_batch():
    progress = Progress()
    progress.begin_step()
    for _ in range(4):
        progress.note(None, 16, {})
    progress.end_step()
    assert progress.message()["batch"] == 64


def test_samples_that_were_done_before_are_no_batch():
    progress = Progress()
    progress.step, progress.samples = 100, 3200
    assert [r["batch"] for r in steps(progress, 32, 32)] == [32, 32]


def test_what_the_device_does_is_told_of_the_time_since_the_last_report():
    progress = Progress()
    progress.counts_cpu = True
    first, second = steps(progress, 1, 1)
    assert first["util_since_s"] <= first["at_s"] <= second["util_since_s"] <= second["at_s"]
    assert second["at_s"] <= time.time()
