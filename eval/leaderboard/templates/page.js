"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const COLOURS = 8; // --c0 to --c7
  // As many as colours: of the first eight no two share either, of the first 64 no two share both.
  const SHAPES = ["circle", "square", "triangle", "diamond", "down", "cross", "left", "right"];
  const PAGE = 25;

  function element(name, properties, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(properties || {})) {
      if (key in made) made[key] = value; else made.setAttribute(key, value);
    }
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
  }

  function drawn(name, attributes, ...children) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  {% include "theme.js" %}

  // -- sorting: a click (or Enter) on a heading sorts, the next one turns it round; what has no value stays last

  function sort(table, place, descending) {
    const body = table.tBodies[0];
    const value = (row) => row.cells[place].dataset.value;
    const rows = [...body.rows].map((row, number) => ({ row, number, value: value(row) }));
    const numeric = rows.every(({ value }) => value === "" || !Number.isNaN(Number(value)));
    rows.sort((a, b) => {
      if ((a.value === "") !== (b.value === "")) return a.value === "" ? 1 : -1;
      const order = numeric ? Number(a.value) - Number(b.value) : a.value.localeCompare(b.value);
      return (descending ? -order : order) || a.number - b.number;
    });
    body.append(...rows.map(({ row }) => row));
    for (const head of table.tHead.rows[0].cells) head.setAttribute("aria-sort", "none");
    table.tHead.rows[0].cells[place].setAttribute("aria-sort", descending ? "descending" : "ascending");
  }

  for (const table of document.querySelectorAll("table[data-board]")) {
    [...table.tHead.rows[0].cells].forEach((head, place) => {
      head.querySelector("button").addEventListener("click", () => {
        const now = head.getAttribute("aria-sort");
        const bestFirst = head.dataset.better === "high";
        sort(table, place, now === "none" ? bestFirst : now === "ascending");
      });
    });
  }

  // -- plots

  const look = (number) => ({
    colour: `var(--c${number % COLOURS})`,
    shape: SHAPES[(number + Math.floor(number / COLOURS)) % SHAPES.length],
  });

  function marker(x, y, number, hollow) {
    const { colour, shape } = look(number);
    const style = { fill: hollow ? "var(--ground)" : colour, stroke: colour, "stroke-width": 2 };
    if (shape === "circle") return drawn("circle", { cx: x, cy: y, r: 6, ...style });
    const corners = {
      square: [[-5.5, -5.5], [5.5, -5.5], [5.5, 5.5], [-5.5, 5.5]],
      triangle: [[0, -7], [6.5, 5], [-6.5, 5]],
      diamond: [[0, -7.5], [7.5, 0], [0, 7.5], [-7.5, 0]],
      down: [[0, 7], [6.5, -5], [-6.5, -5]],
      cross: [[-2, -6], [2, -6], [2, -2], [6, -2], [6, 2], [2, 2], [2, 6], [-2, 6], [-2, 2], [-6, 2], [-6, -2], [-2, -2]],
      left: [[-7, 0], [5, -6.5], [5, 6.5]],
      right: [[7, 0], [-5, -6.5], [-5, 6.5]],
    }[shape];
    return drawn("polygon", { points: corners.map(([a, b]) => `${x + a},${y + b}`).join(" "), ...style });
  }

  const share = (unit) => data.shares[unit]; // undefined for figures that are not between 0 and 1

  function shown(value, unit) {
    if (value === null || value === undefined) return "–";
    if (share(unit)) return (share(unit).factor * value).toFixed(share(unit).digits);
    if (unit === null) return String(Math.round(value)); // a number of edits
    return Math.abs(value) >= 100 ? value.toFixed(0) : value.toPrecision(3);
  }

  function ticks(low, high) {
    const rough = (high - low) / 5 || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
    const found = [];
    // Each from its own number of steps, and rounded: sums of steps miss zero by 3e-18.
    const last = Math.floor(high / step + 1e-9);
    for (let n = Math.ceil(low / step - 1e-9); n <= last; n++) found.push(Number((n * step).toPrecision(12)) + 0);
    return found;
  }

  const W = 640, H = 420, LEFT = 64, RIGHT = 20, TOP = 14, BOTTOM = 48;

  // Over T on a logarithmic axis, if it spans more than a factor of 20.
  function frame(xs, ys, xName, yName, xUnit, yUnit) {
    const wide = xUnit === null && Math.min(...xs) > 0 && Math.max(...xs) / Math.min(...xs) > 20;
    const scale = wide ? Math.log10 : (value) => value;
    const range = (values, unit) => {
      if (share(unit) && Math.min(...values) >= 0) return [0, 1];
      const low = Math.min(...values), high = Math.max(...values), pad = (high - low || Math.abs(high) || 1) * 0.06;
      return [low - pad, high + pad];
    };
    const [x0, x1] = range(xs.map(scale), xUnit), [y0, y1] = range(ys, yUnit);
    const x = (value) => LEFT + (scale(value) - x0) / (x1 - x0) * (W - LEFT - RIGHT);
    const y = (value) => H - BOTTOM - (value - y0) / (y1 - y0) * (H - TOP - BOTTOM);
    const svg = drawn("svg", { viewBox: `0 0 ${W} ${H}`, role: "img" });
    for (const at of wide ? [...new Set(xs)] : ticks(x0, x1)) {
      svg.append(drawn("line", { class: "grid", x1: x(at), x2: x(at), y1: TOP, y2: H - BOTTOM }));
      svg.append(drawn("text", { class: "tick", x: x(at), y: H - BOTTOM + 16, "text-anchor": "middle" }, shown(at, xUnit)));
    }
    for (const at of ticks(y0, y1)) {
      svg.append(drawn("line", { class: "grid", x1: LEFT, x2: W - RIGHT, y1: y(at), y2: y(at) }));
      svg.append(drawn("text", { class: "tick", x: LEFT - 8, y: y(at) + 4, "text-anchor": "end" }, shown(at, yUnit)));
    }
    svg.append(drawn("line", { class: "axis", x1: LEFT, x2: W - RIGHT, y1: H - BOTTOM, y2: H - BOTTOM }));
    svg.append(drawn("line", { class: "axis", x1: LEFT, x2: LEFT, y1: TOP, y2: H - BOTTOM }));
    svg.append(drawn("text", { x: (LEFT + W - RIGHT) / 2, y: H - 10, "text-anchor": "middle" }, xName));
    svg.append(drawn("text", { x: 0, y: 0, "text-anchor": "middle", transform: `translate(16 ${(TOP + H - BOTTOM) / 2}) rotate(-90)` }, yName));
    return { svg, x, y };
  }

  function chooser(label, columns, chosen, redraw) {
    const select = element("select", {}, ...columns.map((column) => new Option(column.title, column.key, false, column.key === chosen)));
    select.addEventListener("change", redraw);
    return { select, node: element("label", {}, `${label} `, select) };
  }

  function legend(rows) {
    return element("ul", { className: "legend" }, ...rows.map(({ row, number }) => {
      const key = drawn("svg", { viewBox: "0 0 20 20", "aria-hidden": "true" }, marker(10, 10, number, Boolean(row.control)));
      return element("li", {}, key, row.label);
    }));
  }

  const numbered = (board) => board.rows.map((row, number) => ({ row, number }));
  const heading = (column) => `${column.title}${column.unit ? ` (${column.unit})` : ""}`;

  function scatter(figure, board) {
    const has = (key) => board.rows.some((row) => row.cells[key]);
    const columns = board.columns.filter((column) => has(column.key));
    const first = (axis) => data.axes[axis].find(has) || (columns[0] && columns[0].key);
    if (columns.length < 2) return;
    const redraw = () => {
      const [xc, yc] = [across, up].map(({ select }) => columns.find((column) => column.key === select.value));
      const rows = numbered(board).filter(({ row }) => row.cells[xc.key] && row.cells[yc.key]);
      const ends = (column) => rows.flatMap(({ row }) => [row.cells[column.key].value, row.cells[column.key].low, row.cells[column.key].high]).filter((value) => value !== null);
      const { svg, x, y } = frame(ends(xc), ends(yc), heading(xc), heading(yc), xc.unit, yc.unit);
      svg.setAttribute("aria-label", `${yc.title} against ${xc.title}, one point an editor, with 95 % intervals; the table has the figures`);
      const bars = [], points = [];
      for (const { row, number } of rows) {
        const a = row.cells[xc.key], b = row.cells[yc.key], { colour } = look(number);
        const bar = (x1, y1, x2, y2) => bars.push(drawn("line", { x1, y1, x2, y2, stroke: colour, "stroke-width": 1.5, opacity: 0.6 }));
        if (a.low !== null) bar(x(a.low), y(b.value), x(a.high), y(b.value));
        if (b.low !== null) bar(x(a.value), y(b.low), x(a.value), y(b.high));
        const point = marker(x(a.value), y(b.value), number, Boolean(row.control));
        point.append(drawn("title", {}, `${row.label}: ${xc.short} ${shown(a.value, xc.unit)}, ${yc.short} ${shown(b.value, yc.unit)}`));
        points.push(point);
      }
      svg.append(...bars, ...points);
      figure.querySelector(".drawing").replaceChildren(svg, legend(rows));
    };
    const across = chooser("against", columns, first("across"), redraw);
    const up = chooser("Plot", columns, first("up"), redraw);
    figure.append(element("figcaption", {}, up.node, across.node, element("span", { className: "quiet" }, "(hollow: controls)")));
    figure.append(element("div", { className: "drawing" }));
    redraw();
  }

  function curve(figure, board) {
    const lines = numbered(board).map(({ row, number }) => ({ row, number, points: (row.runs[0] || { curve: [] }).curve }))
      .filter(({ points }) => points.length > 1);
    if (!lines.length) return;
    const keys = new Set(lines.flatMap(({ points }) => points.flatMap(({ metrics }) => Object.keys(metrics))));
    const columns = board.columns.flatMap((column) => [
      column,
      { ...column, key: `fixed.${column.key}`, title: `prompts nobody edits: ${column.title}` },
    ]).filter((column) => keys.has(column.key));
    if (!columns.length) return;
    const value = (point, column) => (point.metrics[column.key] || [null])[0];
    const redraw = () => {
      const column = columns.find(({ key }) => key === metric.select.value);
      const rows = lines.map((line) => ({ ...line, points: line.points.filter((point) => value(point, column) !== null) })).filter(({ points }) => points.length);
      const { svg, x, y } = frame(
        rows.flatMap(({ points }) => points.map(({ t }) => t)), rows.flatMap(({ points }) => points.flatMap(({ metrics }) => metrics[column.key].filter((one) => one !== null))),
        "edits so far (T)", heading(column), null, column.unit,
      );
      svg.setAttribute("aria-label", `${column.title} over the number of edits, one line an editor`);
      for (const { row, number, points } of rows) {
        const at = points.map((point) => [x(point.t), y(value(point, column))]);
        svg.append(drawn("polyline", { points: at.map((pair) => pair.join(",")).join(" "), fill: "none", stroke: look(number).colour, "stroke-width": 2 }));
        points.forEach((found, place) => {
          const [, low, high] = found.metrics[column.key], [across] = at[place];
          if (low !== null) svg.append(drawn("line", { x1: across, x2: across, y1: y(low), y2: y(high), stroke: look(number).colour, opacity: 0.5 }));
          const point = marker(...at[place], number, Boolean(row.control));
          point.append(drawn("title", {}, `${row.label}, T = ${found.t}: ${shown(value(found, column), column.unit)}`));
          svg.append(point);
        });
      }
      figure.querySelector(".drawing").replaceChildren(svg, legend(rows));
    };
    const metric = chooser("over T:", columns, columns[0].key, redraw);
    figure.append(element("figcaption", {}, metric.node), element("div", { className: "drawing" }));
    redraw();
  }

  const kinds = { scatter, curve };
  for (const figure of document.querySelectorAll("figure[data-plot]")) {
    kinds[figure.dataset.plot](figure, data.boards[Number(figure.dataset.board)]);
  }

  // -- a row in detail: configuration, pictures, tests, cases

  const mark = (verdict) => (verdict === null || verdict === undefined ? "" : verdict ? " ✓" : " ✗");
  const said = (answer) => (answer === null || answer === undefined ? "(not asked)" : `“${answer.trim()}”`);
  // A record may say whether an answer is the one before, and not what it is; of a prompt that was not compared it says neither.
  const afterwards = (answer, verdict) => (answer === null && verdict !== null ? (verdict ? "kept" : "changed") : said(answer));
  const chance = (value) => (value === null ? "–" : value >= 0.0005 ? value.toFixed(3) : value.toExponential(1));

  function runs(row) {
    const parts = [];
    for (const run of row.runs) {
      parts.push(element("h4", {}, `Run ${run.id || "(no id)"}, seed ${run.seed}, ${run.when}`));
      parts.push(element("p", {}, element("a", { href: encodeURI(run.path) }, run.path)));
      const list = element("dl", { className: "config" });
      for (const [key, value] of Object.entries(run.config)) {
        list.append(element("dt", {}, key), element("dd", {}, JSON.stringify(value)));
      }
      parts.push(element("details", {}, element("summary", {}, "configuration"), list));
      if (run.pictures.length) {
        const links = run.pictures.map((path) => element("li", {}, element("a", { href: encodeURI(path) }, path)));
        parts.push(element("details", {}, element("summary", {}, `${run.pictures.length} pictures`), element("ul", {}, ...links)));
      }
    }
    return parts;
  }

  function tests(board, row) {
    const found = board.tests.filter(({ left, right }) => left === row.label || right === row.label);
    if (!found.length) return [];
    const body = element("tbody", {}, ...found.map((test) => {
      const column = board.columns.find(({ key }) => key === test.metric);
      const turned = test.left === row.label ? 1 : -1;
      const flip = (value) => (value === null ? null : turned * value);
      const ends = [flip(test.low), flip(test.high)].sort((a, b) => a - b);
      const interval = test.low === null ? "" : ` [${shown(ends[0], column.unit)}, ${shown(ends[1], column.unit)}]`;
      let effect = test.effect;
      if (effect !== null && turned < 0) effect = test.effect_name === "Cohen's d (paired)" ? -effect : effect ? 1 / effect : null;
      return element("tr", {},
        element("td", {}, column.title),
        element("td", {}, turned > 0 ? test.right : test.left),
        element("td", {}, shown(flip(test.difference), column.unit) + interval),
        element("td", {}, `${test.n} (${test.subjects} subjects)`),
        element("td", {}, effect === null ? "–" : `${effect.toPrecision(3)} (${test.effect_name})`),
        element("td", {}, test.test),
        element("td", {}, chance(test.p)),
        element("td", {}, chance(test.p_holm)),
        element("td", {}, test.facts_needed === null ? "–" : `${test.facts_needed}${test.facts_needed > test.n ? " (too few)" : ""}`));
    }));
    const heads = ["metric", "against", "difference", "n", "effect size", "test", "p", "p, Holm", "facts for 5 points"];
    const table = element("table", { className: "cases" },
      element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))), body);
    return [element("details", {}, element("summary", {}, `${found.length} paired tests`),
      element("div", { className: "scroll", tabIndex: 0 }, table))];
  }

  function caseRow(found, several) {
    const [newBefore, trueBefore, newAfter, trueAfter] = found.p;
    const probes = found.probes.map(([kind, prompt, before, after, verdict]) =>
      element("li", {}, `${kind}: ${prompt} → ${said(before)} before, ${afterwards(after, verdict)} after${mark(verdict)}`));
    const more = probes.length ? element("details", {}, element("summary", {}, `${probes.length} other prompts`), element("ul", {}, ...probes)) : null;
    return element("tr", {},
      element("td", {}, found.id, several ? element("div", { className: "quiet" }, `seed ${found.seed}`) : null),
      element("td", { className: "long" }, `${found.asked} `, element("b", {}, `${found.true ?? "(nothing)"} → ${found.new ?? "(erase)"}`),
        found.error ? element("div", { className: "error" }, found.error) : null, more),
      element("td", { className: "long" }, said(found.before), element("div", { className: "quiet" }, `P(new) ${chance(newBefore)}, P(true) ${chance(trueBefore)}`)),
      element("td", { className: "long" }, said(found.after) + mark(found.right), element("div", { className: "quiet" }, `P(new) ${chance(newAfter)}, P(true) ${chance(trueAfter)}`)));
  }

  function cases(box, found) {
    const several = new Set(found.map(({ seed }) => seed)).size > 1;
    const texts = found.map((one) => JSON.stringify(one).toLowerCase());
    const input = element("input", { type: "search", placeholder: "words in a prompt, an answer, an error, an id" });
    const count = element("span", { className: "quiet", role: "status" });
    const body = element("tbody", {});
    const heads = ["id", "asked", "before", "after"];
    const table = element("table", { className: "cases" },
      element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))), body);
    const more = element("button", { type: "button" }, "Show more");
    let limit = PAGE;
    const fill = () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      const hits = found.filter((_, place) => words.every((word) => texts[place].includes(word)));
      body.replaceChildren(...hits.slice(0, limit).map((one) => caseRow(one, several)));
      count.textContent = `${hits.length} of ${found.length} cases`;
      more.hidden = hits.length <= limit;
    };
    input.addEventListener("input", () => { limit = PAGE; fill(); });
    more.addEventListener("click", () => { limit += 4 * PAGE; fill(); });
    box.append(element("h4", {}, "Cases"), element("div", { className: "search" }, element("label", {}, "Search ", input), count),
      element("div", { className: "scroll", tabIndex: 0 }, table), more);
    fill();
  }

  for (const details of document.querySelectorAll("details.row")) {
    details.addEventListener("toggle", () => {
      const box = details.querySelector(".filled");
      if (!details.open || box.childElementCount) return;
      const board = data.boards[Number(details.dataset.board)], row = board.rows[Number(details.dataset.row)];
      box.append(...runs(row), ...tests(board, row));
      cases(box, JSON.parse(document.getElementById(`cases-${details.dataset.board}-${details.dataset.row}`).textContent));
    });
  }

  const follow = () => {
    const target = location.hash.startsWith("#row-") && document.getElementById(location.hash.slice(1));
    if (target) { target.open = true; target.scrollIntoView(); }
  };
  addEventListener("hashchange", follow);
  follow();
})();
