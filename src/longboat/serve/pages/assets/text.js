
// A model that reads text: type some, or take a sample whose true label is known.

const text = byId("text");
const input = model.inputs[0];
if (input.help) byId("text-label").textContent = input.help;
let sample = null;

byId("form").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send();
});
text.addEventListener("input", () => { sample = null; });
byId("clear").addEventListener("click", () => {
  text.value = "";
  sample = null;
  byId("answer").hidden = true;
  byId("trouble").hidden = true;
  text.focus();
});

function send() {
  const value = text.value.trim();
  if (!value) {
    tellTrouble(new Trouble("There is nothing to judge", "Type a few words first, or take a sample."));
    text.focus();
    return;
  }
  ask(value, { truth: sample && labelOf(sample), text: value });
}

byId("samples-box").hidden = !model.examples.length;
byId("samples").append(...model.examples.map((example) => {
  const item = document.createElement("li");
  const button = document.createElement("button");
  button.type = "button";
  const exampleText = String(example.inputs[input.name] ?? "");
  const label = labelOf(example);
  button.append(span("what", exampleText.length > 240 ? `${exampleText.slice(0, 240)}…` : exampleText));
  if (label !== null || example.note) button.append(span("label", [label === null ? "" : `true label: ${label}`, example.note].filter(Boolean).join("; ")));
  button.addEventListener("click", () => {
    text.value = exampleText;
    sample = example;
    send();
    byId("form").scrollIntoView({ block: "start" });
  });
  item.append(button);
  return item;
}));
tellCommand(JSON.stringify({ instances: [String(model.examples[0]?.inputs[input.name] ?? "What a film!")] }));
