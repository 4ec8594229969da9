"""A job's goodput, as `rota show` draws it and as the API tells it."""

import json

import pytest

from rota.folder import Folder
from rota.model.events import WorkerReported
from rota.model.measured.reports import BatchRange, GradientNoise, StepPoint
from support.served import StandInController, served

ALONE = tuple(StepPoint(1, 1, n, 0.1 + n / 100, 0.1 + n / 100) for n in (8, 16, 32))
PAIR = (StepPoint(1, 2, 8, 0.18, 0.23),)
JOB_FILE = """
run: python train.py
name: adaptive
resources: {gpus: 1..8}
batch: {mode: adapt, max_global: 256, max_per_gpu: 32}
"""


class Reports:
    """What a job has told, whatever its row."""

    def __init__(self):
        self.points, self.range = ALONE + PAIR, BatchRange(16, 256, 1, 32)
        self.gradient = GradientNoise(1.0, 15.0)

    def measured(self, row):
        return self.points

    def noise(self, row, now_s):
        return self.gradient

    def batch_range(self, row):
        return self.range

    def learned(self, row, now_s):
        return None


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    for name in ("ROTA_SERVER", "ROTA_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ROTA_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    folder = Folder().create()
    with served(folder, StandInController(folder, num_gpus=4)) as it:
        yield it


@pytest.fixture
def adaptive(cluster, rota, tmp_path):
    """The one job; it runs on one GPU, with two batches of 16 samples a step."""
    (tmp_path / "job.yaml").write_text(JOB_FILE)
    assert rota("submit", "job.yaml")[0] == 0
    cluster.do(cluster.controller.turn)
    adaptation = {"gpus": 1, "per_gpu": 16, "accumulation": 1}
    cluster.controller.reports[0] = {"step": 3, "at_s": 1.0, "adaptation": adaptation}


@pytest.fixture
def reports(cluster, adaptive):
    """What the job tells, put in place of what the log has of it."""
    reports = cluster.controller.state.reports = Reports()
    return reports


def shown(rota):
    return json.loads(rota("show", "adaptive", "--json")[1])["goodput"]


def test_a_row_for_each_number_of_gpus_up_to_the_clusters(rota, reports):
    told = shown(rota)
    assert [row["gpus"] for row in told["curve"]] == [1, 2, 3, 4]
    assert [row["known"] for row in told["curve"]] == [*["measured"] * 2, *["predicted"] * 2]
    assert told["noise_scale"] == 240.0
    now = told["now"]
    assert (now["gpus"], now["per_gpu"], now["accumulation"]) == (1, 16, 1)
    assert now["efficiency"] == pytest.approx(256 / 272)


def test_the_curve_is_drawn_with_the_present_marked(rota, reports):
    lines = rota("show", "adaptive")[1].splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("  goodput "))
    assert "the gradient noise scale is 240 samples" in lines[start]
    header, *rows, now = lines[start + 1 : start + 7]
    assert header.split() == ["GPUS", "GOODPUT", "BATCH", "STEPS"]
    assert [row.split()[0] for row in rows] == ["*", "2", "3", "4"]
    bars = [row.count("#") for row in rows]
    assert bars == sorted(bars)
    assert bars[-1] == 30
    assert "measured, ±" in rows[0]
    assert "predicted, ±" in rows[3]
    assert "* now: batches of 32 = 1 x 16 x 2," in now
    assert now.endswith("94% efficient")


def test_on_a_narrow_terminal_bars_are_shorter(rota, reports, monkeypatch):
    monkeypatch.setenv("COLUMNS", "72")
    text = rota("show", "adaptive")[1].partition("  goodput ")[2].partition("  story")[0]
    assert "#####" in text
    assert max(map(len, text.splitlines()[1:])) <= 72


def test_without_a_measurement_there_is_a_line_that_says_so(rota, reports):
    reports.points = None
    assert shown(rota)["curve"] == []
    assert "goodput      no curve: it has timed no step\n" in rota("show", "adaptive")[1]


def test_what_can_not_be_is_a_warning(rota, reports):
    reports.points = (*ALONE, StepPoint(1, 2, 8, 0.1, 1e9))
    assert "  warning      measurements left out: 2 GPUs on 1 node" in rota("show", "adaptive")[1]


def test_what_a_job_has_told_is_what_is_drawn(rota, adaptive, cluster):
    assert "no curve: it has told nothing of its batches" in rota("show", "adaptive")[1]
    for at_s, (per_gpu, step_s) in enumerate(((16, 0.2), (32, 0.3)), 1):
        told = {"initial": 16, "most": 256, "most_per_gpu": 32, "size": per_gpu, "gpus": 1}
        told |= {"per_gpu": per_gpu, "accumulation": 0, "steps": 9, "sqr": 1.0, "var": 15.0}
        told |= {"step_s": step_s, "gradient_s": step_s}
        cluster.apply(WorkerReported(at_s, 0, {"step": 9, "at_s": at_s, "adaptation": told}))
    told = shown(rota)
    assert [row["known"] for row in told["curve"]] == ["measured", *["predicted"] * 3]
    assert told["noise_scale"] == 240.0


def test_what_a_policy_warns_of_is_told_by_why_and_show_and_not_twice(rota, reports, cluster):
    reports.points = (*ALONE, StepPoint(1, 2, 8, 0.1, 1e9))
    told = json.loads(rota("show", "adaptive", "--json")[1])["goodput"]["warnings"]
    cluster.controller.state.notes.warnings[0] = (*told, "and another")
    no_effect, *warnings = json.loads(rota("why", "adaptive", "--json")[1])["warnings"]
    assert no_effect.startswith("batch has no effect: the policy fifo ")
    assert warnings == [*told, "and another"]
    for verb in ("why", "show"):
        lines = [line for line in rota(verb, "adaptive")[1].splitlines() if "warning" in line]
        assert [line.split(maxsplit=1)[1] for line in lines] == [no_effect, *told, "and another"]


def test_without_noise_it_says_that_every_sample_counts(rota, reports):
    reports.gradient = None
    assert "gradient noise is not known yet" in rota("show", "adaptive")[1]
    reports.gradient = GradientNoise(0.0, 1.0)
    assert "the gradient noise scale is without end" in rota("show", "adaptive")[1]
    assert shown(rota)["noise_scale"] is None


def test_sizes_that_no_batch_suits_are_told(rota, reports):
    reports.range = BatchRange(16, 16, 8, 16)
    lines = rota("show", "adaptive")[1].splitlines()
    assert sum("no batch is within its limits" in line for line in lines) == 2


def test_a_job_whose_batches_are_its_own_affair_has_no_curve(rota, reports):
    rota("run", "--name", "plain", "--", "x")
    assert json.loads(rota("show", "plain", "--json")[1])["goodput"] is None
    assert "goodput" not in rota("show", "plain")[1]
