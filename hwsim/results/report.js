"use strict";
// Everything of this page is in its data: columns, rows, and how each number is written. No library, no network.
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const columns = data.columns, rows = data.rows;
  const byName = Object.fromEntries(columns.map((column) => [column.name, column]));
  const palette = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933", "#882255"];
  const shapes = ["circle", "square", "triangle", "diamond"];

  function prefixed(value, unit) {
    if (value === 0) return "0 " + unit;
    const small = [[1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"], [1e-12, "p"], [1e-15, "f"]];
    const large = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
    const size = Math.abs(value);
    const scales = size >= 1000 && unit !== "s" ? large : small;
    const scale = scales.find((each) => size >= each[0] * 0.9995) || scales[scales.length - 1];
    return Number((value / scale[0]).toPrecision(3)) + " " + scale[1] + unit;
  }

  function written(column, value) {
    if (value === null || value === undefined) return "–";
    if (typeof value !== "number" || column.kind === "axis") return String(value);
    if (column.unit === "%") return (100 * value).toFixed(1) + " %";
    if (column.unit === "J·s" || column.name.startsWith("error")) return value.toExponential(2) + " " + column.unit;
    if (["s", "J", "W", "B", "FLOP/s"].includes(column.unit)) return prefixed(value, column.unit);
    return Math.abs(value) >= 1e6 ? prefixed(value, "").trim() : Number(value.toPrecision(6)).toLocaleString("en");
  }

  // ---------------------------------------------------------------------------------------------------- table
  const table = document.getElementById("points"), filter = document.getElementById("filter");
  const shown = document.getElementById("shown");
  let order = { name: null, dir: 1 };

  function place(row, column) {
    return column.kind === "axis" && row.at && row.at[column.name] !== undefined ? row.at[column.name] : row.values[column.name];
  }

  function matches(row, words) {
    const text = columns.map((column) => column.name + "=" + row.values[column.name]).join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  }

  function drawTable() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const kept = rows.filter((row) => matches(row, words));
    if (order.name) {
      const column = byName[order.name];
      kept.sort((a, b) => {
        const x = place(a, column), y = place(b, column);
        if (x === y) return 0;
        if (x === null || x === undefined) return 1;
        if (y === null || y === undefined) return -1;
        return (x < y ? -1 : 1) * order.dir;
      });
    }
    const body = document.createElement("tbody");
    for (const row of kept.slice(0, 2000)) {
      const line = body.insertRow();
      if (row.best) line.className = "best";
      if (row.failed) { line.className = "failed"; line.title = row.failed; }
      for (const column of columns) {
        const cell = line.insertCell();
        cell.textContent = written(column, row.values[column.name]);
        if (column.kind === "axis" || typeof row.values[column.name] === "string") cell.className = "word";
      }
    }
    table.replaceChild(body, table.tBodies[0]);
    shown.textContent = kept.length + " of " + rows.length + " rows" + (kept.length > 2000 ? ", the first 2000 shown" : "");
  }

  const head = table.tHead.insertRow();
  for (const column of columns) {
    const cell = document.createElement("th");
    cell.textContent = column.title;
    cell.title = column.name;
    if (column.kind === "axis") cell.className = "word";
    cell.addEventListener("click", () => {
      order = { name: column.name, dir: order.name === column.name ? -order.dir : 1 };
      for (const other of head.cells) other.removeAttribute("data-dir");
      cell.dataset.dir = order.dir;
      drawTable();
    });
    head.appendChild(cell);
  }
  filter.addEventListener("input", drawTable);
  drawTable();

  // ---------------------------------------------------------------------------------------------------- chart
  const holder = document.getElementById("chart"), tip = document.getElementById("tip");
  const pick = { x: document.getElementById("chart-x"), y: document.getElementById("chart-y"), by: document.getElementById("chart-by") };
  const scaleX = document.getElementById("log-x"), scaleY = document.getElementById("log-y");
  const narrow = window.innerWidth <= 600;
  const box = { left: narrow ? 76 : 92, right: 24, top: 16, bottom: 56, width: narrow ? 440 : 1080, height: narrow ? 360 : 460 };
  let window_ = null;

  function fill(select, choices, chosen) {
    for (const column of choices) select.add(new Option(column.title, column.name, false, column.name === chosen));
  }
  const numeric = columns.filter((column) => rows.some((row) => typeof row.values[column.name] === "number"));
  fill(pick.x, columns, data.start.x);
  fill(pick.y, numeric, data.start.y);
  pick.by.add(new Option("nothing", "", false, !data.start.by));
  fill(pick.by, columns.filter((column) => column.kind === "axis"), data.start.by);

  function make(name, attributes, text) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const key in attributes) element.setAttribute(key, attributes[key]);
    if (text !== undefined) element.textContent = text;
    return element;
  }

  function axis(values, log, from, to, limits) {
    let low = limits ? limits[0] : Math.min(...values), high = limits ? limits[1] : Math.max(...values);
    if (!limits) {
      if (log) { low /= 1.15; high *= 1.15; }
      else { const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1; low -= room; high += room; }
    }
    const f = log ? Math.log : (v) => v, g = log ? Math.exp : (v) => v;
    return {
      low, high, log,
      at: (v) => from + ((f(v) - f(low)) / (f(high) - f(low))) * (to - from),
      back: (p) => g(f(low) + ((p - from) / (to - from)) * (f(high) - f(low))),
    };
  }

  function ticks(scale) {
    const found = [];
    if (scale.log && scale.high / scale.low > 20) {
      for (let power = Math.ceil(Math.log10(scale.low)); power <= Math.log10(scale.high); power++) found.push(10 ** power);
      return found;
    }
    const raw = (scale.high - scale.low) / 6, size = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((n) => n * size).find((n) => n >= raw);
    for (let v = Math.ceil(scale.low / step) * step; v <= scale.high; v += step) found.push(Math.abs(v) < step / 1e6 ? 0 : v);
    return found;
  }

  // The error bar of a number, where it has one: time_s has time_low_s and time_high_s.
  function ends(row, column) {
    const cut = column.name.lastIndexOf("_");
    if (cut < 0) return [];
    const found = ["_low", "_high"].map((end) => row.values[column.name.slice(0, cut) + end + column.name.slice(cut)]);
    return found.every((end) => typeof end === "number" && end > 0) ? found : [];
  }

  function whisker(into, x, heights, colour) {
    if (heights.length < 2) return;
    const [low, high] = heights.map((y) => y.toFixed(1));
    const path = `M${x - 4},${low}h8M${x - 4},${high}h8M${x},${low}V${high}`;
    into.append(make("path", { d: path, stroke: colour, fill: "none", "stroke-width": 1.2, opacity: 0.7, class: "whisker" }));
  }

  function crossed(x, y) {
    return make("path", { d: `M${x - 7},${y - 7}l14,14m0,-14l-14,14`, fill: "none", "stroke-width": 2, class: "unfit" });
  }

  function mark(shape, x, y, colour, size) {
    const paths = {
      circle: `M${x - size},${y}a${size},${size} 0 1,0 ${2 * size},0a${size},${size} 0 1,0 ${-2 * size},0`,
      square: `M${x - size},${y - size}h${2 * size}v${2 * size}h${-2 * size}z`,
      triangle: `M${x},${y - size * 1.2}l${size * 1.2},${size * 2.1}h${-2.4 * size}z`,
      diamond: `M${x},${y - size * 1.3}l${size * 1.3},${size * 1.3}l${-size * 1.3},${size * 1.3}l${-size * 1.3},${-size * 1.3}z`,
    };
    return make("path", { d: paths[shape], fill: colour, stroke: "#fff", "stroke-width": 1 });
  }

  function drawChart() {
    const cx = byName[pick.x.value], cy = byName[pick.y.value], by = byName[pick.by.value];
    const kept = rows.filter((row) => typeof row.values[cy.name] === "number" && row.values[cx.name] !== null && row.values[cx.name] !== undefined);
    const svg = make("svg", { viewBox: `0 0 ${box.width} ${box.height}`, role: "img", "aria-label": `${cy.title} over ${cx.title}` });
    const old = holder.querySelector("svg");
    old ? holder.replaceChild(svg, old) : holder.insertBefore(svg, tip);
    const legend = document.getElementById("legend");
    legend.replaceChildren();
    if (!kept.length) { svg.append(make("text", { x: 100, y: 60 }, "no point has " + cy.title)); return; }
    const words = [...new Set(kept.map((row) => place(row, cx)))].some((v) => typeof v !== "number");
    const names = words ? [...new Set(kept.map((row) => String(row.values[cx.name])))] : [];
    const xOf = (row) => (words ? names.indexOf(String(row.values[cx.name])) : place(row, cx));
    const xs = kept.map(xOf), ys = kept.map((row) => row.values[cy.name]);
    const logX = scaleX.checked && !words && Math.min(...xs) > 0, logY = scaleY.checked && Math.min(...ys) > 0;
    const sx = axis(words ? [-0.4, names.length - 0.6] : xs, logX, box.left, box.width - box.right, window_ && window_.x);
    const sy = axis(ys, logY, box.height - box.bottom, box.top, window_ && window_.y);
    for (const v of ticks(sy)) {
      const y = sy.at(v);
      svg.append(make("line", { x1: box.left, x2: box.width - box.right, y1: y, y2: y, stroke: "#e8e8e8" }));
      svg.append(make("text", { x: box.left - 8, y: y + 4, "text-anchor": "end", "font-size": 13, fill: "#555" }, written(cy, v)));
    }
    const places = words ? names.map((name, i) => [i, name]) : axisTicks(kept, cx, sx, xs);
    // Names that would run into each other stand in two rows; of more than fit there, some are left out.
    const letters = Math.max(...places.map(([, text]) => String(text).length)), room = (box.width - box.left - box.right) / 7.5;
    const tight = words && places.length * (letters + 1) > room;
    const every = words ? Math.ceil((places.length * (letters + 1)) / (2 * room)) : Math.ceil(places.length / 14);
    places.forEach(([v, text], i) => {
      if (i % every || v < sx.low || v > sx.high) return;
      const lower = tight && (i / every) % 2 ? 14 : 0;
      svg.append(make("text", { x: sx.at(v), y: box.height - box.bottom + (tight ? 15 : 20) + lower, "text-anchor": "middle", "font-size": 13, fill: "#555" }, text));
    });
    svg.append(make("line", { x1: box.left, x2: box.width - box.right, y1: box.height - box.bottom, y2: box.height - box.bottom, stroke: "#999" }));
    svg.append(make("text", { x: (box.left + box.width) / 2, y: box.height - 10, "text-anchor": "middle", "font-size": 14 }, cx.title));
    const groups = [...new Set(kept.map((row) => (by ? String(row.values[by.name]) : "")))];
    const inside = make("g", {});
    svg.append(inside);
    groups.forEach((group, number) => {
      const colour = data.colours[group] || palette[number % palette.length], shape = shapes[number % shapes.length];
      const own = kept.filter((row) => !by || String(row.values[by.name]) === group).sort((a, b) => xOf(a) - xOf(b));
      if (new Set(own.map(xOf)).size === own.length && own.length > 1 && !words) {
        const path = own.map((row) => `${sx.at(xOf(row)).toFixed(1)},${sy.at(row.values[cy.name]).toFixed(1)}`).join(" ");
        inside.append(make("polyline", { points: path, fill: "none", stroke: colour, "stroke-width": 2, opacity: 0.75 }));
      }
      for (const row of own) {
        whisker(inside, sx.at(xOf(row)), ends(row, cy).map((end) => sy.at(end)), colour);
        const dot = mark(shape, sx.at(xOf(row)), sy.at(row.values[cy.name]), colour, row.best ? 7 : 4.5);
        dot.addEventListener("mouseenter", (event) => tell(event, row, cy));
        dot.addEventListener("mouseleave", () => { tip.style.display = "none"; });
        inside.append(dot);
        if (row.failed) inside.append(crossed(sx.at(xOf(row)), sy.at(row.values[cy.name])));
      }
      if (by) {
        const item = document.createElement("span");
        item.innerHTML = '<svg width="14" height="14" style="vertical-align:-2px"></svg> ';
        item.firstChild.append(mark(shape, 7, 7, colour, 5));
        item.append(group);
        legend.append(item);
      }
    });
    const clip = make("clipPath", { id: "inside" });
    clip.append(make("rect", { x: box.left - 9, y: box.top - 9, width: box.width - box.left - box.right + 18, height: box.height - box.top - box.bottom + 18 }));
    svg.append(clip);
    inside.setAttribute("clip-path", "url(#inside)");
    zooming(svg, sx, sy);
  }

  function axisTicks(kept, column, scale, xs) {
    const values = new Map(kept.map((row, i) => [xs[i], column.kind === "axis" ? String(row.values[column.name]) : written(column, xs[i])]));
    if (values.size <= 24) return [...values.entries()].sort((a, b) => a[0] - b[0]);
    return ticks(scale).map((v) => [v, written(column, v)]);
  }

  function tell(event, row, chosen) {
    const told = columns.filter((c) => c.kind === "axis" && c.varies).concat(columns.filter((c) => c === chosen || data.told.includes(c.name)));
    tip.textContent = [...new Set(told)].map((c) => `${c.title}: ${written(c, row.values[c.name])}`).concat(row.failed || []).join("\n");
    const outer = holder.getBoundingClientRect();
    tip.style.display = "block";
    tip.style.left = Math.min(event.clientX - outer.left + 14, outer.width - tip.offsetWidth - 4) + "px";
    tip.style.top = event.clientY - outer.top + 14 + "px";
  }

  function zooming(svg, sx, sy) {
    let from = null, frame = null;
    const where = (event) => {
      const outer = svg.getBoundingClientRect();
      return [((event.clientX - outer.left) / outer.width) * box.width, ((event.clientY - outer.top) / outer.height) * box.height];
    };
    svg.addEventListener("mousedown", (event) => {
      from = where(event);
      frame = make("rect", { fill: "#0072B2", opacity: 0.12, stroke: "#0072B2" });
      svg.append(frame);
    });
    svg.addEventListener("mousemove", (event) => {
      if (!from) return;
      const to = where(event);
      const sizes = { x: Math.min(from[0], to[0]), y: Math.min(from[1], to[1]), width: Math.abs(to[0] - from[0]), height: Math.abs(to[1] - from[1]) };
      for (const key in sizes) frame.setAttribute(key, sizes[key]);
    });
    svg.addEventListener("mouseup", (event) => {
      if (!from) return;
      const to = where(event), start = from;
      from = null;
      frame.remove();
      if (Math.abs(to[0] - start[0]) < 8 || Math.abs(to[1] - start[1]) < 8) return;
      window_ = {
        x: [sx.back(Math.min(start[0], to[0])), sx.back(Math.max(start[0], to[0]))],
        y: [sy.back(Math.max(start[1], to[1])), sy.back(Math.min(start[1], to[1]))],
      };
      drawChart();
    });
    svg.addEventListener("dblclick", () => { window_ = null; drawChart(); });
  }

  for (const control of [...Object.values(pick), scaleX, scaleY]) control.addEventListener("change", () => { window_ = null; drawChart(); });
  document.getElementById("whole").addEventListener("click", () => { window_ = null; drawChart(); });
  drawChart();
})();
