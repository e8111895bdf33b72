
// What every page of a model shares: asking the server, telling what came of it, in words.

const model = JSON.parse(document.getElementById("model").textContent);
const byId = (id) => document.getElementById(id);
const SLOW_MS = 1000;
const PATIENCE_MS = 30000;
const TOKEN = "longboat-token";
const WORDS = 12;
const MOST_BARS = 20;

const SHARES = ["probabilities", "probability", "scores", "score", "logistic", "logits", "logit", "outputs", "output"];
const CLASSES = ["class", "classes", "label", "labels", "class_ids", "prediction", "predictions", "predicted"];

class Trouble extends Error {
  constructor(title, message, status = 0) {
    super(message);
    this.title = title;
    this.status = status;
  }
}

const STATUSES = {
  400: "The model cannot take this",
  401: "A token is needed",
  404: "The model is not there",
  408: "The connection was too slow",
  413: "This is too large",
  429: "The server is busy",
  500: "The model failed",
  501: "The model cannot do this",
  503: "The model is not available",
  504: "The server ran out of time",
};

function stored() {
  try { return sessionStorage.getItem(TOKEN) || ""; } catch { return ""; }
}

function address(verb) {
  return new URL(`../v1/models/${encodeURIComponent(model.name)}:${verb}`, location.href).href.split("?")[0];
}

// NaN and Infinity are not JSON, yet models answer so, and the server passes it on.
function parse(text) {
  try { return JSON.parse(text); } catch { /* below */ }
  return JSON.parse(text.replace(/(?<=[[,:]\s*)(?:NaN|-?Infinity)(?=\s*[\],}])/g, "null"));
}

let running = null;

async function call(verb, body, signal) {
  const headers = { "Content-Type": "application/json" };
  if (stored()) headers.Authorization = `Bearer ${stored()}`;
  let response, text;
  try {
    response = await fetch(address(verb), { method: "POST", headers, body, signal });
    text = await response.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Trouble("The server does not answer", "It may have been stopped, or the network is down. Try again when it is back.");
  }
  let reply = null;
  try { reply = parse(text); } catch { /* reported below */ }
  if (!response.ok) {
    const message = reply && typeof reply.error === "string" ? reply.error : text.slice(0, 300);
    throw new Trouble(STATUSES[response.status] || `The server answered ${response.status}`, message, response.status);
  }
  if (reply === null) throw new Trouble("The answer is not understood", "The server sent something that is not JSON.");
  return reply;
}

// Sends a request and hands the answer on; tells what went wrong instead. A new request takes the place of one that is
// still open.
async function exchange(body, then) {
  if (running) running.abort();
  const mine = new AbortController();
  running = mine;
  tellCommand(body);
  const began = performance.now();
  const tick = setInterval(() => {
    const passed = performance.now() - began;
    if (passed > PATIENCE_MS) mine.abort();
    else if (passed > SLOW_MS) tellWaiting(5 * Math.floor(passed / 5000));
  }, 250);
  byId("trouble").hidden = true;
  byId("answer").setAttribute("aria-busy", "true");
  try {
    const reply = await call("predict", body, mine.signal);
    byId("login").hidden = true;
    await then(reply, mine.signal);
  } catch (error) {
    if (running !== mine) return;
    if (mine.signal.aborted) {
      tellTrouble(new Trouble("No answer yet", `The server took longer than ${PATIENCE_MS / 1000} s, so this page stopped waiting.`));
    } else if (error instanceof Trouble) {
      tellTrouble(error, () => exchange(body, then));
    } else {
      throw error;
    }
  } finally {
    clearInterval(tick);
    if (running === mine) {
      running = null;
      byId("waiting").textContent = "";
      byId("answer").removeAttribute("aria-busy");
    }
  }
}

// Every five seconds and not more often: a screen reader reads each change aloud.
function tellWaiting(seconds) {
  const words = seconds ? `Waiting for the server: ${seconds} s` : "Waiting for the server…";
  if (byId("waiting").textContent !== words) byId("waiting").textContent = words;
}

// Asks for one row and tells the prediction.
function ask(instance, { truth = null, text = null } = {}) {
  const body = encoded({ instances: [instance] });
  return exchange(body, async (reply, signal) => {
    if (!Array.isArray(reply.predictions) || reply.predictions.length !== 1) {
      throw new Trouble("The answer is not understood", "One prediction was expected.");
    }
    tellAnswer(reply.predictions[0], truth);
    if (model.explains) await explain(text, body, signal);
  });
}

// A figure that is not there is NaN, for which JSON proper has no word; the server takes it.
const MISSING = "\u0000missing";

function encoded(value) {
  return JSON.stringify(value).replaceAll(JSON.stringify(MISSING), "NaN");
}

let again = null;

function tellTrouble(trouble, retry = null) {
  const box = byId("trouble");
  const title = document.createElement("strong");
  title.textContent = trouble.title;
  const words = document.createElement("div");
  words.textContent = trouble.message;
  box.replaceChildren(title, words);
  box.hidden = false;
  byId("answer").hidden = true;
  if (trouble.status === 401) {
    again = retry;
    byId("login").hidden = false;
    byId("token").focus();
  }
}

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  try { sessionStorage.setItem(TOKEN, byId("token").value.trim()); } catch { /* only for this page then */ }
  byId("token").value = "";
  if (again) again();
});

function tellCommand(body) {
  const short = body.length > 2000 ? `${body.slice(0, 2000)}…` : body;
  const login = stored() ? " -H \"Authorization: Bearer $TOKEN\"" : "";
  byId("curl").textContent = `curl${login} -d '${short.replaceAll("'", "'\\''")}' ${address("predict")}`;
}

// What a prediction means: mirrors longboat.serve.client.predictions.
function reading(row) {
  const outputs = row !== null && typeof row === "object" && !Array.isArray(row) ? row : { [model.outputs[0]?.name ?? "output"]: row };
  const names = Object.keys(outputs);
  const name = [...SHARES, ...CLASSES].find((each) => names.includes(each)) ?? names[0];
  let value = outputs[name];
  while (Array.isArray(value) && value.length === 1) value = value[0];
  const labels = model.labels;
  if (Array.isArray(value) && value.every((each) => typeof each === "number")) {
    const shares = asShares(value);
    const own = Array.isArray(outputs.classes) && outputs.classes.length === value.length ? outputs.classes : labels;
    return { bars: shares.map((share, i) => ({ label: String(own[i] ?? i), share })) };
  }
  if (typeof value === "number" && labels.length === 2) {
    let share = value;
    if (["logits", "logit"].includes(name)) share = 1 / (1 + Math.exp(-value));
    else if (labels[0] === "-1") share = (1 + Math.max(-1, Math.min(1, value))) / 2;
    if (share >= 0 && share <= 1 && !(Number.isInteger(value) && CLASSES.includes(name))) {
      return { bars: [{ label: labels[0], share: 1 - share }, { label: labels[1], share }] };
    }
  }
  if (Number.isInteger(value) && CLASSES.includes(name)) return { headline: String(labels[value] ?? value) };
  if (typeof value === "number") return { headline: `${name}: ${Number(value.toPrecision(6))}` };
  if (value === null) return { headline: `${name}: no number came out` };
  return { headline: typeof value === "string" ? value : JSON.stringify(value) };
}

function asShares(values) {
  const sum = values.reduce((a, b) => a + b, 0);
  if (values.every((each) => each >= 0 && each <= 1) && Math.abs(sum - 1) < 0.02) return values;
  const top = Math.max(...values);
  const powers = values.map((each) => Math.exp(each - top));
  const all = powers.reduce((a, b) => a + b, 0);
  return powers.map((each) => each / all);
}

// What weighed most in the answer: words of a text, columns of a table.
async function explain(text, body, signal) {
  let reply;
  try {
    reply = await call("explain", body, signal);
  } catch (error) {
    if (!(error instanceof Trouble) && error.name !== "AbortError") throw error;
    return; // the prediction stands without it
  }
  const heaviest = distinct(reply.explanations?.[0] ?? []).slice(0, WORDS);
  if (!heaviest.length) return;
  const top = Math.abs(heaviest[0].weight);
  const [down, up] = model.labels.length === 2 ? model.labels : ["against it", "for it"];
  byId("words").replaceChildren(...heaviest.map(({ word, weight }) => {
    const item = document.createElement("li");
    const track = document.createElement("div");
    track.className = "track";
    track.setAttribute("aria-hidden", "true");
    const fill = document.createElement("div");
    fill.className = `fill ${weight > 0 ? "towards" : "against"}`;
    fill.style.width = `${(100 * Math.abs(weight)) / top}%`;
    track.append(fill);
    item.append(span("word", word), track, span("way", weight > 0 ? up : down));
    return item;
  }));
  byId("marked").hidden = text === null;
  if (text !== null) byId("marked").replaceChildren(...marked(text, heaviest));
  byId("why").hidden = false;
}

// The heaviest first. Of phrases that hold one another and pull the same way, the heaviest stands for all.
function distinct(pairs) {
  const kept = [];
  const sorted = pairs.filter((pair) => Array.isArray(pair) && typeof pair[1] === "number" && pair[1] !== 0)
    .sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
  for (const [word, weight] of sorted) {
    const tokens = String(word).match(/[\p{L}\p{N}_'’]+/gu) ?? [String(word)];
    const phrase = ` ${tokens.join(" ")} `.toLowerCase();
    const covered = kept.some((each) => each.weight > 0 === weight > 0 && (each.phrase.includes(phrase) || phrase.includes(each.phrase)));
    if (!covered) kept.push({ word: tokens.join(" "), phrase, tokens, weight });
  }
  return kept;
}

// The text with its heaviest words and phrases marked; the longest first, where they overlap.
function marked(text, heaviest) {
  const escaped = [...heaviest].sort((a, b) => b.phrase.length - a.phrase.length)
    .map(({ tokens }) => tokens.map((token) => token.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("[^\\p{L}\\p{N}]+"));
  const pattern = new RegExp(`(?<![\\p{L}\\p{N}])(?:${escaped.join("|")})(?![\\p{L}\\p{N}])`, "giu");
  const weights = new Map(heaviest.map(({ phrase, weight }) => [phrase, weight]));
  const parts = [];
  let at = 0;
  for (const match of text.matchAll(pattern)) {
    const phrase = ` ${(match[0].toLowerCase().match(/[\p{L}\p{N}_'’]+/gu) ?? []).join(" ")} `;
    parts.push(text.slice(at, match.index));
    const mark = document.createElement("mark");
    mark.className = (weights.get(phrase) ?? 1) > 0 ? "towards" : "against";
    mark.textContent = match[0];
    parts.push(mark);
    at = match.index + match[0].length;
  }
  parts.push(text.slice(at));
  return parts;
}

function percent(share) {
  const value = 100 * share;
  if (value > 99.9 && value < 100) return "> 99.9 %";
  if (value > 0 && value < 0.1) return "< 0.1 %";
  return `${value.toFixed(1)} %`;
}

// The prediction as a headline and bars; the truth beside it where it is known.
function tellAnswer(row, truth) {
  const { bars = [], headline = "" } = reading(row);
  const best = bars.reduce((a, b) => (b.share > a.share ? b : a), bars[0] ?? { label: headline, share: null });
  byId("headline").textContent = bars.length ? `${best.label}: ${percent(best.share)}` : headline;
  const known = truth !== null && truth !== undefined;
  const name = known && Number.isInteger(truth) && !model.labels.includes(String(truth)) ? model.labels[truth] ?? truth : truth;
  byId("truth").hidden = !known;
  if (known) {
    const right = String(name) === String(best.label);
    byId("truth").textContent = `True label: ${name}` + (bars.length || headline ? (right ? " (right)" : " (wrong)") : "");
  }
  const few = bars.length > MOST_BARS ? [...bars].sort((a, b) => b.share - a.share).slice(0, MOST_BARS / 2) : bars;
  byId("bars").replaceChildren(...few.map((bar) => barOf(bar, bar === best)));
  byId("bars").setAttribute("aria-label", few === bars ? "All answers" : `The ${few.length} likeliest of ${bars.length} answers`);
  byId("answer").hidden = false;
  byId("why").hidden = true;
}

function barOf({ label, share }, best) {
  const item = document.createElement("li");
  const name = span("name", label);
  const track = document.createElement("div");
  track.className = "track";
  track.setAttribute("aria-hidden", "true");
  const fill = document.createElement("div");
  fill.className = "fill";
  fill.style.width = `${100 * share}%`;
  track.append(fill);
  const figure = span("figure", percent(share));
  if (best) item.classList.add("best");
  item.append(name, track, figure);
  return item;
}

function span(name, text) {
  const made = document.createElement("span");
  made.className = name;
  made.textContent = text;
  return made;
}

function labelOf(example) {
  const { label } = example;
  if (label === null || label === undefined) return null;
  return Number.isInteger(label) && !model.labels.includes(String(label)) ? String(model.labels[label] ?? label) : String(label);
}
