// Numbers as colours, by the package's own shades and scale.
const OPACITY = 0.75; // power of |value|, so that weak contributions stay visible on a picture

// v of the scale (-v, v): a percentile of the absolute values, never 0
function colourScale(values, percentile) {
  const sizes = Float64Array.from(values, Math.abs).sort();
  const place = (percentile / 100) * (sizes.length - 1);
  const low = Math.floor(place);
  const high = Math.min(low + 1, sizes.length - 1);
  return sizes[low] + (place - low) * (sizes[high] - sizes[low]) || sizes[sizes.length - 1] || 1;
}

function relative(value, scale) {
  return Math.min(1, Math.max(-1, value / scale));
}

function heatmap(values, width, height, scale, shades) {
  const count = shades.length / 3;
  return painted(values, width, height, (value) => {
    const shade = Math.min(count - 1, Math.floor(((relative(value, scale) + 1) / 2) * count));
    return [shades[3 * shade], shades[3 * shade + 1], shades[3 * shade + 2], 255];
  });
}

// red or blue, the more opaque the more a pixel contributes
function cover(values, width, height, scale, shades) {
  const last = shades.length - 3;
  return painted(values, width, height, (value) => {
    const end = value < 0 ? 0 : last;
    const alpha = Math.round(255 * Math.abs(relative(value, scale)) ** OPACITY);
    return [shades[end], shades[end + 1], shades[end + 2], alpha];
  });
}

function painted(values, width, height, colour) {
  const canvas = blank(width, height);
  const pen = canvas.getContext("2d");
  const pixels = pen.createImageData(width, height);
  values.forEach((value, i) => pixels.data.set(colour(value), 4 * i));
  pen.putImageData(pixels, 0, 0);
  return canvas;
}

// an image [C, H, W] in [0, 1]
function seen(image, channels, width, height) {
  const count = width * height;
  const places = Float32Array.from({ length: count }, (_, i) => i);
  return painted(places, width, height, (i) => {
    const at = (c) => Math.round(255 * image[(channels === 3 ? c : 0) * count + i]);
    return [at(0), at(1), at(2), 255];
  });
}
