// What the page shows, as HTML: everything that comes from a model or a file goes through `text`.
const ROWS = 10; // classes listed

function text(words) {
  const entities = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;" };
  return String(words).replace(/[&<>"']/g, (letter) => entities[letter]);
}

function signed(value, digits = 2) {
  const rounded = Math.abs(value).toFixed(digits);
  return Number(rounded) === 0 ? rounded : `${value < 0 ? "−" : "+"}${rounded}`;
}

function percent(probability) {
  return probability < 0.0005 ? "<0.1 %" : `${(100 * probability).toFixed(1)} %`;
}

const brief = (value) => String(Number(value.toPrecision(2)));

function tiles(items, chosen, upload = false, camera = false) {
  const button = (what, sign, words) =>
    `<button type="button" class="tile upload" ${what}><span class="plus" aria-hidden="true">${sign}</span><span>${words}</span></button>`;
  const first = upload
    ? `${button("data-upload", "+", "Your picture")}<input type="file" class="file" accept="image/*" tabindex="-1" aria-label="Your picture"><div class="dropping" hidden>Drop the picture anywhere</div>${camera ? button('data-key="camera"', "◉", "Camera") : ""}`
    : "";
  const rest = items.map(({ key, title, uri, order }) => {
    const pressed = key === chosen || order !== undefined;
    const badge = order === undefined ? "" : `<span class="order">${order}</span>`;
    return `<button type="button" class="tile" data-key="${text(key)}" aria-pressed="${pressed}" title="${text(title)}"><img src="${uri}" alt="${text(title)}">${badge}</button>`;
  });
  return `<div class="tiles">${first}${rest.join("")}</div>`;
}

function titleOf(reading, target, versus) {
  const names = reading.network.classes;
  return versus === null ? `Contributions to ${names[target]}` : `${names[target]} rather than ${names[versus]}`;
}

function stageView(state, settings, shades) {
  const { reading, target, versus, box, cells } = state;
  const [height, width] = reading.size;
  const values = reading.map(target, versus);
  const scale = colourScale(values, settings.percentile);
  const names = reading.network.classes;
  const what = titleOf(reading, target, versus);
  const other = versus === null ? "against" : `for ${names[versus]}`;
  const lines = [];
  for (let place = 1; place < cells; place++) {
    for (const [side, edge] of [["down", "left"], ["across", "top"]]) {
      lines.push(`<i class="line ${side}" style="${edge}:${((100 * place) / cells).toFixed(4)}%"></i>`);
    }
  }
  const image = (kind, source, alt) => `<img class="${kind}" src="${source}" alt="${text(alt)}" draggable="false">`;
  const asSeen = seen(reading.image, reading.network.channels, width, height).toDataURL();
  return `<div class="stage" tabindex="0" role="group" data-width="${width}" data-height="${height}" style="aspect-ratio:${width}/${height}" aria-label="${text(what)}: drag a box to measure a region, or move one with the arrow keys">${
    image("photo", state.photo, "The picture") +
    image("photo seen", asSeen, "As the model sees it") +
    image("cover", cover(values, width, height, scale, shades).toDataURL(), "") +
    image("heat", heatmap(values, width, height, scale, shades).toDataURL(), what)
  }${lines.join("")}<div class="box" data-box="${box ? box.join() : ""}" style="${placed(box, width, height)}"></div></div><div class="legend"><span>${text(other)}</span><span class="number">−${brief(scale)}</span><span class="ramp"></span><span class="number">+${brief(scale)}</span><span>for ${text(names[target])}</span></div>`;
}

function placed(box, width, height) {
  if (!box) return "display:none";
  const [left, top, right, bottom] = box;
  const sides = { left: left / width, top: top / height, width: (right - left) / width, height: (bottom - top) / height };
  return Object.entries(sides).map(([name, side]) => `${name}:${(100 * side).toFixed(4)}%`).join(";");
}

function listed(reading, target, versus) {
  const top = reading.ranked().slice(0, ROWS);
  return [...top, ...[target, versus].filter((c) => c !== null && !top.includes(c))];
}

function bars({ reading, target, versus, cells }) {
  const names = reading.network.classes;
  const probabilities = reading.probabilities;
  const rows = listed(reading, target, versus).map((c) => {
    const said = cells === 1 ? percent(probabilities[c]) : signed(reading.logits[c], 1);
    const role = c === target ? "shown" : c === versus ? "versus" : "";
    return `<button type="button" class="class ${role}" data-class="${c}" aria-pressed="${c === target}"><span class="name">${text(names[c])}</span><span class="track"><span style="width:${(100 * probabilities[c]).toFixed(2)}%"></span></span><span class="number">${said}</span></button>`;
  });
  const top = reading.ranked()[0];
  const [name, certainty] = cells === 1 ? [names[top], percent(probabilities[top])] : [`${cells ** 2} pictures`, "logits over all of them"];
  return `<p class="verdict"><strong>${text(name)}</strong><span>${text(certainty)}</span></p><div class="classes${cells > 1 ? " several" : ""}">${rows.join("")}</div>`;
}

function equation(parts, box, versus) {
  const terms = box ? [[parts.inside, "inside the box"], [parts.outside, "outside"]] : [[parts.inside, "sum of all pixels"]];
  if (versus === null) terms.push([parts.bias, "b₀, the same for every class"]);
  terms.push([parts.logit, versus === null ? "logit" : "difference of the logits"]);
  return `<div class="equation">${terms.map(([value, label]) => `<div><b>${signed(value)}</b><span>${label}</span></div>`).join("")}</div>`;
}

function diverging(part) {
  return `<span class="diverging"><span class="${part >= 0 ? "for" : "against"}" style="width:${(50 * Math.abs(part)).toFixed(2)}%"></span></span>`;
}

function region({ reading, target, versus, box }) {
  const exact = reading.network.exact_for;
  const hint = exact ? `<p class="hint">These sums are ${text(exact)}: a feature is shown, and counted, evenly over its square of pixels.</p>` : "";
  const main = equation(reading.parts(box, target, versus), box, versus) + hint;
  if (!box) return `${main}<p class="hint">Drag a box on the picture to read how much that region contributes to every class.</p>`;
  const classes = listed(reading, target, versus);
  const parts = new Map(classes.filter((c) => reading.maps.has(c)).map((c) => [c, reading.parts(box, c)]));
  const largest = Math.max(...[...parts.values()].map(({ inside }) => Math.abs(inside))) || 1;
  const rows = classes.map((c) => {
    const head = `<tr class="${c === target ? "shown" : ""}"><th scope="row">${text(reading.network.classes[c])}</th>`;
    const part = parts.get(c);
    if (!part) return `${head}<td></td><td class="later" colspan="4">computing …</td></tr>`;
    const { inside, outside, bias, logit } = part;
    return `${head}<td>${diverging(inside / largest)}</td>${[inside, outside, bias, logit].map((value) => `<td>${signed(value)}</td>`).join("")}</tr>`;
  });
  const [left, top, right, bottom] = box;
  const share = ((right - left) * (bottom - top)) / (reading.size[0] * reading.size[1]);
  const error = Math.max(...[...parts.values()].map(({ inside, outside, bias, logit }) => Math.abs(inside + outside + bias - logit)));
  return `${main}<table class="parts"><thead><tr><th scope="col">class</th><th scope="col" class="wide"></th><th scope="col">inside</th><th scope="col">outside</th><th scope="col">b₀</th><th scope="col">logit</th></tr></thead><tbody>${rows.join("")}</tbody></table><p class="hint">The box covers ${right - left} × ${bottom - top} pixels, ${Math.round(100 * share)}% of the picture. In each row inside + outside + b₀ is the logit, to within ${tiny(error)}.</p>`;
}

function tiny(error) {
  if (error === 0) return "nothing";
  const [digits, power] = error.toExponential(0).split("e");
  return `${digits} · 10<sup>${power.replace("-", "−").replace("+", "")}</sup>`;
}

// [{ title, note, uri, cell: [left, top, width, height] in shares }]
function panels(items) {
  return `<div class="panels">${items.map(({ title, note, uri, cell }) => {
    const [left, top, width, height] = cell.map((side) => `${(100 * side).toFixed(3)}%`);
    return `<figure><div class="frame"><img src="${uri}" alt="${text(title)}"><i class="cell" style="left:${left};top:${top};width:${width};height:${height}"></i></div><figcaption><b>${text(title)}</b><span>${text(note)}</span></figcaption></figure>`;
  }).join("")}</div>`;
}

function about(model, version) {
  const known = model.facts;
  const rows = [
    ["network", `${model.name}, ${(model.parameters / 1e6).toFixed(2)} M parameters`],
    ["input", `${model.size.join(" × ")} pixels, ${model.channels === 1 ? "grey" : "RGB"}`],
    ["classes", model.classes.length],
    ["temperature", model.temperature],
  ];
  for (const [part, name] of [["test", "test"], ["val", "validation"]]) {
    const share = known[`${part}_accuracy`];
    if (typeof share !== "number") continue;
    rows.push(["accuracy", `${(100 * share).toFixed(2)}% of ${known[`${part}_images`] ?? "?"} ${name} pictures`]);
  }
  for (const key of ["data", "recipe", "epochs", "hours", "seed"]) if (key in known) rows.push([key, known[key]]);
  const cells = rows.map(([key, value]) => `<tr><th scope="row">${text(key)}</th><td>${text(value)}</td></tr>`);
  return `<table class="facts">${cells.join("")}</table><p class="hint">A map tells what the network used, not what is true of the world. The model knows its own classes only and puts every picture into one of them. Everything is computed here: no picture leaves this browser, and the page could not send one. codanet ${text(version)}.</p>`;
}
