"""The experiment on a live search, small: three configurations on two slots."""

from rota.experiment.sweep_live import ARMS, OURS, SEEDS, Contest, in_order, race

HOPELESS = {"optimizer": "sgd", "lr": 0.0003, "width": 16}
WILD = {"optimizer": "adamw", "lr": 0.03, "width": 16}
GOOD = {"optimizer": "adamw", "lr": 0.003, "width": 16}  # 0.5 after seven reports
CONTEST = Contest((HOPELESS, WILD, GOOD), 15, 0.5)


def test_the_search_is_over_when_a_configuration_has_learned_enough():
    seed = next(each for each in SEEDS if in_order(CONTEST, each)[-1] is GOOD)
    found = race(ARMS[OURS], CONTEST, seed)
    assert found.reached
    assert found.begun == 3
    assert found.reports < 3 * 15
