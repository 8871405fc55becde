"use strict";
(() => {
  const table = document.getElementById("facts");
  const rows = [...table.tBodies[0].rows];
  const query = document.getElementById("query"), show = document.getElementById("show");
  const told = document.getElementById("told");
  const text = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));

  // All words of the search, in any order, and one of the kinds of rows.
  function filter() {
    const words = query.value.toLowerCase().split(/\s+/).filter(Boolean);
    let n = 0;
    for (const row of rows) {
      const kinds = row.dataset.kinds.split(" ");
      row.hidden = !(words.every((word) => text.get(row).includes(word)) && (!show.value || kinds.includes(show.value)));
      if (!row.hidden) n += 1;
    }
    told.textContent = `${n} of ${rows.length} facts`;
  }
  query.addEventListener("input", filter);
  show.addEventListener("change", filter);

  // A click on a heading sorts by it, the next one turns it round; rows that are equal there stay in the list's order.
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, place) => head.querySelector("button").addEventListener("click", () => {
    const turn = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    const key = (row) => row.cells[place].dataset.key ?? row.cells[place].textContent.trim();
    const byNumber = rows.every((row) => key(row) !== "" && !Number.isNaN(Number(key(row))));
    const compare = byNumber ? (a, b) => key(a) - key(b) : (a, b) => key(a).localeCompare(key(b));
    table.tBodies[0].append(...[...rows].sort((a, b) => turn * compare(a, b)));
    heads.forEach((other) => other.setAttribute("aria-sort", "none"));
    head.setAttribute("aria-sort", turn > 0 ? "ascending" : "descending");
  }));
  filter();
})();
