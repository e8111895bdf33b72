
// A model that reads a row of a table: a form with a field for each value that it takes.

const form = byId("form");
const fields = [];
let sample = null;

for (const tensor of model.inputs) {
  const count = tensor.shape.length === 2 ? tensor.shape[1] : 1;
  const group = document.createElement("fieldset");
  group.className = "fields";
  if (count > 1) {
    const legend = document.createElement("legend");
    legend.textContent = tensor.help ? `${tensor.name}: ${tensor.help}` : tensor.name;
    group.append(legend);
  }
  for (let at = 0; at < count; at += 1) group.append(fieldOf(tensor, at, count));
  const before = byId("fields").lastElementChild;
  if (count === 1 && before && before.dataset.single) before.append(...group.children);
  else {
    if (count === 1) group.dataset.single = "yes";
    byId("fields").append(group);
  }
}

function fieldOf(tensor, at, count) {
  const box = document.createElement("div");
  box.className = "field";
  const label = document.createElement("label");
  const entry = document.createElement("input");
  entry.id = `field-${fields.length}`;
  label.htmlFor = entry.id;
  label.textContent = count > 1 ? `${tensor.name} ${at + 1}` : tensor.name;
  if (tensor.dtype === "bool") entry.type = "checkbox";
  else if (tensor.dtype === "string") entry.type = "text";
  else {
    entry.type = "number";
    entry.step = tensor.dtype.startsWith("float") ? "any" : "1";
    entry.inputMode = tensor.dtype.startsWith("float") ? "decimal" : "numeric";
    if (tensor.dtype.startsWith("uint")) entry.min = "0";
    if (!tensor.dtype.startsWith("float")) entry.required = true;
  }
  entry.autocomplete = "off";
  box.append(label, entry);
  if (count === 1 && tensor.help) {
    const help = document.createElement("div");
    help.className = "help";
    help.id = `${entry.id}-help`;
    help.textContent = tensor.help;
    entry.setAttribute("aria-describedby", help.id);
    box.append(help);
  }
  fields.push({ tensor, at, entry });
  return box;
}

function fill(example) {
  for (const { tensor, at, entry } of fields) {
    const value = [example.inputs[tensor.name]].flat(9)[at];
    if (entry.type === "checkbox") entry.checked = Boolean(value);
    else entry.value = value === null || value === undefined || Number.isNaN(value) ? "" : String(value);
  }
  sample = example;
}

function row() {
  const inputs = {};
  for (const { tensor, entry } of fields) {
    let value = entry.value;
    if (entry.type === "checkbox") value = entry.checked;
    else if (entry.type === "number") value = entry.value === "" ? MISSING : Number(entry.value);
    if (tensor.shape.length === 2) (inputs[tensor.name] ??= []).push(value);
    else inputs[tensor.name] = value;
  }
  return inputs;
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  ask(row(), { truth: sample && labelOf(sample) });
});
form.addEventListener("input", (event) => {
  if (event.target.id !== "example") sample = null;
});
form.addEventListener("reset", () => {
  sample = null;
  byId("answer").hidden = true;
  byId("trouble").hidden = true;
});

if (model.examples.length) {
  byId("pick").hidden = false;
  const choice = byId("example");
  choice.append(...model.examples.map((example, number) => {
    const option = document.createElement("option");
    option.value = String(number);
    const label = labelOf(example);
    option.textContent = [`sample ${number + 1}`, label === null ? "" : `true label: ${label}`, example.note].filter(Boolean).join(", ");
    return option;
  }));
  choice.addEventListener("change", () => {
    fill(model.examples[Number(choice.value)]);
    byId("answer").hidden = true;
  });
  fill(model.examples[0]);
}
tellCommand(encoded({ instances: [row()] }));
