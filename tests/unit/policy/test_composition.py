import pytest

from rota.errors import PolicySettingError
from rota.policy.base import Policy
from rota.policy.composition import COMMON
from rota.policy.cpus.settings import CPU_SETTINGS
from rota.policy.fill.settings import FILL_SETTINGS
from rota.policy.registry import create, remark, settings


def test_orderings_take_the_common_settings_beside_their_own():
    beside = [*COMMON, *CPU_SETTINGS, *FILL_SETTINGS]
    assert list(settings("tiresias"))[-len(beside) :] == beside
    assert list(settings("fifo")) == beside


def test_a_policy_that_weighs_priorities_does_not_rank_by_them():
    assert "priority" not in settings("gandiva")
    assert "quotas" in settings("gandiva")


def test_defaults_make_no_stages_and_no_other_identity():
    plain, spelled_out = create("fifo"), create("fifo", {"quotas": "no", "priority": "classes"})
    assert plain.stages is None
    assert spelled_out.stages is None
    assert plain.identity == spelled_out.identity == "fifo"


def test_the_identity_names_the_common_settings_that_differ():
    policy = create("tiresias", {"quotas": "x=2", "min_run_time_s": "60"})
    assert "quotas=x=2" in policy.identity
    assert "min_run_time_s=60.0" in policy.identity
    assert policy.settings["quotas"] == "x=2"
    assert "fair_share" not in policy.settings


def test_one_policys_stages_are_not_anothers():
    create("fifo", {"quotas": "equal"})
    assert create("fifo").stages is None


def test_a_third_partys_policy_takes_them_only_if_it_says_that_it_composes(monkeypatch):
    class Theirs(Policy):
        pass

    monkeypatch.setattr("rota.policy.registry.policy_class", lambda name: Theirs)
    assert settings("theirs") == CPU_SETTINGS | FILL_SETTINGS
    Theirs.composes = True
    assert set(settings("theirs")) == {*COMMON, *CPU_SETTINGS, *FILL_SETTINGS}
    assert create("theirs", {"quotas": "equal"}).stages.quotas.equal
    with pytest.raises(PolicySettingError, match="policy theirs: borrow=no has no effect"):
        create("theirs", {"borrow": "no"})


@pytest.mark.parametrize(
    "own",
    [{"pack": "on"}, {"types": "on"}, {"limit": "4"}, {"affinity": "prefer"}, {"stay_s": "10"}],
    ids=str,
)
@pytest.mark.parametrize(
    "common",
    [{"quotas": "equal"}, {"min_run_time_s": "5"}, {"placement": "spread"}],
    ids=str,
)
def test_settings_that_exclude_each_other_are_refused_and_both_named(own, common):
    create("gandiva", own)
    with pytest.raises(PolicySettingError) as refusal:
        create("gandiva", own | common)
    for key, value in {**own, **common}.items():
        assert f"{key}={value}" in str(refusal.value)
    assert str(refusal.value).endswith("drop one")


def test_what_is_off_or_goes_with_them_excludes_no_common_setting():
    given = {"pack": "off", "migrate": "off", "types": "off", "grow": "off", "quantum_s": "5"}
    assert create("gandiva", given | {"quotas": "equal"}).stages.quotas.equal


def test_what_a_common_setting_turns_off_is_said():
    assert remark(create("gandiva", {"pack": "on"})) == ""
    assert remark(create("gandiva", {"min_run_time_s": "0"})) == ""
    assert remark(create("tiresias", {"quotas": "equal"})) == ""
    said = remark(create("gandiva", {"quotas": "equal"}))
    assert "with quotas=equal, jobs take turns over the whole cluster" in said
    assert "no packing" in said


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"quotas": "vision"}, "is not QUEUE=GPUS"),
        ({"quotas": "equal", "borrow": "maybe"}, "one of yes, no"),
        ({"borrow": "no"}, "no effect without quotas"),
        ({"shares": "a=2"}, "no effect without fair_share"),
        ({"half_life_s": "60"}, "no effect without fair_share"),
        ({"fair_share": "team"}, "one of no, user, vc"),
        ({"fair_share": "user", "half_life_s": "0"}, "above zero"),
        ({"min_run_time_s": "-1"}, "zero or a number above"),
        ({"placement": "anywhere"}, "one of .*consolidate"),
        ({"pack_limit": "0.5"}, "no effect without placement"),
        ({"quota": "equal"}, "did you mean 'quotas'"),
    ],
)
def test_what_can_not_be_meant_is_refused_with_the_fix(given, says):
    with pytest.raises(PolicySettingError, match=says):
        create("fifo", given)
