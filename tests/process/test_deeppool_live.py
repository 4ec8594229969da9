"""The experiment on a live training by layer, small: one repeat that counts whatever others do."""

from rota.experiment import deeppool_live
from rota.experiment.deeppool_live import ALONE, BACKGROUND, FAIR, LOOSE, TURNS, measured


def test_each_way_has_the_foreground_train_beside_its_background(monkeypatch, tmp_path):
    small = {
        "SEEDS": [1],
        "BATCH": 4,
        "WIDTH": 8,
        "MOST_SLOWDOWN": 100.0,
        "SETTLE_S": 0.2,
        "SPAN_S": 0.5,
        "TURN_S": 0.2,
        "WARM_STEPS": 2,
        "COMES_S": 1.0,
        "MOST_OTHERS": 2.0,
        "MOST_DELAY": 1e9,
    }
    for name, value in small.items():
        monkeypatch.setattr(deeppool_live, name, value)
    course = measured(tmp_path)
    assert course.rejected == 0
    (repeat,) = course.repeats
    assert list(repeat) == [ALONE, BACKGROUND, *LOOSE]
    assert list(course.turns) == [ALONE, TURNS]
    for span in (repeat | course.turns).values():
        assert len(span.steps_s) >= 2
        assert span.front.cpu_s > 0
    assert (repeat[ALONE].back.cpu_s, repeat[FAIR].back.cpu_s > 0) == (0.0, True)
