// Draws the page's charts from its own rows, in the reader's colours. One state turns charts, captions, tables and the address.
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const table = read("rows"), specs = read("specs"), controls = read("controls"), pairs = read("pairs"), dark = read("colours");
const records = table.rows.map((row) => Object.fromEntries(table.columns.map((column, i) => [column, row[i]])));
const ratios = pairs.rows.map(([row, over, speed, low, high, text]) => ({ ...records[row], row, over: pairs.over[over], speed, low, high, text }));
const night = matchMedia("screen and (prefers-color-scheme: dark)"), wide = matchMedia("(min-width: 700px)");
const part = (name, what) => document.getElementById(`${name}-${what}`), all = (query) => [...document.querySelectorAll(query)];
const button = (text, does, more) => Object.assign(document.createElement("button"), { type: "button", textContent: text, onclick: does, ...more });
const escaped = (text) => String(text).replace(/[&<>"']/g, (letter) => `&#${letter.charCodeAt(0)};`);

// What is chosen: a value for each control, and the names that are singled out. The address holds what differs from the start.
const state = { ...Object.fromEntries(controls.map(({ name, value }) => [name, value])), picked: [] };
const short = (name) => name.replace("at_", ""), worded = (control, value) => control?.options.find(([one]) => String(one) === String(value))?.[1] ?? value;
function fromAddress() {
  const said = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
  for (const { name, options, value } of controls) state[name] = (options.find(([one]) => String(one) === said.get(short(name))) ?? [value])[0];
  state.picked = said.getAll("picked");
}
function toAddress() {
  const said = controls.filter(({ name, value }) => state[name] !== value).map(({ name }) => [short(name), state[name]]);
  const text = new URLSearchParams([...said, ...state.picked.map((name) => ["picked", name])]).toString();
  if (location.protocol !== "about:") history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search); // in a notebook there is none
}

// A colour is swapped where a value is one; names that hold one stay as they are.
const themed = (value) =>
  typeof value === "string" ? (night.matches && dark[value]) || value : Array.isArray(value) ? value.map(themed)
    : value && typeof value === "object" ? Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, themed(inner)])) : value;

// All that is drawn, as rows; and for a tip, all series at one point, the least first.
const points = (item) => (item.role === "mark" && item.marktype === "symbol" ? item.items.map(({ datum }) => datum) : (item.items ?? []).flatMap(points));
const least = { latency: ["median", "time"], memory: ["peak_bytes", "memory"], rate: ["rate", "achieved"], roof: ["roof", "reached"] };
const drawnIn = (name) => (least[name] && views[name] ? points(views[name].scenegraph().root) : []).sort((a, b) => a[least[name][0]] - b[least[name][0]]);
const tip = (name) => ({ x, ...facts }) => {
  const others = (row) => row.x === x && (row.shown !== facts.implementation || row.run !== facts.run);
  const beside = drawnIn(name).filter(others).map((row) => [row.run ? `${row.shown}, ${row.run}` : row.shown, row[least[name][1]]]);
  const line = ([key, value]) => `<tr><td class="key">${escaped(key)}</td><td class="value">${escaped(worded(controls.find(({ label }) => label === key), value))}</td></tr>`;
  return `<table>${[...Object.entries(facts), ...(x === undefined ? [] : beside)].map(line).join("")}</table>`;
};

// In the page buttons are a chart's legend of implementations; saved, it has its own. Panels share the room, side by side where it is wide.
const sharing = (room, side) => (one) => (one.name === "child_width" ? { name: one.name, update: `max(80, ${room - 165} / clamp(length(data('facet_domain')), 1, ${side}) - 26)` } : one);
async function embed(element, name, saved) {
  const spec = themed(specs[name]), side = wide.matches ? spec.columns : 1, copies = (rows) => rows.map((row) => ({ ...row }));
  const patch = ({ legends, signals, ...vega }) => ({ ...vega, signals: signals?.map(sharing(element.clientWidth || 900, side)), legends: legends?.filter(({ orient }) => saved || !spec.usermeta || orient === "top") });
  const options = { mode: "vega-lite", renderer: "svg", ast: false, actions: false, patch, tooltip: !saved && { theme: night.matches ? "dark" : "light", formatTooltip: tip(name) } };
  return put((await vegaEmbed(element, { ...spec, ...(spec.facet && { columns: side }), datasets: { ...spec.datasets, rows: copies(records), pairs: copies(ratios) } }, options)).view, name).runAsync();
}
const own = (name) => (specs[name].params ?? []).filter((param) => !param.select && param.name in state).map((param) => param.name);
const put = (view, name) => own(name).reduce((one, param) => one.signal(param, state[param]), view).resize(); // other names, other room

let views = {}, drawn = Promise.resolve(), turn = 0;
const shown = () => Object.keys(specs).filter((name) => !document.getElementById(name).hidden);
async function draw(again) {
  for (const figure of all("figure[data-number]")) figure.hidden = state.show !== undefined && figure.id !== state.show;
  for (const name of shown()) {
    if (views[name] && !again) await put(views[name], name).runAsync();
    else views[name]?.finalize(), (views[name] = await embed(part(name, "chart"), name)), legend(name), saving(name);
    caption(name);
  }
  for (const one of all(".legend button")) one.setAttribute("aria-pressed", state.picked.includes(one.value));
  for (const box of all("select[name]")) (box.value = String(state[box.name])), (box.disabled = box.name === `at_${state.x_axis}` && !all("[data-at]").length);
  for (const one of all("[data-at]")) one.hidden = Object.entries(JSON.parse(one.dataset.at)).some(([axis, value]) => `at_${axis}` in state && state[`at_${axis}`] !== value);
  for (const one of all(".none")) one.hidden = all(one.dataset.of).some((other) => !other.hidden);
  for (const one of all("[data-over]")) one.textContent = state.over ?? one.dataset.over;
  if (state.over) for (const one of all("[data-row]")) one.textContent = against.get(`${one.dataset.row} ${state.over}`) ?? (records[one.dataset.row].impl === state.over ? "1" : "–");
  Object.assign(document.documentElement.dataset, { drawn: Object.keys(views).length, turn: (turn += 1) });
}
const against = new Map(ratios.map(({ row, over, text }) => [`${row} ${over}`, text]));

// A choice for which nothing was measured takes the others along, to the nearest case that was.
function measured(name, value) {
  const axes = controls.map((one) => one.name).filter((one) => /^at_(?!run$)/.test(one)), wanted = { ...state, [name]: value };
  const like = (row) => axes.filter((one) => row[short(one)] === wanted[one]).length + (row[short(name)] === value ? axes.length : 0);
  const nearest = axes.includes(name) && records.reduce((best, row) => (like(row) > like(best) ? row : best));
  return nearest ? Object.fromEntries(axes.map((one) => [one, nearest[short(one)]])) : { [name]: value };
}

// Changes follow each other: a chart is never turned while it is drawn.
const change = (values, again) => (Object.assign(state, values), toAddress(), (drawn = drawn.then(() => draw(again))));

function legend(name) {
  const toggle = (one) => change({ picked: state.picked.includes(one) ? state.picked.filter((other) => other !== one) : [...state.picked, one] });
  part(name, "legend").replaceChildren(...(specs[name].usermeta?.legend ?? []).map(([one, path, slot, compiled]) => {
    const colour = `var(--c${slot})`, made = button(one, () => toggle(one), { value: one });
    made.insertAdjacentHTML("afterbegin", `<svg class="dot" viewBox="-1.7 -1.7 3.4 3.4" aria-hidden="true"><path d="${path}" stroke="${colour}" fill="${compiled ? "none" : colour}"/></svg>`);
    return made;
  }));
}

// What is chosen, in words, and what is drawn where lines end; the sentence that was written for another choice gives way.
function caption(name) {
  const [finding, live] = part(name, "caption").children, first = specs[name].params?.find((param) => param.name === "x_axis")?.value;
  const axis = first && (state.x_axis ?? first), mine = controls.filter((one) => own(name).includes(one.name) && one.name !== `at_${axis}`);
  const said = mine.filter((one) => /^(at_|over)/.test(one.name)).map((one) => `${one.label}${one.name === "over" ? "" : " ="} ${worded(one, state[one.name])}`);
  finding.hidden = finding.dataset.holds === undefined && mine.some(({ name: param, value }) => /^(at_|x_axis|over)/.test(param) && state[param] !== value);
  const there = drawnIn(name), last = Math.max(...there.map((row) => row[axis])), ends = there.filter((row) => row[axis] === last);
  const range = ends.length > 1 ? `at ${axis} = ${last}: ${[ends[0], ends.at(-1)].map((row) => `${row[least[name][1]]} (${row.shown})`).join(" to ")}` : "";
  live.textContent = [said.length ? `Shown: ${said.join(", ")}` : "", range, state.picked.length ? `picked: ${state.picked.join(", ")}` : ""].filter(Boolean).join(" · ");
}

function saving(name) {
  const save = async (kind) => {
    const view = await embed(document.createElement("div"), name, true), ground = getComputedStyle(document.documentElement).getPropertyValue("--surface").trim();
    await (specs[name].facet ? view : view.width(900)).background(ground).runAsync();
    Object.assign(document.createElement("a"), { href: await view.toImageURL(kind, 2), download: `${name}.${kind}` }).click();
  };
  part(name, "save").replaceChildren("save as ", ...["png", "svg"].map((kind) => button(kind.toUpperCase(), () => save(kind), { ariaLabel: `Save ${name} as ${kind.toUpperCase()}` })));
}

const cell = (value) => (value === null ? "" : /[",\n\r]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : String(value));
document.getElementById("download").addEventListener("click", (event) => {
  const text = [table.columns, ...table.rows].map((row) => row.map(cell).join(",")).join("\r\n");
  event.currentTarget.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
});
for (const box of all("select[name]")) box.addEventListener("change", () => change(measured(box.name, controls.find(({ name }) => name === box.name).options[box.selectedIndex][0])));
for (const [media, again] of [[night, true], [wide, true]]) media.addEventListener("change", () => change({}, again));
addEventListener("hashchange", () => location.hash.includes("=") && (fromAddress(), change({})));
fromAddress(), change({});
