"use strict";
// Makes tables sortable: a button in each header sorts the rows within their groups; a third press restores their order.
for (const table of document.querySelectorAll(".wide table")) {
  const groups = [...table.tBodies].map((body) => {
    const rows = [...body.rows].filter((row) => row.className === "");
    return { rows, after: body.querySelector("tr.note") ?? body.appendChild(new Comment()) };
  });
  if (groups.every((group) => group.rows.length < 2)) continue;
  const headers = [...table.tHead.rows[0].cells];
  const figure = (row, column) => Number(row.cells[column].dataset.value ?? NaN);
  const compare = (column, sign) => (one, other) => {
    const a = figure(one, column), b = figure(other, column);
    if (Number.isNaN(a) && Number.isNaN(b)) {
      return sign * one.cells[column].textContent.localeCompare(other.cells[column].textContent, "en", { numeric: true });
    }
    if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);  // unknown figures stay last
    return sign * Math.sign(a - b);
  };
  headers.forEach((header, column) => {
    if (header.textContent === "") return;  // a button needs a name
    const button = document.createElement("button");
    button.type = "button";
    button.append(...header.childNodes);
    header.append(button);
    header.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const order = { none: "ascending", ascending: "descending", descending: "none" }[header.getAttribute("aria-sort")];
      for (const { rows, after } of groups) {
        const sorted = order === "none" ? rows : [...rows].sort(compare(column, order === "ascending" ? 1 : -1));
        for (const row of sorted) after.before(row);
      }
      for (const each of headers) each.setAttribute("aria-sort", each === header ? order : "none");
    });
  });
}
