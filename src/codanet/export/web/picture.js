// Any file as the pixels a model sees: decoded by the browser, fitted as `codanet.read_image` does it.
const MOST_PIXELS = 50e6;
const PHOTO_SIDE = 640; // pixels of the picture shown

async function decoded(blob) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(blob, { imageOrientation: "from-image", colorSpaceConversion: "none" });
  } catch {
    throw new Error("That file is not a picture this browser can read: give a PNG, JPEG, WebP, BMP or GIF file.");
  }
  if (bitmap.width * bitmap.height > MOST_PIXELS) {
    throw new Error(`That picture has ${bitmap.width} × ${bitmap.height} pixels, more than 50 million: save it smaller.`);
  }
  const canvas = blank(bitmap.width, bitmap.height);
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.fillStyle = "white"; // transparency lies over white
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(bitmap, 0, 0);
  bitmap.close();
  return canvas;
}

function blank(width, height) {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  return canvas;
}

// the largest box in the middle that has the shape of the model's input: left, top, width, height
function middle(canvas, [height, width]) {
  const scale = Math.min(canvas.width / width, canvas.height / height);
  return [(canvas.width - width * scale) / 2, (canvas.height - height * scale) / 2, width * scale, height * scale];
}

// [C, H, W] in [0, 1]
function fitted(canvas, model) {
  const [height, width] = model.size;
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let planes = planesOf(data, canvas.width * canvas.height, model.channels);
  if (canvas.width !== width || canvas.height !== height) {
    const [left, top, w, h] = middle(canvas, model.size);
    planes = planes.map((plane) => {
      const rows = resampled(plane, canvas.width, canvas.height, left, left + w, width);
      const turned = resampled(transposed(rows, width, canvas.height), canvas.height, width, top, top + h, height);
      return transposed(turned, height, width);
    });
  }
  const image = new Float32Array(model.channels * height * width);
  planes.forEach((plane, c) => plane.forEach((value, i) => (image[c * height * width + i] = value / 255)));
  return image;
}

// grey by the weights of Rec. 601, rounded as Pillow does
function planesOf(data, count, channels) {
  const planes = Array.from({ length: channels }, () => new Uint8Array(count));
  for (let i = 0, j = 0; i < count; i++, j += 4) {
    if (channels === 1) planes[0][i] = (data[j] * 19595 + data[j + 1] * 38470 + data[j + 2] * 7471 + 0x8000) >> 16;
    else for (let c = 0; c < 3; c++) planes[c][i] = data[j + c];
  }
  return planes;
}

function transposed(plane, width, height) {
  const turned = new Uint8Array(plane.length);
  for (let y = 0; y < height; y++) for (let x = 0; x < width; x++) turned[x * height + y] = plane[y * width + x];
  return turned;
}

function cubic(x) {
  x = Math.abs(x);
  return x < 1 ? (1.5 * x - 2.5) * x * x + 1 : x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
}

// Pillow's antialiased bicubic along the rows of a plane, from [start, end) to `size` pixels
function resampled(plane, width, height, start, end, size) {
  const scale = (end - start) / size;
  const spread = Math.max(scale, 1);
  const support = 2 * spread;
  const out = new Uint8Array(size * height);
  for (let x = 0; x < size; x++) {
    const centre = start + (x + 0.5) * scale;
    const first = Math.max(0, Math.floor(centre - support + 0.5));
    const last = Math.min(width, Math.floor(centre + support + 0.5));
    const weights = [];
    let total = 0;
    for (let i = first; i < last; i++) {
      const weight = cubic((i - centre + 0.5) / spread);
      weights.push(weight);
      total += weight;
    }
    for (let y = 0; y < height; y++) {
      let sum = 0;
      for (let i = first; i < last; i++) sum += weights[i - first] * plane[y * width + i];
      out[y * size + x] = Math.min(255, Math.max(0, Math.floor(sum / total + 0.5)));
    }
  }
  return out;
}

// what the model sees of a picture, with more pixels
function photograph(canvas, model) {
  const [left, top, w, h] = middle(canvas, model.size);
  const [height, width] = model.size;
  const scale = Math.max(1, Math.min(w / width, PHOTO_SIDE / Math.max(height, width)));
  const photo = blank(Math.round(width * scale), Math.round(height * scale));
  const pen = photo.getContext("2d");
  pen.imageSmoothingQuality = "high";
  pen.drawImage(canvas, left, top, w, h, 0, 0, photo.width, photo.height);
  return photo;
}

function address(canvas) {
  return Math.max(canvas.width, canvas.height) <= 128 ? canvas.toDataURL() : canvas.toDataURL("image/jpeg", 0.9);
}

// n² images [C, H, W], row by row, as one [C, nH, nW]
function tiledImages(images, n, { channels, size: [height, width] }) {
  const whole = new Float32Array(images.length * channels * height * width);
  images.forEach((image, place) => {
    const [row, column] = [Math.floor(place / n), place % n];
    for (let c = 0; c < channels; c++) {
      for (let y = 0; y < height; y++) {
        const from = (c * height + y) * width;
        whole.set(image.subarray(from, from + width), ((c * n + row) * height + y) * n * width + column * width);
      }
    }
  });
  return whole;
}
