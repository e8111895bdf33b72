
// Any model: the request as JSON, and the answer as it came.

const body = byId("body");

function zero(tensor, sizes = tensor.shape.slice(1)) {
  if (sizes.length) return Array.from({ length: Math.min(sizes[0] ?? 1, 4096) }, () => zero(tensor, sizes.slice(1)));
  return tensor.dtype === "string" ? "" : tensor.dtype === "bool" ? false : 0;
}

function example() {
  const rows = model.examples.length ? model.examples.slice(0, 2).map((each) => each.inputs)
    : [Object.fromEntries(model.inputs.map((tensor) => [tensor.name, zero(tensor)]))];
  const only = model.inputs.length === 1 ? model.inputs[0].name : null;
  const instances = rows.map((row) => (only === null ? row : row[only]));
  const text = JSON.stringify({ instances }, null, 2);
  // Long lists of figures on one line each: nobody reads 784 lines.
  return text.replace(/\[[^[\]{}"]*\]/g, (list) => list.replace(/\s+/g, " "));
}

byId("takes").append(...[["takes", model.inputs], ["gives", model.outputs]].flatMap(([verb, tensors]) => tensors.map((tensor) => {
  const item = document.createElement("li");
  const shape = tensor.shape.map((size) => size ?? "any").join(" × ");
  item.textContent = `${verb} ${tensor.name}: ${tensor.dtype}, ${shape}${tensor.help ? ` (${tensor.help})` : ""}`;
  return item;
})));

body.value = example();
tellCommand(body.value);
byId("again").addEventListener("click", () => { body.value = example(); body.focus(); });
body.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("form").requestSubmit();
});

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});

function send() {
  let request;
  try {
    request = parse(body.value);
  } catch (error) {
    tellTrouble(new Trouble("This is not JSON", error.message));
    byId("reply-box").hidden = true;
    body.focus();
    return;
  }
  const count = Array.isArray(request?.instances) ? request.instances.length : 1;
  const began = performance.now();
  byId("reply-box").hidden = true;
  exchange(body.value, (reply) => {
    const took = performance.now() - began;
    byId("took").textContent = `${count} ${count === 1 ? "row" : "rows"} in ${took.toFixed(0)} ms`;
    byId("reply").textContent = JSON.stringify(reply, null, 2).replace(/\[[^[\]{}"]*\]/g, (list) => list.replace(/\s+/g, " "));
    byId("reply-box").hidden = false;
  });
}
