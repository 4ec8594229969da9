from importlib.metadata import EntryPoint

import pytest

from rota.errors import PolicySettingError
from rota.policy import registry
from rota.policy.base import Policy
from rota.policy.information import information_of
from rota.policy.registry import BUILT_IN, again, create, names
from rota.policy.tiresias.policy import Tiresias


def test_every_built_in_policy_can_be_made_by_name_and_knows_it():
    for name in BUILT_IN:
        assert create(name).name == name
        assert name in names()


def test_only_those_that_look_at_what_is_left_are_oracles():
    oracles = {name for name in BUILT_IN if getattr(create(name), "needs_duration", False)}
    assert oracles == {"finish-time-fairness", "optimus-oracle", "srtf", "srsf"}


def test_every_built_in_policy_declares_what_it_is_told_of_lengths():
    told = {name: information_of(create(name)) for name in BUILT_IN}
    others = {name: word for name, word in told.items() if word not in ("none", "oracle")}
    assert others == {
        "easy-backfill": "declared",
        "elastic": "declared",
        "gandiva": "label",
        "optimus": "declared",
        "pollux": "label",
        "tiresias-gittins": "history",
    }
    oracles = {name for name, word in told.items() if word == "oracle"}
    assert oracles == {"finish-time-fairness", "optimus-oracle", "srtf", "srsf"}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"fits": "job"}, "none"),
        ({"fits": "kind"}, "label"),
        ({"objective": "pollux", "fits": "job"}, "none"),
        ({"objective": "length", "fits": "job"}, "declared"),
        ({"objective": "length"}, "declared, label"),
    ],
    ids=str,
)
def test_settings_of_pollux_choose_what_it_is_told(settings, told):
    assert information_of(create("pollux", settings)) == told


def test_a_policy_that_declares_nothing_is_told_from_those_that_do():
    class Foreign(Policy):
        pass

    class Oracle(Policy):
        needs_duration = True

    assert information_of(Foreign()) == "undeclared"
    assert information_of(Oracle()) == "oracle"


def test_the_identity_names_all_settings_so_that_memory_is_not_mixed_up():
    assert create("tiresias").identity == create("tiresias", {"thresholds": "3600"}).identity
    assert create("tiresias").identity != create("tiresias", {"thresholds": "600"}).identity
    assert create("fifo").identity != create("fifo-backfill").identity


def test_tiresias_has_the_published_defaults():
    defaults = {key: setting.default for key, setting in Tiresias.SETTINGS.items()}
    assert defaults == {"thresholds": (3600.0,), "promote_knob": 8.0, "within": "entry"}


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("tiresia", {}, "did you mean 'tiresias'"),
        ("", {}, "known: .*fifo"),
        ("fifo", {"quantum_s": "1"}, "takes: priority, quotas"),
        ("gandiva", {"quantum": "1"}, "did you mean 'quantum_s'"),
        ("gandiva", {"quantum_s": "0"}, "quantum_s='0'"),
        ("gandiva", {"quantum_s": "nan"}, "above zero"),
        ("gandiva", {"quantum_s": "inf"}, "above zero"),
        ("gandiva", {"quantum_s": "a minute"}, "can't be used: it must be a number above zero"),
        ("gandiva", {"quantum_s": "1e-9"}, "quantum_s='1e-9'.*a millisecond"),
        ("las", {"quantum_s": "1e-9"}, "quantum_s='1e-9'.*a millisecond"),
        ("round-robin", {"quantum_s": "0.0009"}, "quantum_s='0.0009'.*a millisecond"),
        ("max-min-fairness", {"round_s": "1e-9"}, "round_s='1e-9'.*a millisecond"),
        ("finish-time-fairness", {"round_s": "1e-300"}, "round_s='1e-300'.*a millisecond"),
        (
            "srtf",
            {"fair_share": "user", "fair_period_s": "1e-9"},
            "fair_period_s='1e-9'.*a millisecond",
        ),
        ("pollux", {"restart_s": "86401"}, "restart_s='86401'.*a day"),
        ("tiresias", {"thresholds": "600,600"}, "must rise"),
        ("tiresias", {"thresholds": "0"}, "above zero"),
        ("tiresias", {"thresholds": "nan"}, "above zero"),
        ("tiresias", {"thresholds": "600;1800"}, "can't be used"),
        ("tiresias", {"promote_knob": "-1"}, "zero or a number above"),
        ("tiresias", {"within": "arrival"}, "entry or first-start"),
    ],
)
def test_a_wrong_name_or_setting_is_refused_with_the_fix(name, given, says):
    with pytest.raises(PolicySettingError, match=says):
        create(name, given)


def test_a_turn_of_a_millisecond_is_taken():
    assert create("gandiva", {"quantum_s": "0.001"}).settings["quantum_s"] == 0.001


def test_an_installed_package_can_bring_a_policy(monkeypatch):
    point = EntryPoint("theirs", "rota.policy.ordering.fifo:Fifo", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point])
    assert "theirs" in names()
    assert type(create("theirs")).__name__ == "Fifo"


@pytest.mark.parametrize("what", ["math:pi", "collections:Counter"])
def test_an_entry_point_of_anything_else_is_refused(monkeypatch, what):
    point = EntryPoint("theirs", what, registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point])
    with pytest.raises(PolicySettingError, match=r"derived from rota\.policy\.base\.Policy"):
        create("theirs")


@pytest.mark.parametrize(
    ("name", "given"),
    [("tiresias", {"thresholds": "600,1800", "quotas": "equal"}), ("fifo", {}), ("gandiva", {})],
)
def test_another_object_has_the_same_settings(name, given):
    policy = create(name, given)
    twin = again(policy)
    assert twin is not policy
    assert (type(twin), twin.identity, twin.settings) == (
        type(policy),
        policy.identity,
        policy.settings,
    )
    assert (twin.stages is None) == (policy.stages is None)
