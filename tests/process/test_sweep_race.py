"""The experiment on a live search, small: three configurations on two slots."""

from rota.experiment.sweep_live import ARMS, OURS, SEEDS, Contest, in_order, race

HOPELESS = {"optimizer": "sgd", "lr": 0.0003, "width": 16}  # neither comes to 0.2 in 15 reports
SLOW = {"optimizer": "sgd", "lr": 0.003, "width": 16}
GOOD = {"optimizer": "adamw", "lr": 0.003, "width": 16}  # the best from the first, 0.5 after seven
CONTEST = Contest((HOPELESS, SLOW, GOOD), 15, 0.5)


def test_the_search_is_over_when_a_configuration_has_learned_enough():
    seed = next(each for each in SEEDS if in_order(CONTEST, each)[-1] is GOOD)
    found = race(ARMS[OURS], CONTEST, seed)
    assert found.reached
    assert found.begun == 3
    assert found.reports < 3 * 15
