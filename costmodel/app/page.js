"use strict";
(() => {
  // The state is the query of the address: every input is one of its names, those of job B with "b." before them.
  const byId = (name) => document.getElementById(name);
  const all = (selector) => [...document.querySelectorAll(selector)];
  const start = JSON.parse(byId("first").textContent);
  let state = new URLSearchParams(start.query);
  let stop = null; // ends the search or the report that runs
  let asked = 0;
  let waiting;

  const view = () => state.get("view") || "overview";
  const isSecond = () => state.get("job") === "b";
  const inputs = all("form [name]");
  const nameOf = (input) => (isSecond() && !input.name.includes(".") ? "b." : "") + input.name;

  function set(name, text) {
    if (text) state.set(name, text); else state.delete(name);
  }

  const ask = async (path, more = {}, how = {}) => {
    const query = new URLSearchParams(state);
    for (const [name, text] of Object.entries(more)) query.set(name, text);
    return (await fetch(`${path}?${query}`, how)).json();
  };

  // --- what is shown ---

  function fill() {
    for (const input of inputs) input.value = state.get(nameOf(input)) || "";
    for (const part of all("details")) {
      part.open = part.open || [...part.querySelectorAll("[name]")].some((input) => input.value);
    }
    document.querySelector("select[name=figure]").value = state.get("figure") || "time";
    for (const button of all("[data-job]")) button.setAttribute("aria-pressed", String((button.dataset.job === "b") === isSecond()));
    turn();
  }

  function turn() {
    for (const tab of all("[role=tab]")) {
      const chosen = tab.dataset.view === view();
      tab.setAttribute("aria-selected", String(chosen));
      tab.tabIndex = chosen ? 0 : -1;
      if (chosen) byId("view").setAttribute("aria-labelledby", tab.id);
    }
    for (const panel of all("[data-panel]")) panel.hidden = panel.dataset.panel !== view();
    byId("warnings").hidden = view() !== "overview"; // what does not fit is said above every view
    byId("body").innerHTML = "";
    draw("figure", null);
  }

  function draw(place, chart, label = "") {
    byId(place).setAttribute("aria-label", label || "The figure");
    drawChart(byId(place), chart);
  }

  function say(problem = "", field = "") {
    byId("error").textContent = problem;
    for (const input of inputs) {
      const wrong = Boolean(field) && input.name.split(".").pop() === field;
      input.setAttribute("aria-invalid", String(wrong));
      input.closest("label").querySelector(".wrong").textContent = wrong ? problem : "";
    }
    for (const part of ["head", "warnings", "body", "figure"]) byId(part).classList.toggle("old", Boolean(problem));
  }

  // Fields that nobody filled show the planner's values where it chose the layout, else what is usual.
  function showPlanned(planned) {
    for (const input of inputs) {
      const [shown, what] = input.tagName === "SELECT" ? [input.options[0], "text"] : [input, "placeholder"];
      input.dataset.usual ??= shown[what];
      shown[what] = planned[input.name] ?? input.dataset.usual;
    }
  }

  async function answer() {
    clearTimeout(waiting);
    const mine = (asked += 1);
    const line = state.get("line");
    history.replaceState(null, "", `?${state}`);
    byId("save-model").hidden = !state.get((isSecond() ? "b." : "") + "model_file");
    const found = await ask("answer");
    if (mine !== asked) return; // something else was typed by then
    if (state.get("line") !== line) return answer(); // a line was opened by then: this reply would shut it
    byId("command").textContent = found.command;
    say(found.error, found.field);
    if (found.error) return;
    if (found.planned) showPlanned(found.planned);
    byId("head").innerHTML = found.head;
    byId("body").innerHTML = found.body;
    draw("figure", found.figure, found.label);
    if (view() === "overview") others(found.point);
    byId("warnings").classList.add("old");
    const warned = view() === "overview" ? await ask("warnings") : { html: "" };
    if (mine !== asked) return;
    byId("warnings").innerHTML = warned.html || "";
    byId("warnings").classList.remove("old");
  }

  // --- other layouts of the job: found as the page opens, and again when more than the layout is changed ---

  const front = { of: "", found: null, point: null };
  let looking = null; // ends the search of other layouts
  let patience;

  const question = () => {
    const asked = new URLSearchParams([...state].filter(([name]) => !start.layout.includes(name.replace("b.", ""))));
    for (const name of ["view", "figure", "line"]) asked.delete(name);
    return String(asked);
  };

  function others(point) {
    front.point = point;
    if (front.of === question()) return showFront();
    if (looking) looking.abort();
    clearTimeout(patience);
    Object.assign(front, { of: "", found: null });
    showFront();
    byId("overview-said").textContent = "Looking for the best layouts …";
    patience = setTimeout(find, 400);
  }

  async function find() {
    const own = question();
    looking = new AbortController();
    const found = await longAnswer("overview-plan", looking.signal, (share) => {
      byId("overview-said").textContent = `Looking for the best layouts … ${share}`;
    });
    if (found.stopped || own !== question()) return;
    Object.assign(front, { of: own, found });
    showFront();
  }

  function showFront() {
    const { found, point } = front;
    byId("tries").innerHTML = (found && found.body) || "";
    byId("front").hidden = !(found && found.figure);
    if (!found) return;
    byId("overview-said").textContent = found.error || verdict(point.y / found.best_s);
    if (found.error) return;
    layouts = found.layouts;
    const chart = structuredClone(found.figure);
    const [panel] = chart.panels;
    const look = { marker: "*", size: 18, colour: "#D55E00", hover: "yours\n%{y:.4g} s, %{x:.1f} GiB" };
    panel.marks.push({ kind: "dots", x: [point.x], y: [point.y], texts: ["yours"], ...look });
    for (const axis of ["x", "y"]) {
      const [low, high] = panel[axis].ends;
      panel[axis].ends = [Math.min(low, 0.9 * point[axis]), Math.max(high, 1.1 * point[axis])];
    }
    draw("front", chart, found.label);
  }

  const verdict = (ratio) => document.querySelector("#head .refused") ? "Yours does not fit; these do:" :
    ratio > 1.005 ? `Yours takes ${ratio.toFixed(2)} times as long as the first of these:` :
    ratio < 0.995 ? `Yours takes ${ratio.toFixed(2)} times as long as the first of these (the search keeps memory to spare):` : "Yours is as fast as the first of these:";

  // --- what is typed ---

  for (const pick of all("select.pick")) {
    pick.addEventListener("change", () => {
      const input = document.querySelector(`input[name="${pick.dataset.into}"]`);
      input.value = pick.value;
      pick.value = "";
      input.dispatchEvent(new Event("input"));
    });
  }

  for (const input of inputs) {
    input.addEventListener("input", () => {
      set(nameOf(input), input.value.trim());
      // A model that is named replaces one that was dropped, and a batch the file's that grows.
      const dropped = { model: "model_file", global_batch: "batches" }[input.name];
      if (dropped && input.value.trim()) state.delete((isSecond() ? "b." : "") + dropped);
      clearTimeout(waiting);
      waiting = setTimeout(answer, 100);
    });
  }
  document.querySelector("select[name=figure]").addEventListener("change", (event) => {
    set("figure", event.target.value);
    answer();
  });
  for (const button of all("[data-job]")) {
    button.addEventListener("click", () => {
      set("job", button.dataset.job === "b" ? "b" : "");
      byId("dropped").textContent = "";
      fill();
      answer();
    });
  }
  byId("copy").addEventListener("click", () => {
    const [from, to] = isSecond() ? ["b.", ""] : ["", "b."];
    for (const name of [...start.fields, "model_file", "batches"]) set(to + name, state.get(from + name));
    byId("dropped").textContent = `Job ${isSecond() ? "A" : "B"} is a copy of this one.`;
    answer();
  });

  const tabs = all("[role=tab]");
  for (const [index, tab] of tabs.entries()) {
    tab.addEventListener("click", () => {
      set("view", tab.dataset.view === "overview" ? "" : tab.dataset.view);
      set("line", "");
      turn();
      answer();
    });
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = tabs[(index + step + tabs.length) % tabs.length];
      next.focus();
      next.click();
    });
  }

  async function upload(file) {
    const said = await ask("read", { name: file.name }, { method: "POST", body: file });
    byId("file").value = "";
    if (said.error) return say(said.error);
    state = new URLSearchParams(said.query);
    fill();
    byId("dropped").textContent = said.said;
    return answer();
  }
  byId("file").addEventListener("change", (event) => event.target.files.length && upload(event.target.files[0]));
  for (const name of ["dragover", "drop"]) {
    byId("drop").addEventListener(name, (event) => {
      event.preventDefault();
      if (name === "drop" && event.dataTransfer.files.length) upload(event.dataTransfer.files[0]);
    });
  }

  // --- lines that open, layouts that are taken, files that are saved ---

  const shut = (line) => {
    line.setAttribute("aria-expanded", "false");
    const below = line.closest("tr").nextElementSibling;
    if (below && below.classList.contains("opened")) below.remove();
  };

  async function open(line) {
    const wasOpen = line.getAttribute("aria-expanded") === "true";
    all('[data-line][aria-expanded="true"]').forEach(shut);
    set("line", wasOpen ? "" : line.dataset.line);
    history.replaceState(null, "", `?${state}`);
    const found = await ask("line");
    byId("command").textContent = found.command;
    if (wasOpen) return;
    if (found.error) return say(found.error);
    const row = line.closest("tr");
    const below = row.parentNode.insertRow(row.sectionRowIndex + 1);
    below.className = "opened";
    const cell = below.insertCell();
    cell.colSpan = row.cells.length;
    cell.innerHTML = found.html;
    line.setAttribute("aria-expanded", "true");
  }

  function save(name, text) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text]));
    link.download = name;
    link.click();
    URL.revokeObjectURL(link.href);
    byId("report-said").textContent = `${name} is on its way.`;
  }

  let layouts = [];
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.line) open(button);
    if (button.dataset.use) {
      state = new URLSearchParams(layouts[Number(button.dataset.use)]);
      fill();
      answer();
    }
    if (button.dataset.save) {
      const found = await ask(button.dataset.save, button.dataset.of ? { job: button.dataset.of } : {});
      if (found.error) say(found.error); else save(found.name, found.text);
    }
    if ("stop" in button.dataset && stop) stop.abort();
    if (button.dataset.long) search(button.dataset.long);
  });

  // --- what takes longer: a line of progress after another, then the answer ---

  async function longAnswer(what, signal, progress) {
    let found = {};
    try {
      const reply = await fetch(`${what}?${state}`, { signal });
      const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        text += value;
        const lines = text.split("\n");
        text = lines.pop();
        for (const line of lines) {
          found = JSON.parse(line);
          if (found.total) progress(`${found.done.toLocaleString("en-US")} of ${found.total.toLocaleString("en-US")}`, found.done / found.total);
        }
      }
      return found;
    } catch (error) {
      return { stopped: true };
    }
  }

  async function search(what) {
    const said = byId(`${what}-said`);
    const bar = byId("plan-bar");
    const busy = (runs) => {
      for (const button of all("[data-stop]")) button.disabled = !runs;
      for (const button of all("[data-long]")) button.disabled = runs;
      bar.hidden = !runs;
      byId("planned").classList.toggle("old", runs);
    };
    stop = new AbortController();
    busy(true);
    said.textContent = "Starting …";
    const found = await longAnswer(what, stop.signal, (share, done) => {
      bar.value = done;
      said.textContent = share;
    });
    stop = null;
    busy(false);
    said.textContent = found.stopped ? "Stopped." : found.error ? "" : "Done.";
    if (found.stopped) return;
    say(found.error, found.field);
    if (found.error) return;
    if (found.text) return void save(found.name, found.text);
    layouts = found.layouts;
    byId("planned").innerHTML = found.body;
    draw("pareto", found.figure, found.label);
  }

  byId("dark").addEventListener("click", () => {
    const root = document.documentElement;
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    try { localStorage.setItem("theme", root.dataset.theme); } catch (error) { /* no storage: until the page is closed */ }
  });

  fill();
  if (start.error) say(start.error, start.field); else answer();
})();
