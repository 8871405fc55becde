"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  {% include "theme.js" %}

  function element(name, properties, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(properties || {})) {
      if (key in made) made[key] = value; else made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  }

  // -- figures and texts as they are written; spaces and line breaks of a token are made visible

  const visible = (text) => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replace(/^ | $/g, "·");
  const digits = (value) => (value !== 0 && Math.abs(value) < 0.001 ? value.toExponential(2) : value.toFixed(Math.abs(value) < 1 ? 4 : 3));
  const signed = (value, text) => (value > 0 ? "+" : "") + text;
  const WRITTEN = {
    text: visible,
    whole: String,
    number: digits,
    share: (value) => `${digits(100 * value)} %`,
    signed_share: (value) => signed(value, `${digits(100 * value)} %`),
  };
  const isShort = (field) => field.kind in WRITTEN;

  // -- the tip that shows a cell's figures

  const tip = document.getElementById("tip");
  let tipOf = null;
  function place() {
    const at = tipOf.getBoundingClientRect(), box = tip.getBoundingClientRect();
    const below = at.bottom + 6 + box.height < innerHeight;
    tip.style.left = `${Math.max(4, Math.min(at.left, innerWidth - box.width - 4))}px`;
    tip.style.top = `${Math.max(4, below ? at.bottom + 6 : at.top - box.height - 6)}px`;
  }
  function showTip(cell, text) {
    tipOf = cell;
    tip.textContent = text;
    tip.hidden = false;
    place();
  }
  function hideTip() { tip.hidden = true; tipOf = null; }
  // What scrolls to a cell says so only after the cell was reached: its tip stays, and goes with it.
  addEventListener("scroll", () => { if (tipOf && (tipOf === document.activeElement || tipOf.matches(":hover"))) place(); else hideTip(); }, { passive: true, capture: true });
  addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });

  // -- a grid

  function draw(figure) {
    const { part, side, number } = figure.dataset;
    const found = part === "written" ? data.written : data.parts[part][side];
    const grid = found.grids[Number(number)];
    const colours = grid.fields.filter((field) => field.colours);
    const shown = grid.fields.find((field) => field.name === grid.shown);
    const marked = (which, place) => grid.marks === which && grid.marked.includes(place);
    const name = (row, column) => `${grid.row} ${visible(grid.rows[row]).replace(`${grid.row} `, "")}, ${grid.column} ${visible(grid.columns[column])}`;
    const known = (row, column) => grid.fields.filter((field) => field.values[row][column] !== null);
    const summary = (row, column) => [name(row, column),
      ...known(row, column).filter(isShort).map((field) => `${field.name}: ${WRITTEN[field.kind](field.values[row][column])}`)].join("\n");

    const table = element("table", { role: "grid", "aria-label": `${grid.title}, ${side}` });
    const head = element("tr", {}, element("td", { className: "none" }));
    grid.columns.forEach((text, place) => head.append(
      element("th", { scope: "col", textContent: visible(text), title: text, className: marked("columns", place) ? "marked" : "" })));
    table.append(element("thead", {}, head));
    const body = element("tbody");
    const cells = grid.rows.map((text, row) => {
      const line = element("tr", {}, element("th", { scope: "row", textContent: visible(text), className: marked("rows", row) ? "marked" : "" }));
      const made = grid.columns.map((_, column) => {
        const value = shown ? shown.values[row][column] : null;
        const cell = element("td", { role: "gridcell", tabIndex: -1, textContent: value === null ? "" : WRITTEN[shown.kind](value) });
        if (!known(row, column).length) cell.className = "none";
        cell.dataset.row = row;
        cell.dataset.column = column;
        line.append(cell);
        return cell;
      });
      body.append(line);
      return made;
    });
    table.append(body);

    // One field at a time colours the cells: from 0 to the largest, or to both sides of 0.
    const low = element("span"), bar = element("i"), high = element("span");
    function colour(field) {
      // Both sides have one scale, where both have the field.
      const twin = found === data.written ? null : data.parts[part][side === "before" ? "after" : "before"].grids[Number(number)];
      const sides = [field, twin?.fields.find((one) => one.name === field.name)].filter(Boolean);
      const values = sides.flatMap((one) => one.values.flat()).filter((value) => value !== null);
      const most = Math.max(...values.map(Math.abs), 1e-12);
      const both = values.some((value) => value < 0);
      cells.forEach((line, row) => line.forEach((cell, column) => {
        const value = field.values[row][column];
        cell.style.setProperty("--depth", value === null ? 0 : (Math.abs(value) / most).toFixed(3));
        cell.style.setProperty("--hue", value < 0 ? "var(--less)" : "var(--more)");
      }));
      const end = (hue) => `color-mix(in srgb, var(${hue}) 62%, var(--raised))`;
      low.textContent = both ? WRITTEN[field.kind](-most) : "0";
      high.textContent = WRITTEN[field.kind](most);
      bar.style.background = `linear-gradient(to right, ${both ? `${end("--less")}, ` : ""}var(--raised), ${end("--more")})`;
      figure.dataset.colour = field.name;
    }
    const tools = element("div", { className: "tools" });
    if (colours.length > 1) {
      const select = element("select", { "aria-label": `Coloured by (${grid.title}, ${side})` });
      colours.forEach((field, place) => select.append(element("option", { value: place, textContent: field.name })));
      select.addEventListener("change", () => colour(colours[Number(select.value)]));
      tools.append(element("label", {}, "coloured by ", select));
    } else if (colours.length) tools.append(`coloured by ${colours[0].name}`);
    if (colours.length) tools.append(element("span", { className: "scale" }, low, bar, high));

    // -- what a click shows: all that is known of a cell

    const details = element("div", { className: "details", role: "status" });
    function written(field, value) {
      if (isShort(field)) return [WRITTEN[field.kind](value)];
      if (field.kind === "lines") return [element("ul", {}, ...value.map((text) => element("li", { textContent: text })))];
      return value.map(([text, score]) => element("span", { className: "word" }, visible(text), " ", element("small", { textContent: digits(score) })));
    }
    let selected = null;
    function select(cell) {
      if (selected) selected.setAttribute("aria-selected", "false");
      const row = Number(cell.dataset.row), column = Number(cell.dataset.column);
      if (selected === cell) { selected = null; details.replaceChildren(); return; }
      selected = cell;
      cell.setAttribute("aria-selected", "true");
      const list = element("dl");
      for (const field of known(row, column)) {
        list.append(element("dt", { textContent: field.name }), element("dd", {}, ...written(field, field.values[row][column])));
      }
      details.replaceChildren(element("h4", { textContent: name(row, column) }), list);
    }

    // -- mouse and keyboard; one cell of the grid can be reached with Tab, the others with the arrows

    const cellOf = (event) => event.target.closest("td[role=gridcell]:not(.none)");
    let entry = cells.flat().find((cell) => cell.className !== "none");
    if (entry) entry.tabIndex = 0;
    function enter(cell) {
      if (entry) entry.tabIndex = -1;
      entry = cell;
      cell.tabIndex = 0;
    }
    table.addEventListener("mouseover", (event) => {
      const cell = cellOf(event);
      if (cell) showTip(cell, summary(Number(cell.dataset.row), Number(cell.dataset.column))); else hideTip();
    });
    table.addEventListener("mouseleave", hideTip);
    table.addEventListener("focusin", (event) => {
      const cell = cellOf(event);
      if (cell) { enter(cell); showTip(cell, summary(Number(cell.dataset.row), Number(cell.dataset.column))); }
    });
    table.addEventListener("focusout", hideTip);
    table.addEventListener("click", (event) => { const cell = cellOf(event); if (cell) { enter(cell); select(cell); } });
    const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    table.addEventListener("keydown", (event) => {
      const cell = cellOf(event);
      if (!cell) return;
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); select(cell); return; }
      if (!(event.key in STEPS)) return;
      event.preventDefault();
      const [down, across] = STEPS[event.key];
      let row = Number(cell.dataset.row) + down, column = Number(cell.dataset.column) + across;
      while (cells[row]?.[column]?.className === "none") { row += down; column += across; }
      const next = cells[row]?.[column];
      if (next) { next.focus(); next.scrollIntoView({ block: "nearest", inline: "nearest" }); }
    });

    figure.append(tools, element("div", { className: "scroll" }, table), details);
    if (colours.length) colour(colours[0]);
    if (part === "written" && entry) select(entry);
  }
  document.querySelectorAll("figure.grid").forEach(draw);
})();
