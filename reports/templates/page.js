// Draws the page's charts from its own rows, in the reader's colours, and keeps their controls in step.
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const table = read("rows"), specs = read("specs"), dark = read("colours");
const rows = () => table.rows.map((row) => Object.fromEntries(table.columns.map((column, i) => [column, row[i]])));
const night = matchMedia("(prefers-color-scheme: dark)");
let views = {};

// A colour is swapped where a value is one; names that hold one stay as they are.
const themed = (value) =>
  typeof value === "string" ? (night.matches && dark[value]) || value
    : Array.isArray(value) ? value.map(themed)
    : value && typeof value === "object" ? Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, themed(inner)]))
    : value;

const options = (name) => ({
  mode: "vega-lite", renderer: "svg", ast: false, tooltip: { theme: night.matches ? "dark" : "light" },
  actions: { export: true, source: false, compiled: false, editor: false }, downloadFileName: name,
  bind: document.getElementById(`${name}-controls`),
});

// What a reader sets with a control; a selection in the chart itself is no such thing.
const chosen = (name) => (specs[name].params ?? []).filter((param) => !param.select);

async function draw() {
  const set = (name, view) => chosen(name).map((param) => [param.name, view.signal(param.name)]);
  const kept = Object.fromEntries(Object.entries(views).map(([name, view]) => [name, set(name, view)]));
  for (const name of Object.keys(specs)) {
    document.getElementById(`${name}-controls`).replaceChildren();
    const spec = { ...themed(specs[name]), datasets: { ...themed(specs[name]).datasets, rows: rows() } };
    const { view } = await vegaEmbed(document.getElementById(`${name}-chart`), spec, options(name));
    views[name]?.finalize();
    views[name] = view;
    for (const [param, value] of kept[name] ?? []) view.signal(param, value);
    await view.runAsync();
  }
  for (const param of specs.latency ? chosen("latency") : []) follow(param.name);
  Object.keys(specs).forEach(free);
  document.documentElement.dataset.drawn = Object.keys(views).length;
}

// What is set above the first chart holds in the second.
function follow(param) {
  if (!views.memory || !chosen("memory").some(({ name }) => name === param)) return;
  const pass = (_, value) => views.memory.signal(param, value).runAsync();
  views.latency.addSignalListener(param, pass);
  pass(param, views.latency.signal(param));
}

// The axis that lines run along stands nowhere.
function free(name) {
  if (!chosen(name).some((param) => param.name === "x_axis")) return;
  const mark = (_, axis) => document.querySelectorAll(`#${name}-controls select`)
    .forEach((box) => { box.disabled = box.name === `at_${axis}`; });
  views[name].addSignalListener("x_axis", mark);
  mark("x_axis", views[name].signal("x_axis"));
}

const cell = (value) => (value === null ? "" : /[",\n\r]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : String(value));
document.getElementById("download").addEventListener("click", (event) => {
  const text = [table.columns, ...table.rows].map((row) => row.map(cell).join(",")).join("\r\n");
  event.currentTarget.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
});

let drawn = draw();
night.addEventListener("change", () => { drawn = drawn.then(draw); });
