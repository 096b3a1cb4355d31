"use strict";
(() => {
  const { figures, grid, job } = JSON.parse(document.getElementById("data").textContent);
  const byId = (name) => document.getElementById(name);

  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

  for (const [name, chart] of Object.entries(figures)) drawChart(byId("chart-" + name), chart);

  // On paper everything is open.
  addEventListener("beforeprint", () => {
    for (const part of document.querySelectorAll("details")) part.open = true;
  });

  // Arrays are little-endian bytes in base64, the last knob fastest.
  const view = (text, width, read) => {
    const held = new DataView(bytes(text).buffer);
    return (index) => held[read](index * width, true);
  };
  const stepTime = view(grid.step_time_s, 4, "getFloat32");
  const memory = view(grid.memory_bytes, 4, "getFloat32");
  const share = view(grid.shares, 2, "getUint16");
  const reason = bytes(grid.reason);
  const plain = bytes(grid.plain);

  const digits = (value, count) => Number(value).toPrecision(count).replace(/^(\d+)\.?0*e.*$/, "$1");
  const seconds = (value) => (value >= 1 ? digits(value, 4) + " s" : digits(value * 1e3, 4) + " ms");
  const gib = (value) => digits(value / 2 ** 30, 3) + " GiB";

  const inputs = [];
  const positions = () => inputs.map((input) => Number(input.value));
  const values = (at) => Object.fromEntries(grid.knobs.map((knob, i) => [knob.name, knob.values[at[i]]]));
  const flatIndex = (at) => grid.knobs.reduce((sum, knob, i) => sum * knob.values.length + at[i], 0);

  function command(chosen, isPlain) {
    const own = job.inputs;
    const keep = chosen.pp > 1 && !isPlain;
    const schedule = chosen.pp === 1 ? "none" : isPlain ? "1f1b" : own.schedule;
    const vp = keep ? own.vp : 1;
    const writtenOut = own.pipeline_layout && own.pipeline_layout !== "balanced";
    const given = own.pipeline_layout && (writtenOut ? keep && chosen.pp === Number(own.pp) : chosen.pp > 1);
    return `${job.command} -n ${chosen.gpus} -l "tp${chosen.tp} cp${chosen.cp} pp${chosen.pp} vp${vp} ep${chosen.ep} ` +
      `etp${own.etp}" --micro-batch ${chosen.micro_batch} --schedule ${schedule}` +
      (given ? ` --pipeline-layout "${own.pipeline_layout}"` : "");
  }

  function drawParts(index, known) {
    const step = known ? stepTime(index) : 0;
    let start = 0;
    const marks = grid.parts.map((part, i) => {
      const spent = (share(index * grid.parts.length + i) / 65535) * step;
      start += spent;
      const label = `${part.label}: ${seconds(spent)}, ${((100 * spent) / step).toFixed(1)} %`;
      return { kind: "bars", ...part, label, at: [0], starts: [start - spent], lengths: [spent] };
    });
    const axes = { x: { title: "step time [s]", ends: [0, start || 1] }, y: { title: "", ends: [0.5, -0.5], ticks: [] } };
    const shown = known ? marks.filter((mark) => mark.lengths[0] > 0) : [];
    drawChart(byId("chart-slider"), { panels: [{ height: 0.6, marks: shown, ...axes }] });
  }

  function show() {
    const at = positions();
    const chosen = values(at);
    const index = flatIndex(at);
    const known = reason[index] === 0;
    grid.knobs.forEach((knob, i) => {
      const text = knob.values[at[i]].toLocaleString("en-US");
      byId("value-" + knob.name).textContent = text;
      inputs[i].setAttribute("aria-valuetext", text);
    });
    const answer = byId("answer");
    answer.classList.toggle("bad", !known);
    answer.dataset.step = known ? String(stepTime(index)) : "";
    answer.dataset.memory = known ? String(memory(index)) : "";
    byId("slider-command").textContent = known ? command(chosen, plain[index] === 1) : "";
    drawParts(index, known);
    if (!known) {
      byId("slider-step").textContent = "cannot run";
      byId("slider-compare").textContent = grid.reasons[reason[index] - 1];
      byId("slider-memory").textContent = "–";
      byId("slider-fit").textContent = "";
      return;
    }
    const step = stepTime(index);
    const held = memory(index);
    const rate = job.tokens_per_step / step / chosen.gpus;
    const dp = chosen.gpus / (chosen.tp * chosen.cp * chosen.pp);
    const utilisation = job.peak_seconds_of_one_gpu / step / chosen.gpus;
    byId("slider-step").textContent = seconds(step) + " a step";
    byId("slider-compare").textContent =
      `${digits(step / job.step_time_s, 3)} × the job's · MFU ${(100 * utilisation).toFixed(1)} % · dp ${dp} · ` +
      `${rate >= 100 ? Math.round(rate).toLocaleString("en-US") : digits(rate, 3)} tokens/s/GPU` +
      (plain[index] ? " · with plain 1F1B: the job's schedule does not run this" : "");
    byId("slider-memory").textContent = gib(held) + " a GPU";
    const left = job.capacity_bytes - held;
    const fit = byId("slider-fit");
    fit.textContent = left >= 0 ? `fits, ${gib(left)} left` : `does not fit, ${gib(-left)} too much`;
    fit.classList.toggle("bad", left < 0);
  }

  for (const knob of grid.knobs) {
    const box = document.createElement("div");
    box.className = "knob";
    const label = document.createElement("label");
    label.htmlFor = "knob-" + knob.name;
    label.textContent = knob.label;
    const value = document.createElement("output");
    value.id = "value-" + knob.name;
    value.htmlFor = "knob-" + knob.name;
    label.append(value);
    const input = document.createElement("input");
    Object.assign(input, { type: "range", id: "knob-" + knob.name, min: 0, max: knob.values.length - 1, step: 1 });
    input.value = knob.start;
    input.disabled = knob.values.length === 1;
    input.addEventListener("input", show);
    inputs.push(input);
    box.append(label, input);
    byId("knobs").append(box);
  }
  byId("slider-reset").addEventListener("click", () => {
    grid.knobs.forEach((knob, i) => { inputs[i].value = knob.start; });
    show();
  });
  show();
})();
