// Chooses the case that is shown, by the heat map's cells or the list, and by which axis the heat map's columns go.
const all = (query, root = document) => [...root.querySelectorAll(query)];
const pick = document.getElementById("pick"), view = document.getElementById("view"), every = document.getElementById("every");
const cells = all("[data-to]"), known = new Set(all(".case").map((one) => one.dataset.case));

function choose(key) {
  if (!known.has(key)) return;
  for (const kind of [".case", ".lines"]) { // lines that don't run through the case stay
    const ones = all(kind), mine = ones.filter((one) => one.dataset.case.split(" ").includes(key));
    const shown = mine.length || kind !== ".lines" ? mine : ones.filter((one) => !one.hidden).slice(0, 1);
    for (const one of ones) one.hidden = !shown.includes(one);
  }
  for (const cell of cells) cell.toggleAttribute("data-on", cell.dataset.to.split(" ").includes(key));
  if (pick) pick.value = key;
}
function chosen(keys) {
  const [key] = keys.split(" ");
  choose(key);
  const id = document.querySelector(`.case[data-case="${key}"]`)?.id;
  if (id && location.protocol !== "about:") history.replaceState(null, "", `#${encodeURIComponent(id)}`); // in a notebook there is no address
}
function reach(cell) { // one cell of a table is reached by Tab, the others from it by arrows
  for (const other of all("[data-to]", cell.closest("table"))) other.tabIndex = other === cell ? 0 : -1;
}
for (const table of all("table.heat")) {
  const first = table.querySelector("[data-to]");
  if (first) reach(first);
  table.addEventListener("click", ({ target }) => target.dataset.to && (reach(target), chosen(target.dataset.to)));
  table.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    const cell = step && event.target.closest("td"), row = cell?.parentElement;
    const next = row?.parentElement.rows[row.sectionRowIndex + step[0]]?.cells[cell.cellIndex + step[1]]?.querySelector("[data-to]");
    if (!next) return;
    event.preventDefault(), reach(next), next.focus(), chosen(next.dataset.to);
    next.scrollIntoView({ block: "nearest", inline: "nearest" }); // focus() may leave it behind the first column
  });
}
pick?.addEventListener("change", () => chosen(pick.value));
view?.addEventListener("change", () => all("[data-view]").forEach((one) => (one.hidden = one.dataset.view !== view.value)));
every?.addEventListener("click", () => every.setAttribute("aria-pressed", document.body.classList.toggle("every")));
const linked = () => all(".case").find((one) => one.id === decodeURIComponent(location.hash.slice(1)))?.dataset.case;
addEventListener("hashchange", () => choose(linked()));
choose(linked() ?? pick?.value);
