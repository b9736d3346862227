// Draws the page's charts from its own rows, in the reader's colours, and keeps their controls, legends and captions in step.
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const table = read("rows"), specs = read("specs"), dark = read("colours");
const rows = () => table.rows.map((row) => Object.fromEntries(table.columns.map((column, i) => [column, row[i]])));
const night = matchMedia("screen and (prefers-color-scheme: dark)");
const part = (name, what) => document.getElementById(`${name}-${what}`);
const button = (text, does, more) => Object.assign(document.createElement("button"), { type: "button", textContent: text, onclick: does, ...more });

// A colour is swapped where a value is one; names that hold one stay as they are.
const themed = (value) =>
  typeof value === "string" ? (night.matches && dark[value]) || value
    : Array.isArray(value) ? value.map(themed)
    : value && typeof value === "object" ? Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, themed(inner)]))
    : value;

// In the page buttons are a chart's legend of implementations; saved, it has its own.
const embed = async (element, name, saved, options) => {
  const spec = themed(specs[name]);
  const buttons = ({ legends, ...vega }) => ({ ...vega, legends: legends?.filter(({ orient }) => orient === "top") });
  const whole = { mode: "vega-lite", renderer: "svg", ast: false, actions: false, ...(spec.usermeta && !saved && { patch: buttons }), ...options };
  return (await vegaEmbed(element, { ...spec, datasets: { ...spec.datasets, rows: rows() } }, whole)).view;
};

// What a reader sets with a control or a legend; a selection in the chart itself is no such thing.
const chosen = (name) => (specs[name].params ?? []).filter((param) => !param.select && !["weak", "ink"].includes(param.name));
const has = (name, param) => views[name] && chosen(name).some((one) => one.name === param);
const state = (name) => Object.fromEntries(chosen(name).map((param) => [param.name, views[name].signal(param.name)]));
const put = (view, values) => Object.entries(values).forEach(([param, value]) => view.signal(param, value));

async function draw() {
  const kept = Object.fromEntries(Object.keys(views).map((name) => [name, state(name)]));
  for (const name of Object.keys(specs)) {
    part(name, "controls").replaceChildren();
    const view = await embed(part(name, "chart"), name, false, { tooltip: { theme: night.matches ? "dark" : "light" }, bind: part(name, "controls") });
    views[name]?.finalize();
    put(views[name] = view, kept[name] ?? {});
    await view.runAsync();
  }
  for (const name of Object.keys(specs)) {
    legend(name), saving(name);
    for (const param of chosen(name)) views[name].addSignalListener(param.name, () => changed(name, param.name));
    for (const param of chosen(name)) await changed(name, param.name);
  }
  document.documentElement.dataset.drawn = Object.keys(views).length;
}

// What is set above the first chart holds in the second, what is picked in any legend in all. The axis that lines run along stands nowhere.
async function changed(name, param) {
  const value = views[name].signal(param), followers = param === "picked" ? Object.keys(views) : name === "latency" ? ["memory"] : [];
  for (const other of followers) if (other !== name && has(other, param) && views[other].signal(param) !== value) await views[other].signal(param, value).runAsync();
  if (param === "picked") for (const one of part(name, "legend").children) one.setAttribute("aria-pressed", value.includes(one.value));
  if (param === "x_axis") for (const box of part(name, "controls").querySelectorAll("select")) box.disabled = box.name === `at_${value}`;
  views[name].runAfter(() => caption(name));
}

function legend(name) {
  const flipped = (picked, shown) => (picked.includes(shown) ? picked.filter((other) => other !== shown) : [...picked, shown]);
  const toggle = (shown) => views[name].signal("picked", flipped(views[name].signal("picked"), shown)).runAsync();
  part(name, "legend").replaceChildren(...(specs[name].usermeta?.legend ?? []).map(([shown, path, slot, compiled]) => {
    const colour = `var(--c${slot})`, made = button(shown, () => toggle(shown), { value: shown });
    made.insertAdjacentHTML("afterbegin", `<svg class="dot" viewBox="-1.7 -1.7 3.4 3.4" aria-hidden="true"><path d="${path}" stroke="${colour}" fill="${compiled ? "none" : colour}"/></svg>`);
    return made;
  }));
}

// What is drawn where lines end, from the least to the most.
const points = (item) => (item.role === "mark" && item.marktype === "symbol" ? item.items.map(({ datum }) => datum) : (item.items ?? []).flatMap(points));
function ends(name, axis) {
  const [column, text] = { latency: ["median", "time"], memory: ["peak_bytes", "memory"] }[name] ?? [], drawn = column && axis ? points(views[name].scenegraph().root) : [];
  const last = Math.max(...drawn.map((row) => row[axis])), [least, ...more] = drawn.filter((row) => row[axis] === last).sort((a, b) => a[column] - b[column]);
  return more.length ? `at ${axis} = ${last}: ${[least, more.at(-1)].map((row) => `${row[text]} (${row.shown})`).join(" to ")}` : "";
}

// What is chosen, in words; the sentence that was written for another choice gives way.
function caption(name) {
  const bound = chosen(name === "memory" && views.latency ? "latency" : name).filter(({ bind }) => bind), now = state(name);
  const said = bound.filter((param) => param.name.startsWith("at_") && param.name !== `at_${now.x_axis}` && param.name in now).map(({ name: param, bind }) => `${bind.name.trim()} = ${bind.labels[bind.options.indexOf(now[param])]}`);
  const [finding, live] = part(name, "caption").children;
  finding.hidden = chosen(name).some((param) => /^(at_|x_axis$)/.test(param.name) && now[param.name] !== param.value);
  live.textContent = [said.length ? `Shown: ${said.join(", ")}` : "", ends(name, now.x_axis), now.picked?.length ? `picked: ${now.picked.join(", ")}` : ""].filter(Boolean).join(" · ");
}

function saving(name) {
  const save = async (kind) => {
    const view = await embed(document.createElement("div"), name, true, { tooltip: false });
    put(view, state(name));
    await view.width(900).background(getComputedStyle(document.documentElement).getPropertyValue("--surface").trim()).runAsync();
    Object.assign(document.createElement("a"), { href: await view.toImageURL(kind, 2), download: `${name}.${kind}` }).click();
  };
  part(name, "save").replaceChildren("save as ", ...["png", "svg"].map((kind) => button(kind.toUpperCase(), () => save(kind))));
}

const cell = (value) => (value === null ? "" : /[",\n\r]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : String(value));
document.getElementById("download").addEventListener("click", (event) => {
  const text = [table.columns, ...table.rows].map((row) => row.map(cell).join(",")).join("\r\n");
  event.currentTarget.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
});

let views = {}, drawn = draw(); night.addEventListener("change", () => { drawn = drawn.then(draw); });
