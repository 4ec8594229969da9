// Who held which GPU when: a line for each GPU, zoomed from months to seconds.
const LEFT = 112, TOP = 22, LEAST_S = 1, MOST_PX_ROW = 22;

export default {
  template: `<div class="timeline">
    <canvas ref="canvas" tabindex="0" role="application" :aria-label="label"
      @wheel.prevent="wheel" @pointerdown="grab" @pointermove="move" @pointerup="drop"
      @pointerleave="leave" @keydown="key" @dblclick="all"></canvas>
    <div class="tip" ref="tip"></div>
    <div class="hidden-text" role="status" ref="said"></div></div>`,
  props: { label: String, job: String },
  mounted() {
    Object.assign(this, { rows: [], gpus: [], byNumber: new Map(), from: 0, to: 1, follows: true,
      first: Infinity });
    this.watch = new ResizeObserver(() => this.ask());
    this.watch.observe(this.$el);
    this.looks = new MutationObserver(() => this.ask());
    this.looks.observe(document.body, { attributes: true, attributeFilter: ["class"] });
    this.timer = setInterval(() => this.follows && this.ask(), 500);
    this.load();
  },
  unmounted() {
    this.watch.disconnect();
    this.looks.disconnect();
    clearInterval(this.timer);
  },
  methods: {
    async load() {
      const answer = await fetch(`/data/timeline?job=${encodeURIComponent(this.job ?? "")}`);
      if (!answer.ok) return;
      const told = await answer.json();
      rota.setNow(told.now_s);
      this.add(told);
      this.$emit("loaded", told.change);
      this.all();
    },
    // Columns of pieces: number, GPU, job, start, end (null: it goes on).
    add(told) {
      told.gpus.forEach((gpu, i) => (this.gpus[told.first_gpu + i] = gpu));
      while (this.rows.length < this.gpus.length) {
        this.rows.push({ start: [], end: [], job: [], colour: [], dye: [], lane: [], top: [], stale: true, lanes: [] });
      }
      const p = told.pieces;
      for (let i = 0; i < p.number.length; i++) {
        const known = this.byNumber.get(p.number[i]);
        if (known) {
          const [row, at] = [this.rows[known[0]], known[1]];
          row.end[at] = p.end_s[i] ?? Infinity;
          row.lanes[row.lane[at]] = row.end[at];
          row.stale = true;
          if (p.end_s[i] !== null) this.byNumber.delete(p.number[i]);
          continue;
        }
        const row = this.rows[p.gpu[i]];
        row.start.push(p.start_s[i]);
        row.end.push(p.end_s[i] ?? Infinity);
        row.job.push(p.job[i]);
        row.colour.push(rota.colourOf(p.job[i]));
        row.dye.push(dyeOf(row.colour[row.colour.length - 1]));
        let lane = row.lanes.findIndex((end) => end <= p.start_s[i]);
        if (lane < 0) lane = row.lanes.length;
        row.lanes[lane] = row.end[row.end.length - 1];
        row.lane.push(lane);
        row.stale = true;
        this.first = Math.min(this.first, p.start_s[i]);
        if (p.end_s[i] === null) this.byNumber.set(p.number[i], [p.gpu[i], row.start.length - 1]);
      }
      if (!this.order || this.order.length !== this.gpus.length) {
        this.order = this.gpus.map((_, i) => i).sort((a, b) =>
          this.gpus[a][0].localeCompare(this.gpus[b][0], undefined, { numeric: true }) ||
          this.gpus[a][1] - this.gpus[b][1]);
      }
      this.ask();
    },
    all() {
      const now = rota.now();
      const first = Number.isFinite(this.first) ? this.first : now - 60;
      const margin = Math.max(2, (now - first) * 0.03);
      this.view(first - margin, now + margin);
      this.follows = true;
    },
    span(seconds) {
      const now = rota.now();
      this.view(now - seconds * 0.95, now + seconds * 0.05);
      this.follows = true;
    },
    view(from, to) {
      const most = 400 * 86400, width = Math.max(LEAST_S, Math.min(most, to - from));
      const middle = (from + to) / 2;
      this.from = middle - width / 2;
      this.to = middle + width / 2;
      this.seen = rota.now();
      this.ask();
    },
    zoom(factor, x) {
      const at = this.from + ((x - LEFT) / this.wide()) * (this.to - this.from);
      this.view(at - (at - this.from) * factor, at + (this.to - at) * factor);
      this.follows = this.to > rota.now();
    },
    pan(share) {
      const by = (this.to - this.from) * share;
      this.view(this.from + by, this.to + by);
      this.follows = this.to > rota.now();
    },
    wide() { return Math.max(1, this.$refs.canvas.clientWidth - LEFT); },
    ask() {
      if (this.asked) return;
      this.asked = true;
      requestAnimationFrame(() => { this.asked = false; this.draw(); });
    },
    draw() {
      const canvas = this.$refs.canvas;
      if (!canvas || !canvas.clientWidth) return;
      const now = rota.now();
      if (this.follows && this.seen && now > this.seen) {
        this.from += now - this.seen;
        this.to += now - this.seen;
        this.seen = now;
      }
      const count = Math.max(1, this.rows.length);
      const most = Math.min(720, Math.max(240, window.innerHeight * 0.66));
      canvas.style.height = `${Math.min(most, TOP + 4 + count * MOST_PX_ROW)}px`;
      const width = canvas.clientWidth, height = canvas.clientHeight, wide = this.wide();
      const g = rota.sized(canvas, width, height);
      const soft = rota.ink("--soft"), rule = rota.ink("--rule"), idle = rota.ink("--idle");
      const high = Math.min(MOST_PX_ROW, (height - TOP) / count), perS = wide / (this.to - this.from);
      this.high = high;
      g.clearRect(0, 0, width, height);
      g.font = "11.5px Roboto, system-ui, sans-serif";
      g.textBaseline = "middle";
      ticks(g, this.from, this.to, wide, Math.min(height, TOP + high * count), soft, rule);
      let drawn = 0, node = null, named = -Infinity;
      const bars = [{}, {}], names = []; // by colour: a change of colour is what takes long
      const across = Math.ceil(wide), dust = new Uint32Array(across * count); // pieces of a pixel
      let dusty = false;
      for (let line = 0; line < this.rows.length; line++) {
        const gpu = this.order[line], row = this.rows[gpu], y = TOP + line * high;
        const [name, index] = this.gpus[gpu];
        if (name !== node) {
          node = name;
          g.fillStyle = rule;
          g.fillRect(0, Math.round(y) - 0.5, width, 0.7);
        }
        if (high >= 13 || y - named >= 13) {
          g.fillStyle = soft;
          g.fillText(`${name}:${index}`, 0, y + high / 2, LEFT - 8);
          named = y;
        }
        g.fillStyle = idle;
        g.fillRect(LEFT, y + Math.min(1, high * 0.1), wide, Math.max(0.5, high - 2));
        const edges = [];
        for (let i = after(row, this.from); i < row.start.length && row.start[i] < this.to; i++) {
          const lane = Math.min(1, row.lane[i]), edge = edges[lane] ?? -1;
          if (row.end[i] <= this.from) continue;
          const x0 = Math.max(0, (row.start[i] - this.from) * perS);
          const x1 = Math.min(wide, (Math.min(row.end[i], now) - this.from) * perS);
          drawn++;
          if (x1 - x0 < 2) {
            dusty = true;
            dust.fill(row.dye[i], line * across + Math.floor(x0), line * across + Math.ceil(x1));
            // What ends within this pixel can't be seen.
            if (x1 - x0 < 1) i = Math.max(i, after(row, this.from + Math.ceil(x1) / perS) - 1);
            continue;
          }
          if (x1 - edge < 1) continue;
          const left = Math.max(x0, edge), over = y + Math.min(1, high * 0.1) + (lane ? high / 2 : 0);
          const bar = Math.max(0.8, x1 - left - (x1 - left > 3 ? 1 : 0));
          (bars[lane][row.colour[i]] ??= []).push(LEFT + left, over, bar,
            Math.max(0.5, (lane ? high / 2 : high) - 2));
          if (x1 - left > 26 && high >= 13 && !lane) names.push([row.job[i], left, y, x1 - left - 8]);
          edges[lane] = x1;
        }
      }
      if (dusty) {
        const sheet = new OffscreenCanvas(across, count), pixels = new Uint8ClampedArray(dust.buffer);
        sheet.getContext("2d").putImageData(new ImageData(pixels, across, count), 0, 0);
        g.imageSmoothingEnabled = false;
        g.drawImage(sheet, LEFT, TOP, across, high * count);
        g.fillStyle = rota.ink("--card");
        for (let line = 1; line <= count && high > 3; line++) {
          g.fillRect(LEFT, TOP + line * high - 1, wide, 1);
        }
      }
      for (const [colour, shapes] of bars.flatMap(Object.entries)) { // the lower half comes last
        g.fillStyle = colour;
        for (let i = 0; i < shapes.length; i += 4) {
          g.fillRect(shapes[i], shapes[i + 1], shapes[i + 2], shapes[i + 3]);
        }
      }
      g.fillStyle = "#fff";
      g.strokeStyle = "rgba(0,0,0,.55)";
      g.lineWidth = 2.5;
      for (const [name, left, y, room] of names) {
        g.strokeText(name, LEFT + left + 5, y + high / 2, room);
        g.fillText(name, LEFT + left + 5, y + high / 2, room);
      }
      const at = LEFT + (now - this.from) * perS;
      if (at > LEFT && at < width) {
        g.fillStyle = rota.ink("--bad");
        g.fillRect(at, TOP - 4, 1, high * count + 4);
      }
      Object.assign(this.$el.dataset, { drawn, span: this.to - this.from });
    },
    found(event) {
      const box = this.$refs.canvas.getBoundingClientRect();
      const x = event.clientX - box.left, y = event.clientY - box.top;
      const line = Math.floor((y - TOP) / this.high), gpu = this.order?.[line];
      if (gpu === undefined || x < LEFT) return null;
      const at = this.from + ((x - LEFT) / this.wide()) * (this.to - this.from), row = this.rows[gpu];
      let i = row.start.length - 1;
      const first = after(row, at);
      while (i >= first && (row.start[i] > at || row.end[i] <= at)) i--;
      if (i < first) return null;
      return { x, y, gpu, job: row.job[i], start: row.start[i], end: row.end[i] };
    },
    wheel(event) {
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) return this.pan(event.deltaX / this.wide());
      this.zoom(Math.exp(event.deltaY / 400), event.clientX - this.$refs.canvas.getBoundingClientRect().left);
    },
    grab(event) {
      this.held = { x: event.clientX, began: event.clientX };
      this.$refs.canvas.setPointerCapture(event.pointerId);
    },
    move(event) {
      if (this.held) {
        this.pan((this.held.x - event.clientX) / this.wide());
        this.held.x = event.clientX;
        return;
      }
      const it = this.found(event), tip = this.$refs.tip;
      tip.textContent = it ? `job ${it.job} on ${this.gpus[it.gpu].join(":")}\n${rota.clock(it.start)} for ${rota.duration(Math.min(it.end, rota.now()) - it.start)}${it.end === Infinity ? ", and goes on" : ""}` : "";
      if (it) {
        tip.style.left = `${Math.max(0, Math.min(it.x + 12, this.$el.clientWidth - tip.offsetWidth))}px`;
        tip.style.top = `${it.y + 14}px`;
      }
    },
    drop(event) {
      const moved = this.held && Math.abs(event.clientX - this.held.began) > 3;
      this.held = null;
      const it = moved ? null : this.found(event);
      if (it) window.location.href = `/job/${encodeURIComponent(it.job)}`;
    },
    leave() {
      this.held = null;
      this.$refs.tip.textContent = "";
    },
    key(event) {
      const middle = LEFT + this.wide() / 2;
      const act = { ArrowLeft: () => this.pan(-0.2), ArrowRight: () => this.pan(0.2),
        "+": () => this.zoom(0.6, middle), "=": () => this.zoom(0.6, middle),
        "-": () => this.zoom(1 / 0.6, middle), Home: () => this.all() }[event.key];
      if (!act) return;
      act();
      event.preventDefault();
      this.$refs.said.textContent = `from ${rota.clock(this.from)} to ${rota.clock(this.to)}`;
    },
  },
};

// The first piece of a GPU before which all have ended at a time. Jobs that share it overlap.
function after(row, at) {
  if (row.stale) {
    let top = -Infinity;
    row.top = row.end.map((end) => (top = Math.max(top, end)));
    row.stale = false;
  }
  let low = 0, high = row.top.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (row.top[middle] <= at) low = middle + 1;
    else high = middle;
  }
  return low;
}

// A colour as a pixel of an image: alpha, blue, green, red.
function dyeOf(colour) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

const STEPS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400,
  2 * 86400, 7 * 86400, 14 * 86400, 30 * 86400, 90 * 86400];

function ticks(g, from, to, wide, bottom, soft, rule) {
  const step = STEPS.find((each) => (each / (to - from)) * wide > 84) ?? STEPS[STEPS.length - 1];
  const zone = new Date(from * 1000).getTimezoneOffset() * 60;
  for (let at = Math.ceil((from - zone) / step) * step + zone; at < to; at += step) {
    const x = LEFT + ((at - from) / (to - from)) * wide, when = new Date(at * 1000);
    g.fillStyle = rule;
    g.fillRect(x, TOP - 6, 0.7, bottom - TOP + 6);
    g.fillStyle = soft;
    const text = step >= 86400 ? when.toLocaleDateString([], { month: "short", day: "numeric" })
      : step >= 60 ? when.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false })
      : when.toLocaleTimeString([], { hour12: false }) + (step < 1 ? `.${Math.round((at % 1) * 10)}` : "");
    if (x < LEFT + wide - 50) g.fillText(text, x + 3, TOP - 13);
  }
}
