"""Chooses the number of workers of an elastic training job from its own measurements.

A job runs at some sizes and reports its throughput at each (:class:`Observations`). A *condition*
says when more workers are worth it, a *scaler* which size to try or keep next, as a
:class:`Choice`; what it must remember goes with the choice as JSON-able marks. Across jobs,
:func:`allot` hands out GPUs by marginal gain. Source of conditions and search: Or et al.,
*Resource Elasticity in Distributed Deep Learning*, MLSys 2020.
"""

from rota.policy.scaling.allotment import Claim, allot, claim
from rota.policy.scaling.condition import (
    Outlook,
    ThroughputScaling,
    UtilityOverCost,
)
from rota.policy.scaling.curve import ScalingCurve, fit_curve
from rota.policy.scaling.fitted import FitScaler
from rota.policy.scaling.observations import Observations, Throughput
from rota.policy.scaling.planned import PlannedCurve, covers
from rota.policy.scaling.probe import ProbeScaler
from rota.policy.scaling.replay import Replay, Resizing, replay
from rota.policy.scaling.scaler import Choice, Observed, Scaler
from rota.policy.scaling.sizes import allowed_sizes, sizes_every
from rota.policy.scaling.utility import DeadlineUtility, LinearUtility, StepUtility

__all__ = [
    "Choice",
    "Claim",
    "DeadlineUtility",
    "FitScaler",
    "LinearUtility",
    "Observations",
    "Observed",
    "Outlook",
    "PlannedCurve",
    "ProbeScaler",
    "Replay",
    "Resizing",
    "Scaler",
    "ScalingCurve",
    "StepUtility",
    "Throughput",
    "ThroughputScaling",
    "UtilityOverCost",
    "allot",
    "allowed_sizes",
    "claim",
    "covers",
    "fit_curve",
    "replay",
    "sizes_every",
]
