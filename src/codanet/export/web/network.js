// The models in the engine: image and target in, logits and contributions out.
async function startEngine() {
  const source = new Blob([await unpacked("engine")], { type: "text/javascript" });
  const place = URL.createObjectURL(source);
  const ort = await import(place);
  URL.revokeObjectURL(place);
  ort.env.wasm.numThreads = 1;
  ort.env.wasm.proxy = false;
  ort.env.wasm.wasmBinary = (await unpacked("binary")).buffer;
  ort.env.logLevel = "error";
  return ort;
}

class Network {
  constructor(ort, described) {
    this.ort = ort;
    Object.assign(this, described);
  }

  async open() {
    this.session ??= this.ort.InferenceSession.create(await unpacked(this.block), { executionProviders: ["wasm"] });
    return this.session;
  }

  // { logits, values: contributions [H, W], milliseconds }; target -1 is the predicted class
  async explain(image, [height, width], target = -1) {
    const session = await this.open();
    const feeds = {
      image: new this.ort.Tensor("float32", image, [1, this.channels, height, width]),
      target: new this.ort.Tensor("int64", BigInt64Array.of(BigInt(target)), [1]),
    };
    const start = performance.now();
    const { logits, contributions } = await session.run(feeds);
    const milliseconds = performance.now() - start;
    return { logits: logits.data.slice(), values: spread(contributions, height, width), milliseconds };
  }
}

// Maps [1, h, w] on height x width pixels: what a feature contributes is shared out evenly over its square of them, so
// that sums stay what they are; what a pixel contributes is its own.
function spread({ data, dims: [, h, w] }, height, width) {
  if (h === height && w === width) return data.slice();
  const squares = (size, count) => {
    const places = Array.from({ length: size }, (_, i) => Math.floor((i * count) / size));
    return places.map((place) => [place, places.filter((other) => other === place).length]);
  };
  const [rows, columns] = [squares(height, h), squares(width, w)];
  return Float32Array.from(rows.flatMap(([y, high]) => columns.map(([x, wide]) => data[y * w + x] / (high * wide))));
}

// One picture read by one model: the maps of its classes, each computed when it is first asked for.
class Reading {
  static async of(network, image, size) {
    const reading = new Reading();
    const first = await network.explain(image, size);
    Object.assign(reading, { network, image, size, logits: first.logits, milliseconds: first.milliseconds });
    const top = reading.ranked()[0];
    reading.maps = new Map([[top, first.values]]);
    return reading;
  }

  get probabilities() {
    return Array.from(this.logits, (logit) => 1 / (1 + Math.exp(-logit)));
  }

  ranked() {
    return Array.from(this.logits.keys()).sort((a, b) => this.logits[b] - this.logits[a] || a - b);
  }

  async compute(target) {
    if (this.maps.has(target)) return;
    const { values, milliseconds } = await this.network.explain(this.image, this.size, target);
    this.maps.set(target, values);
    this.milliseconds = milliseconds;
  }

  // contributions to a class, or to its logit less that of another
  map(target, versus = null) {
    const values = this.maps.get(target);
    return versus === null ? values : values.map((value, i) => value - this.maps.get(versus)[i]);
  }

  // a logit, or the difference of two, as inside + outside + bias
  parts(box, target, versus = null) {
    const values = this.map(target, versus);
    const [height, width] = this.size;
    const [left, top, right, bottom] = box ?? [0, 0, width, height];
    let [inside, total] = [0, 0];
    values.forEach((value, i) => {
      const [x, y] = [i % width, Math.floor(i / width)];
      total += value;
      if (x >= left && x < right && y >= top && y < bottom) inside += value;
    });
    const bias = versus === null ? this.network.bias : 0;
    const logit = this.logits[target] - (versus === null ? 0 : this.logits[versus]);
    return { inside, outside: total - inside, bias, logit };
  }

  // of the positive contributions to a class, the part inside the box
  share(target, [left, top, right, bottom]) {
    const width = this.size[1];
    let [inside, total] = [0, 0];
    this.maps.get(target).forEach((value, i) => {
      if (value <= 0) return;
      const [x, y] = [i % width, Math.floor(i / width)];
      total += value;
      if (x >= left && x < right && y >= top && y < bottom) inside += value;
    });
    return total > 0 ? inside / total : 0;
  }
}
