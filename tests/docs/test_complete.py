"""Nothing that a user can name is missing from the docs, and nothing there points astray."""

import importlib.util
import inspect
import pkgutil
import re
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import click
import pytest

import rota
import rota.errors
from rota import flow
from rota.cli.main import _code, cli
from rota.cli.present import WIDE
from rota.cli.topboard import ANSWERS, BACK, KEYS
from rota.client.client import Client
from rota.experiment.base import Figure, names
from rota.explain.why import explain
from rota.folder import Folder
from rota.live.agent import inherited, program_start
from rota.live.controller.goodput import describe
from rota.live.controller.sweep_api import OUTCOMES
from rota.live.wire.messages import Progress
from rota.model.commands import RULES, Command
from rota.model.events import Event, JobSubmitted, MetricReported, WorkerReported
from rota.model.job import JobSpec, JobState, Program, Suspension
from rota.model.measured.profile import Placement
from rota.model.measured.reports import BatchRange, StepPoint
from rota.model.obstacle import Obstacle
from rota.model.probe import Probe
from rota.model.reason import Reason
from rota.model.state.state import ClusterState
from rota.model.sweep import Report
from rota.model.turns import Turns
from rota.policy.base import Setting
from rota.policy.composition import COMMON
from rota.policy.cpus.settings import CPU_SETTINGS
from rota.policy.fill.settings import FILL_SETTINGS
from rota.policy.information import INFORMATION, information_of
from rota.policy.registry import BUILT_IN, create, policy_class
from rota.predict.goodput_curve import BY_KIND, MEASURED, PREDICTED, Present, Told
from rota.report.eta import Past
from rota.report.gauges import gauges, standing
from rota.report.metrics import PER_JOB_COLUMNS
from rota.report.trace_stats import shape_of
from rota.request import sweepfile
from rota.request.jobfile import FIELDS, PRIORITIES, PROCESSES, RESOURCES
from rota.request.searchspace import KINDS
from rota.scenario.case import Case, Workload, run_case
from rota.server import jobs, profiles
from rota.server.app import create_app
from rota.server.metrics import METRICS
from rota.server.notify.notifier import Notifier
from rota.server.problems import STATUS
from rota.server.sweepdriver import SweepDriver
from rota.sim.machine import Costs
from rota.sweep import Objective, Result, Run, TrialResult
from rota.testing.builders import twenty_jobs
from rota.testing.policy_contract import PolicyContract
from rota.train import Session
from rota.workload.profiles import PROFILES
from rota.workload.readers import FORMATS
from rota.workload.trace import COLUMNS
from rota.workload.writer import write_trace
from support.served import StandInController, controller_without_agents

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(DOCS.rglob("*.md")),
]


def page(name: str) -> str:
    """The text of the page of this name, in whichever folder of the documentation it is."""
    (file,) = DOCS.rglob(f"{name}.md")
    return file.read_text()


def missing(words: Any, text: str) -> list[str]:
    """The words that stand nowhere in ``text`` in backticks, alone or as a part."""
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    told = set(spans) | {word for span in spans for word in re.split(r"[^\w-]", span)}
    return [str(word) for word in words if str(word) not in told]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


# -- the model -------------------------------------------------------------------------------------


def test_every_job_state_reason_event_and_command_is_explained() -> None:
    things: list[str] = [state.name for state in JobState]
    things += [reason.name for reason in Reason]
    things += [kind.__name__ for kind in (*Event.__args__, *Command.__args__)]
    assert not missing(things, page("concepts"))


def test_the_states_of_jobs_with_a_command_on_its_way_are_those_of_its_rule() -> None:
    for kind, rule in RULES.items():
        row = rf"^\| `{kind.__name__}` \| .* \| `{rule.sent_to.name}` \| `{rule.becoming.name}` \|$"
        assert re.search(row, page("concepts"), re.MULTILINE), kind.__name__


def test_every_kind_of_suspension_is_explained() -> None:
    assert not missing([kind.name for kind in Suspension], page("live"))


def test_every_variable_that_jobs_do_not_inherit_is_explained() -> None:
    _, _, text = page("live").partition("### Variables of launchers\n")
    rows = re.findall(r"^\| (`.*`) \| (reach jobs|are taken away) \| (.*) \|$", text, re.MULTILINE)
    assert [
        (rule.names, rule.reaches_jobs, rule.why, rule.only_with) for rule in inherited.RULES
    ] == [
        (
            tuple(re.findall("`(.*?)`", names)),
            what == "reach jobs",
            why.partition("; only where")[0],
            tuple(re.findall("`(.*?)`", why.partition("; only where")[2])),
        )
        for names, what, why in rows
    ]


def test_every_variable_that_keeps_a_program_from_being_forked_is_explained() -> None:
    _, _, text = page("live").partition("- the agent has another value of a variable")
    told = re.findall("`([A-Z_]+)`", text.partition("\n\n")[0])
    read_once = {*program_start.READ_ONCE, *program_start.READ_ONCE_BY_PREFIX}
    assert sorted(told) == sorted([*read_once, *program_start.FOLLOWED])


def test_every_obstacle_that_ends_a_job_before_its_start_is_explained() -> None:
    _, _, text = page("live").partition("### Launches that fail\n")
    assert not [code for code in Obstacle if f"| `{code}` |" not in text]


def test_every_field_of_a_job_file_is_explained() -> None:
    fields = [*FIELDS, *(f"resources.{name}" for name in RESOURCES), *PROCESSES, *PRIORITIES]
    assert not missing(fields, page("job-file"))


def test_every_field_of_a_sweep_file_is_explained() -> None:
    fields = [f"sweep.{name}" for name in sweepfile.FIELDS]
    fields += [f"sweep.rungs.{name}" for name in sweepfile.RUNGS]
    fields += [f"sweep.algorithm.{name}" for name in sweepfile.ALGORITHM]
    fields += [f"sweep.space.NAME.{kind}" for kind in KINDS]
    words = [*sweepfile.GOALS, *sweepfile.ALGORITHMS, "step"]
    assert not missing([*fields, *words], page("job-file"))
    assert not missing(sweepfile.ENV, page("live"))


def test_every_metric_is_told_with_its_type_labels_and_meaning() -> None:
    rows = {}
    for line in page("metrics").splitlines():
        if found := re.fullmatch(r"\| `(rota_\w+|process_\w+)` \| (.*) \|", line):
            rows[found[1]] = found[2]
    assert list(rows) == list(METRICS)
    for name, (kind, labels, meaning, restarts) in METRICS.items():
        shown = ", ".join(f"`{label}`" for label in labels)
        assert rows[name] == f"{kind} | {shown} | {meaning}{' †' * restarts}"


def test_alerts_and_the_board_ask_for_metrics_that_there_are() -> None:
    told = {f"{name}{end}" for name in METRICS for end in ("", "_bucket", "_sum", "_count")}
    for file in ("prometheus/rota-alerts.yml", "grafana/rota-board.json"):
        names = set(re.findall(r"\brota_\w+", (ROOT / "deploy" / file).read_text()))
        assert names
        assert names <= told, file


# -- policies and the simulator --------------------------------------------------------------------


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_policy_and_setting_is_explained_with_its_default(name: str) -> None:
    text = page("policies")
    assert re.search(rf"^## {name}$", text, re.MULTILINE)
    section = re.search(rf"^## {name}\n(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL)
    assert section
    for key, setting in getattr(policy_class(name), "SETTINGS", {}).items():
        assert row_of(key, setting) in section[1]
    if getattr(policy_class(name), "needs_duration", False):
        assert "oracle" in section[1]
    row = re.search(rf"^\| `{name}` \|.*$", text, re.MULTILINE)
    assert row
    assert f"| `{information_of(create(name))}`" in row[0]


def test_every_word_for_what_a_policy_is_told_is_explained() -> None:
    assert not [word for word in INFORMATION if f"| `{word}` |" not in page("policies")]


def test_every_common_setting_is_explained_with_its_default() -> None:
    _, _, text = page("policies").partition("## Settings that every ordering takes")
    assert not [key for key, setting in COMMON.items() if row_of(key, setting) not in text]


def test_every_setting_that_every_policy_takes_is_explained_with_its_default() -> None:
    _, _, text = page("policies").partition("## Settings that every policy takes")
    settings = CPU_SETTINGS | FILL_SETTINGS
    assert not [key for key, setting in settings.items() if row_of(key, setting) not in text]


def row_of(key: str, setting: Setting) -> str:
    default = setting.default
    shown = ",".join(f"{v:g}" for v in default) if isinstance(default, tuple) else default
    shown = f"{shown:g}" if isinstance(shown, float) else shown
    return f"| `{key}` | `{shown}` |"


def test_every_flag_of_the_policy_contract_is_explained() -> None:
    flags = [
        name
        for name, value in vars(PolicyContract).items()
        if not name.startswith("_") and not callable(value)
    ]
    assert flags
    assert not missing(flags, page("policies"))


def test_every_figure_of_a_simulation_is_defined(tmp_path: Path) -> None:
    trace = tmp_path / "twenty.csv"
    with trace.open("wb") as file:
        write_trace(twenty_jobs(), file)
    case = Case("fifo", {}, Workload(str(trace)), "1x8", Costs(), history=True)
    summary = run_case(case).summary
    keys = [*summary, *summary["bins"], *summary["bins"]["SS"], *PER_JOB_COLUMNS]
    assert not missing(keys, page("simulator"))


def test_every_trace_column_and_format_is_explained() -> None:
    columns = [*COLUMNS, *FORMATS, *(column for needed in FORMATS.values() for column in needed)]
    assert not missing(columns, page("traces"))


def test_every_profile_and_every_figure_of_a_trace_is_explained() -> None:
    shape = shape_of(twenty_jobs(), 8)
    keys = [*PROFILES, *shape, "rejected_rows", *shape["duration_s"], *shape["sizes"][0]]
    assert not missing(keys, page("traces"))


def test_every_cost_has_its_default_in_the_table() -> None:
    for name, default in Costs()._asdict().items():
        assert f"| `--{name.replace('_', '-')}` | {default:g} s |" in page("simulator")
        assert not missing([name], page("simulator"))


def test_every_experiment_and_every_key_of_its_outcome_is_explained() -> None:
    keys = ["experiment", "seeds", "settings", "figures", "holds", *Figure._fields, "ok"]
    assert not missing([*names(), *keys], page("experiments"))


# -- the program -----------------------------------------------------------------------------------


def generated() -> str:
    spec = importlib.util.spec_from_file_location("generate_cli", DOCS / "generate_cli.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text: str = module.page()
    return text


def test_the_page_of_commands_is_what_the_program_says() -> None:
    assert page("cli") == generated(), "run: python docs/generate_cli.py"


def test_every_command_and_option_is_on_the_page() -> None:
    text = page("cli")
    for path, command in commands(cli, "rota"):
        section = re.search(rf"^### {path}\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
        assert section, f"{path} is not there"
        for option in command.params:
            if isinstance(option, click.Option):
                assert all(name in section[1] for name in option.opts), f"{path} {option.opts}"


def commands(group: click.Group, prefix: str) -> list[tuple[str, click.Command]]:
    context = click.Context(group)
    found: list[tuple[str, click.Command]] = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found.append((f"{prefix} {name}", command))
        if isinstance(command, click.Group):
            found += commands(command, f"{prefix} {name}")
    return found


def errors() -> list[type[rota.errors.RotaError]]:
    kinds = vars(rota.errors).values()
    return [k for k in kinds if inspect.isclass(k) and issubclass(k, rota.errors.RotaError)]


def test_every_error_is_listed_with_its_exit_code() -> None:
    for kind in errors():
        assert f"| `{kind.__name__}` | {_code(kind('x'))} |" in page("cli")


def test_the_variables_that_the_source_names_are_those_that_are_explained() -> None:
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "examples").glob("*.py")]
    pattern = re.compile(r"\bROTA_[A-Z_]*[A-Z]\b")
    used = {name for file in files for name in pattern.findall(file.read_text())}
    assert {"ROTA_HOME", "ROTA_JOB_ID"} <= used
    assert not missing(sorted(used), page("live"))
    told = {
        name for file in (ROOT / "docs").rglob("*.md") for name in pattern.findall(file.read_text())
    }
    assert told <= used


def test_every_key_of_top_is_explained() -> None:
    keys = [f"| `{key.key}` | {key.label.lower()}: " for key in (*KEYS, BACK)]
    assert not [key for key in keys if key not in page("live")]
    assert not missing([key.key for key in ANSWERS], page("live"))


# -- the API ---------------------------------------------------------------------------------------


def paths_of_api(tmp_path: Path) -> dict[str, Any]:
    folder = Folder(tmp_path).create()
    driver = SweepDriver(lambda: False, folder)
    controller = StandInController(folder)
    notifier = Notifier(controller.deliveries, controller.state, controller.now_s, folder)
    paths: dict[str, Any] = create_app(controller, folder, driver, notifier).openapi()["paths"]
    return paths


def test_every_route_is_listed(tmp_path: Path) -> None:
    schema = paths_of_api(tmp_path)
    routes = [f"{verb.upper()} {path}" for path, verbs in schema.items() for verb in verbs]
    assert "POST /api/v1/jobs" in routes
    assert not [route for route in routes if f"`{route}`" not in page("api")]
    assert "`GET /openapi.json`" in page("api")
    assert "`/agent/v1`" in page("api")


def test_every_query_parameter_is_explained(tmp_path: Path) -> None:
    schema = paths_of_api(tmp_path)
    wanted = {
        parameter["name"]
        for verbs in schema.values()
        for operation in verbs.values()
        for parameter in operation.get("parameters", ())
        if parameter["in"] == "query"
    }
    assert "tail" in wanted
    routes, _, _ = page("api").partition("## Python client")
    assert not missing(sorted(wanted), routes)


def test_every_key_of_a_job_is_explained(tmp_path: Path) -> None:
    import asyncio

    from rota.request.jobfile import JobRequest

    controller = StandInController(Folder(tmp_path))
    asyncio.run(
        controller.jobs.submit(JobRequest("n", "true", "/"), user="u", key=None, body_hash="")
    )
    told = asyncio.run(jobs.detail(controller, 0))
    assert not missing([*told, *told["eta"], *told["eta"]["error"]], page("api"))
    stands = gauges(standing(controller.state))
    shares = [*stands["users"].values(), *stands["queues"].values()]
    assert not missing([*stands, *chain(*shares), *Past().errors()], page("live"))
    assert not missing(controller.record.nodes()[0], page("api"))
    controller.state.notes.probes[0] = [Probe(0.0, "pack", 1.0, 1.0, True)]
    turns = Turns((0,), (), ((0,),), 1.0)
    verdict = explain(controller.state, 0, 1.0, turns=turns)
    told = [*verdict, *verdict["turns"], *verdict["blockers"][0], *verdict["trials"][0]]
    assert not missing([*told, "with", "on", "from", "on_trial", "gain"], page("api"))


def test_every_key_of_a_sweep_is_explained(tmp_path: Path) -> None:
    import asyncio

    from rota.request.jobfile import JobRequest

    controller = controller_without_agents(Folder(tmp_path).create())
    request = sweepfile.SweepRequest(JobRequest("s", "true", "/"), "m", True, (), "manual")

    async def told() -> dict[str, Any]:
        await controller.sweeps.submit_sweep(request, user="u", key=None, body_hash="")
        row = await controller.sweeps.submit_trial("s", 0, {})
        controller.journal.note(MetricReported(1.0, row, (Report(1, 1.0, 0.5),)))
        return controller.record.searches.tell("s")

    sweep = asyncio.run(told())
    brief = controller.record.searches.tell("s", brief=True)
    keys = [*sweep, *sweep["best"], *sweep["trials"][0], *brief["trials"], "driver_error"]
    assert not missing(keys, page("api"))
    assert not missing(OUTCOMES, page("api"))
    controller.record.store.close()


def test_every_column_of_jobs_is_explained() -> None:
    plain = {"ID", "NAME", "STATE", "QUEUE", "USER", "ATTEMPT", "EXIT", "MESSAGE", "PROGRESS"}
    words = re.findall(r"\b[A-Z]+\b", page("cli") + page("live"))
    assert not {*WIDE} - plain - {*words}


def test_every_key_of_a_profile_is_explained() -> None:
    state = ClusterState()
    state.apply(JobSubmitted(0.0, JobSpec("1", 1, 0.0, program=Program("python train.py", "/"))))
    for at_s in (1.0, 11.0):
        state.apply(WorkerReported(at_s, 0, {"at_s": at_s, "step": int(at_s)}))
    state.profiles.jobs[0].profile.timed(Placement("", 1), 1, 1.0)
    known = profiles.of_job(state, 0)
    assert not missing([*known, *known["own"], *known["own"]["speeds"][0]], page("api"))
    assert not missing(profiles.kinds(state)[0], page("api"))


def test_every_key_of_a_goodput_is_explained() -> None:
    point, batches = StepPoint(1, 1, 8, 1.0, 1.0), BatchRange(8, 64, 1, 8)
    told = Told((point,), (), None, batches, ((1, 1),), Present(1, 1, 8, 0))
    known = describe(told)
    assert known is not None
    assert not missing([*known, *known["curve"][0], *known["now"]], page("api"))
    assert not missing([MEASURED, BY_KIND, PREDICTED], page("api"))


def test_every_figure_that_a_report_may_hold_is_explained() -> None:
    assert not missing(Progress.__struct_fields__, page("api"))


def test_every_status_of_an_error_is_listed() -> None:
    assert not [s for s in STATUS.values() if not re.search(rf"^\|[^|]*\b{s}\b", page("api"), re.M)]


def test_every_method_of_the_client_is_explained() -> None:
    assert not missing(public(Client), page("api"))


# -- Python ----------------------------------------------------------------------------------------


def public(kind: type) -> list[str]:
    """What can be named of a class, also where a part of it that is ours is a class of its own."""
    own = [base for base in kind.__mro__ if base.__module__.startswith("rota.")]
    return [name for base in own for name in vars(base) if not name.startswith("_")]


def test_every_public_name_is_explained() -> None:
    texts = "\n".join(file.read_text() for file in PAGES)
    packages = [info for info in pkgutil.walk_packages(rota.__path__, "rota.") if info.ispkg]
    exported = {
        name: getattr(import_module(name), "__all__", [])
        for name in ["rota", *(info.name for info in packages)]
    }
    assert exported["rota.train"]
    assert not {name: gone for name, all_ in exported.items() if (gone := missing(all_, texts))}


def test_every_part_of_a_training_session_is_explained() -> None:
    attributes = [name for name in vars(Session()) if not name.startswith("_")]
    assert not missing(public(Session) + attributes, page("train"))


def test_every_part_of_a_program_of_many_devices_is_explained() -> None:
    kinds = [flow.Client, flow.Slice, flow.Function, flow.ShardedBuffer, flow.LocalIsland]
    told = [name for kind in kinds for name in public(kind)] + flow.__all__
    for function in (flow.connect, flow.local, flow.Client.slice, flow.Slice.function):
        told += [name for name in inspect.signature(function).parameters if name != "self"]
    # Where tensors pass; what follows a fork; where shards are, by worker.
    by_flow_alone = {"parcels", "forked", "lies"}
    assert not missing(set(told) - by_flow_alone, page("flow"))


def test_every_part_of_a_search_from_python_is_explained() -> None:
    names = [*public(Objective), *public(Run), *Result._fields, *TrialResult._fields]
    names += [*inspect.signature(Run).parameters, *inspect.signature(Objective).parameters]
    told_by_name = {"client", "interrupted"}  # what Run is made with, by Objective alone
    assert not missing(set(names) - told_by_name, page("sweeps"))


# -- pages -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", [*PAGES, ROOT / "examples" / "README.md"], ids=name_of)
def test_every_link_leads_somewhere(file: Path) -> None:
    text = re.sub(r"```.*?```", "", file.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        there = (file.parent / path).resolve() if path else file
        assert there.exists(), f"{target} is not there"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE)
            slugs = [re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings]
            assert anchor in slugs, f"{target}: there is no such heading"


def test_every_page_is_in_the_index() -> None:
    index = page("README")
    others = [str(file.relative_to(DOCS)) for file in DOCS.glob("*/*.md")]
    assert others
    assert not [name for name in others if f"({name})" not in index]


@pytest.mark.parametrize("file", PAGES, ids=name_of)
def test_every_make_target_exists(file: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", file.read_text(), re.MULTILINE))
    assert named <= targets


@pytest.mark.parametrize("file", PAGES, ids=name_of)
def test_every_command_that_is_shown_exists(file: Path) -> None:
    known = {path for path, _ in commands(cli, "rota")}
    shown = r"(?:`|^|\bbin/)rota ([a-z]+(?: [a-z]+)?)"
    for words in re.findall(shown, file.read_text(), re.MULTILINE):
        verb, _, sub = words.partition(" ")
        path = f"rota {verb} {sub}" if verb in ("sim", "experiment") and sub else f"rota {verb}"
        assert path in known, f"there is no `{path}`"


@pytest.mark.parametrize("file", [*PAGES, DOCS / "generate_cli.py"], ids=name_of)
def test_pages_speak_of_the_project_alone(file: Path) -> None:
    text = file.read_text()
    foreign = r"/work\b|/root\b|/tmp/|/home/|\bspecs/|\bissues? #?\d|https?://\S*"
    allowed = ("https://keepachangelog.com/", "https://semver.org/", "https://www.rfc-editor.org/")
    allowed += ("http://127.0.0.1:", "https://HOST:PORT", "https://gpu0.lab:7800")
    found = [hit for hit in re.findall(foreign, text) if not hit.startswith(allowed)]
    assert not found
