// A cell for each GPU, by node: who holds it, and in what state it is.
export default {
  template: `<div class="gpus">
    <canvas ref="canvas" tabindex="0" role="application" :aria-label="label"
      @pointermove="point" @pointerleave="leave" @click="open" @keydown="key" @blur="leave"></canvas>
    <div class="tip" ref="tip"></div>
    <div class="hidden-text" role="status" ref="said"></div></div>`,
  props: { label: String },
  data: () => ({ nodes: [], cells: [], at: -1 }),
  mounted() {
    this.watch = new ResizeObserver(() => this.draw());
    this.watch.observe(this.$el);
    this.looks = new MutationObserver(() => this.draw());
    this.looks.observe(document.body, { attributes: true, attributeFilter: ["class"] });
  },
  unmounted() {
    this.watch.disconnect();
    this.looks.disconnect();
  },
  methods: {
    show(nodes) {
      this.nodes = Object.freeze(nodes);
      this.draw();
    },
    draw() {
      const canvas = this.$refs.canvas, width = this.$el.clientWidth;
      if (!width) return;
      const total = this.nodes.reduce((sum, node) => sum + node.gpus.length, 0);
      const [w, h] = total > 2048 ? [12, 12] : total > 256 ? [26, 20] : [46, 28];
      const most = Math.max(1, ...this.nodes.map((node) => node.gpus.length));
      const per = Math.max(1, Math.min(most, Math.floor((width - 2) / w), 16));
      const block = per * w, columns = Math.max(1, Math.floor((width + 22) / (block + 22)));
      const lines = Math.ceil(most / per), step = 20 + lines * h + 14;
      const height = Math.max(1, Math.ceil(this.nodes.length / columns)) * step;
      canvas.style.height = `${height}px`;
      const g = rota.sized(canvas, width, height);
      const look = { ink: rota.ink("--ink"), soft: rota.ink("--soft"), idle: rota.ink("--idle"),
        bad: rota.ink("--bad"), wait: rota.ink("--wait"), card: rota.ink("--card") };
      this.cells = [];
      this.nodes.forEach((node, n) => {
        const left = (n % columns) * (block + 22), top = Math.floor(n / columns) * step;
        g.font = "12px Roboto, system-ui, sans-serif";
        g.fillStyle = node.state === "UNREACHABLE" || node.state === "LOST" ? look.bad : look.soft;
        const state = node.state === "READY" ? "" : ` · ${node.state.toLowerCase()}`;
        g.fillText(`${node.name}${node.type ? ` · ${node.type}` : ""}${state}`, left, top + 13, block + 16);
        node.gpus.forEach((gpu, i) => {
          const x = left + (i % per) * w, y = top + 20 + Math.floor(i / per) * h;
          drawCell(g, x, y, w - 3, h - 3, gpu, node, look);
          this.cells.push({ x, y, w, h, node, i, gpu });
        });
      });
      this.per = per;
      if (this.at >= 0 && this.cells[this.at] && document.activeElement === canvas) {
        const cell = this.cells[this.at];
        g.strokeStyle = look.ink;
        g.lineWidth = 2;
        g.strokeRect(cell.x, cell.y, cell.w - 3, cell.h - 3);
      }
    },
    words(cell) {
      const who = cell.gpu.jobs.map((job) => `job ${job.id} (${job.name})`);
      const parts = [`${cell.node.name}, GPU ${cell.i}`];
      parts.push(who.length ? who.join(" and ") : "free");
      if (cell.gpu.jobs.length > 1) parts.push("shared");
      if (cell.gpu.fill) parts.push(`background job ${cell.gpu.fill}`);
      if (cell.gpu.trial) parts.push("in trial");
      if (cell.node.state !== "READY") parts.push(cell.node.state.toLowerCase());
      return parts;
    },
    cellAt(event) {
      const box = this.$refs.canvas.getBoundingClientRect();
      const x = event.clientX - box.left, y = event.clientY - box.top;
      return this.cells.findIndex((c) => x >= c.x && x < c.x + c.w && y >= c.y && y < c.y + c.h);
    },
    tell(index) {
      const tip = this.$refs.tip, cell = this.cells[index];
      tip.textContent = cell ? this.words(cell).join("\n") : "";
      if (!cell) return;
      tip.style.left = `${Math.max(0, Math.min(cell.x, this.$el.clientWidth - tip.offsetWidth))}px`;
      tip.style.top = `${cell.y + cell.h + 2}px`;
    },
    point(event) {
      const index = this.cellAt(event);
      this.$refs.canvas.style.cursor = this.cells[index]?.gpu.jobs.length ? "pointer" : "default";
      this.tell(index);
    },
    leave() {
      this.tell(-1);
      this.draw();
    },
    open(event) {
      const job = this.cells[this.cellAt(event)]?.gpu.jobs[0];
      if (job) window.location.href = `/job/${encodeURIComponent(job.id)}`;
    },
    key(event) {
      const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.per, ArrowUp: -this.per }[event.key];
      if (step) {
        this.at = Math.max(0, Math.min(this.cells.length - 1, this.at < 0 ? 0 : this.at + step));
        this.draw();
        this.tell(this.at);
        this.$refs.said.textContent = this.cells[this.at] ? this.words(this.cells[this.at]).join(", ") : "";
        event.preventDefault();
      } else if (event.key === "Enter" && this.cells[this.at]?.gpu.jobs.length) {
        window.location.href = `/job/${encodeURIComponent(this.cells[this.at].gpu.jobs[0].id)}`;
      }
    },
  },
};

function drawCell(g, x, y, w, h, gpu, node, look) {
  const gone = node.state === "UNREACHABLE" || node.state === "LOST";
  g.globalAlpha = gone ? 0.35 : 1;
  g.fillStyle = look.idle;
  g.fillRect(x, y, w, h);
  const n = gpu.jobs.length;
  gpu.jobs.forEach((job, i) => {
    g.fillStyle = rota.colourOf(job.id);
    g.fillRect(x + (i * w) / n, y, w / n - (i < n - 1 ? 1 : 0), h);
    if (w / n > 20) {
      g.fillStyle = "#fff";
      g.strokeStyle = "rgba(0,0,0,.55)";
      g.lineWidth = 2.5;
      g.font = "600 11.5px Roboto, system-ui, sans-serif";
      g.textAlign = "center";
      g.strokeText(job.id, x + ((i + 0.5) * w) / n, y + h / 2 + 4, w / n - 4);
      g.fillText(job.id, x + ((i + 0.5) * w) / n, y + h / 2 + 4, w / n - 4);
      g.textAlign = "start";
    }
  });
  g.globalAlpha = 1;
  if (gpu.fill) {
    g.fillStyle = look.ink;
    g.fillRect(x + 2, y + h - 5, Math.max(3, w / 3), 3);
  }
  if (gpu.trial) {
    g.strokeStyle = look.ink;
    g.lineWidth = 1.5;
    g.setLineDash([3, 2]);
    g.strokeRect(x + 1, y + 1, w - 2, h - 2);
    g.setLineDash([]);
  }
  if (gone || node.state !== "READY") {
    g.strokeStyle = gone ? look.bad : look.wait;
    g.lineWidth = 1.2;
    g.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
    if (gone) {
      g.beginPath();
      g.moveTo(x, y + h);
      g.lineTo(x + w, y);
      g.stroke();
    }
  }
}
