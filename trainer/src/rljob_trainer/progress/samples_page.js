"use strict";
// Text of a model reaches the page as text nodes only, never as markup.
const MOST = 500, BARS = 20;
const {run, rows} = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const made = (name, kind, text) => {
  const element = document.createElement(name);
  if (kind) element.className = kind;
  if (text !== undefined) element.textContent = text;
  return element;
};
const shown = (number) => String(Math.round(number * 1e4) / 1e4);
const parts = (row) => row.episode.trajectories.flat();
const textOf = (row) => parts(row).map((part) => part.text).join("\n").toLowerCase();
const texts = new Map(rows.map((row) => [row, textOf(row)]));

function choices(select, values, all, chosen) {
  for (const [value, label] of [["", all], ...values.map((each) => [String(each), String(each)])]) {
    const option = made("option", "", label);
    option.value = value;
    select.append(option);
  }
  select.value = String(chosen);
}

function turn(part) {
  const line = made("div", "turn"), who = made("div", "who", part.who);
  if (part.who === "policy") who.append(made("div", "", `${part.inLoss} of ${part.tokens} tokens in the loss`));
  if (part.reward !== undefined) who.append(made("div", "", `reward ${shown(part.reward)}`));
  const text = made("div", "text");
  text.append(made("span", part.inLoss ? "loss" : "", part.text));
  line.append(who, text);
  return line;
}

function episode(row) {
  const {trajectories, status, counts, reason} = row.episode;
  const box = made("details"), head = made("summary");
  const numbers = Object.entries(counts).map(([name, value]) => `${name} ${shown(value)}`).join(", ");
  head.append(made("b", "", row.reward === null ? "–" : shown(row.reward)), made("span", "status", status), made("span", "", `step ${row.step}`),
    made("span", "", `${row.task}  ${numbers}`));
  box.append(head);
  box.addEventListener("toggle", () => {
    if (box.children.length > 1) return;
    trajectories.forEach((each, index) => {
      if (index) box.append(made("div", "note", "The history was rewritten: another trajectory."));
      each.forEach((part) => box.append(turn(part)));
    });
    if (reason) box.append(made("div", "note", `Left out: ${reason}`));
  });
  return box;
}

function histogram(rewards) {
  const svg = at("histogram"), drawn = (name, fields) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    Object.entries(fields).forEach(([key, value]) => element.setAttribute(key, value));
    return element;
  };
  svg.replaceChildren();
  if (!rewards.length) return;
  const low = Math.min(...rewards), width = Math.max(...rewards) - low || 1, bars = Array(BARS).fill(0);
  rewards.forEach((each) => { bars[Math.min(BARS - 1, Math.floor((each - low) / width * BARS))] += 1; });
  const top = Math.max(...bars);
  bars.forEach((count, index) => {
    const height = count / top * 84, x = 20 + index * 46;
    svg.append(drawn("rect", {x, y: 106 - height, width: 42, height, rx: 2}));
    if (!count) return;
    const label = drawn("text", {x: x + 21, y: 101 - height, "text-anchor": "middle"});
    label.textContent = count;
    svg.append(label);
  });
  [[20, low, "start"], [940, low + width, "end"]].forEach(([x, value, anchor]) => {
    const label = drawn("text", {x, y: 122, "text-anchor": anchor});
    label.textContent = `reward ${shown(value)}`;
    svg.append(label);
  });
}

function show() {
  const search = at("search").value.toLowerCase(), step = at("step").value, status = at("status").value;
  const least = at("least").valueAsNumber, most = at("most").valueAsNumber;
  const found = rows.filter((row) => (!step || String(row.step) === step) && (!status || row.episode.status === status)
    && (row.reward === null ? isNaN(least) && isNaN(most) : !(row.reward < least) && !(row.reward > most)) && texts.get(row).includes(search));
  const rewards = found.map((row) => row.reward).filter((each) => each !== null);
  const mean = rewards.reduce((sum, each) => sum + each, 0) / rewards.length;
  const only = found.length > MOST ? `; the first ${MOST} are listed` : "";
  at("count").textContent = `${found.length} of ${rows.length} episodes` + (rewards.length ? `, mean reward ${shown(mean)}${only}` : "");
  histogram(rewards);
  at("episodes").replaceChildren(...found.slice(0, MOST).map(episode));
  if (found.length) at("episodes").firstChild.open = true;
}

at("title").textContent = document.title = `Samples of ${run}`;
const steps = [...new Set(rows.map((row) => row.step))];
choices(at("step"), steps, "all", Math.max(...steps));
choices(at("status"), [...new Set(rows.map((row) => row.episode.status))], "all", "");
at("filter").addEventListener("input", show);
at("filter").addEventListener("submit", (event) => event.preventDefault());
show();
