/* Makes the charts of a page interactive: exact figures of a point by mouse, touch or keyboard, a choice of x axes, and
   series that hide. The page is complete without it. Figures come from the table that each chart has for screen readers. */
(() => {
  "use strict";
  const REACH = { mouse: 18, touch: 32 }; // pixels from a point at which it still counts as meant

  /* A series that is a line alone has its marks from the line: one at each of its points, but where one is drawn. */
  function addMarks(series) {
    const lines = [...series.querySelectorAll("polyline")].map((line) => [...line.points]);
    const drawn = new Map([...series.querySelectorAll(".chart-mark")].map((mark) => [mark.dataset.row, mark]));
    lines[0].forEach(({ y }, number) => {
      if (y < 0) return; // above the chart
      const row = String(Number(series.dataset.rows) + number);
      const mark = drawn.get(row) || document.createElementNS(series.namespaceURI, "use");
      series.append(mark); // in the order of the line
      if (drawn.has(row)) return;
      const places = lines.map((line) => `${line[number].x / 10}%`);
      const made = { href: `#${series.dataset.symbol}`, class: "chart-mark", x: places[0], y: `${y / 10}%` };
      for (const [name, value] of Object.entries(made)) mark.setAttribute(name, value);
      Object.assign(mark.dataset, { row, x: places.join() });
    });
  }

  function start(chart) {
    const plot = chart.querySelector(".chart-plot");
    if (!plot) return;
    const tip = chart.querySelector(".chart-tip");
    const cursor = plot.querySelector(".chart-cursor");
    const table = chart.querySelector(".chart-data table");
    const headings = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
    const rows = [...table.tBodies].flatMap((body) => [...body.rows].slice(1));
    const series = [...plot.querySelectorAll(".chart-series")].sort((a, b) => a.dataset.series - b.dataset.series);
    series.filter((each) => each.dataset.rows).forEach(addMarks);
    const marksOf = new Map(series.map((each) => [each, [...each.querySelectorAll(".chart-mark")]]));
    const isShown = (mark) => !mark.hasAttribute("hidden");
    const shownMarks = (each) => (each.hasAttribute("hidden") ? [] : marksOf.get(each).filter(isShown));
    let active = null; // the mark whose figures are shown

    const figures = (mark) =>
      headings.map((name, column) => [name, rows[mark.dataset.row].cells[column].textContent])
        .filter(([, value]) => value);

    /* The place of a mark in the window, from its percentages: its own box may include a whisker. */
    function place(mark) {
      const box = plot.getBoundingClientRect();
      const share = (name) => parseFloat(mark.getAttribute(name)) / 100;
      const y = mark.dataset.y ? parseFloat(mark.dataset.y) / 100 : share("y");
      return { x: box.left + share("x") * box.width, y: box.top + y * box.height };
    }

    function hide() {
      active = null;
      tip.hidden = true;
      cursor.setAttribute("hidden", "");
    }

    /* Puts the tooltip beside the active mark, wherever it stays inside the window. */
    function follow() {
      if (!active) return;
      const { x, y } = place(active);
      const { width, height } = tip.getBoundingClientRect();
      const edge = 8, gap = 14;
      const room = document.documentElement.clientWidth;
      const left = x + gap + width + edge <= room ? x + gap : x - gap - width;
      tip.style.left = `${Math.max(edge, Math.min(left, room - width - edge))}px`;
      const above = y - gap - height;
      tip.style.top = `${Math.max(edge, Math.min(above >= edge ? above : y + gap, innerHeight - height - edge))}px`;
    }

    function show(mark) {
      active = mark;
      const name = document.createElement("strong");
      name.textContent = mark.parentNode.dataset.name;
      const list = document.createElement("dl");
      const told = figures(mark).filter(([, value]) => value !== name.textContent);
      for (const [term, value] of told) {
        list.append(document.createElement("dt"), document.createElement("dd"));
        list.lastChild.previousSibling.textContent = term;
        list.lastChild.textContent = value;
      }
      tip.replaceChildren(name, list);
      tip.hidden = false;
      cursor.setAttribute("cx", mark.getAttribute("x"));
      cursor.setAttribute("cy", mark.dataset.y || mark.getAttribute("y"));
      cursor.removeAttribute("hidden");
      follow();
    }

    function nearest(marks, x, y, reach) {
      let found = null;
      for (const mark of marks) {
        const at = place(mark);
        const distance = Math.hypot(at.x - x, at.y - y);
        if (distance < reach) [found, reach] = [mark, distance];
      }
      return found;
    }

    function point(event) {
      const reach = event.pointerType === "mouse" ? REACH.mouse : REACH.touch;
      const found = nearest(series.flatMap(shownMarks), event.clientX, event.clientY, reach);
      if (found) show(found);
      else if (active !== document.activeElement) hide();
    }

    /* Each series has one mark that Tab reaches: the last one focused. */
    function makeReachable(each) {
      const marks = marksOf.get(each);
      const shown = shownMarks(each);
      const reachable = shown.find((mark) => mark.getAttribute("tabindex") === "0") || shown[0];
      marks.forEach((mark) => mark.setAttribute("tabindex", mark === reachable ? "0" : "-1"));
    }

    function focus(mark) {
      marksOf.get(mark.parentNode).forEach((each) => each.setAttribute("tabindex", each === mark ? "0" : "-1"));
      mark.focus();
    }

    /* Left and right stay in the series; up and down go to the nearest point of the series before or after it. */
    function press(event) {
      if (event.key === "Escape") return hide();
      const mark = event.target.closest(".chart-mark");
      if (!mark) return;
      const marks = shownMarks(mark.parentNode);
      const number = marks.indexOf(mark);
      const next = { ArrowRight: number + 1, ArrowLeft: number - 1, Home: 0, End: marks.length - 1 }[event.key];
      if (next !== undefined) {
        event.preventDefault();
        focus(marks[Math.max(0, Math.min(next, marks.length - 1))]);
      } else if (event.key === "ArrowUp" || event.key === "ArrowDown") {
        event.preventDefault();
        const others = series.filter((each) => each === mark.parentNode || shownMarks(each).length);
        const other = others[others.indexOf(mark.parentNode) + (event.key === "ArrowUp" ? -1 : 1)];
        const { x, y } = place(mark);
        if (other) focus(nearest(shownMarks(other), x, y, Infinity));
      }
    }

    function chooseAxis(number) {
      hide();
      for (const part of chart.querySelectorAll("[data-axis]")) {
        part.toggleAttribute("hidden", part.dataset.axis !== String(number));
      }
      for (const mark of [...marksOf.values()].flat()) {
        const x = mark.dataset.x.split(",")[number];
        mark.toggleAttribute("hidden", !x);
        if (x) mark.setAttribute("x", x);
      }
      series.forEach(makeReachable);
    }

    function toggle(button) {
      const isHidden = button.getAttribute("aria-pressed") === "true";
      button.setAttribute("aria-pressed", String(!isHidden));
      for (const each of plot.querySelectorAll(`[data-entry="${button.dataset.entry}"]`)) {
        each.toggleAttribute("hidden", isHidden);
      }
      hide();
      series.forEach(makeReachable);
    }

    /* The drawing is one picture until here; now its points are what a screen reader finds in it. */
    plot.setAttribute("role", "group");
    plot.setAttribute("aria-label", plot.querySelector("title").textContent);
    plot.removeAttribute("aria-labelledby");
    plot.querySelector("title").remove(); // browsers would show it as a tooltip of their own
    for (const each of series) {
      each.setAttribute("role", "group");
      each.setAttribute("aria-label", each.dataset.name);
      for (const mark of marksOf.get(each)) {
        mark.setAttribute("role", "img");
        mark.setAttribute("aria-label", figures(mark).map(([name, value]) => `${name}: ${value}`).join(", "));
        mark.addEventListener("focus", () => show(mark));
        mark.addEventListener("blur", hide);
      }
      makeReachable(each);
    }
    plot.addEventListener("keydown", press);
    const box = chart.querySelector(".chart-box");
    box.addEventListener("pointermove", point);
    box.addEventListener("pointerdown", point);
    box.addEventListener("pointerleave", (event) => {
      if (event.pointerType === "mouse" && active !== document.activeElement) hide();
    });
    document.addEventListener("pointerdown", (event) => box.contains(event.target) || hide());
    addEventListener("scroll", follow, { passive: true, capture: true });
    addEventListener("resize", follow);
    for (const radio of chart.querySelectorAll(".chart-axes input")) {
      if (radio.checked) chooseAxis(radio.value); // a browser may restore the choice when a page loads again
      radio.addEventListener("change", () => chooseAxis(radio.value));
    }
    for (const button of chart.querySelectorAll(".chart-legend button")) {
      button.disabled = false;
      button.addEventListener("click", () => toggle(button));
    }
    chart.classList.add("chart-live");
  }

  const startAll = () => document.querySelectorAll(".chart").forEach(start);
  if (document.readyState === "loading") addEventListener("DOMContentLoaded", startAll);
  else startAll();
})();
