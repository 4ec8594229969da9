// Time, ages and small renderers that all pages share. Ages are those of the cluster's clock: the
// browser's own is asked only for how much time has passed.
"use strict";
window.rota = (() => {
  let base = null;
  const COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8a8f98"];
  const setNow = (nowS) => { base = nowS - performance.now() / 1000; };
  const now = () => (base === null ? 0 : base + performance.now() / 1000);

  const duration = (seconds) => {
    if (seconds === null || seconds === undefined) return "–";
    const s = Math.max(0, Math.floor(seconds)), two = (n) => String(n).padStart(2, "0");
    if (s < 60) return `${s}s`;
    if (s < 3600) return `${Math.floor(s / 60)}m${two(s % 60)}s`;
    if (s < 86400) return `${Math.floor(s / 3600)}h${two(Math.floor((s % 3600) / 60))}m`;
    return `${Math.floor(s / 86400)}d${two(Math.floor((s % 86400) / 3600))}h`;
  };
  const clock = (atS) => {
    const at = new Date(atS * 1000), today = new Date(now() * 1000);
    const time = at.toLocaleTimeString([], { hour12: false });
    return at.toDateString() === today.toDateString() ? time : `${at.toLocaleDateString()} ${time}`;
  };
  const age = (atS, endS) => (base === null || atS === null ? "" : duration((endS ?? now()) - atS));
  const colourOf = (id) => {
    let hash = 7;
    for (const char of String(id)) hash = (hash * 31 + char.charCodeAt(0)) >>> 0;
    return COLOURS[hash % COLOURS.length];
  };
  const ink = (name) => getComputedStyle(document.body).getPropertyValue(name).trim();

  const tick = () => {
    if (base === null) return;
    for (const e of document.querySelectorAll("[data-age]")) e.textContent = age(+e.dataset.age);
    for (const e of document.querySelectorAll("[data-clock]")) {
      e.textContent = clock(+e.dataset.clock);
    }
  };
  setInterval(tick, 1000);
  // Ages in grids grow as well; only the rows that are seen are drawn.
  const ages = (params) => {
    const columns = params.api.getColumns().filter((each) => each.getColDef().context?.ages);
    const again = () => {
      if (params.api.isDestroyed()) return clearInterval(timer);
      params.api.refreshCells({ columns, force: true });
    };
    const timer = setInterval(again, 1000);
  };

  // The command that prints what is pointed at stands in the foot of the page.
  const tell = (event) => {
    const e = event.target.closest?.("[data-command]");
    const foot = document.getElementById("command");
    const told = e?.dataset.command ?? ofCell(event.target.closest?.(".ag-cell"));
    if (told && foot) foot.textContent = told;
  };
  const ofCell = (cell) => {
    const grid = cell?.closest("[data-commands]"), row = cell?.closest("[row-id]");
    if (!grid || !row) return null;
    const commands = JSON.parse(grid.dataset.commands);
    const command = commands[cell.getAttribute("col-id")] ?? commands[""];
    return command?.replace("ROW", () => row.getAttribute("row-id"));
  };
  for (const kind of ["focusin", "pointerover", "click"]) document.addEventListener(kind, tell);

  const TONES = { RUNNING: "good", SUCCEEDED: "good", FAILED: "bad", LOST: "bad", TIMEOUT: "bad",
    TARGET: "good", DONE: "good", OPEN: "good",
    PENDING: "wait", SUSPENDED: "wait", SUSPENDING: "wait", STARTING: "wait", RESUMING: "wait",
    HELD: "wait", UNREACHABLE: "bad", DRAINED: "wait", DRAINING: "wait", CORDONED: "wait", READY: "good" };
  const badge = (params) => {
    const e = document.createElement("span");
    e.className = `badge ${TONES[params.value] ?? ""}`;
    e.textContent = String(params.value ?? "").toLowerCase();
    return e;
  };
  const link = (prefix) => (params) => {
    const e = document.createElement("a");
    e.href = prefix + encodeURIComponent(params.data.id);
    e.textContent = params.value ?? "";
    e.tabIndex = -1;
    return e;
  };
  // On a narrow screen a grid shows its first columns only.
  const fit = (params) => {
    const width = params.clientWidth, columns = params.api.getColumns() ?? [];
    for (const column of columns) {
      const need = column.getColDef().context?.from ?? 0;
      const wanted = width >= need;
      if (column.isVisible() !== wanted) params.api.setColumnsVisible([column.getColId()], wanted);
    }
  };
  // A canvas of the element's size, in device pixels.
  const sized = (canvas, width, height) => {
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const g = canvas.getContext("2d");
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    return g;
  };
  return { setNow, now, duration, clock, age, tick, ages, badge, link, fit, colourOf, ink, sized };
})();
