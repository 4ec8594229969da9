// The end of a job's output. Lines are text, never markup; the view stays at the end while it is there.
const MOST_LINES = 2000;

export default {
  template: `<pre class="log" tabindex="0" role="log" aria-live="off" :aria-label="label"></pre>`,
  props: { label: String },
  methods: {
    add(text) {
      const e = this.$el, atEnd = e.scrollHeight - e.scrollTop - e.clientHeight < 30;
      e.append(text);
      const lines = e.textContent.split("\n");
      if (lines.length > MOST_LINES * 1.2) e.textContent = lines.slice(-MOST_LINES).join("\n");
      else if (e.childNodes.length > 200) e.textContent = e.textContent;
      if (atEnd) e.scrollTop = e.scrollHeight;
    },
    clear() { this.$el.textContent = ""; },
  },
};
