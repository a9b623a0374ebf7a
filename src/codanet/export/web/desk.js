// The page at work: one step after another, each ending with what is shown.
const MOST_UPLOADS = 9; // the last ones are kept
const $ = (selector) => document.querySelector(selector);
const settings = JSON.parse($("#settings").textContent);
const shades = Uint8Array.from(atob(settings.shades), (letter) => letter.charCodeAt(0));
const state = { model: 0, uploads: [], count: 0, shown: [], reading: null, photo: "", target: 0, versus: null, box: null, mixed: [], cells: 1 };
const canvases = new Map(); // decoded pictures by key
let networks = [];
let queue = Promise.resolve();

// one step at a time; what goes wrong is said, and what was shown stays
function step(work) {
  queue = queue.then(work).catch((error) => say(error.message));
  return queue;
}

function say(words) {
  $("#message").hidden = !words;
  $("#message").innerHTML = words ? `<span>${text(words)}</span><button type="button">Close</button>` : "";
}

function status(words) {
  $("#status").textContent = words;
}

const network = () => networks[state.model];
const known = () => [...state.uploads, ...network().pictures.map((key) => ({ key, ...settings.pictures[key] }))];

async function canvasOf({ key, uri }) {
  if (!canvases.has(key)) canvases.set(key, await decoded(blobOf(uri)));
  return canvases.get(key);
}

function blobOf(uri) {
  const [kind, words] = uri.slice(5).split(";base64,");
  return new Blob([Uint8Array.from(atob(words), (letter) => letter.charCodeAt(0))], { type: kind });
}

async function openPicture(key) {
  const picture = known().find((each) => each.key === key);
  const canvas = await canvasOf(picture);
  const reading = await Reading.of(network(), fitted(canvas, network()), network().size);
  face(reading, [key], address(photograph(canvas, network())), 1);
}

function face(reading, shown, photo, cells) {
  Object.assign(state, { reading, shown, photo, cells, target: reading.ranked()[0], versus: null, box: null });
  $("#cells").innerHTML = "";
  say("");
  showTiles();
  show();
  later();
}

// the maps of the other classes listed, while nobody waits
function later() {
  const { reading } = state;
  const next = listed(reading, state.target, state.versus).find((c) => !reading.maps.has(c));
  if (next === undefined) return;
  setTimeout(() => step(async () => {
    if (state.reading !== reading) return;
    const { milliseconds } = reading;
    await reading.compute(next);
    reading.milliseconds = milliseconds;
    if (state.box) $("#region").innerHTML = region(state);
    later();
  }), 0);
}

function showTiles() {
  const shown = state.shown.length === 1 ? state.shown[0] : null;
  const order = (key) => (state.mixed.includes(key) ? state.mixed.indexOf(key) + 1 : undefined);
  const file = $("#picker .file"); // stays the same one: a file may be on its way through it
  $("#picker").innerHTML = tiles(known(), shown, true, Boolean(navigator.mediaDevices?.getUserMedia));
  if (file) $("#picker .file").replaceWith(file);
  $("#mixer").innerHTML = tiles(known().map((each) => ({ ...each, order: order(each.key) })), null);
}

function show() {
  const { reading, target, versus, cells } = state;
  const names = reading.network.classes;
  const focused = document.activeElement?.closest(".stage, .class");
  const again = focused?.matches(".stage") ? ".stage" : focused ? `.class[data-class="${focused.dataset.class}"]` : null;
  $("#viewer").innerHTML = stageView(state, settings, shades);
  $("#bars").innerHTML = bars(state);
  $("#region").innerHTML = region(state);
  if (again) $(again)?.focus();
  const option = (c, chosen) => `<option value="${c}"${c === chosen ? " selected" : ""}>${text(names[c])}</option>`;
  const every = names.map((_, c) => c);
  $("#why select").innerHTML = every.map((c) => option(c, target)).join("");
  $("#versus select").innerHTML = `<option value="">no other class</option>${every.filter((c) => c !== target).map((c) => option(c, versus)).join("")}`;
  $(".sentence").hidden = $(".more").hidden = false;
  $("#about").innerHTML = about(reading.network, settings.version);
  const said = cells > 1 ? titleOf(reading, target, versus) : `${titleOf(reading, target, versus)}; predicted: ${names[reading.ranked()[0]]}, ${percent(reading.probabilities[reading.ranked()[0]])}`;
  status(`${said}. Explained in ${Math.max(1, Math.round(reading.milliseconds))} ms, here in the browser.`);
}

async function choose(target, versus) {
  versus = versus === target ? null : versus;
  for (const c of [target, versus]) if (c !== null) await state.reading.compute(c);
  Object.assign(state, { target, versus });
  show();
  later();
}

async function take({ content, title, problem }) {
  if (problem === "large") throw new Error(`That file is larger than the ${settings.most_bytes / 2 ** 20} MiB this page takes: save it smaller.`);
  if (problem) throw new Error("The browser could not read that file: choose another.");
  const canvas = await decoded(blobOf(`data:;base64,${content}`));
  await takeCanvas(canvas, title);
}

async function takeCanvas(canvas, title) {
  const key = `upload-${(state.count += 1)}`;
  canvases.set(key, canvas);
  const small = blank(96, 96);
  const [left, top, w, h] = middle(canvas, [96, 96]);
  small.getContext("2d").drawImage(canvas, left, top, w, h, 0, 0, 96, 96);
  state.uploads = [{ key, title: title || key, uri: small.toDataURL() }, ...state.uploads];
  for (const { key: old } of state.uploads.splice(MOST_UPLOADS)) canvases.delete(old);
  await openPicture(key);
}

async function openModel(number) {
  state.model = number;
  state.mixed = [];
  await network().open();
  const [first] = state.shown.length === 1 && state.shown[0].startsWith("upload") ? state.shown : known().map(({ key }) => key);
  await openPicture(first);
}

async function mix(n) {
  const all = known().map(({ key }) => key);
  const keys = [...new Set([...state.mixed.filter((key) => all.includes(key)), ...all])].slice(0, n * n);
  if (keys.length < n * n) throw new Error(`${n} × ${n} needs ${n * n} pictures and there are ${keys.length}: give more of your own first.`);
  const model = network();
  const [height, width] = model.size;
  const found = [];
  for (const key of keys) found.push(await canvasOf(known().find((each) => each.key === key)));
  const images = found.map((canvas) => fitted(canvas, model));
  const own = [];
  for (const image of images) {
    const { logits } = await model.explain(image, model.size);
    own.push(logits.indexOf(Math.max(...logits)));
  }
  const reading = await Reading.of(model, tiledImages(images, n, model), [n * height, n * width]);
  for (const c of new Set(own)) await reading.compute(c);
  const photo = blank(n * Math.round((320 * width) / Math.max(height, width)), n * Math.round((320 * height) / Math.max(height, width)));
  found.forEach((canvas, place) => {
    const [w, h] = [photo.width / n, photo.height / n];
    photo.getContext("2d").drawImage(canvas, ...middle(canvas, model.size), (place % n) * w, Math.floor(place / n) * h, w, h);
  });
  face(reading, keys, address(photo), n);
  const items = own.map((c, place) => {
    const [left, top] = [(place % n) * width, Math.floor(place / n) * height];
    const part = reading.share(c, [left, top, left + width, top + height]);
    const values = reading.map(c);
    const uri = heatmap(values, n * width, n * height, colourScale(values, settings.percentile), shades).toDataURL();
    return { title: model.classes[c], note: `${Math.round(100 * part)}% inside`, uri, cell: [(place % n) / n, Math.floor(place / n) / n, 1 / n, 1 / n] };
  });
  $("#cells").innerHTML = `${panels(items)}<p class="hint">Each picture: the class the model gives it alone, and how much of the positive contributions to that class lies inside its outline. Evenly spread it would be ${Math.round(100 / n ** 2)}%.</p>`;
  await choose(own[0], null);
}

async function photographIt() {
  const dialog = $("#camera");
  const video = dialog.querySelector("video");
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  } catch {
    throw new Error("The browser gave no camera: allow it for this page, or choose a file.");
  }
  video.srcObject = stream;
  await video.play();
  dialog.showModal();
  dialog.onclose = () => stream.getTracks().forEach((track) => track.stop());
  dialog.querySelector("[data-close]").onclick = () => dialog.close();
  dialog.querySelector("[data-take]").onclick = () => {
    const canvas = blank(video.videoWidth, video.videoHeight);
    canvas.getContext("2d").drawImage(video, 0, 0);
    dialog.close();
    step(() => takeCanvas(canvas, "photograph"));
  };
}

const saving = { value: null, changed: () => {} };

async function save(kind) {
  if (kind === "json") for (const c of state.reading.ranked()) await state.reading.compute(c); // of every class
  saving.value = kind === "png"
    ? { name: fileName(state, "png"), uri: card(state, settings, shades, Number($("#fade input").value)) }
    : { name: fileName(state, "json"), uri: numbers(state, settings) };
  saving.changed();
}

function listen() {
  const pick = (event, data) => {
    if (event === "upload") step(() => take(data));
    else if (data.key === "camera") step(photographIt);
    else step(() => openPicture(data.key));
  };
  picker($("#picker"), pick, settings);
  chooser($("#bars"), (_, { number }) => step(() => choose(number, state.versus)));
  chooser($("#mixer"), (_, { key }) => {
    state.mixed = state.mixed.includes(key) ? state.mixed.filter((each) => each !== key) : [...state.mixed, key];
    showTiles();
  });
  viewer($("#viewer"), (_, { box }) => {
    const sides = box && [...box];
    if (sides) [sides[2], sides[3]] = [Math.max(sides[2], sides[0] + 1), Math.max(sides[3], sides[1] + 1)];
    state.box = sides;
    $("#region").innerHTML = region(state);
  });
  saver(null, null, saving, (_, changed) => (saving.changed = changed));
  const classOf = (words) => (words === "" ? null : Number(words));
  $("#why select").addEventListener("change", (event) => step(() => choose(Number(event.target.value), state.versus)));
  $("#versus select").addEventListener("change", (event) => step(() => choose(state.target, classOf(event.target.value))));
  $("#model select").addEventListener("change", (event) => step(() => openModel(Number(event.target.value))));
  $("#fade input").addEventListener("input", ({ target }) => document.documentElement.style.setProperty("--fade", target.value));
  $("#seen input").addEventListener("change", ({ target }) => document.documentElement.style.setProperty("--seen", Number(target.checked)));
  $("#two").addEventListener("click", () => step(() => mix(2)));
  $("#three").addEventListener("click", () => step(() => mix(3)));
  $("#save-picture").addEventListener("click", () => step(() => save("png")));
  $("#save-numbers").addEventListener("click", () => step(() => save("json")));
  $("#message").addEventListener("click", (event) => event.target.matches("button") && say(""));
  $("#viewer").addEventListener("keydown", (event) => state.reading || event.stopImmediatePropagation(), true);
}

async function begin() {
  if (!("DecompressionStream" in window) || !("WebAssembly" in window)) {
    throw new Error("This browser is too old for the page: it lacks WebAssembly or DecompressionStream. Use one of 2023 or later.");
  }
  const ort = await startEngine();
  networks = settings.models.map((described) => new Network(ort, described));
  $("#model").hidden = networks.length < 2;
  $("#model select").innerHTML = networks.map(({ title }, number) => `<option value="${number}">${text(title)}</option>`).join("");
  await network().open();
  listen();
  if (known().length) await openPicture(known()[0].key);
  else showTiles();
  document.documentElement.dataset.ready = Math.round(performance.now());
}

const dark = matchMedia("(prefers-color-scheme: dark)");
const dress = () => document.documentElement.classList.toggle("dark", dark.matches);
dark.addEventListener("change", dress);
dress();
step(begin);
