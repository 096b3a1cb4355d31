"use strict";
// Draws a chart (`charts.page_record`) as SVG, as wide as its place; what a mark says stands under the pointer.
const drawChart = (() => {
  const HATCHES = {
    "/": "M-1 9L9 -1", "\\": "M-1 -1L9 9", "-": "M0 4H8", "+": "M0 4H8M4 0V8", "x": "M-1 -1L9 9M-1 9L9 -1",
    ".": "M2 2h1v1h-1zM6 6h1v1h-1z", "o": "M2 4a2 2 0 1 0 4 0a2 2 0 1 0 -4 0",
  };
  const DASHES = { "-": "", "--": "7 5", "-.": "8 4 2 4", ":": "2 4" };
  const STAR = Array.from({ length: 10 }, (_, i) => {
    const [reach, turn] = [i % 2 ? 0.4 : 1, (i * Math.PI) / 5];
    return `${reach * Math.sin(turn)},${-reach * Math.cos(turn)}`;
  }).join(" ");

  const add = (parent, name, attributes = {}, text = "") => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text) made.textContent = text;
    return parent.appendChild(made);
  };
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = "12px system-ui, sans-serif";
  const widthOf = (text) => pen.measureText(text).width;
  const note = (parent, x, y, text, look = {}) => add(parent, "text", { x, y, "text-anchor": "middle", fill: "#1b1b1b", "pointer-events": "none", ...look }, text);
  const ink = (colour) => (colour === "#000000" ? "currentColor" : colour);

  function hatched(parent, box, colour, hatch, edge) {
    const shape = add(parent, "rect", { ...box, fill: colour, stroke: "currentColor", "stroke-width": Math.min(edge, 0.5) });
    if (!hatch) return shape;
    const id = "hatch-" + hatch.charCodeAt(0);
    if (!document.getElementById(id)) {
      const defs = add(document.body, "svg", { width: 0, height: 0, style: "position:absolute", "aria-hidden": true });
      const pattern = add(defs, "pattern", { id, width: 8, height: 8, patternUnits: "userSpaceOnUse" });
      add(pattern, "path", { d: HATCHES[hatch], stroke: "#000", "stroke-opacity": 0.45, fill: "none" });
    }
    return add(parent, "rect", { ...box, fill: `url(#${id})` });
  }

  function linearTicks([from, to], most) {
    const [low, high] = [Math.min(from, to), Math.max(from, to)];
    const rough = (high - low) / most;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((each) => each * power >= rough);
    const ticks = [];
    for (let at = Math.ceil(low / step); at * step <= high; at += 1) ticks.push([at * step, String(+(at * step).toPrecision(6))]);
    return ticks;
  }

  // A number as a format such as .3f, +.2f, .4g or .1% has it.
  function written(value, form) {
    if (!form || typeof value !== "number") return String(value);
    const digits = Number(form.match(/\.(\d)/)[1]);
    const text = form.endsWith("%") ? (100 * value).toFixed(digits) + "%" : form.endsWith("g") ? String(+value.toPrecision(digits)) : value.toFixed(digits);
    return form.startsWith("+") && value >= 0 ? "+" + text : text;
  }

  const said = (mark, values) => (mark.hover || "%{label}").replace(/%\{(\w+)(?::([^}]*))?\}/g, (_, name, form) => written(values[name] ?? "", form));

  // What of a label fits into a width, in lines.
  function lines(text, most) {
    const made = [""];
    for (const word of text.split(/(?<=\s)/)) {
      if (made.at(-1) && widthOf(made.at(-1) + word) > most) made.push("");
      made[made.length - 1] += word;
      if (word.endsWith("\n")) made.push("");
    }
    return made.map((line) => line.trim());
  }

  const halo = { stroke: "var(--ground, #fff)", "stroke-width": 3, "stroke-linejoin": "round", "paint-order": "stroke" };

  function drawPanel(svg, panel, top, width) {
    const right = width - 12, height = 80 * panel.height;
    const labels = (panel.y.ticks || linearTicks(panel.y.ends, height / 45)).map(([at, text]) => [at, lines(text, Math.max(90, 0.3 * width))]);
    const left = Math.min(0.45 * width, 10 + Math.max(0, ...labels.flatMap(([, texts]) => texts.map(widthOf))) + (panel.y.title ? 18 : 0));
    const along = (axis, from, to) => {
      const [low, high] = axis.log ? axis.ends.map(Math.log10) : axis.ends;
      return (value) => from + (((axis.log ? Math.log10(value) : value) - low) / (high - low)) * (to - from);
    };
    const x = along(panel.x, left, right), y = along(panel.y, top + height, top);
    const grid = { stroke: "var(--faint, #ddd)" };
    const bounds = { x: left, y: top, width: Math.max(right - left, 1), height };
    let end = -Infinity;
    for (const [at, text] of panel.x.ticks || linearTicks(panel.x.ends, bounds.width / 80)) {
      const place = x(at), half = widthOf(text) / 2;
      add(svg, "line", { x1: place, x2: place, y1: top, y2: top + height, ...grid });
      if (place - half < end + 6) continue;
      end = place + half;
      add(svg, "text", { x: Math.min(place, width - half), y: top + height + 16, "text-anchor": "middle" }, text);
    }
    for (const [at, texts] of labels) {
      if (panel.y.log || !panel.y.ticks) add(svg, "line", { x1: left, x2: right, y1: y(at), y2: y(at), ...grid });
      texts.forEach((text, row) => add(svg, "text", { x: left - 6, y: y(at) + 4 + 14 * (row - (texts.length - 1) / 2), "text-anchor": "end" }, text));
    }
    const titles = lines(panel.x.title, right - left);
    titles.forEach((text, row) => add(svg, "text", { x: (left + right) / 2, y: top + height + 34 + 14 * row, "text-anchor": "middle" }, text));
    if (panel.y.title) add(svg, "text", { x: 0, y: 0, transform: `translate(11 ${top + height / 2}) rotate(-90)`, "text-anchor": "middle" }, panel.y.title);

    // A nested picture cuts off what lies beyond the axes; texts may go beyond.
    const inner = add(svg, "svg", { ...bounds, viewBox: `${bounds.x} ${bounds.y} ${bounds.width} ${bounds.height}` });
    // Boxes of larger dots and of texts, so that no text is written over another or over a dot.
    const taken = panel.marks.filter((mark) => mark.kind === "dots" && mark.size > 5).flatMap((mark) => mark.x.map((value, i) => {
      const [cx, cy, reach] = [x(value), y(mark.y[i]), mark.size / 2];
      return [cx - reach, cx + reach, cy - reach, cy + reach];
    }));
    const write = (text, at, to, anchor = "middle") => {
      const long = widthOf(text);
      const from = Math.max(left, Math.min(at - { start: 0, middle: long / 2, end: long }[anchor], width - long));
      if (taken.some(([a, b, c, d]) => from < b && from + long > a && to - 12 < d && to > c)) return false;
      taken.push([from, from + long, to - 12, to]);
      return add(svg, "text", { x: from, y: to, ...halo }, text);
    };
    const later = []; // texts of dots: those drawn last, on top, choose their place first
    const named = Object.fromEntries(panel.y.ticks || []);
    const draws = {
      bars(mark) {
        mark.at.forEach((at, i) => {
          const start = (mark.starts || [])[i] || 0, long = mark.lengths[i];
          const wide = Array.isArray(mark.width) ? mark.width[i] : mark.width ?? 0.7;
          const [a, b] = [y(at - wide / 2), y(at + wide / 2)].sort((p, q) => p - q);
          const [c, d] = [x(start), x(start + long)].sort((p, q) => p - q);
          const box = { x: c, y: a, width: d - c, height: b - a };
          const shape = hatched(inner, box, mark.colour, mark.hatch, mark.edge ?? 0.7);
          shape.tip = said(mark, { x: long, y: named[at] ?? at, base: start, about: (mark.about || [])[i], label: mark.label });
          const text = (mark.texts || [])[i];
          if (!text) return;
          // Behind the bar, before it, or without what stands in brackets.
          const sideOf = (each) => (long >= 0 && d + 4 + widthOf(each) <= width ? "start" : c - 4 - widthOf(each) > left ? "end" : "");
          const shown = [text, text.split(" (")[0]].find(sideOf) || text;
          const isBefore = sideOf(shown) === "end";
          if (!mark.texts_inside) write(shown, isBefore ? c - 4 : d + 4, (a + b) / 2 + 4, isBefore ? "end" : "start");
          else if (widthOf(text) < d - c) note(inner, (c + d) / 2, (a + b) / 2 + 4, text, { fill: mark.ink });
        });
      },
      curve(mark) {
        const points = mark.x.map((value, i) => `${x(value).toFixed(1)} ${y(mark.y[i]).toFixed(1)}`);
        const steps = mark.x.map((value, i) => (i ? `H${x(value).toFixed(1)}V${y(mark.y[i]).toFixed(1)}` : ""));
        const path = mark.steps ? `M${points[0]}${steps.join("")}` : `M${points.join("L")}`;
        const shape = add(inner, "path", { d: path, fill: "none", stroke: ink(mark.colour), "stroke-width": 2, "stroke-dasharray": DASHES[mark.dash ?? "-"] });
        shape.tip = mark.label || "";
      },
      dots(mark) {
        mark.x.forEach((value, i) => {
          const [cx, cy, reach] = [x(value), y(mark.y[i]), mark.size / 2];
          const look = { fill: ink(mark.colour), stroke: "currentColor", "stroke-width": mark.size > 5 ? 1 : 0 };
          const shape = mark.marker === "*" ?
            add(inner, "polygon", { points: STAR, ...look, transform: `translate(${cx} ${cy}) scale(${1.3 * reach})`, "stroke-width": 1 / reach }) :
            add(inner, "circle", { cx, cy, r: reach, ...look });
          shape.tip = said(mark, { x: value, y: mark.y[i], about: (mark.about || [])[i], label: mark.label });
        });
        later.push(() => (mark.texts || []).forEach((text, i) => {
          const [cx, cy] = [x(mark.x[i]), y(mark.y[i])];
          const away = mark.size / 2 + 2;
          if (mark.texts_inside) note(svg, cx, cy + 4, text, { "font-weight": 700 });
          else if (text && (width > 500 || text.length < 15)) write(text, cx + away, cy - away, "start") || write(text, cx - away, cy + away + 10, "end");
        }));
      },
    };
    for (const mark of panel.marks) draws[mark.kind](mark);
    for (const label of later.reverse()) label();
    return top + height + 34 + 14 * titles.length;
  }

  // What a panel's marks mean, but for those that a panel above it has named.
  function key(place, panel, shown) {
    const list = document.createElement("ul");
    list.className = "chart-key";
    for (const mark of panel.marks) {
      if (!mark.label || shown.has(mark.label)) continue;
      shown.add(mark.label);
      const item = list.appendChild(document.createElement("li"));
      const swatch = add(item, "svg", { width: 18, height: 12, "aria-hidden": true });
      if (mark.kind === "bars") hatched(swatch, { x: 1, y: 1, width: 16, height: 10 }, mark.colour, mark.hatch, 0.5);
      else if (mark.kind === "curve") add(swatch, "path", { d: "M0 6H18", stroke: ink(mark.colour), "stroke-width": 2, "stroke-dasharray": DASHES[mark.dash ?? "-"] });
      else add(swatch, "circle", { cx: 9, cy: 6, r: Math.min(mark.size / 2, 5), fill: ink(mark.colour) });
      item.append(" " + mark.label);
    }
    if (list.children.length) place.append(list);
  }

  const tip = document.createElement("div");
  tip.className = "chart-tip";
  tip.hidden = true;
  document.addEventListener("pointermove", ({ target, clientX, clientY }) => {
    tip.hidden = !target.tip;
    if (tip.hidden) return;
    if (!tip.isConnected) document.body.append(tip);
    tip.textContent = target.tip;
    tip.style.left = `${Math.min(clientX + 12, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${clientY + 14}px`;
  });

  const redraw = new ResizeObserver((entries) => {
    for (const { target } of entries) if (target.chart && target.clientWidth && target.clientWidth !== target.drawnAt) drawChart(target, target.chart);
  });

  return (place, chart) => {
    place.replaceChildren();
    Object.assign(place, { chart, drawnAt: place.clientWidth });
    redraw.observe(place);
    if (!chart || !place.clientWidth) return;
    const width = place.clientWidth, shown = new Set();
    for (const panel of chart.panels) {
      key(place, panel, shown);
      const svg = add(place, "svg", { width, "font-size": 12, fill: "currentColor", "aria-hidden": true });
      const height = drawPanel(svg, panel, 10, width) + 10;
      svg.setAttribute("height", height);
      svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    }
  };
})();
