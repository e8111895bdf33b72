
// A model that looks at images: draw one, take a file, or take a sample whose true label is known.

const { height, width, channels, order } = model.pixels;
const input = model.inputs[0];
const drawable = channels === 1 && height === width && height <= 64;
const paper = byId("paper");
const pen = paper.getContext("2d", { willReadFrequently: true });
const SIDE = paper.width;
const NIB = SIDE / 14;
const STEP = SIDE / 28;
const range = asRange();

// Whole numbers are 0 to 255; fractions are what the model's own examples are, 0 to 1 if it has none.
function asRange() {
  if (!input.dtype.startsWith("float")) return 255;
  const seen = model.examples.flatMap((each) => [each.inputs[input.name]].flat(9));
  return Math.max(0, ...seen.slice(0, 100000)) > 1.5 ? 255 : 1;
}

function wipe() {
  pen.fillStyle = "#000";
  pen.fillRect(0, 0, SIDE, SIDE);
  pen.strokeStyle = pen.fillStyle = "#fff";
  pen.lineWidth = NIB;
  pen.lineCap = pen.lineJoin = "round";
}

function clear() {
  wipe();
  byId("answer").hidden = true;
  byId("trouble").hidden = true;
  byId("seen-box").hidden = true;
  byId("file").value = "";
}

// One stroke, from a point to a point; a dot where they are the same.
function stroke(from, to) {
  pen.beginPath();
  pen.moveTo(from.x, from.y);
  pen.lineTo(to.x + (from.x === to.x && from.y === to.y ? 0.01 : 0), to.y);
  pen.stroke();
}

let last = null;
let pause = 0;

function place(event) {
  const box = paper.getBoundingClientRect();
  return { x: ((event.clientX - box.left) * SIDE) / box.width, y: ((event.clientY - box.top) * SIDE) / box.height };
}

paper.addEventListener("pointerdown", (event) => {
  if (event.button !== 0) return;
  paper.setPointerCapture(event.pointerId);
  clearTimeout(pause);
  last = place(event);
  stroke(last, last);
});
paper.addEventListener("pointermove", (event) => {
  if (last === null) return;
  for (const each of event.getCoalescedEvents?.() ?? [event]) {
    const next = place(each);
    stroke(last, next);
    last = next;
  }
});
for (const name of ["pointerup", "pointercancel"]) {
  paper.addEventListener(name, () => {
    if (last === null) return;
    last = null;
    clearTimeout(pause);
    pause = setTimeout(send, 400);
  });
}

const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const key = { x: SIDE / 2, y: SIDE / 4, down: false };
let kept = null;

// The pen of the keys is a ring over the drawing, which is kept beneath it.
function ring() {
  kept = pen.getImageData(0, 0, SIDE, SIDE);
  pen.save();
  pen.lineWidth = 2;
  pen.strokeStyle = key.down ? "#7cc7e4" : "#ffb347";
  pen.beginPath();
  pen.arc(key.x, key.y, NIB / 2 + 4, 0, 7);
  pen.stroke();
  pen.restore();
}

function unring() {
  if (kept) pen.putImageData(kept, 0, 0);
  kept = null;
}

paper.addEventListener("keydown", (event) => {
  const move = MOVES[event.key];
  const known = move || [" ", "Enter", "Delete", "Backspace", "Escape"].includes(event.key);
  if (!known || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  unring();
  if (move) {
    const from = { x: key.x, y: key.y };
    key.x = Math.max(NIB / 2, Math.min(SIDE - NIB / 2, key.x + move[0] * STEP));
    key.y = Math.max(NIB / 2, Math.min(SIDE - NIB / 2, key.y + move[1] * STEP));
    if (key.down) stroke(from, key);
    byId("pen").textContent = `${key.down ? "drawing" : "pen up"}, column ${Math.round(key.x / STEP)}, row ${Math.round(key.y / STEP)}`;
  } else if (event.key === " ") {
    key.down = !key.down;
    if (key.down) stroke(key, key);
    byId("pen").textContent = key.down ? "pen down" : "pen up";
  } else if (event.key === "Enter") {
    send();
  } else {
    key.down = false;
    clear();
    byId("pen").textContent = "cleared";
  }
  ring();
});
paper.addEventListener("blur", unring);

byId("send").addEventListener("click", send);
byId("clear").addEventListener("click", clear);

function send() {
  clearTimeout(pause);
  unring();
  const drawn = pen.getImageData(0, 0, SIDE, SIDE);
  const grey = new Float32Array(SIDE * SIDE);
  for (let i = 0; i < grey.length; i += 1) grey[i] = drawn.data[4 * i] / 255;
  const fitted = drawable ? centred(grey, SIDE, height) : null;
  if (!fitted) {
    tellTrouble(new Trouble("There is nothing to judge", drawable ? "Draw something first, or take a sample." : "Take an image first."));
    return;
  }
  judge(fitted, null);
}

// As MNIST was made: the drawing scaled into a box of 20 in 28, then moved so that its centre of mass is the middle.
function centred(grey, side, size) {
  let left = side, right = -1, top = side, bottom = -1;
  for (let y = 0; y < side; y += 1) {
    for (let x = 0; x < side; x += 1) {
      if (grey[y * side + x] > 0.05) {
        left = Math.min(left, x); right = Math.max(right, x);
        top = Math.min(top, y); bottom = Math.max(bottom, y);
      }
    }
  }
  if (right < 0) return null;
  const box = (size * 20) / 28;
  const scale = box / Math.max(right - left + 1, bottom - top + 1);
  const wide = Math.max(1, Math.round((right - left + 1) * scale));
  const high = Math.max(1, Math.round((bottom - top + 1) * scale));
  const small = shrunk(grey, side, left, top, right - left + 1, bottom - top + 1, wide, high);
  let mass = 0, mx = 0, my = 0;
  for (let y = 0; y < high; y += 1) {
    for (let x = 0; x < wide; x += 1) {
      const value = small[y * wide + x];
      mass += value; mx += value * (x + 0.5); my += value * (y + 0.5);
    }
  }
  const dx = Math.max(0, Math.min(size - wide, Math.round(size / 2 - mx / mass)));
  const dy = Math.max(0, Math.min(size - high, Math.round(size / 2 - my / mass)));
  const out = new Float32Array(size * size);
  for (let y = 0; y < high; y += 1) {
    for (let x = 0; x < wide; x += 1) out[(y + dy) * size + x + dx] = small[y * wide + x];
  }
  return out;
}

// Each small pixel is the mean of the area it covers.
function shrunk(grey, side, left, top, w, h, wide, high) {
  const out = new Float32Array(wide * high);
  for (let y = 0; y < high; y += 1) {
    const y0 = (y * h) / high, y1 = ((y + 1) * h) / high;
    for (let x = 0; x < wide; x += 1) {
      const x0 = (x * w) / wide, x1 = ((x + 1) * w) / wide;
      let sum = 0, area = 0;
      for (let v = Math.floor(y0); v < y1; v += 1) {
        const tall = Math.min(v + 1, y1) - Math.max(v, y0);
        for (let u = Math.floor(x0); u < x1; u += 1) {
          const part = tall * (Math.min(u + 1, x1) - Math.max(u, x0));
          sum += part * (grey[(top + v) * side + left + u] ?? 0);
          area += part;
        }
      }
      out[y * wide + x] = sum / area;
    }
  }
  return out;
}

// `values`: height x width x channels from 0 to 1, channels last.
function judge(values, truth) {
  const scaled = Array.from(values, (value) => (range === 255 ? Math.round(255 * value) : Number(value.toFixed(4))));
  const seen = byId("seen");
  paint(seen, values);
  byId("seen-box").hidden = false;
  ask(shaped(scaled), { truth });
}

function shaped(flat) {
  if (order === "flat") return flat;
  const at = (y, x, c) => flat[(y * width + x) * channels + c];
  const each = (count, make) => Array.from({ length: count }, (_, i) => make(i));
  if (order === "rows") return each(height, (y) => each(width, (x) => at(y, x, 0)));
  if (order === "last") return each(height, (y) => each(width, (x) => each(channels, (c) => at(y, x, c))));
  return each(channels, (c) => each(height, (y) => each(width, (x) => at(y, x, c))));
}

// The reverse: an example of the model as values from 0 to 1, channels last.
function unshaped(value) {
  const flat = [value].flat(9).map((each) => each / range);
  if (order !== "first") return flat;
  return flat.map((_, i) => flat[(i % channels) * height * width + Math.floor(i / channels)]);
}

function paint(canvas, values) {
  canvas.width = width;
  canvas.height = height;
  const image = new ImageData(width, height);
  for (let i = 0; i < width * height; i += 1) {
    for (let c = 0; c < 3; c += 1) image.data[4 * i + c] = 255 * values[i * channels + (channels === 3 ? c : 0)];
    image.data[4 * i + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

byId("file").addEventListener("change", async () => {
  const file = byId("file").files[0];
  if (!file) return;
  let picture;
  try {
    picture = await createImageBitmap(file);
  } catch {
    tellTrouble(new Trouble("This is not an image", `${file.name} cannot be opened as one.`));
    return;
  }
  const canvas = document.createElement("canvas");
  canvas.width = drawable ? SIDE : width;
  canvas.height = drawable ? SIDE : height;
  const pad = canvas.getContext("2d", { willReadFrequently: true });
  pad.imageSmoothingQuality = "high";
  pad.fillStyle = "#fff";
  pad.fillRect(0, 0, canvas.width, canvas.height);
  const scale = Math.min(canvas.width / picture.width, canvas.height / picture.height);
  const w = picture.width * scale, h = picture.height * scale;
  pad.drawImage(picture, (canvas.width - w) / 2, (canvas.height - h) / 2, w, h);
  const { data } = pad.getImageData(0, 0, canvas.width, canvas.height);
  const count = canvas.width * canvas.height;
  if (channels === 3) {
    judge(Float32Array.from({ length: 3 * count }, (_, i) => data[4 * Math.floor(i / 3) + (i % 3)] / 255), null);
    return;
  }
  const grey = Float32Array.from({ length: count }, (_, i) => (0.299 * data[4 * i] + 0.587 * data[4 * i + 1] + 0.114 * data[4 * i + 2]) / 255);
  if (!drawable) {
    judge(grey, null);
    return;
  }
  // Dark on light is paper, and MNIST is light on dark: the corners say which it is.
  const corners = [0, SIDE - 1, SIDE * (SIDE - 1), SIDE * SIDE - 1].map((i) => grey[i]);
  const light = corners.filter((each) => each > 0.5).length >= 2;
  const inked = light ? grey.map((each) => Math.max(0, 1 - each * 1.1)) : grey;
  wipe();
  const shown = pen.getImageData(0, 0, SIDE, SIDE);
  inked.forEach((each, i) => { shown.data[4 * i] = shown.data[4 * i + 1] = shown.data[4 * i + 2] = 255 * each; });
  pen.putImageData(shown, 0, 0);
  send();
});

byId("draw").hidden = !drawable;
byId("send").hidden = !drawable;
byId("clear").hidden = !drawable;
document.querySelector(".board").classList.toggle("single", !drawable);
if (!drawable) byId("samples-title").textContent = "Try one of these";
byId("samples-box").hidden = !model.examples.length;
byId("samples").append(...model.examples.map((example, number) => {
  const item = document.createElement("li");
  const button = document.createElement("button");
  button.type = "button";
  const label = labelOf(example);
  const canvas = document.createElement("canvas");
  canvas.setAttribute("aria-hidden", "true");
  const values = unshaped(example.inputs[input.name]);
  paint(canvas, values);
  button.append(canvas, span("label", label ?? `sample ${number + 1}`));
  button.setAttribute("aria-label", `Sample ${number + 1}${label === null ? "" : `, true label ${label}`}`);
  button.addEventListener("click", () => judge(values, label));
  item.append(button);
  return item;
}));
wipe();
tellCommand(JSON.stringify({ instances: [model.examples[0]?.inputs[input.name] ?? shaped(new Array(height * width * channels).fill(0))] }));
