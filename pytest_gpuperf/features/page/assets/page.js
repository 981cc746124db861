"use strict";
(() => {
  const { moments, charts: drawings } = JSON.parse(document.getElementById("drawings").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const drawn = new Map();

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  // A tooltip is HTML, and its lines have names and units that tests chose.
  const tip = (...lines) => lines.map((line) => echarts.format.encodeHTML(line)).join("<br>");
  const short = (value) => (value === null || value === undefined ? "" : Number(value.toPrecision(4)).toString());

  function base(unit, description) {
    const quiet = colour("--quiet"), line = colour("--line");
    const axis = { axisLine: { lineStyle: { color: line } }, axisLabel: { color: quiet }, splitLine: { lineStyle: { color: line, opacity: 0.5 } } };
    return {
      animation: false,
      aria: { enabled: true, label: { description } },
      backgroundColor: "transparent",
      textStyle: { fontFamily: "inherit" },
      grid: { left: 64, right: 24, top: 28, bottom: 32 },
      tooltip: { trigger: "item", confine: true, backgroundColor: colour("--paper"), borderColor: line, textStyle: { color: colour("--ink") } },
      xAxis: { ...axis, type: "category", axisTick: { show: false } },
      yAxis: { ...axis, type: "value", scale: true, axisLabel: { color: quiet, showMinLabel: false, showMaxLabel: false }, name: unit, nameTextStyle: { color: quiet, align: "right" } },
    };
  }

  function level(value, text, tone, type) {
    return { yAxis: value, lineStyle: { color: colour(tone), type: type || "dashed", width: 1 }, label: { formatter: text, color: colour(tone), position: "insideEndTop" } };
  }

  function span(values) {
    const known = values.filter((value) => Number.isFinite(value));
    const low = Math.min(...known), high = Math.max(...known), room = (high - low || Math.abs(high) || 1) * 0.15;
    return { min: Number((low - room).toPrecision(4)), max: Number((high + room).toPrecision(4)) };
  }

  const tone = { regressed: "--red", invalid: "--red", missed: "--red", missing: "--red", environment: "--amber", undecided: "--amber", expected: "--amber", improved: "--green", same: "--green" };

  function launches(drawing) {
    const rows = drawing.launches;
    const option = base(drawing.unit, `${rows.length} launches of the baseline, and this run: ${short(drawing.now[0])} ${drawing.unit}, against ${short(drawing.center)} ${drawing.unit}.`);
    const mark = { symbol: "none", silent: true, data: [level(drawing.center, "baseline", "--quiet")] };
    option.xAxis.data = [...rows.map((row) => moments[row[0]][0]), "now"];
    option.xAxis.axisLabel = { ...option.xAxis.axisLabel, interval: 0, formatter: (value, index) => (index === rows.length ? "now" : "") };
    const values = [...rows.map((row) => row[1]), drawing.now[0], drawing.center];
    const band = drawing.bound ? [drawing.center * (1 - drawing.bound), drawing.center * (1 + drawing.bound)] : null;
    Object.assign(option.yAxis, span(values));
    option.series = [
      { type: "scatter", symbolSize: 8, itemStyle: { color: colour("--quiet") }, data: rows.map((row) => ({ value: row[1], tip: tip(...moments[row[0]], `${short(row[1])} ${drawing.unit}`) })), markLine: mark,
        markArea: band ? { silent: true, itemStyle: { color: colour("--grey-soft"), opacity: 0.6 }, data: [[{ yAxis: band[0] }, { yAxis: band[1] }]] } : undefined },
      { type: "scatter", symbolSize: 13, symbol: "diamond", itemStyle: { color: colour(tone[drawing.outcome] || "--accent") }, data: [...rows.map(() => "-"), { value: drawing.now[0], tip: tip("this run", `${short(drawing.now[0])} ${drawing.unit}`) }] },
    ];
    option.tooltip.formatter = (item) => item.data.tip;
    return ["Launches of the baseline, and this run", option];
  }

  function samples(drawing) {
    const option = base(drawing.unit, `${drawing.trace.length} samples of this launch, median ${short(drawing.now[0])} ${drawing.unit}.`);
    option.xAxis.data = drawing.trace.map((_, index) => index + 1);
    Object.assign(option.yAxis, span([...drawing.trace, drawing.now[0]]));
    option.series = [{ type: "line", symbol: "circle", symbolSize: 4, lineStyle: { width: 1 }, color: colour("--accent"), data: drawing.trace,
      markLine: { symbol: "none", silent: true, data: [level(drawing.now[0], "median", "--accent"), ...(drawing.limit && drawing.limit < option.yAxis.max ? [level(drawing.limit, "limit", "--red")] : [])] } }];
    option.tooltip.formatter = (item) => tip(`sample ${item.name}`, `${short(item.value)} ${drawing.unit}`);
    return ["Samples in the order of time", option];
  }

  function past(drawing) {
    const option = base(drawing.unit, `${drawing.history.length} centres that commits recorded.`);
    option.xAxis.data = drawing.history.map((row) => moments[row[0]][0]);
    Object.assign(option.yAxis, span(drawing.history.map((row) => row[1])));
    option.series = [{ type: "line", step: "end", symbolSize: 7, color: colour("--accent"), data: drawing.history.map((row) => ({ value: row[1], tip: tip(moments[row[0]].join(" "), `${short(row[1])} ${drawing.unit}`) })) }];
    option.tooltip.formatter = (item) => item.data.tip;
    return ["The baseline over commits", option];
  }

  function across(drawing) {
    const option = base(drawing.unit, `${drawing.runs.length} runs: ${drawing.runs.map((row) => short(row[1])).join(", ")} ${drawing.unit}.`);
    option.xAxis.data = drawing.runs.map((row) => row[0]);
    Object.assign(option.yAxis, span([...drawing.runs.map((row) => row[1]), drawing.center]));
    option.series = [{ type: "line", symbolSize: 9, color: colour("--accent"), data: drawing.runs.map((row) => ({ value: row[1], itemStyle: { color: colour(tone[row[2]] || "--accent") } })),
      markLine: drawing.center ? { symbol: "none", silent: true, data: [level(drawing.center, "baseline", "--quiet")] } : undefined }];
    option.tooltip.formatter = (item) => tip(item.name, `${short(item.value)} ${drawing.unit}`);
    return ["Runs on this page", option];
  }

  function curve(drawing) {
    const option = base(drawing.unit, `Bandwidth at ${drawing.sizes.length} sizes, at most ${short(Math.max(...drawing.bandwidths))} ${drawing.unit}.`);
    option.xAxis.data = drawing.labels;
    option.yAxis.type = "log";
    option.yAxis.scale = false;
    option.legend = { top: 0, right: 0, textStyle: { color: colour("--quiet") } };
    const dips = new Set(drawing.dips);
    option.series = [
      { name: "measured", type: "line", symbolSize: 7, color: colour("--accent"), data: drawing.bandwidths.map((value, index) => (dips.has(drawing.sizes[index]) ? { value, symbolSize: 13, itemStyle: { color: colour("--red") } } : value)),
        markLine: drawing.limit ? { symbol: "none", silent: true, data: [level(drawing.limit, "limit", "--red")] } : undefined },
      { name: "fit", type: "line", symbol: "none", color: colour("--quiet"), lineStyle: { type: "dotted" }, data: drawing.fit.map((value) => (value === null ? "-" : value)) },
    ];
    if (drawing.limit) option.yAxis.max = Math.max(drawing.limit, ...drawing.bandwidths) * 1.3;
    option.tooltip.formatter = (item) => tip(`${item.name} ${item.seriesName}`, `${short(item.value)} ${drawing.unit}`);
    return ["Bandwidth by size", option];
  }

  function frontier(drawing) {
    const best = drawing.trials[0], kept = drawing.trials.filter((row) => row[3]);
    const option = base(drawing.unit, `${drawing.trials.length} configurations by memory and time; ${best[0]} is the fastest with ${short(best[2])} ${drawing.unit} and ${short(best[1])} ${drawing.memory_unit}. On the frontier: ${kept.map((row) => row[0]).join(", ")}.`);
    const point = (row) => ({ value: [row[1], row[2]], name: row[0], tip: tip(row[0], `${short(row[2])} ${drawing.unit}`, `${short(row[1])} ${drawing.memory_unit}`) });
    Object.assign(option.xAxis, { type: "value", scale: true, name: drawing.memory_unit, nameLocation: "middle", nameGap: 24, nameTextStyle: { color: colour("--quiet") } }, span(drawing.trials.map((row) => row[1])));
    Object.assign(option.yAxis, span(drawing.trials.map((row) => row[2])));
    option.grid.bottom = 44;
    option.legend = { top: 0, right: 0, textStyle: { color: colour("--quiet") } };
    const named = { show: true, position: "top", color: colour("--ink"), formatter: (item) => item.data.name };
    option.series = [
      { name: "others", type: "scatter", symbolSize: 8, color: colour("--quiet"), data: drawing.trials.filter((row) => !row[3]).map(point) },
      { name: "frontier", type: "line", step: "end", symbol: "circle", symbolSize: 10, color: colour("--accent"), lineStyle: { width: 1 }, label: named, data: [...kept].reverse().map(point) },
    ];
    option.tooltip.formatter = (item) => item.data.tip;
    return ["Time against memory", option];
  }

  function pictures(drawing) {
    if (drawing.kind === "frontier") return [frontier(drawing)];
    if (drawing.kind === "curve") return [curve(drawing)];
    const all = [];
    if (drawing.runs) all.push(across(drawing));
    if (drawing.launches) all.push(launches(drawing));
    if (drawing.history) all.push(past(drawing));
    if (drawing.trace.length > 1) all.push(samples(drawing));
    return all;
  }

  function draw(place) {
    const previous = drawn.get(place);
    if (previous) previous.forEach((chart) => chart.dispose());
    place.replaceChildren();
    drawn.set(place, pictures(drawings[place.dataset.drawing]).map(([title, option]) => {
      const heading = document.createElement("p");
      heading.className = "chart-title";
      heading.textContent = title;
      const box = document.createElement("div");
      box.className = "chart";
      place.append(heading, box);
      const chart = echarts.init(box, null, { renderer: "svg" });
      chart.setOption(option);
      box.setAttribute("role", "img");
      box.setAttribute("aria-label", option.aria.label.description);
      return chart;
    }));
  }

  const within = (details) => details.querySelectorAll(".charts");
  document.querySelectorAll("details.test").forEach((details) => {
    details.addEventListener("toggle", () => { if (details.open) within(details).forEach((place) => drawn.has(place) || draw(place)); });
  });
  const seen = new IntersectionObserver((entries) => entries.forEach((entry) => {
    if (entry.isIntersecting) { seen.unobserve(entry.target); draw(entry.target); }
  }), { rootMargin: "400px" });
  document.querySelectorAll("#curves .charts, #configurations .charts").forEach((place) => seen.observe(place));

  // A link from the top of the page leads into a test that is closed, and that a filter may hide.
  function reveal(hash) {
    const target = document.getElementById(decodeURIComponent(hash.slice(1)));
    const test = target && target.closest("details.test");
    if (test) { test.closest(".subject").hidden = test.hidden = false; test.open = true; }
  }
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#"]');
    if (link) reveal(link.hash);
  });
  reveal(location.hash);

  const redraw = () => [...drawn.keys()].forEach(draw);
  dark.addEventListener("change", redraw);
  window.addEventListener("resize", () => drawn.forEach((charts) => charts.forEach((chart) => chart.resize())));
  window.addEventListener("beforeprint", () => {
    document.querySelectorAll('details.test:not([data-outcome="same"]):not([data-outcome="unjudged"])').forEach((details) => { details.open = true; within(details).forEach((place) => drawn.has(place) || draw(place)); });
    document.querySelectorAll("#curves .charts, #configurations .charts").forEach((place) => drawn.has(place) || draw(place));
  });

  const filter = document.getElementById("filter");
  if (!filter) return;
  const tests = [...document.querySelectorAll("details.test")];
  const shown = document.getElementById("shown");
  function apply() {
    const outcomes = new Set([...filter.querySelectorAll('[name="outcome"]:checked')].map((box) => box.value));
    const file = filter.elements.file.value;
    const words = filter.elements.text.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    document.querySelectorAll(".subject").forEach((subject) => {
      let any = false;
      subject.querySelectorAll("details.test").forEach((test) => {
        const text = test.dataset.text.toLowerCase();
        const kept = outcomes.has(test.dataset.outcome) && (!file || subject.dataset.file === file) && words.every((word) => text.includes(word));
        test.hidden = !kept;
        any = any || kept;
        count += kept ? 1 : 0;
      });
      subject.hidden = !any;
    });
    shown.textContent = `${count} of ${tests.length} tests are shown`;
  }
  filter.hidden = false;
  filter.addEventListener("input", apply);
  filter.addEventListener("submit", (event) => event.preventDefault());
  const button = document.getElementById("open-all");
  button.addEventListener("click", () => {
    const open = button.textContent === "Open all";
    tests.filter((test) => !test.hidden).forEach((test) => { test.open = open; });
    button.textContent = open ? "Close all" : "Open all";
  });
  apply();
})();
