import pytest

from rota.cli.keyvalue import parse_policy, parse_settings, parse_size
from rota.errors import InputError, PolicySettingError
from rota.policy.composition import NEEDS
from rota.policy.registry import BUILT_IN, create, settings


def test_a_policy_text_carries_its_settings():
    assert parse_policy("tiresias:thresholds=600,1800:within=entry") == (
        "tiresias",
        {"thresholds": "600,1800", "within": "entry"},
    )
    assert parse_policy("fifo", ["a=b=c"]) == ("fifo", {"a": "b=c"})


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["within"], "not of the form KEY=VALUE"),
        (["=entry"], "not of the form KEY=VALUE"),
        ([" = "], "not of the form KEY=VALUE"),
        (["within=a", "within=b"], "'within' is given twice"),
    ],
)
def test_what_is_no_setting_is_refused_and_named(texts, says):
    with pytest.raises(PolicySettingError, match=f"policy tiresias: .*{says}"):
        parse_settings("tiresias", texts)


@pytest.mark.parametrize(
    ("policy", "text", "example"),
    [
        ("gandiva", "quantum_s:5", "write for example quantum_s=60"),
        ("gandiva", "quantum", "write for example quantum_s=60"),
        ("gandiva", "5", "write for example quantum_s=60"),
        ("tiresias", "promote_knob", "write for example promote_knob=8"),
        ("tiresias", "600,1800", "write for example thresholds=3600"),
        ("fifo", "quota", "write for example quotas=no"),
        ("max-min-fairness", "round", "write for example round_s=360"),
    ],
)
def test_the_example_is_a_setting_that_the_policy_has(policy, text, example):
    with pytest.raises(PolicySettingError) as refusal:
        parse_settings(policy, [text])
    assert str(refusal.value).endswith(example)


@pytest.mark.parametrize("policy", BUILT_IN)
def test_every_example_can_be_written_so(policy):
    for key in settings(policy):
        with pytest.raises(PolicySettingError) as refusal:
            parse_settings(policy, [key])
        example = str(refusal.value).rpartition("write for example ")[2]
        assert example.startswith(f"{key}=")
        if key not in NEEDS:  # these say something beside others alone
            create(policy, parse_settings(policy, [example]))


def test_an_example_of_no_policy_is_that_there_is_none():
    with pytest.raises(PolicySettingError, match=r"there is no 'gandva'.*'gandiva'"):
        parse_settings("gandva", ["quantum_s"])


def test_a_setting_stands_once_in_the_policy_and_its_further_texts():
    with pytest.raises(PolicySettingError, match="given twice"):
        parse_policy("tiresias:within=entry", ["within=entry"])


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("4096", 4096), ("1.5KiB", 1536), ("512 MiB", 512 << 20), ("8GiB", 8 << 30)],
)
def test_a_size_may_have_a_unit(text, size):
    assert parse_size("--host-memory", text) == size


@pytest.mark.parametrize("text", ["", "GiB", "8GB", "-1", "nan", "inf", "1e30"])
def test_what_is_no_size_is_refused_and_named(text):
    with pytest.raises(InputError, match=f"--host-memory '{text}' is not a size"):
        parse_size("--host-memory", text)
