"""The settings that every ordering takes besides its own, and the stages they make."""

from collections.abc import Mapping
from typing import Any

from rota.errors import PolicySettingError
from rota.policy.base import Policy, Setting, not_negative, one_of, positive, spelled, turn_s
from rota.policy.placement import PACK_LIMIT, Placement
from rota.policy.stages.fair_share import FairShare, parse_shares
from rota.policy.stages.quotas import parse_quotas
from rota.policy.stages.selection import SPARING, Stages


def _known_placement(text: str) -> str:
    # Imported when somebody asks: the default placement needs none of these modules.
    from rota.policy.placement.registry import PLACEMENTS

    return one_of(*PLACEMENTS)(text)


def _seconds_or_auto(text: str) -> float | str:
    return AUTO if text == AUTO else not_negative(text)


AUTO = "auto"
COMMON = {
    "priority": Setting(
        one_of("classes", "ignore"),
        "classes",
        "classes: jobs of a higher priority come first; ignore: priorities have no effect.",
    ),
    "quotas": Setting(
        spelled(parse_quotas),
        "no",
        "GPUs that queues may count on: no, equal, or QUEUE=GPUS;QUEUE=GPUS (*: any other).",
    ),
    "borrow": Setting(
        one_of("yes", "no"), "yes", "Whether jobs beyond their queue's quota use what is left."
    ),
    "fair_share": Setting(
        one_of("no", "user", "vc"), "no", "Whose use counts: those who used less come first."
    ),
    "shares": Setting(
        spelled(parse_shares), "equal", "Shares by owner: equal, or OWNER=SHARE;OWNER=SHARE."
    ),
    "half_life_s": Setting(positive, 604800.0, "Seconds after which use counts half."),
    "fair_period_s": Setting(turn_s, 300.0, "Seconds after which owners are ranked anew."),
    "min_run_time_s": Setting(
        _seconds_or_auto,
        0.0,
        "Seconds for which a job that starts or resumes keeps its GPUs; auto: by what starts cost.",
    ),
    "placement": Setting(_known_placement, "consolidate", "Which of the free GPUs a job gets."),
    "pack_limit": Setting(
        not_negative,
        PACK_LIMIT,
        "Largest tensor over model size above which skew and skew-strict consolidate a job.",
    ),
}
# What says nothing unless another setting is given too.
NEEDS = {
    "borrow": "quotas",
    "shares": "fair_share",
    "half_life_s": "fair_share",
    "fair_period_s": "fair_share",
    "pack_limit": "placement",
}


def common_settings(policy_class: type[Policy]) -> dict[str, Setting]:
    """The common settings that a policy takes, by name: none unless it says that it composes."""
    if not policy_class.composes:
        return {}
    own = policy_class.SETTINGS
    found = {key: setting for key, setting in COMMON.items() if key not in own}
    if "fair_share" in own:  # its owners take turns: no use is remembered that could be forgotten
        del found["half_life_s"], found["fair_period_s"]
    if policy_class.weighs_priority:
        del found["priority"]
    if policy_class.stages is SPARING:
        found["min_run_time_s"] = found["min_run_time_s"]._replace(default=AUTO)
    return found


def remark_on(name: str, policy_class: type[Policy], common: Mapping[str, Any]) -> str:
    """Sentence that names what ``common`` settings other than the default turn off; "" for none.

    ``name`` is what the sentence calls the policy.
    """
    instead = policy_class.instead
    return f"policy {name}: with {_spelled_out(common)}, {instead}" if common and instead else ""


def check_alone(
    name: str, policy_class: type[Policy], given: Mapping[str, str], common: Mapping[str, Any]
) -> None:
    """Raise PolicySettingError if ``common`` settings make a given one ineffective.

    A setting given as ``off`` is never an error.
    """
    for key, text in given.items():
        if common and key in policy_class.alone and text != "off":
            raise PolicySettingError(
                f"policy {name}: {key}={text} and {_spelled_out(common)} exclude each other: with "
                f"the latter {policy_class.instead}; drop one"
            )


def _spelled_out(values: Mapping[str, Any]) -> str:
    return " and ".join(f"{key}={value}" for key, value in values.items())


def stages_for(
    name: str, policy_class: type[Policy], given: Mapping[str, Any], own: Mapping[str, Any]
) -> Stages | None:
    """The stages made by ``given`` values that are not the default; None without such values.

    ``name`` is what messages call the policy. ``own`` are the values of its own settings: shares
    that are among them become a stage beside ``given`` ones. Raises PolicySettingError for a
    setting that has no effect without another.
    """
    if not given:
        return None
    for key, other in NEEDS.items():
        if key in given and other not in given:
            raise PolicySettingError(
                f"policy {name}: {key}={given[key]} has no effect without {other}; "
                f"give {other} too, or drop {key}"
            )
    values = {key: setting.default for key, setting in COMMON.items()}
    values |= {key: setting.default for key, setting in common_settings(policy_class).items()}
    values |= given
    values |= {key: own[key] for key in ("fair_share", "shares") if key in own}
    if values["fair_share"] == AUTO and values["shares"] != COMMON["shares"].default:
        raise PolicySettingError(
            f"policy {name}: with {_spelled_out(given)}, shares={values['shares']} has no effect "
            "without fair_share=user or fair_share=vc; give one of these too, or drop shares"
        )
    quotas = parse_quotas(values["quotas"])
    fair_share = None
    if values["fair_share"] not in ("no", AUTO):
        fair_share = FairShare(
            values["fair_share"],
            values["half_life_s"],
            values["fair_period_s"],
            parse_shares(values["shares"]),
        )
    return Stages(
        priority=values["priority"] == "classes" and not policy_class.weighs_priority,
        quotas=quotas and quotas._replace(borrow=values["borrow"] == "yes"),
        fair_share=fair_share,
        min_run_time_s=None if values["min_run_time_s"] == AUTO else values["min_run_time_s"],
        placement=_placement(values),
        preemptive=policy_class.preemptive,
    )


def _placement(values: Mapping[str, Any]) -> Placement | None:
    if values["placement"] == COMMON["placement"].default:
        return None  # the policy's own placement
    from rota.policy.placement.registry import placement

    return placement(values["placement"], values["pack_limit"])
