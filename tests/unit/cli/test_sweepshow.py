"""A sweep in a terminal: its facts, pictures made of letters, and its trials."""

import copy
import json
import re
from functools import partial
from math import inf

import pytest

from rota.cli.sweepdrawing import Canvas, curves_lines, turns_lines
from rota.cli.sweepshow import sweep_lines
from rota.client.client import Client
from rota.folder import Folder
from rota.model.events import JobLaunched, MetricReported
from rota.model.sweep import Report
from rota.report.sweep import ranked, read_sweep
from support.searches import SUBMIT_S, recorded_sweep
from support.served import controller_without_agents, served

COLOURS = re.compile("\x1b\\[[0-9;]*m")
HOSTILE = "\x1b[31mred\x1b]0;title\x07\u202e\n"


def read(document, after_s=60.0):
    return read_sweep(document, SUBMIT_S + after_s)


def lines(document, width=inf, everything=False):
    found = "\n".join(sweep_lines(read(document), width, everything))
    return COLOURS.sub("", found).split("\n")


@pytest.fixture(scope="module")
def ended():
    return recorded_sweep()


@pytest.fixture(scope="module")
def running():
    return recorded_sweep(until_s=60.0)


class TestText:
    def test_without_a_terminal_there_is_everything_but_pictures(self, ended):
        found = lines(ended)
        text = "\n".join(found)
        assert found[0] == "sweep recorded"
        assert "who ran when" not in text
        (header,) = (line for line in found if line.startswith("TRIAL"))
        space = ended["request"]["sweep"]["space"]
        assert header.split()[4 : 4 + len(space)] == list(space)
        assert header.split()[-1] == "WHY"
        rows = found[found.index(header) + 1 : -1]
        assert len(rows) == 20
        assert rows[0].split()[:4] == ["0", "SUCCEEDED", "0.859", "81"]
        assert rows[1].endswith(ended["trials"][int(rows[1].split()[0])]["why"])
        assert found[-1] == "and 4 more trials: --all lists them"

    def test_all_lists_every_trial(self, ended):
        found = lines(ended, everything=True)
        header = next(n for n, line in enumerate(found) if line.startswith("TRIAL"))
        assert sorted(int(line.split()[0]) for line in found[header + 1 :]) == list(range(24))

    @pytest.mark.parametrize("width", [60, 80, 120, 200])
    @pytest.mark.parametrize("name", ["ended", "running"])
    def test_it_fits_in_the_terminal(self, request, name, width):
        found = lines(request.getfixturevalue(name), width)
        assert max(map(len, found)) <= width
        assert any(line.startswith("who ran when") for line in found)

    def test_parameters_without_room_are_named(self, ended):
        found = "\n".join(lines(ended, 80))
        assert re.search(r"not shown for want of room: [^.]*\bdropout,", found)
        assert "not shown" not in "\n".join(lines(ended, 400))

    @pytest.mark.parametrize("width", [80, 120])
    def test_why_trials_ended_is_told_below_where_the_table_has_no_room(self, ended, width):
        document = copy.deepcopy(ended)
        document["trials"][5] |= {"why": None, "state": "FAILED", "message": "out of memory"}
        found = lines(document, width)
        (header,) = (line for line in found if line.startswith("TRIAL"))
        assert "WHY" not in header
        below = " ".join(" ".join(found[found.index("why they ended:") :]).split())
        reasons = below.split("trial ")[1:]
        assert len(reasons) == 2
        told = document["trials"]
        for reason in reasons:
            number, text = reason.split(": ", 1)
            assert text.startswith(told[int(number)]["why"] or told[int(number)]["message"])
        likewise = next(text for text in reasons if "likewise" in text)
        others = [
            int(n) for n in re.findall(r"\d+", likewise.split("likewise")[1].split(" and ")[0])
        ]
        shown = [int(line.split()[0]) for line in found if re.match(r"\d+ +[A-Z]+ ", line)]
        assert len(others) == len([n for n in shown if told[n]["why"]]) - 1
        assert set(others) < set(shown) - {5}

    def test_why_is_a_column_where_it_has_room(self):
        document = recorded_sweep(trials=3, reports=5, eta=None)
        why = "ended with exit code 137, out of memory"
        document["trials"][2] |= {"state": "FAILED", "message": why}
        for width in (300, inf):
            found = lines(document, width)
            assert "why they ended:" not in found
            assert any(line.startswith("2 ") and line.endswith(why) for line in found)

    def test_young_and_empty_sweeps_have_no_pictures(self):
        for document in (recorded_sweep(trials=0), recorded_sweep(trials=3, until_s=0.0)):
            found = "\n".join(lines(document, 80))
            assert "no trial has reported val_acc yet" in found
            assert "by step" not in found

    def test_no_text_reaches_the_terminal_as_it_is(self):
        document = recorded_sweep(trials=3, reports=4)
        document |= {"user": HOSTILE, "message": HOSTILE, "driver_error": HOSTILE}
        search = document["request"]["sweep"]
        search["metric"] = HOSTILE
        search["space"] |= {HOSTILE: {"choice": [HOSTILE]}}
        for trial in document["trials"]:
            trial["params"] |= {HOSTILE: HOSTILE}
            trial["why"] = HOSTILE
        for width in (80, 250, inf):
            for line in lines(document, width):
                assert line.isprintable()


class TestPictures:
    def test_a_curve_rises_from_the_lower_left_to_the_upper_right(self):
        canvas = Canvas(4, 2, plain=True)
        canvas.line((0, 0), (1, 1), 0)
        assert list(canvas.rows()) == ["  ..", "..  "]

    def test_braille_dots_stand_where_they_are_drawn(self):
        canvas = Canvas(1, 1, plain=False)
        canvas.line((0, 1), (0, 1), 0)
        assert list(canvas.rows()) == ["⠁"]
        canvas.line((1, 0), (1, 0), 0)
        assert list(canvas.rows()) == ["⢁"]

    def test_the_best_hides_the_others(self):
        canvas = Canvas(3, 1, plain=True)
        canvas.line((0, 0), (1, 0), 0)
        canvas.line((0.5, 0), (0.5, 0), 1)
        assert [COLOURS.sub("", row) for row in canvas.rows()] == [".*."]

    def test_the_best_curve_is_the_bright_one(self, ended):
        title, *picture = curves_lines(read(ended), 80, plain=False)
        assert title == "val_acc by step; the bright one is trial 0"
        assert any("\x1b[33m\x1b[1m" in line for line in picture)

    @pytest.mark.parametrize("maximize", [True, False])
    def test_axes_have_words(self, maximize):
        document = recorded_sweep(trials=3, eta=None, maximize=maximize)
        _, *picture, below, steps = (
            COLOURS.sub("", line) for line in curves_lines(read(document), 80, plain=True)
        )
        values = [float(line.split("|")[0]) for line in picture if line.split("|")[0].strip()]
        assert len(values) >= 3
        assert values == sorted(values, reverse=True)
        assert below.strip().startswith("+---")
        assert [int(word) for word in steps.split()] == [0, 20, 40, 60, 80]
        # The best is a star: at the top where more is better, else at the bottom.
        stars = [n for n, line in enumerate(picture) if "*" in line]
        assert (stars[0] <= 1) if maximize else (stars[-1] >= len(picture) - 2)

    def test_bars_say_when_a_trial_ran_and_when_it_waited(self):
        document = recorded_sweep(trials=2, eta=None)
        for number, ran in ((0, [[0, 50]]), (1, [[50, 76], [90, None]])):
            document["trials"][number] |= {
                "submit_s": SUBMIT_S,
                "finish_s": SUBMIT_S + 50 if number == 0 else None,
                "ran": [[e if e is None else SUBMIT_S + e for e in turn] for turn in ran],
                "ran_on": [[{"node": "here", "gpus": [0]}]] * len(ran),
                "curve": [],
            }
        document |= {"finish_s": None, "best": None}
        story = read(document, 100.0)
        _, *bars, end = (
            COLOURS.sub("", line) for line in turns_lines(story, story.trials, 29, plain=True)
        )
        assert [bar[4:] for bar in bars] == ["############", "............######+..+##"]
        assert end.split() == ["0", "1", "min", "40", "s"]

    def test_bars_come_in_the_order_of_the_table(self, running):
        story = read(running)
        order = ranked(story)[:5]
        _, *bars, _ = turns_lines(story, order, 80, plain=True)
        assert [int(bar.split()[0]) for bar in bars] == [trial.number for trial in order]


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    for name in ("ROTA_SERVER", "ROTA_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ROTA_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    folder = Folder().create()
    with served(folder, controller_without_agents(folder)) as it:
        yield it


@pytest.fixture
def sweep(cluster, tmp_path):
    """A search with two trials, of which one has reported twice."""
    fields = {
        "name": "digits",
        "run": "python train.py",
        "workdir": str(tmp_path),
        "sweep": {
            "metric": "loss",
            "goal": "minimize",
            "space": {"lr": {"log": [0.001, 0.1]}},
            "algorithm": "manual",
        },
    }
    controller = cluster.controller
    with Client(folder=cluster.folder) as client:
        client.submit_sweep(fields)
        for number, lr in enumerate((0.01, 0.02)):
            client.submit_trial("digits", {"lr": lr}, number=number)
    cluster.do(controller.turn)
    now_s = controller.now_s()
    told = (Report(1, now_s, 0.75, True), Report(2, now_s, 0.25))
    cluster.do(partial(controller.journal.note, JobLaunched(now_s, 0, 1)))
    cluster.do(partial(controller.journal.note, MetricReported(now_s, 0, told)))


@pytest.mark.usefixtures("sweep")
class TestCommand:
    @pytest.mark.parametrize("name", ["digits", "@last"])
    def test_it_shows_what_the_controller_tells(self, rota, name):
        code, out, err = rota("sweep", "show", name)
        assert (code, err) == (0, "")
        assert "loss 0.25 by trial 0, at step 2" in out
        assert re.search(r"^0 +RUNNING +0\.25 +2 +0\.01 ", out, re.MULTILINE)
        assert re.search(r"^1 +\w+ +- +0 +0\.02 ", out, re.MULTILINE)
        assert "\x1b" not in out

    def test_as_json_it_is_the_document(self, rota, cluster):
        code, out, _ = rota("sweep", "show", "digits", "--json")
        with Client(folder=cluster.folder) as client:
            told = client.sweep("digits")
        assert code == 0
        found = json.loads(out)
        assert found["best"] == told["best"]
        assert found["trials"][0]["curve"] == told["trials"][0]["curve"]

    def test_the_page_is_written_whole(self, rota, tmp_path):
        code, out, err = rota("sweep", "show", "digits", "--html", "page.html")
        assert (code, err) == (0, "wrote page.html\n")
        assert out.startswith("sweep digits\n")
        text = (tmp_path / "page.html").read_text()
        assert "<h1>Sweep digits</h1>" in text
        assert text.endswith("</html>")

    def test_a_page_that_cannot_be_written_is_refused_before_all_else(self, rota):
        code, out, err = rota("sweep", "show", "digits", "--html", "no/where.html")
        assert (code, out) == (2, "")
        assert "there is no folder no" in err

    def test_a_search_that_is_not_there(self, rota):
        code, out, err = rota("sweep", "show", "digit")
        assert (code, out) == (1, "")
        assert "did you mean" in err
