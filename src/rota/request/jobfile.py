"""Job files: the fields of a request to a live cluster, checked one by one."""

import math
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from rota.errors import JobFileError
from rota.model.job import (
    FLOW,
    FRESH,
    GRACE_S,
    JOB_NAME,
    WARM,
    Adapt,
    Dependency,
    Elastic,
    Notice,
    Program,
    Retries,
    Share,
    name_of,
    powers_of_two,
)
from rota.model.snapshot import DIGEST
from rota.request.array import ARRAY
from rota.request.batch import adapt_of, batch_fields
from rota.request.dependencies import dependencies_field, dependencies_of
from rota.request.launchers import launcher_of
from rota.request.notify import notices_field, notices_of
from rota.request.retries import retries_fields, retries_of
from rota.request.share import share_fields, share_of
from rota.request.values import (
    check_keys,
    is_number,
    job_of,
    refuse,
    seconds_of,
    text_of,
    whole_number,
    whole_within,
)

PRIORITIES = {"low": 10, "normal": 50, "high": 90}
PROCESSES = ("gpu", "node", FLOW)
START = (FRESH, WARM)
SUSPEND = ("auto", "stop", "cuda-checkpoint", "restart")
FIELDS = (
    "version",
    "name",
    "queue",
    "priority",
    "workdir",
    "env",
    "run",
    "resources",
    "elastic",
    "batch",
    "processes",
    "suspend",
    "grace",
    "start",
    "time_limit",
    "resume_from",
    "retries",
    "depends_on",
    "tags",
    "setup",
    "share",
    "idle",
    "notify",
    "snapshot",
)
INHERIT = "inherit"  # in env: the names of variables that are passed on
SWEEP = "sweep"  # of a job file that describes a search: see rota.request.sweepfile
RESOURCES = ("gpus", "gpu_type", "gpu_memory", "memory", "cpus", "cpus_per_gpu")
ELASTIC = ("sizes", "utility", "price_per_gpu_hour")
UTILITY = ("deadline", "value")

# bash gets `run` as one argument, and Linux takes no argument and no variable of 128 KiB.
MAX_TEXT_BYTES = 100_000
MAX_ENV_BYTES = 500_000
MAX_PATH_BYTES = 4095
MAX_GPUS = 1_000_000
MAX_TAGS = 32
MAX_TYPES = 32
MAX_CPUS = 100_000
MAX_GRACE_S = 3600.0
MAX_PRICE = 1e12
MAX_SIZES = 1024

_NAME = re.compile(JOB_NAME)
_QUEUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,63}\Z")
_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:=/@+-]{0,63}\Z")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}\Z")
_RANGE = re.compile(r"([0-9]{1,7})\.\.([0-9]{1,7})\Z")
_SIZE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?(MB|GB|MiB|GiB)\Z")
_GB = {"MB": 1e-3, "GB": 1.0, "MiB": 2**20 / 1e9, "GiB": 2**30 / 1e9}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class JobRequest(NamedTuple):
    """A well-formed job; the controller decides if it fits the cluster.

    ``workdir`` is absolute. ``processes`` is "gpu" for one process per GPU, a rank each, or "node"
    for a single process that sees all GPUs of its node, as a launcher such as torchrun does, or
    FLOW for a single process without a GPU that drives a worker on each.
    ``num_gpus`` is the least number of an ``elastic`` job. ``adapt`` has the limits of its batches
    if the scheduler chooses them. ``suspend`` is one of SUSPEND.
    """

    name: str
    run: str
    workdir: str
    env: tuple[tuple[str, str], ...] = ()
    priority: int = 50
    num_gpus: int = 1
    processes: str = "gpu"
    time_limit_s: float | None = None
    queue: str = ""
    elastic: Elastic | None = None
    adapt: Adapt | None = None
    suspend: str = SUSPEND[0]
    grace_s: float = GRACE_S  # counts for the suspension "restart" alone
    resume_from: str = ""  # the job, by id or name, whose checkpoints it begins with
    gpu_memory_gb: float | None = None  # of each GPU, at most, in 1e9 bytes
    retries: Retries | None = None
    depends_on: tuple[Dependency, ...] = ()  # jobs by id or name
    tags: tuple[str, ...] = ()
    gpu_types: tuple[str, ...] = ()
    host_memory_gb: float | None = None  # for the whole job, in 1e9 bytes
    cpus: int = 0  # for the whole job; 0: none in particular
    cpus_per_gpu: tuple[int, int] | None = None  # the least and the most that the scheduler gives
    setup: str = ""
    share: Share | None = None
    idle_s: float | None = None  # a flow job without operations for so long is suspended
    notices: tuple[Notice, ...] = ()  # hooks that are told of what happens to it
    snapshot: bool | str = False  # the digest of that of workdir; True: it has yet to be packed
    start: str = FRESH  # one of START

    def to_fields(self) -> dict[str, Any]:
        """The JSON-able fields from which :func:`parse_job` makes this very request."""
        fields: dict[str, Any] = {
            "version": 1,
            "name": self.name,
            "run": self.run,
            "workdir": self.workdir,
            "env": dict(self.env),
            "priority": self.priority,
            "resources": {"gpus": self.num_gpus},
            "processes": self.processes,
        }
        if self.elastic is not None:
            sizes = list(self.elastic.sizes)
            fields["resources"]["gpus"] = f"{sizes[0]}..{sizes[-1]}"
            fields["elastic"] = {
                "sizes": sizes,
                "price_per_gpu_hour": self.elastic.price_per_gpu_hour,
            }
            if self.elastic.deadline_s is not None:
                utility = {"deadline": self.elastic.deadline_s, "value": self.elastic.value}
                fields["elastic"]["utility"] = utility
        if self.gpu_memory_gb is not None:
            fields["resources"]["gpu_memory"] = f"{self.gpu_memory_gb:.9f} GB"
        if self.adapt is not None:
            fields["batch"] = batch_fields(self.adapt)
        if self.queue:
            fields["queue"] = self.queue
        if self.time_limit_s is not None:
            fields["time_limit"] = self.time_limit_s
        if self.suspend != SUSPEND[0]:
            fields["suspend"] = self.suspend
        if self.suspend == "restart":
            fields["grace"] = self.grace_s
        if self.resume_from:
            fields["resume_from"] = self.resume_from
        if self.retries is not None:
            fields["retries"] = retries_fields(self.retries)
        if self.depends_on:
            fields["depends_on"] = dependencies_field(self.depends_on)
        if self.tags:
            fields["tags"] = list(self.tags)
        if self.gpu_types:
            fields["resources"]["gpu_type"] = list(self.gpu_types)
        if self.host_memory_gb is not None:
            fields["resources"]["memory"] = f"{self.host_memory_gb:.9f} GB"
        if self.cpus:
            fields["resources"]["cpus"] = self.cpus
        if self.cpus_per_gpu is not None:
            least, most = self.cpus_per_gpu
            fields["resources"]["cpus_per_gpu"] = least if least == most else f"{least}..{most}"
        if self.setup:
            fields["setup"] = self.setup
        if self.share is not None:
            fields["share"] = share_fields(self.share)
        if self.idle_s is not None:
            fields["idle"] = self.idle_s
        if self.notices:
            fields["notify"] = notices_field(self.notices)
        if self.snapshot:
            fields["snapshot"] = self.snapshot
        if self.start != FRESH:
            fields["start"] = self.start
        return fields


def with_inherited(fields: Any, environ: Mapping[str, str]) -> Any:
    """The fields with ``env: {inherit: [NAMES]}`` replaced by the values in ``environ``.

    Called where a job is submitted: only the submitting process knows the user's variables. Other
    entries of ``env`` override them. Raises JobFileError for a name that is not set.
    """
    env = fields.get("env") if isinstance(fields, Mapping) else None
    if not isinstance(env, Mapping) or not isinstance(names := env.get(INHERIT), list):
        return fields
    for name in names:
        if not isinstance(name, str) or name not in environ:
            refuse(f"env.{INHERIT}", name, "it is not set here: export it, or leave it out")
    given = {name: value for name, value in env.items() if name != INHERIT}
    return {**fields, "env": {name: environ[name] for name in names} | given}


def parse_job(fields: Mapping[str, Any], *, workdir: str) -> JobRequest:
    """The request made by ``fields``, as read from a job file.

    A relative ``workdir`` in them is taken from ``workdir``, the job file's folder, and is that
    folder by default; with ``workdir=""`` it must be absolute. Raises JobFileError, which names the
    field, its value and the fix.
    """
    for key in RESOURCES:
        if isinstance(fields, Mapping) and key in fields:
            refuse(key, fields[key], f"it belongs to resources: {{{key}: ...}}")
    check_keys(fields, (*FIELDS, SWEEP, ARRAY), "")
    for key in (SWEEP, ARRAY):
        if key not in fields:
            continue
        raise JobFileError(
            f"{key}: it makes this a search, and no single job; hand it in with rota submit, "
            "or as POST /api/v1/sweeps"
        )
    version = fields.get("version", 1)
    if type(version) is not int or version != 1:
        refuse("version", version, "this version of Rota reads version: 1")
    run = _run(fields)
    name = fields.get("name")
    least, most = _gpus(fields.get("resources"))
    processes = _processes(fields, run, least, most)
    suspend = _suspend(fields.get("suspend"), least, most, processes)
    adapt = _adapt(fields.get("batch"), least, processes, suspend)
    return JobRequest(
        name=name_of(run) if name is None else _name(name),
        run=run,
        workdir=_workdir(fields.get("workdir"), workdir),
        env=_env(fields.get("env")),
        priority=_priority(fields.get("priority")),
        num_gpus=least,
        processes=processes,
        time_limit_s=_time_limit_s(fields.get("time_limit")),
        queue=_queue(fields.get("queue")),
        elastic=_elastic(fields.get("elastic"), least, most, processes),
        adapt=adapt,
        suspend=suspend,
        grace_s=_grace_s(fields.get("grace"), suspend),
        resume_from=resume_from_of(fields.get("resume_from")),
        gpu_memory_gb=_size_gb(fields.get("resources"), "gpu_memory", "what a GPU needs"),
        retries=retries_of(fields.get("retries")),
        depends_on=dependencies_of(fields.get("depends_on")),
        tags=_tags(fields.get("tags")),
        gpu_types=_gpu_types(fields.get("resources")),
        host_memory_gb=_size_gb(fields.get("resources"), "memory", "what the job needs"),
        cpus=_cpus(fields.get("resources")),
        cpus_per_gpu=_cpus_per_gpu(fields.get("resources")),
        setup=_setup(fields.get("setup")),
        share=share_of(fields.get("share"), least, most, adapt, processes),
        idle_s=_idle_s(fields.get("idle"), processes),
        notices=notices_of(fields.get("notify")),
        snapshot=_snapshot(fields.get("snapshot")),
        start=_start(fields.get("start")),
    )


def program_of(request: JobRequest) -> Program:
    """The program of a live job, as requested."""
    r = request
    how = (r.processes, r.suspend, r.grace_s, r.resume_from, r.setup, r.cpus, r.host_memory_gb)
    snapshot = r.snapshot if isinstance(r.snapshot, str) else ""
    return Program(r.run, r.workdir, r.env, *how, r.idle_s, snapshot, r.start)


def _run(fields: Mapping[str, Any]) -> str:
    if "run" not in fields:
        raise JobFileError("run: it is missing; say what to run, for example: run: python train.py")
    run = text_of("run", fields["run"], MAX_TEXT_BYTES)
    if not run.strip():
        refuse("run", run, "say what to run, for example: run: python train.py")
    return run


def _name(value: Any) -> str:
    if isinstance(value, str) and _NAME.match(value):
        return value
    refuse(
        "name",
        value,
        "use 1 to 64 of A-Z a-z 0-9 . _ - that begin with a letter or digit "
        "and are not a number alone",
    )


def _queue(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str) and _QUEUE.match(value):
        return value
    refuse("queue", value, "use 1 to 64 of A-Z a-z 0-9 . _ / - that begin with a letter or digit")


def _tags(value: Any) -> tuple[str, ...]:
    tags = [] if value is None else value if isinstance(value, list) else [value]
    if len(tags) > MAX_TAGS:
        refuse("tags", value, f"a job has at most {MAX_TAGS}")
    for tag in tags:
        if not isinstance(tag, str) or not _TAG.match(tag):
            fix = "labels are 1 to 64 of A-Z a-z 0-9 . _ : = / @ + -"
            refuse("tags", tag, f"{fix} that begin with a letter or digit")
    return tuple(dict.fromkeys(tags))


def _workdir(value: Any, base: str) -> str:
    path = base if value is None else text_of("workdir", value, MAX_PATH_BYTES)
    if _CONTROL.search(path):
        refuse("workdir", path, "remove the control characters")
    path = os.path.normpath(os.path.join(base, os.path.expanduser(path) if base else path))
    if not os.path.isabs(path):
        refuse("workdir", path, "give an absolute path")
    return text_of("workdir", path, MAX_PATH_BYTES)


def _env(value: Any) -> tuple[tuple[str, str], ...]:
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        refuse("env", value, "write a mapping of names to values, for example: {OMP_THREADS: 1}")
    pairs = []
    size = 0
    for name, item in value.items():
        if name == INHERIT and not isinstance(item, str):
            refuse(f"env.{INHERIT}", item, "write a list of names, such as [WANDB_API_KEY]")
        if not isinstance(name, str) or not _ENV_NAME.match(name):
            refuse("env", name, "names are letters, digits and _ and don't begin with a digit")
        if isinstance(item, float) and not math.isfinite(item):
            refuse(f"env.{name}", item, "put quotes around it")
        if isinstance(item, int | float) and not isinstance(item, bool):
            item = _number_text(name, item)
        if not isinstance(item, str):
            refuse(f"env.{name}", item, "values are text: put quotes around it")
        pairs.append((name, text_of(f"env.{name}", item, MAX_TEXT_BYTES)))
        size += len(name) + len(pairs[-1][1].encode()) + 2
        if size > MAX_ENV_BYTES:
            raise JobFileError(
                f"env: it takes more than {MAX_ENV_BYTES} bytes; put the data into a file"
            )
    return tuple(pairs)


def _number_text(name: str, value: int | float) -> str:
    try:
        return str(value)
    except ValueError:  # more digits than Python turns into text
        refuse(f"env.{name}", value, "put quotes around it")


def _priority(value: Any) -> int:
    if value is None:
        return PRIORITIES["normal"]
    if isinstance(value, str) and value in PRIORITIES:
        return PRIORITIES[value]
    number = whole_number(value)
    if number is None or not 1 <= number <= 100:
        refuse("priority", value, "write 1 to 100 (larger is sooner), or low, normal or high")
    return number


def _gpus(resources: Any) -> tuple[int, int]:
    """The least and the greatest number of GPUs."""
    if resources is None:
        return 1, 1
    check_keys(resources, RESOURCES, "resources.", "write a mapping, for example: {gpus: 2}")
    return _range_of("resources.gpus", resources.get("gpus", 1), MAX_GPUS, "1..8")


def _range_of(field: str, value: Any, most_of_all: int, example: str) -> tuple[int, int]:
    """The ends of a range of whole numbers from 1; both are the same for a single number."""
    if isinstance(value, str) and (match := _RANGE.match(value.strip())):
        least, most = int(match[1]), int(match[2])
        if not 1 <= least <= most <= most_of_all:
            refuse(field, value, f"write the smaller number first, for example {example}")
        return least, most
    number = whole_number(value)
    if number is None or not 1 <= number <= most_of_all:
        refuse(field, value, f"write a whole number, 1 or more, or a range such as {example}")
    return number, number


def _size_gb(resources: Any, field: str, what: str) -> float | None:
    value = (resources or {}).get(field)
    if value is None:
        return None
    size = _SIZE.match(value.strip()) if isinstance(value, str) else None
    gb = round(float(size[1]) * _GB[size[2]], 9) if size is not None else 0.0
    if gb <= 0.0:
        refuse(f"resources.{field}", value, f"write {what} at most, such as 30GB")
    return gb


def _gpu_types(resources: Any) -> tuple[str, ...]:
    value = (resources or {}).get("gpu_type")
    if value is None:
        return ()
    types = value if isinstance(value, list) else [value]
    for each in types:
        if not isinstance(each, str) or not _TYPE.match(each):
            fix = "write a name such as a100, or a list of names: [a100, h100]"
            refuse("resources.gpu_type", each, fix)
    if not 0 < len(types) <= MAX_TYPES:
        refuse("resources.gpu_type", value, f"name 1 to {MAX_TYPES} types, or leave it out")
    return tuple(dict.fromkeys(types))


def _cpus(resources: Any) -> int:
    value = (resources or {}).get("cpus")
    return 0 if value is None else whole_within("resources.cpus", value, 1, MAX_CPUS)


def _cpus_per_gpu(resources: Any) -> tuple[int, int] | None:
    """The least and the most CPU cores for each GPU."""
    value = (resources or {}).get("cpus_per_gpu")
    if value is None:
        return None
    if resources.get("cpus") is not None:
        fix = "it excludes resources.cpus, a number for the whole job: give one of the two"
        refuse("resources.cpus_per_gpu", value, fix)
    return _range_of("resources.cpus_per_gpu", value, MAX_CPUS, "2..8")


def _setup(value: Any) -> str:
    setup = "" if value is None else text_of("setup", value, MAX_TEXT_BYTES)
    if value is not None and not setup.strip():
        refuse("setup", value, "say what to run before the job, or leave it out")
    return setup


def _snapshot(value: Any) -> bool | str:
    if value is None or isinstance(value, bool):
        return bool(value)
    if isinstance(value, str) and DIGEST.match(value):
        return value
    fix = "write true to have workdir packed where the job is handed in, or leave it out"
    refuse("snapshot", value, fix)


def _elastic(value: Any, least: int, most: int, processes: str) -> Elastic | None:
    if least == most:
        if value is not None:
            refuse(
                "elastic", value, "it needs a range of GPUs, for example resources: {gpus: 1..8}"
            )
        return None
    if processes == "node":
        fix = f"a job with a range of GPUs has one process per GPU, or is a {FLOW} job"
        refuse("processes", processes, fix)
    fields = {} if value is None else value
    check_keys(fields, ELASTIC, "elastic.", "write a mapping, for example: {sizes: pow2}")
    deadline_s, worth = _utility(fields.get("utility"))
    price = fields.get("price_per_gpu_hour", 0.0)
    if not is_number(price) or not 0 <= price < MAX_PRICE:
        refuse("elastic.price_per_gpu_hour", price, "write a number from 0, in the value's unit")
    if price and worth is None:
        refuse(
            "elastic.price_per_gpu_hour",
            price,
            "it counts against a value: add utility: {deadline: 2h, value: 100}, or leave it out",
        )
    sizes = _sizes(fields.get("sizes", "any"), least, most)
    return Elastic(sizes, deadline_s, worth, float(price))


def _adapt(value: Any, least: int, processes: str, suspend: str) -> Adapt | None:
    """The limits of the batches that the scheduler chooses; None if it chooses none."""
    adapt = adapt_of(value, least)
    if adapt is not None and processes != "gpu":
        refuse("processes", processes, "a job whose batches adapt has one process per GPU")
    if adapt is not None and suspend != SUSPEND[0]:
        refuse("suspend", suspend, "a job whose batches adapt pauses between steps: leave it out")
    return adapt


def _utility(value: Any) -> tuple[float | None, float | None]:
    if value is None:
        return None, None
    example = "write for example: {deadline: 2h, value: 100}"
    check_keys(value, UTILITY, "elastic.utility.", example)
    for key in UTILITY:
        if key not in value:
            refuse(
                "elastic.utility", dict(value), f"{key} is missing: {{deadline: 2h, value: 100}}"
            )
    worth = value["value"]
    if not is_number(worth) or not 0 < worth < MAX_PRICE:
        refuse("elastic.utility.value", worth, "write a number above 0")
    return seconds_of("elastic.utility.deadline", value["deadline"]), float(worth)


def _sizes(value: Any, least: int, most: int) -> tuple[int, ...]:
    if value == "any":
        if most - least >= MAX_SIZES:
            refuse("elastic.sizes", value, f"that is over {MAX_SIZES} sizes; write pow2 or a list")
        return tuple(range(least, most + 1))
    if value == "pow2":
        sizes = powers_of_two(least, most)
        if len(sizes) < 2:
            only = f"no power of two but {least}" if least & (least - 1) == 0 else "no power of two"
            refuse("elastic.sizes", value, f"there is {only} in {least}..{most}; write any")
        return sizes
    if isinstance(value, list) and 0 < len(value) <= MAX_SIZES:
        return _listed_sizes(value, least, most)
    refuse("elastic.sizes", value, f"write any, pow2, or a list such as [{least}, {most}]")


def _listed_sizes(value: list[Any], least: int, most: int) -> tuple[int, ...]:
    field, where = "elastic.sizes", f"resources.gpus is {least}..{most}"
    sizes = set()
    for each in value:
        number = whole_number(each)
        if number is None or number < 1:
            refuse(field, each, f"write whole numbers of GPUs, such as [{least}, {most}]")
        if not least <= number <= most:
            refuse(field, each, f"{where}; leave it out, or widen the range")
        sizes.add(number)
    for end in (least, most):
        if end not in sizes:
            refuse(field, value, f"{where}, so add {end} to it, or narrow the range")
    return tuple(sorted(sizes))


def _processes(fields: Mapping[str, Any], run: str, least: int, most: int) -> str:
    value = fields.get("processes")
    if value is None:
        launcher = launcher_of(run) if most > 1 else None
        if launcher is not None and least != most:
            fix = f"{launcher.name} starts as many processes as at first: write one number"
            refuse("resources.gpus", f"{least}..{most}", f"{fix}, or run the script itself")
        return PROCESSES[0] if launcher is None else "node"
    if isinstance(value, str) and value in PROCESSES:
        return value
    refuse(
        "processes",
        value,
        "write gpu (a process per GPU), node (one that sees all GPUs) or "
        f"{FLOW} (one that drives its GPUs through rota.flow)",
    )


def _suspend(value: Any, least: int, most: int, processes: str) -> str:
    if value is None:
        return SUSPEND[0]
    if not isinstance(value, str) or value not in SUSPEND:
        refuse("suspend", value, f"write one of {', '.join(SUSPEND)}")
    if value != SUSPEND[0] and least != most:
        refuse(
            "suspend", value, "a job with a range of GPUs pauses between its steps: leave it out"
        )
    if value != SUSPEND[0] and processes == FLOW:
        refuse("suspend", value, f"a {FLOW} job pauses between its operations: leave it out")
    return value


def _start(value: Any) -> str:
    if value is None:
        return FRESH
    if not isinstance(value, str) or value not in START:
        fix = f"write {FRESH} (executed) or {WARM} (forked from a process that has torch loaded)"
        refuse("start", value, fix)
    return value


def _grace_s(value: Any, suspend: str) -> float:
    if value is None:
        return GRACE_S
    if suspend != "restart":
        refuse("grace", value, "it counts with suspend: restart alone: add that, or leave it out")
    seconds = seconds_of("grace", value)
    if seconds > MAX_GRACE_S:
        refuse("grace", value, "write 1h or less")
    return seconds


def _idle_s(value: Any, processes: str) -> float | None:
    if value is None:
        return None
    if processes != FLOW:
        fix = f"only flow jobs have it: add processes: {FLOW} (--flow), or leave it out"
        refuse("idle", value, fix)
    return seconds_of("idle", value)


def resume_from_of(value: Any) -> str:
    """The named job, as text; "" for None. Raises JobFileError."""
    if value is None:
        return ""
    return job_of("resume_from", value, "write the id of a job that has ended, its name, or @last")


def _time_limit_s(value: Any) -> float | None:
    return None if value is None else seconds_of("time_limit", value)
