// Dragging a box on the picture, with mouse, pen or finger; arrow keys move it, with shift they resize it.
const stage = () => element.querySelector(".stage");
const limit = (value, most) => Math.min(Math.max(value, 0), most);
let start = null;

// the box is kept where it is drawn, by the server as well as here
const box = () => element.querySelector(".box");
const sides = () => (box().dataset.box ? box().dataset.box.split(",").map(Number) : null);

function at(event) {
  const frame = stage().getBoundingClientRect();
  return [limit((event.clientX - frame.left) / frame.width, 1), limit((event.clientY - frame.top) / frame.height, 1)];
}

// whole pixels of the model: left, top, right, bottom
function pixels(a, b) {
  const { width, height } = stage().dataset;
  return [
    Math.floor(Math.min(a[0], b[0]) * width),
    Math.floor(Math.min(a[1], b[1]) * height),
    Math.ceil(Math.max(a[0], b[0]) * width),
    Math.ceil(Math.max(a[1], b[1]) * height),
  ];
}

function draw(drawn) {
  const { width, height } = stage().dataset;
  const style = box().style;
  style.display = drawn ? "block" : "none";
  if (!drawn) return;
  style.left = `${(100 * drawn[0]) / width}%`;
  style.top = `${(100 * drawn[1]) / height}%`;
  style.width = `${(100 * (drawn[2] - drawn[0])) / width}%`;
  style.height = `${(100 * (drawn[3] - drawn[1])) / height}%`;
}

function settle(drawn) {
  box().dataset.box = drawn ? drawn.join() : "";
  draw(drawn);
  trigger("select", { box: drawn });
}

element.addEventListener("pointerdown", (event) => {
  if (!event.target.closest(".stage") || event.button !== 0) return;
  start = at(event);
  stage().setPointerCapture(event.pointerId);
});
element.addEventListener("pointermove", (event) => {
  if (start) draw(pixels(start, at(event)));
});
element.addEventListener("pointerup", (event) => {
  if (!start) return;
  const end = at(event);
  const frame = stage().getBoundingClientRect();
  const moved = Math.hypot((end[0] - start[0]) * frame.width, (end[1] - start[1]) * frame.height);
  const drawn = moved > 5 ? pixels(start, end) : null;
  start = null;
  if (drawn || sides()) settle(drawn);
  else draw(null);
});
element.addEventListener("pointercancel", () => {
  start = null;
  draw(sides());
});
element.addEventListener("keydown", (event) => {
  const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  const width = Number(stage().dataset.width);
  const height = Number(stage().dataset.height);
  if (event.key === "Escape") settle(null);
  if (!step) return;
  event.preventDefault();
  const now = sides();
  const [left, top, right, bottom] = now ?? [width / 4, height / 4, (3 * width) / 4, (3 * height) / 4].map(Math.floor);
  const [x, y] = [step[0] * Math.max(1, Math.round(width / 32)), step[1] * Math.max(1, Math.round(height / 32))];
  if (!now) settle([left, top, right, bottom]);
  else if (event.shiftKey) settle([left, top, limit(Math.max(right + x, left + 1), width), limit(Math.max(bottom + y, top + 1), height)]);
  else {
    const [dx, dy] = [limit(left + x, width - (right - left)) - left, limit(top + y, height - (bottom - top)) - top];
    settle([left + dx, top + dy, right + dx, bottom + dy]);
  }
});
