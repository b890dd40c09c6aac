"use strict";
(() => {
  const data = JSON.parse(document.getElementById("explorer-data").textContent);
  const axes = data.axes, order = ["machine", "loops", "precision", "cache", "tile"];
  const at = {machine: 0, loops: axes.loops.length - 1, precision: Math.min(1, axes.precision.length - 1), cache: Math.min(1, axes.cache.length - 1), tile: Math.min(2, axes.tile.length - 1)};
  const get = (id) => document.getElementById(id);
  const colours = ["var(--blue)", "var(--orange)", "var(--green)", "var(--rose)"];
  const point = (place) => data.points[order.reduce((sum, name) => sum * axes[name].length + place[name], 0)];
  const W = 380, H = 215, L = 84, R = 46, T = 10, B = 30;

  const PREFIX = [[1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"], [1e-12, "p"]];
  const LARGE = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];
  const digits = (value) => Number(value.toPrecision(3)).toString();
  const small = (value, unit) => { const [f, p] = PREFIX.find(([f]) => value >= f * 0.9995) || PREFIX[4]; return `${digits(value / f)} ${p}${unit}`; };
  const large = (value, unit) => { const [f, p] = LARGE.find(([f]) => value >= f * 0.9995) || LARGE[4]; return `${digits(value / f)} ${p}${unit}`; };
  const write = {
    time: (v) => small(v, "s"), energy: (v) => small(v, "J"), error: (v) => v === 0 ? "0" : v.toExponential(1),
    misses: (v) => v.toLocaleString("en"), speed: (v) => large(v, "FLOP/s"), intensity: (v) => digits(v),
  };

  const make = (name, attributes, text) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const scale = (low, high, from, to) => (value) => from + (Math.log(value) - Math.log(low)) / (Math.log(high) - Math.log(low) || 1) * (to - from);
  const range = (values, room = 1.25) => [Math.min(...values) / room, Math.max(...values) * room];
  const steps = (low, high, parts) => {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1)
      for (const digit of parts) { const value = digit * 10 ** power; if (value >= low && value <= high) found.push(value); }
    return found;
  };
  const decades = (low, high) => [[1], [1, 2, 5], [1, 1.5, 2, 3, 4, 5, 7]].map((parts) => steps(low, high, parts)).find((found) => found.length >= 3) || steps(low, high, [1, 1.5, 2, 3, 4, 5, 7]);
  const apart = (places, gap) => {
    const order = places.map((_, number) => number).sort((a, b) => places[a] - places[b]), found = [...places];
    for (let n = 1; n < order.length; n += 1) found[order[n]] = Math.max(found[order[n]], found[order[n - 1]] + gap);
    return found;
  };
  const frame = (label, xs, ys, x, y, showX, showY) => {
    const svg = make("svg", {viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": label});
    for (const value of ys) {
      svg.append(make("line", {x1: L, x2: W - R, y1: y(value), y2: y(value), stroke: "var(--line)"}));
      svg.append(make("text", {x: L - 5, y: y(value) + 4, "text-anchor": "end"}, showY(value)));
    }
    for (const value of xs) svg.append(make("text", {x: x(value), y: H - 10, "text-anchor": "middle"}, showX(value)));
    return svg;
  };
  const show = (id, svg) => get(id).replaceChildren(svg);

  const lines = (id, metric, label) => {
    const series = axes.precision.map((_, precision) => axes.tile.map((_, tile) => point({...at, precision, tile})[metric]));
    const [low, high] = range(series.flat());
    const x = scale(axes.tile[0], axes.tile[axes.tile.length - 1], L + 10, W - R - 10), y = scale(low, high, H - B, T);
    const svg = frame(label, axes.tile, decades(low, high), x, y, String, write[metric]);
    const labels = apart(series.map((values) => y(values[values.length - 1]) - 7), 13);
    series.forEach((values, number) => {
      const chosen = number === at.precision;
      const path = values.map((value, tile) => `${tile ? "L" : "M"}${x(axes.tile[tile]).toFixed(1)},${y(value).toFixed(1)}`).join("");
      svg.append(make("path", {d: path, fill: "none", stroke: colours[number], "stroke-width": chosen ? 3 : 1.5}));
      svg.append(make("text", {x: W - R + 38, y: labels[number] + 11, "text-anchor": "end", style: `fill:color-mix(in srgb, ${colours[number]} 72%, var(--ink))`}, axes.precision[number]));
    });
    const now = point(at)[metric];
    svg.append(make("circle", {cx: x(axes.tile[at.tile]), cy: y(now), r: 6, fill: "var(--ground)", stroke: colours[at.precision], "stroke-width": 3}));
    show(id, svg);
  };
  const errors = () => {
    const found = axes.precision.map((name, precision) => ({name, precision, ...point({...at, precision})}));
    const [xl, xh] = range(found.map((each) => Math.max(each.error, 1e-17)), 20), [yl, yh] = range(found.map((each) => each.energy), 1.6);
    const x = scale(xl, xh, L + 10, W - R - 10), y = scale(yl, yh, H - B, T);
    const ticks = decades(xl, xh).filter((_, number) => number % 4 === 0);
    const svg = frame("energy over error", ticks, decades(yl, yh), x, y, (value) => `1e${Math.round(Math.log10(value))}`, write.energy);
    const labels = apart(found.map((each) => y(each.energy) + 4), 13);
    for (const each of found) {
      const chosen = each.precision === at.precision;
      svg.append(make("circle", {cx: x(Math.max(each.error, 1e-17)), cy: y(each.energy), r: chosen ? 7 : 4, fill: colours[each.precision]}));
      svg.append(make("text", {x: x(Math.max(each.error, 1e-17)) + 10, y: labels[each.precision], "text-anchor": "start", class: chosen ? "mark" : ""}, each.name));
    }
    show("x-chart-error", svg);
  };
  const roof = () => {
    const machine = axes.machine[at.machine], precision = axes.precision[at.precision], now = point(at);
    const {bandwidth, peaks} = data.roofs[machine], peak = peaks[precision], ridge = peak / bandwidth;
    const tiles = axes.tile.map((_, tile) => point({...at, tile}));
    const [xl, xh] = range([...tiles.map((each) => each.intensity), ridge], 2.5), [yl, yh] = range([...tiles.map((each) => each.speed), peak, bandwidth * xl], 1.6);
    const x = scale(xl, xh, L, W - R), y = scale(yl, yh, H - B, T);
    const svg = frame("roofline", decades(xl, xh), decades(yl, yh), x, y, write.intensity, write.speed);
    svg.append(make("path", {d: `M${x(xl)},${y(bandwidth * xl)}L${x(ridge)},${y(peak)}L${x(xh)},${y(peak)}`, fill: "none", stroke: "var(--ink)", "stroke-width": 2}));
    svg.append(make("text", {x: W - R, y: y(peak) - 6, "text-anchor": "end"}, `peak ${write.speed(peak)} in ${precision}`));
    for (const each of tiles) svg.append(make("circle", {cx: x(each.intensity), cy: y(each.speed), r: 3, fill: "var(--faint)"}));
    svg.append(make("circle", {cx: x(now.intensity), cy: y(now.speed), r: 7, fill: colours[at.precision]}));
    const left = x(now.intensity) > x(ridge) + 60, aside = left ? -10 : 10;
    svg.append(make("text", {x: x(now.intensity) + aside, y: y(now.speed) + 15, "text-anchor": left ? "end" : "start", class: "mark"}, `tile ${axes.tile[at.tile]}`));
    show("x-chart-roof", svg);
  };
  const draw = () => {
    const now = point(at);
    for (const name of ["time", "energy", "error", "misses"]) get(`x-${name}`).textContent = now[name] === null ? "–" : write[name](now[name]);
    get("x-bound").textContent = now.bound;
    get("x-cache-shown").textContent = axes.cache[at.cache];
    get("x-tile-shown").textContent = `${axes.tile[at.tile]} x ${axes.tile[at.tile]}`;
    const times = axes.tile.map((_, tile) => point({...at, tile}).time), best = times.indexOf(Math.min(...times));
    const slower = now.time / times[best];
    get("x-said").textContent = best === at.tile ? "This is the fastest tile here." : `Tile ${axes.tile[best]} would be ${digits(slower)} times as fast.`;
    lines("x-chart-time", "time", "time over tile");
    lines("x-chart-energy", "energy", "energy over tile");
    errors();
    roof();
  };
  for (const name of ["machine", "loops", "precision"]) {
    for (const value of axes[name]) get(`x-${name}`).append(new Option(value));
    get(`x-${name}`).selectedIndex = at[name];
    get(`x-${name}`).addEventListener("change", (event) => { at[name] = event.target.selectedIndex; draw(); });
  }
  for (const name of ["cache", "tile"]) {
    get(`x-${name}`).max = axes[name].length - 1;
    get(`x-${name}`).value = at[name];
    get(`x-${name}`).addEventListener("input", (event) => { at[name] = Number(event.target.value); draw(); });
  }
  get("explorer-lead").textContent = `${data.workload}: ${data.points.length} runs, simulated when this page was made. Move the sliders.`;
  draw();
})();
