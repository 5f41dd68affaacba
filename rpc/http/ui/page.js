/* The page at /: a chat, and what its requests do to the KV cache. Whatever a server answers goes
 * into the page as text, never as HTML. The API key stays in its field: it is stored nowhere. */
"use strict";

const $ = (id) => document.getElementById(id);
const LETTERS = ".abcdefgh"; // a cell's eighths; a capital is shared
/* Levels of attention mass: 0 is not read, 91 all of a layer's, and 20 of them a factor of 10. */
const LEVELS = ".!#$%&'()*+,-/0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[]^_`abcdefghijklmnopqrstuvwxyz{|}~";
const FAINT = 0.25, SHADES = 40; // opacity of the least shade; levels between it and the map's highest
const MAP_MS = 250, FIRST_MS = 40, OVERVIEW_MS = 1000;

const state = {
  chat: true,      // the model has a chat template
  messages: [],    // of the conversation
  asking: null,    // AbortController of the answer that comes in
  watched: null,   // id of the request whose map is shown
  map: null,       // rows of cells, and their measures
  cursor: [0, 0],  // row and column of the cell that is read out
  last: null,      // the last overview
};

function make(tag, text, name) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (name) node.className = name;
  return node;
}

function say(id, text) {
  if ($(id).textContent !== text) $(id).textContent = text;
}

function trouble(text) {
  $("trouble").hidden = !text;
  say("trouble", text || "");
}

/* ---- talking to the server ---- */

function headers(more) {
  const key = $("key").value.trim();
  return { ...more, ...(key ? { Authorization: "Bearer " + key } : {}) };
}

async function refusal(response) {
  if (response.status === 401) return "This server asks for an API key: type it under Request.";
  try {
    return (await response.json()).error.message;
  } catch {
    return "The server answered " + response.status + ".";
  }
}

async function get(path) {
  const response = await fetch(path, { headers: headers({}), cache: "no-store", referrerPolicy: "no-referrer" });
  if (response.ok) return response.json();
  if (response.status === 404) return null;
  throw new Error(await refusal(response));
}

/* The JSON of each event of a stream. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const frames = (text + value).split("\n\n");
    text = frames.pop();
    for (const frame of frames) {
      const data = frame.split("\n").find((line) => line.startsWith("data: "));
      if (data === "data: [DONE]") return;
      if (data) yield JSON.parse(data.slice(6));
    }
  }
}

/* ---- the chat ---- */

function retention() {
  const method = $("method").value, budget = $("budget").value.trim();
  if (!method) return undefined;
  if (!budget) return { method };
  return Number(budget) > 1 ? { method, tokens: Math.round(Number(budget)) } : { method, ratio: Number(budget) };
}

function body(text) {
  const ask = {
    stream: true, stream_options: { include_usage: true },
    max_tokens: Number($("tokens").value), temperature: Number($("temperature").value),
    retention: retention(), session: $("session").value.trim() || undefined,
  };
  return state.chat ? { messages: state.messages, ...ask } : { prompt: text, ...ask };
}

function addTurn(who) {
  const article = make("article");
  const text = make("p");
  article.append(make("h3", who), text);
  $("log").append(article);
  return { article, text };
}

/* What the end of an answer says about its cache. */
function note(usage, report, ms) {
  const parts = [];
  if (usage) {
    parts.push(`${usage.prompt_tokens} + ${usage.completion_tokens} tokens in ${(ms / 1000).toFixed(1)} s`);
    const cached = usage.prompt_tokens_details && usage.prompt_tokens_details.cached_tokens;
    if (cached) parts.push(`${cached} from the cache`);
  }
  if (report) {
    if (report.pages_dropped) parts.push(`${report.method}: ${report.pages_dropped} pages dropped`);
    if (report.session) parts.push(`session ${report.session}`);
  }
  return parts.join(" · ");
}

async function read(response, turn, answer, began) {
  let usage = null, report = null;
  for await (const event of events(response)) {
    if (event.error) throw new Error(event.error.message);
    if (event.usage) usage = event.usage;
    const choice = event.choices && event.choices[0];
    if (!choice) continue;
    if (choice.retention) report = choice.retention;
    const piece = choice.delta ? choice.delta.content : choice.text;
    if (!piece) continue;
    answer.content += piece;
    turn.text.append(piece); // a text node
    $("log").scrollTop = $("log").scrollHeight;
  }
  const text = note(usage, report, performance.now() - began);
  if (text) turn.article.append(make("p", text, "note"));
}

async function ask(text) {
  const id = crypto.getRandomValues(new Uint32Array(4)).reduce((all, n) => all + n.toString(16).padStart(8, "0"), "");
  const answer = { role: "assistant", content: "" };
  const began = performance.now();
  addTurn("You").text.textContent = text;
  const turn = addTurn("Octavo");
  state.messages.push({ role: "user", content: text });
  state.asking = new AbortController();
  $("log").setAttribute("aria-busy", "true"); // read out as a whole
  watch(id);
  try {
    const response = await fetch(state.chat ? "/v1/chat/completions" : "/v1/completions", {
      method: "POST", body: JSON.stringify(body(text)), signal: state.asking.signal,
      headers: headers({ "Content-Type": "application/json", "X-Request-Id": id }),
    });
    if (!response.ok) {
      state.watched = null;
      say("map-state", "The request was refused.");
      throw new Error(await refusal(response));
    }
    await read(response, turn, answer, began);
    trouble("");
  } catch (error) {
    if (error.name === "AbortError") turn.article.append(make("p", "stopped", "note"));
    else trouble(error.message);
  }
  if (answer.content) state.messages.push(answer);
  else {
    state.messages.pop();
    if (!turn.article.querySelector(".note")) turn.article.remove();
  }
  $("log").removeAttribute("aria-busy");
  state.asking = null;
}

async function send(event) {
  event.preventDefault();
  const text = $("prompt").value;
  if (!text.trim() || state.asking) return;
  $("prompt").value = "";
  $("send").disabled = true;
  $("stop").disabled = false;
  await ask(text);
  $("send").disabled = false;
  $("stop").disabled = true;
}

function reset() {
  if (state.asking) state.asking.abort();
  state.messages = [];
  $("log").replaceChildren();
  $("prompt").focus();
}

/* ---- the page map ---- */

/* Cells as numbers: eighths, and 16 where shared. */
function cellsOf(text, columns) {
  const cells = new Uint8Array(columns);
  let at = 0;
  for (const [, count, letter] of text.matchAll(/(\d*)([.a-hA-H])/g)) {
    const low = letter.toLowerCase();
    const cell = LETTERS.indexOf(low) + (low === letter ? 0 : 16);
    const n = count ? Number(count) : 1;
    cells.fill(cell, at, at + n);
    at += n;
  }
  return cells;
}

function tally(cells) {
  let kept = 0, shared = 0, part = 0;
  for (const cell of cells) {
    kept += cell > 0;
    part += (cell & 15) > 0 && (cell & 15) < 8;
    shared += cell > 15;
  }
  return { kept, part, shared, dropped: cells.length - kept };
}

/* The attention of one token: levels by row and column, tokens read by row, and the highest level. A
 * row that was not measured has no levels. */
function attentionOf(map) {
  if (!map.attention) return null;
  const levels = map.attention.rows.map((row) => row && Uint8Array.from(row[1], (letter) => LEVELS.indexOf(letter)));
  const read = map.attention.rows.map((row) => row && row[0]);
  const highest = levels.reduce((all, row) => Math.max(all, row ? row.reduce((a, b) => Math.max(a, b), 0) : 0), 1);
  return { ...map.attention, levels, read, highest };
}

const massOf = (level) => (level > 0 ? 10 ** ((level - (LEVELS.length - 1)) / 20) : 0);

function percent(mass) {
  const n = 100 * mass;
  return `${n >= 10 ? n.toFixed(0) : n >= 1 ? n.toFixed(1) : n.toFixed(n >= 0.1 ? 2 : 3)} %`;
}

/* The level of the map's cell; undefined where it was not measured: its layer is not, or its tokens
 * came later. */
function levelAt(y, x) {
  const { attention: a, column_tokens: wide } = state.map;
  return a && a.levels[y] ? a.levels[y][Math.floor((x * wide) / a.column_tokens)] : undefined;
}

function takeMap(map) {
  const rows = [];
  for (const [count, text] of map.rows) {
    const cells = cellsOf(text, map.columns);
    for (let i = 0; i < count; i++) rows.push(cells);
  }
  state.map = { ...map, rows, tallies: rows.map(tally), attention: attentionOf(map) };
}

function layersOf(row) {
  const first = row * state.map.row_layers, last = Math.min(first + state.map.row_layers, state.map.layers) - 1;
  return first === last ? `layer ${first}` : `layers ${first} to ${last}`;
}

function sizeOfCell() {
  const { rows, columns } = state.map;
  const wide = Math.floor(($("map-frame").clientWidth - 8) / Math.max(columns, 1));
  return [Math.max(1, Math.min(wide, 14)), Math.max(3, Math.min(Math.floor(320 / rows.length), 14))];
}

/* The more attention, the more opaque; all is where the map has no attention. */
function shade(level) {
  const a = state.map.attention;
  if (!a) return 1;
  return FAINT + (1 - FAINT) * Math.max(0, 1 - (a.highest - (level || -SHADES)) / SHADES);
}

function paint() {
  if (!state.map) return;
  const canvas = $("map"), { rows, columns } = state.map, [w, h] = sizeOfCell();
  const style = getComputedStyle(document.documentElement), color = (name) => style.getPropertyValue(name);
  const [kept, shared, dropped, text] = ["--kept", "--shared", "--dropped", "--text"].map(color);
  if (canvas.width !== columns * w || canvas.height !== rows.length * h) {
    canvas.width = columns * w;
    canvas.height = rows.length * h;
  }
  const c = canvas.getContext("2d");
  c.fillStyle = dropped;
  c.fillRect(0, 0, canvas.width, canvas.height);
  const gapX = w > 3 ? 1 : 0, gapY = h > 3 ? 1 : 0, line = Math.max(1, Math.floor(h / 5));
  const marks = Boolean(state.map.attention && state.map.reading);
  rows.forEach((cells, y) => {
    for (let x = 0, n; x < columns; x += n) {
      const level = levelAt(y, x);
      for (n = 1; gapX === 0 && x + n < columns && cells[x + n] === cells[x] && levelAt(y, x + n) === level;) n++;
      const eighths = cells[x] & 15, tall = Math.ceil(((h - gapY) * eighths) / 8);
      if (!eighths) continue;
      c.fillStyle = cells[x] > 15 ? shared : kept;
      c.globalAlpha = shade(level);
      c.fillRect(x * w, y * h + h - gapY - tall, n * w - gapX, tall);
      c.globalAlpha = 1;
      if (!marks || !level) continue;
      c.fillStyle = text;
      c.fillRect(x * w, y * h + h - gapY - line, n * w - gapX, line);
    }
  });
  if (document.activeElement !== canvas) return;
  c.strokeStyle = text;
  c.lineWidth = 2;
  c.strokeRect(state.cursor[1] * w, state.cursor[0] * h, Math.max(w, 3), h);
}

/* What the last token did with a cell. */
function attentionText(y, x) {
  const level = levelAt(y, x);
  if (level === undefined) return state.map.attention ? ", not measured" : "";
  if (level === 0) return state.map.rows[y][x] ? ", not read by the last token" : "";
  return `, ${level === 1 ? "less than " : ""}${percent(massOf(level))} of the attention` +
    (state.map.reading ? ", read by the last token" : "");
}

/* A screen reader hears the cell when the cursor has moved, not whenever its numbers change. */
function readCell(moved) {
  if (!state.map || !state.map.columns) return;
  const { rows, columns, column_tokens: wide, first_token: cut } = state.map;
  const y = (state.cursor[0] = Math.min(state.cursor[0], rows.length - 1));
  const x = (state.cursor[1] = Math.min(state.cursor[1], columns - 1));
  const cell = rows[y][x], eighths = cell & 15, from = cut + x * wide;
  const how = eighths === 0 ? "dropped" : eighths === 8 ? "kept" : `${eighths} eighths kept`;
  say("cell", `${layersOf(y)}, tokens ${from} to ${from + wide - 1}: ${how}${cell > 15 ? ", shared" : ""}` +
    attentionText(y, x));
  if (moved) say("said", $("cell").textContent);
}

/* The column with the highest level of some rows: its tokens, and its mean mass over these rows. */
function mostAttended(levels) {
  const a = state.map.attention, sums = new Float64Array(a.columns);
  for (const row of levels) row.forEach((level, x) => (sums[x] += massOf(level)));
  const x = sums.reduce((best, sum, i) => (sum > sums[best] ? i : best), 0), from = state.map.first_token + x * a.column_tokens;
  return `tokens ${from} to ${from + a.column_tokens - 1}, ${percent(Math.min(1, sums[x] / levels.length))}`;
}

/* What the summary says of the attention. */
function describeAttention() {
  const { attention: a, attention_lacks: lacks, reading, rows } = state.map, canvas = $("map");
  const measured = a ? a.levels.filter((row) => row) : [];
  canvas.dataset.measured = measured.length;
  canvas.dataset.read = measured.reduce((all, row) => all + row.reduce((n, level) => n + (level > 0), 0), 0);
  $("legend-mass").hidden = measured.length === 0;
  $("legend-read").hidden = measured.length === 0 || !reading;
  if (lacks) return [`No attention: ${lacks}.`];
  if (measured.length === 0) return [];
  canvas.dataset.token = a.token;
  say("ramp", `${percent(massOf(a.highest - SHADES))} or less to ${percent(massOf(a.highest))} of a layer's`);
  const text = [`Token ${a.token} attends most to ${mostAttended(measured)}, on average over ` +
    (measured.length === rows.length ? "all rows." : `the ${measured.length} rows that are measured.`)];
  if (reading) {
    const mean = a.read.reduce((all, n) => all + (n || 0), 0) / measured.length;
    text.push(`It read ${Math.round(mean)} tokens in a layer.`);
  }
  return text;
}

function describe(answer) {
  const { rows, columns, tallies, tables, tables_seen: seen, row_layers: deep, column_tokens: wide } = state.map;
  const sum = (name) => tallies.reduce((all, t) => all + t[name], 0);
  const canvas = $("map");
  for (const name of ["kept", "dropped", "shared", "part"]) canvas.dataset[name] = sum(name);
  canvas.dataset.rows = rows.length;
  canvas.dataset.columns = columns;
  const summary = [
    `${rows.length} rows of ${deep === 1 ? "a layer" : deep + " layers"} by ${columns} columns of ${wide} tokens:`,
    `${sum("kept")} cells kept (${sum("part")} in part), ${sum("dropped")} dropped, ${sum("shared")} shared.`,
  ];
  if (seen < tables && state.map.rows.length * 2 <= tables)
    summary.push(`${seen} of ${tables} tables were looked at.`);
  summary.push(...describeAttention());
  say("map-summary", summary.join(" "));
}

function fillLayers() {
  if (!$("layers").open || !state.map) return;
  $("layer-rows").replaceChildren(...state.map.tallies.map((t, y) => {
    const row = make("tr"), a = state.map.attention, levels = a && a.levels[y];
    row.append(make("th", layersOf(y)), make("td", t.kept), make("td", t.dropped), make("td", t.shared),
      make("td", levels ? Math.round(a.read[y]) : "–"), make("td", levels ? mostAttended([levels]) : "–"));
    row.firstChild.scope = "row";
    return row;
  }));
}

function showMap(answer) {
  const { map } = answer;
  if (!map) return;
  const text = [`Request ${answer.id.slice(0, 12)}: ${map.state}`];
  if (map.method) text.push(map.method, `${map.prompt_tokens} + ${map.output_tokens} tokens`,
    `${Math.round(map.kept_tokens)} kept in a layer`);
  if (map.choices > 1) text.push(`choice ${map.choice + 1} of ${map.choices}`);
  say("map-state", text.join(", "));
  if (!map.rows || !map.columns) return;
  takeMap(map);
  paint();
  describe(answer);
  readCell();
  fillLayers();
}

/* Follows one request until the server knows it no more. The last map stays. */
async function watch(id) {
  state.watched = id;
  say("map-state", "Waiting for the request's first map.");
  for (let began = performance.now(), seen = false; state.watched === id;) {
    let answer = null;
    try {
      answer = await get("/octavo/pages/" + encodeURIComponent(id));
    } catch (error) {
      trouble(error.message);
      return;
    }
    if (state.watched !== id) return;
    if (answer) {
      showMap(answer);
      seen = true;
    } else if (seen || performance.now() - began > 3000) break; // a request is known once it is read
    await new Promise((done) => setTimeout(done, answer && answer.map ? MAP_MS : FIRST_MS));
  }
  if (state.watched !== id) return;
  state.watched = null;
  say("map-state", state.map ? $("map-state").textContent.replace(/: \w+/, ": ended") : "It ended before its map was drawn.");
}

function moveCursor(event) {
  const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  if (!state.map) return;
  const [y, x] = state.cursor;
  if (moves[event.key]) {
    const [dy, dx] = moves[event.key];
    state.cursor = [Math.max(0, y + dy), Math.max(0, x + dx)];
  } else if (event.key === "Home") state.cursor = [y, 0];
  else if (event.key === "End") state.cursor = [y, state.map.columns - 1];
  else return;
  event.preventDefault();
  readCell(true);
  paint();
}

function pointCell(event) {
  if (!state.map) return;
  const [w, h] = sizeOfCell();
  state.cursor = [Math.floor(event.offsetY / h), Math.floor(event.offsetX / w)];
  readCell();
}

/* ---- the server ---- */

function listRequests(requests) {
  $("requests").replaceChildren(...requests.map((r) => {
    const row = make("tr"), show = make("button", "Show"), last = make("td");
    show.type = "button";
    show.setAttribute("aria-label", "Show the map of request " + r.id);
    show.dataset.id = r.id;
    show.setAttribute("aria-pressed", String(r.id === state.watched));
    last.append(show);
    row.append(make("td", r.id.slice(0, 16)), make("td", r.surface), make("td", (r.age_ms / 1000).toFixed(1) + " s"),
      make("td", r.prompts * r.choices), last);
    return row;
  }));
}

function showOverview(now) {
  const before = state.last || now, seconds = (now.time_ms - before.time_ms) / 1000;
  const rate = seconds > 0 ? (now.generated_tokens - before.generated_tokens) / seconds : 0;
  state.last = now;
  state.chat = now.chat;
  say("model", now.model + (now.chat ? "" : " (no chat template: prompts are completed)"));
  say("rate", rate.toFixed(rate < 10 ? 1 : 0));
  say("running", String(now.running));
  say("waiting", String(now.waiting));
  $("pool").value = now.pages ? now.used / now.pages : 0;
  say("pool-text", `${now.used.toLocaleString("en")} of ${now.pages.toLocaleString("en")} pages` +
    (now.cached ? `, ${now.cached.toLocaleString("en")} cached` : ""));
  if ($("method").options.length === 1)
    for (const name of now.methods) if (name !== "full") $("method").append(new Option(name, name));
  const focused = document.activeElement && document.activeElement.dataset.id;
  listRequests(now.requests);
  const again = focused && [...$("requests").querySelectorAll("button")].find((b) => b.dataset.id === focused);
  if (again) again.focus();
}

async function overview() {
  try {
    const now = document.hidden ? null : await get("/octavo/pages");
    if (now) showOverview(now);
    if (now && $("trouble").textContent.includes("API key")) trouble("");
  } catch (error) {
    trouble(error instanceof TypeError ? "The server does not answer." : error.message);
  }
  setTimeout(overview, OVERVIEW_MS);
}

$("form").addEventListener("submit", send);
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("form").requestSubmit();
});
$("stop").addEventListener("click", () => state.asking && state.asking.abort());
$("reset").addEventListener("click", reset);
$("map").addEventListener("keydown", moveCursor);
$("map").addEventListener("mousemove", pointCell);
for (const name of ["focus", "blur"]) $("map").addEventListener(name, paint);
$("layers").addEventListener("toggle", fillLayers);
$("requests").addEventListener("click", (event) => {
  if (event.target.dataset.id) watch(event.target.dataset.id);
});
addEventListener("resize", paint);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
overview();
