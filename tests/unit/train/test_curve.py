"""What a trial reports of its metric is in a file, whatever becomes of the process."""

import json
import math
import os

import pytest
import torch

from rota.errors import InputError
from rota.live.agent.curve import FILE
from rota.live.agent.curve import Curve as Reader
from rota.train import curve as curve_module
from rota.train import session
from rota.train.curve import Curve


@pytest.fixture
def reader(tmp_path, monkeypatch):
    monkeypatch.setenv("ROTA_SWEEP_METRIC", "val_acc")
    monkeypatch.setenv("ROTA_CURVE", str(tmp_path / FILE))
    return Reader(tmp_path)


def told(reader):
    reader.read()
    return [[step, value, first] for step, _, value, first in reader.reports]


def test_every_report_of_the_metric_is_there_at_once_and_no_other(reader):
    with session() as s:
        for step in s.steps(3):
            s.report(loss=1.0, samples=4, val_acc=torch.tensor(0.25 * step), other=7)
            s.report(loss=0.5)
            assert told(reader)[-1] == [step, 0.25 * step, step == 0]
        s.report(val_acc=math.nan)
        s.report(val_acc=math.inf)
        s.report(val_acc=1e305)  # a message has no room for it
    assert told(reader)[3:] == [[3, None, False]] * 3
    times = [at_s for _, at_s, _, _ in reader.reports]
    assert times == sorted(times)


def test_the_loss_can_be_the_metric(reader, monkeypatch):
    monkeypatch.setenv("ROTA_SWEEP_METRIC", "loss")
    with session() as s:
        s.report(loss=0.5)
        s.report(val_acc=1.0)
    assert told(reader) == [[0, 0.5, True]]


@pytest.mark.parametrize(
    "value",
    ["0.5x", None, 1j, [0.5], torch.ones(2), 10**400],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_number_is_one_clear_error_and_nothing_is_taken_of_it(reader, value):
    with pytest.raises(InputError, match=r"s\.report: val_acc=.* is no number"), session() as s:
        s.report(samples=4, val_acc=value)
    assert told(reader) == []


def test_samples_that_are_no_number_are_an_error_too():
    with pytest.raises(InputError, match=r"s\.report: samples='many' is no number"), session() as s:
        s.report(samples="many")


def test_only_rank_0_writes(reader, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with session() as s:
        s.report(val_acc=0.5)
    assert told(reader) == []


def test_a_newcomer_that_rehearses_repeats_nothing(reader):
    with session() as s:
        s._member.rehearses = True
        s.report(val_acc=0.5)
        s._member.rehearses = False
        s.report(val_acc=0.75)
    assert told(reader) == [[0, 0.75, True]]


def test_a_process_that_has_yet_to_take_over_a_state_repeats_nothing(reader):
    with session() as s:
        s._training.handover.adopts = "an arena"
        s.report(val_acc=0.5)
        s._training.handover.adopts = None
        s.report(val_acc=0.75)
    assert told(reader) == [[0, 0.75, True]]


def test_the_next_process_goes_on_in_the_file_after_a_line_that_was_cut_short(reader, tmp_path):
    Curve().note(1, {"val_acc": 0.1})
    with open(tmp_path / FILE, "a") as file:
        file.write("[2, 0.0, 0")
    assert told(reader) == [[1, 0.1, True]]
    Curve().note(3, {"val_acc": 0.3})
    assert told(reader) == [[1, 0.1, True], [3, 0.3, True]]


def test_what_the_disk_has_no_room_for_is_written_later_in_order(reader, monkeypatch):
    curve = Curve()
    curve.note(1, {"val_acc": 0.1})
    write = os.write

    def full(descriptor, data):
        if b"0.2" in data:
            return write(descriptor, data[:5])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(curve_module.os, "write", full)
    curve.note(2, {"val_acc": 0.2})
    monkeypatch.setattr(curve_module.os, "write", lambda *_: full(0, b""))
    curve.note(3, {"val_acc": 0.3})
    assert told(reader) == [[1, 0.1, True]]
    monkeypatch.setattr(curve_module.os, "write", write)
    curve.close()
    assert [value for _, value, _ in told(reader)] == [0.1, 0.2, 0.3]


@pytest.mark.parametrize("room", [0, 5, 1000])
def test_what_there_is_no_room_for_at_the_end_goes_on_where_the_file_ends(
    reader, tmp_path, monkeypatch, room
):
    curve, left, write = Curve(), [room], os.write
    curve.note(1, {"val_acc": 0.1})
    reader.read()

    def full(descriptor, data):
        if not left[0]:
            raise OSError(28, "No space left on device")
        written = write(descriptor, data[: left[0]])
        left[0] -= written
        return written

    monkeypatch.setattr(curve_module.os, "write", full)
    for step in (2, 3):
        curve.note(step, {"val_acc": 0.1 * step})
    text = curve.close()
    assert (text == "") == (room == 1000)
    reader.add(text)
    expected = [[step, 0.1 * step, step == 1] for step in (1, 2, 3)]
    assert told(reader) == expected
    monkeypatch.setattr(curve_module.os, "write", write)
    Curve().note(4, {"val_acc": 0.4})  # the next process
    assert told(reader) == [*expected, [4, 0.4, True]]


def test_a_text_that_is_no_report_is_passed_over(reader):
    reader.add("half a pair: \ud800\n[1, 2]\n\n[4, 1.0, 0.5, false]\n")
    assert told(reader) == [[4, 0.5, False]]


def test_a_file_that_can_not_be_made_yet_is_made_later(reader, monkeypatch):
    curve, make = Curve(), os.open

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(curve_module.os, "open", full)
    curve.note(1, {"val_acc": 0.1})
    monkeypatch.setattr(curve_module.os, "open", make)
    curve.note(2, {"val_acc": 0.2})
    assert [value for _, value, _ in told(reader)] == [0.1, 0.2]


def test_beyond_the_limit_reports_are_left_out_and_that_is_said_once(reader, monkeypatch, capsys):
    monkeypatch.setattr(curve_module, "MOST_METRIC_REPORTS", 3)
    Curve().note(0, {"val_acc": 0.0})
    curve = Curve()
    for step in range(1, 6):
        curve.note(step, {"val_acc": 1.0})
    assert [step for step, _, _ in told(reader)] == [0, 1, 2]
    assert capsys.readouterr().err.count("takes no more of this attempt") == 1


def test_outside_of_a_search_nothing_is_written_and_there_are_no_parameters(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with session() as s:
        assert s.params == {}
        s.report(val_acc=0.5)
    assert list(tmp_path.iterdir()) == []


def test_parameters_come_with_their_types_and_nonsense_is_an_error(monkeypatch):
    params = {"lr": 0.1, "width": 64, "act": "relu", "bias": True}
    monkeypatch.setenv("ROTA_PARAMS", json.dumps(params))
    with session() as s:
        assert s.params == params
        s.params["lr"] = 7
        assert s.params["lr"] == 0.1
        for bad in ("lr=0.1", "[1]"):
            monkeypatch.setenv("ROTA_PARAMS", bad)
            with pytest.raises(InputError, match=r"ROTA_PARAMS: .* is no JSON object"):
                _ = s.params


def test_the_reader_passes_over_what_is_no_report(reader, tmp_path):
    lines = [
        "{",
        "[1, 2]",
        "[-1, 1.0, 0.5, false]",
        "[1.5, 1.0, 0.5, false]",
        "[true, 1.0, 0.5, false]",
        '[1, 1.0, "0.5", false]',
        "[1, 1.0, NaN, false]",
        "[1, 1.0, 1e300, false]",
        "[1, Infinity, 0.5, false]",
        "[1, 1.0, 0.5, 0]",
        "[" * 100_000,
        "[4, 99999999999, 0.5, false]",
    ]
    (tmp_path / FILE).write_text("\n".join(lines))
    assert told(reader) == []  # the last line has no end yet
    with open(tmp_path / FILE, "a") as file:
        file.write("\n")
    assert told(reader) == [[4, 0.5, False]]
    assert reader.reports[0][1] < 99999999999, "no report is from the future"
