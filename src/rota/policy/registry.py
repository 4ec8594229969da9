"""Policies by name: the built-in ones without any look-up, others by entry point."""

from importlib import import_module
from typing import Any

from rota.errors import PolicySettingError, did_you_mean
from rota.policy.base import Policy, Setting
from rota.policy.composition import check_alone, common_settings, remark_on, stages_for
from rota.policy.cpus.settings import CPU_SETTINGS, check_cpu_settings, cpu_stage
from rota.policy.fill.settings import FILL_SETTINGS, check_fill_settings, fill_stage

BUILT_IN = {
    "easy-backfill": "rota.policy.ordering.easy:EasyBackfill",
    "elastic": "rota.policy.elastic.policy:Elastic",
    "fifo": "rota.policy.ordering.fifo:Fifo",
    "fifo-backfill": "rota.policy.ordering.fifo:FifoBackfill",
    "finish-time-fairness": "rota.policy.gavel.policy:FinishTimeFairness",
    "gandiva": "rota.policy.gandiva.policy:Gandiva",
    "las": "rota.policy.ordering.las:LeastAttainedService",
    "max-min-fairness": "rota.policy.gavel.policy:MaxMinFairness",
    "optimus": "rota.policy.optimus.policy:Optimus",
    "optimus-oracle": "rota.policy.optimus.policy:OptimusOracle",
    "pollux": "rota.policy.pollux.policy:Pollux",
    "round-robin": "rota.policy.ordering.round_robin:RoundRobin",
    "smallest-first": "rota.policy.ordering.shortest:SmallestFirst",
    "srsf": "rota.policy.ordering.shortest:ShortestRemainingService",
    "srtf": "rota.policy.ordering.shortest:ShortestRemaining",
    "tiresias": "rota.policy.tiresias.policy:Tiresias",
    "tiresias-gittins": "rota.policy.tiresias.gittins:TiresiasGittins",
    "yarn-cs": "rota.policy.ordering.yarn:YarnCapacity",
}
ENTRY_POINT_GROUP = "rota.policies"


def names() -> list[str]:
    """Every policy that can be named here, sorted: built-in ones and installed ones."""
    from importlib.metadata import entry_points

    return sorted({*BUILT_IN, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))})


def policy_class(name: str) -> type[Policy]:
    """The class behind a policy's name. Raises PolicySettingError naming the close ones."""
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        known: type[Policy] = getattr(import_module(module), attribute)
        return known
    from importlib.metadata import entry_points

    for point in entry_points(group=ENTRY_POINT_GROUP):
        if point.name == name:
            return _checked_class(name, point.load())
    raise PolicySettingError(
        f"policy: there is no {name!r}{did_you_mean(name, names())}; known: {', '.join(names())}"
    )


def _checked_class(name: str, found: Any) -> type[Policy]:
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise PolicySettingError(
            f"policy {name}: its entry point gives {found!r:.100}; name a class there that is "
            "derived from rota.policy.base.Policy"
        )
    return found


def settings(name: str) -> dict[str, Setting]:
    """The settings that a policy takes, by name.

    Its own come first, then those common to all orderings, then those that any policy takes.
    """
    kind = policy_class(name)
    own = dict(kind.SETTINGS)
    return own | common_settings(kind) | CPU_SETTINGS | FILL_SETTINGS | own


def create(name: str, given: dict[str, str] | None = None) -> Policy:
    """A policy with its settings read from text. Raises PolicySettingError.

    ``create("tiresias", {"thresholds": "600,1800"})``; what is not given has its default. The
    policy's ``settings`` are all its own and the common ones that differ from their default; its
    ``identity`` names them.
    """
    known, kind = settings(name), policy_class(name)
    own = kind.SETTINGS
    values = {key: setting.default for key, setting in own.items()}
    for key, text in (given or {}).items():
        if key not in known:
            takes = ", ".join(known) or "none"
            raise PolicySettingError(
                f"policy {name}: there is no setting {key!r}{did_you_mean(key, known)}; "
                f"it takes: {takes}"
            )
        try:
            values[key] = known[key].parse(text)
        except ValueError as error:
            raise PolicySettingError(
                f"policy {name}: {key}={text!r} can't be used: {error}. {known[key].help}"
            ) from None
    beside = {
        key: value
        for key, value in values.items()
        if key not in own and value != known[key].default
    }
    common, cpus, fill = _parted(beside)
    check_alone(name, kind, given or {}, common)
    check_cpu_settings(name, cpus)
    check_fill_settings(name, fill)
    values = {key: value for key, value in values.items() if key in own}
    policy = kind(**values)
    if stages := stages_for(name, kind, common, values):
        policy.stages = stages
    if cpus:
        policy.cpus = cpu_stage(cpus)
    policy.fill = fill_stage(fill)
    values |= beside
    policy.identity = name + "".join(f" {key}={values[key]}" for key in sorted(values))
    policy.settings = values
    policy.remark = remark_on(name, kind, common)
    return policy


def again(policy: Policy) -> Policy:
    """A new object of the same policy with the same settings, and without its indexes."""
    kind, values = type(policy), policy.settings
    beside = {key: value for key, value in values.items() if key not in kind.SETTINGS}
    common, cpus, fill = _parted(beside)
    twin = kind(**{key: value for key, value in values.items() if key in kind.SETTINGS})
    if stages := stages_for(kind.name, kind, common, values):
        twin.stages = stages
    if cpus:
        twin.cpus = cpu_stage(cpus)
    twin.fill = fill_stage(fill)
    twin.identity, twin.settings, twin.remark = policy.identity, values, policy.remark
    return twin


def _parted(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Values of settings common to all orderings, of those of CPU cores, and of background jobs."""
    stages = CPU_SETTINGS | FILL_SETTINGS
    return (
        {key: value for key, value in values.items() if key not in stages},
        {key: value for key, value in values.items() if key in CPU_SETTINGS},
        {key: value for key, value in values.items() if key in FILL_SETTINGS},
    )


def remark(policy: Policy) -> str:
    """Sentence that names what a policy's settings turn off in it; "" for nothing."""
    return policy.remark
