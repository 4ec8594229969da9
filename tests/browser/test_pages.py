"""The pages in a browser: clicks, what changes while one looks, restarts, looks, names."""

import re
from itertools import cycle

import pytest

from .conftest import until

PAGES = ("/", "/queue", "/timeline", "/decisions", "/searches", "/people", "/job/{job}")
WIDTHS = {"phone": 390, "tablet": 820, "desk": 1440}


@pytest.fixture(scope="session")
def job(cluster):
    """A training that has taken some steps."""
    job = cluster.submit("first")
    cluster.steps("first", 5)
    cluster.until_state(job, "RUNNING")
    return job


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_fit_for_all_in_both_colours(seen, job, path, tmp_path_factory):
    photographs = tmp_path_factory.getbasetemp() / "photographs"
    photographs.mkdir(exist_ok=True)
    name = path.format(job="").strip("/") or "cluster"
    for colour in ("light", "dark"):
        seen.page.emulate_media(color_scheme=colour)
        page = seen.open(path.format(job=job))
        page.locator(".rota-grid:visible, canvas:visible").first.wait_for()
        for what, width in WIDTHS.items():
            page.set_viewport_size({"width": width, "height": 860})
            over = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            until(lambda over=over, page=page: page.evaluate(over) <= 0, "nothing sticks out")
            page.screenshot(path=photographs / f"{name}-{what}-{colour}.png")
        assert seen.axe() == []


def test_a_job_shows_up_while_one_looks_and_is_gone_when_it_has_ended(seen, cluster):
    page = seen.open("/queue")
    job = cluster.submit("shows-up")
    row = page.locator(f'.ag-row[row-id="{job}"]')
    row.get_by_text("running", exact=True).wait_for()
    cluster.client.cancel(job)
    row.get_by_text("cancelled", exact=True).wait_for()


def test_buttons_suspend_resume_and_cancel_after_one_question(seen, cluster):
    job = cluster.submit("steered")
    cluster.steps("steered", 3)
    cluster.until_state(job, "RUNNING")
    page = seen.open("/queue")
    row = page.locator(f'.ag-row[row-id="{job}"]')
    row.get_by_text("running", exact=True).click()
    page.get_by_role("button", name=f"Suspend job {job}").click()
    suspended = row.get_by_text("suspended", exact=True)

    def is_off() -> bool:
        cluster.steps("steered", 1)
        return suspended.is_visible()

    until(is_off, "it is suspended")
    page.get_by_text("suspended by", exact=False).first.wait_for()
    page.get_by_role("button", name=f"Resume job {job}").click()
    row.get_by_text("running", exact=True).wait_for()
    page.get_by_role("button", name=f"Cancel job {job}").click()
    page.get_by_role("button", name="Keep it").click()
    page.locator("dialog").wait_for(state="detached")
    assert cluster.state(job) == "RUNNING"
    page.get_by_role("button", name=f"Cancel job {job}").click()
    assert seen.axe() == []
    page.get_by_role("button", name="Cancel the job").click()
    row.get_by_text("cancelled", exact=True).wait_for()


def test_a_node_is_drained_after_one_question_and_enabled(seen, cluster):
    page = seen.open("/")
    node = sorted(each["name"] for each in cluster.client.nodes())[1]
    row = page.locator(f'.ag-row[row-id="{node}"]')
    row.get_by_text("ready", exact=True).click()
    page.get_by_role("button", name=f"Drain {node}").click()
    page.locator("dialog").get_by_role("button", name="Drain").click()
    row.get_by_text(re.compile("^drain(ing|ed)$")).wait_for()
    page.get_by_role("button", name=f"Enable {node}").click()
    row.get_by_text("ready", exact=True).wait_for()


def test_output_and_loss_come_as_they_are_told_and_nothing_in_them_is_run(seen, cluster):
    job = cluster.submit("told")
    page = seen.open(f"/job/{job}")
    log = page.get_by_role("log")
    log.get_by_text("<img src=x onerror=", exact=False).wait_for()
    cluster.steps("told", 2)
    log.get_by_text("step 1 is done", exact=False).wait_for()
    text = log.inner_text()
    assert " red\n" in text and "\x1b" not in text and "\\u202egnp" in text
    assert max(map(len, text.split("\n"))) < 5000
    figures = page.locator(".figure")

    def is_told() -> bool:
        cluster.steps("told", 1)
        return figures.filter(has_text=re.compile(r"^0\.\d+loss$")).is_visible() and (
            page.get_by_text("<b>acc</b> by step").is_visible()
        )

    until(is_told, "loss and metric are on the page")
    assert page.evaluate("document.title") != "run"
    cluster.client.cancel(job)


def test_each_number_names_the_command_that_prints_it(seen):
    page = seen.open("/")
    page.locator(".figure", has_text="jobs waiting").focus()
    page.locator("#command", has_text="rota ps --filter state=PENDING").wait_for()
    page = seen.open("/queue")
    row = page.locator(".ag-row").first
    row.wait_for()
    row.locator('[col-id="reason"]').hover()
    job = row.get_attribute("row-id")
    page.locator("#command").get_by_text(f"rota why {job}", exact=True).wait_for()
    row.locator('[col-id="gpus"]').hover()
    page.locator("#command").get_by_text(f"rota show {job}", exact=True).wait_for()
    page = seen.open("/decisions")
    page.locator('.ag-row [col-id="change"]').first.hover()
    page.locator("#command").get_by_text("rota top", exact=True).wait_for()


def test_a_controller_that_dies_is_told_of_and_all_is_current_when_it_is_back(seen, cluster):
    page = seen.open("/queue")
    page.evaluate("window.notReloaded = true")
    cluster.kill_controller()
    banner = page.get_by_role("alert")
    banner.get_by_text("The controller does not answer", exact=False).wait_for(timeout=3000)
    cluster.up()
    banner.wait_for(state="hidden")
    job = cluster.submit("after")
    page.locator(f'.ag-row[row-id="{job}"]').get_by_text("running", exact=True).wait_for()
    assert page.evaluate("window.notReloaded")
    cluster.client.cancel(job)


def test_ages_are_by_the_clusters_clock(signed_in, dashboard, cluster, job):
    page = signed_in.new_page()
    page.add_init_script(
        "const D = Date; Date = class extends D { constructor(...a) "
        "{ super(...(a.length ? a : [D.now() + 864e5])) } static now() { return D.now() + 864e5 } }"
    )
    page.goto(f"{dashboard.url}/queue")
    row = page.locator(f'.ag-row[row-id="{job}"]')
    age = row.locator('[col-id="submit_s"]', has_text=re.compile(r"^\d+m?\d*s$"))
    age.wait_for()
    page.close()


def test_the_timeline_is_moved_by_keys_and_leads_to_jobs(seen, job):
    page = seen.open("/timeline")
    canvas = page.locator(".timeline canvas")
    until(lambda: page.evaluate("document.querySelector('.timeline').dataset.drawn > 0"), "drawn")
    canvas.focus()
    span = "document.querySelector('.timeline').dataset.span"
    before = float(page.evaluate(span))
    page.keyboard.press("+")
    until(lambda: float(page.evaluate(span)) < before, "a shorter time is shown")
    page.keyboard.press("Home")
    until(lambda: float(page.evaluate(span)) >= before, "all of it is shown")


def test_the_keyboard_reaches_a_cell_and_its_job(seen, job):
    page = seen.open("/")
    page.locator(".gpus canvas").focus()
    status = page.locator(".gpus [role=status]")

    keys = cycle(["ArrowRight"] * 4 + ["ArrowLeft"] * 4)  # the job may be told of meanwhile

    def next_cell_is_of_the_job() -> bool:
        page.keyboard.press(next(keys))
        return "first" in status.inner_text()

    until(next_cell_is_of_the_job, "the cell of the job is reached")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/job/\d+$"))


def test_dark_and_light_are_kept(seen):
    page = seen.open("/people")
    dark = "document.body.classList.contains('body--dark')"
    before = page.evaluate(dark)
    page.get_by_role("button", name="Change between dark and light").click()
    until(lambda: page.evaluate(dark) != before, "the other colours")
    page = seen.open("/")
    until(lambda: page.evaluate(dark) != before, "they are kept")
    page.get_by_role("button", name="Change between dark and light").click()
    until(lambda: page.evaluate(dark) == before, "the first colours again")
    page.context.clear_cookies(name="rota-ui-look")
