"use strict";
// Makes the page's tables sortable and its listings copyable. Without it, the page shows the same.
(() => {
  const say = (text) => {
    const announcement = document.getElementById("announcement");
    announcement.textContent = "";
    setTimeout(() => { announcement.textContent = text; }, 50);  // said again even if it is the same
  };

  // Tables: a button in each header sorts the rows within their groups; a third press restores their order.
  const figure = (row, column) => {
    const value = row.cells[column].dataset.value;
    return value === undefined ? NaN : Number(value);
  };
  const text = (row, column) => row.cells[column].querySelector("span").textContent;
  const compare = (column, isNumber, sign) => (one, other) => {
    if (!isNumber) return sign * text(one, column).localeCompare(text(other, column), "en", { numeric: true });
    const a = figure(one, column), b = figure(other, column);
    if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);  // unknown figures stay last
    return a === b ? 0 : a < b ? -sign : sign;
  };
  const sortTable = (table, groups, column, order) => {
    const isNumber = groups.some((group) => group.rows.some((row) => !Number.isNaN(figure(row, column))));
    for (const { rows, after } of groups) {
      const sorted = order === "none" ? rows
        : [...rows].sort(compare(column, isNumber, order === "ascending" ? 1 : -1));
      for (const row of sorted) after.before(row);
    }
    [...table.tHead.rows[0].cells].forEach((cell, number) => {
      cell.setAttribute("aria-sort", number === column ? order : "none");
    });
  };
  for (const table of document.querySelectorAll(".wide table")) {
    const groups = [...table.tBodies].map((body) => {
      const rows = [...body.rows].filter((row) => row.className === "");
      const after = body.querySelector("tr.note") ?? body.appendChild(new Comment());
      return { rows, after };
    });
    if (groups.every((group) => group.rows.length < 2)) continue;
    [...table.tHead.rows[0].cells].forEach((cell, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...cell.childNodes);
      cell.append(button);
      cell.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const next = { none: "ascending", ascending: "descending", descending: "none" };
        const order = next[cell.getAttribute("aria-sort")];
        sortTable(table, groups, column, order);
        say(order === "none" ? "Original order" : `Sorted by ${button.textContent}, ${order}`);
      });
    });
  }

  // Tables that fit need no stop of the tab key.
  const settle = () => {
    for (const region of document.querySelectorAll(".wide")) {
      region.tabIndex = region.scrollWidth > region.clientWidth ? 0 : -1;
    }
  };
  settle();
  addEventListener("resize", settle);
  document.addEventListener("toggle", settle, true);

  // Listings: copies their text, or selects it where the browser does not allow copying.
  const select = (element) => {
    const range = document.createRange();
    range.selectNodeContents(element);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
  };
  const copy = async (code) => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      return true;
    } catch {
      select(code);
      return document.execCommand("copy");
    }
  };
  for (const button of document.querySelectorAll("button.copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const done = await copy(button.parentElement.querySelector("code"));
      button.textContent = done ? "Copied" : "Selected";
      say(done ? "Copied" : "Selected. Your browser does not let this page copy: copy the selected text yourself");
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }

  // Folded sections open where a link leads, and on paper.
  const openTarget = () => {
    const target = document.querySelector(":target");
    const folded = target?.querySelector(":scope > details") ?? target?.closest("details");
    if (folded && !folded.open) {
      folded.open = true;
      target.scrollIntoView();
    }
  };
  addEventListener("load", openTarget);
  addEventListener("hashchange", openTarget);
  for (const link of document.querySelectorAll('a[href^="#"]')) link.addEventListener("click", () => setTimeout(openTarget));
  let unfolded = [];
  addEventListener("beforeprint", () => {
    unfolded = [...document.querySelectorAll("details:not([open])")];
    for (const details of unfolded) details.open = true;
  });
  addEventListener("afterprint", () => {
    for (const details of unfolded) details.open = false;
  });
})();
