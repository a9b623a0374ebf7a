// Files to take away: the picture with its map, and every number.
const CARD_SIDE = 480; // pixels of each panel
const LINE = 30;
const BORDER = 18;

// the image, the map over it as strong as on the page, and the map, side by side
function card(state, settings, shades, fade) {
  const { reading, target, versus, cells } = state;
  const [height, width] = reading.size;
  const values = reading.map(target, versus);
  const scale = colourScale(values, settings.percentile);
  const picture = seen(reading.image, reading.network.channels, width, height);
  const pieces = [picture, laidOver(picture, values, scale, shades, Math.min(1, 2 * fade)), heatmap(values, width, height, scale, shades)];
  const top = reading.ranked()[0];
  const verdict = cells > 1 ? `${cells ** 2} pictures` : `${reading.network.classes[top]} ${percent(reading.probabilities[top])}`;
  const enlarged = Math.max(1, Math.round(CARD_SIDE / Math.max(width, height)));
  const [w, h] = [width * enlarged, height * enlarged];
  const page = blank(2 * BORDER + 3 * w + 2 * BORDER, 2 * BORDER + LINE + h + LINE);
  const pen = page.getContext("2d");
  pen.imageSmoothingEnabled = false;
  pen.fillStyle = "white";
  pen.fillRect(0, 0, page.width, page.height);
  pen.font = "17px system-ui, sans-serif";
  [verdict, titleOf(reading, target, versus), ""].forEach((words, place) => {
    const left = BORDER + place * (w + BORDER);
    pen.drawImage(pieces[place], left, BORDER + LINE, w, h);
    pen.strokeStyle = "#c4c4c4";
    pen.strokeRect(left - 0.5, BORDER + LINE - 0.5, w + 1, h + 1);
    pen.fillStyle = "#1d2126";
    pen.fillText(words, left, BORDER + 18, w);
  });
  const ramp = heatmap(Float64Array.from({ length: 97 }, (_, i) => i / 48 - 1), 97, 1, 1, shades);
  const low = `−${brief(scale)}`;
  const left = BORDER + pen.measureText(low).width + 8;
  const foot = BORDER + LINE + h + 10;
  pen.fillText(low, BORDER, foot + 13);
  pen.drawImage(ramp, left, foot, 97, 13);
  pen.strokeRect(left - 0.5, foot - 0.5, 98, 14);
  pen.fillText(`+${brief(scale)} logit`, left + 106, foot + 13);
  pen.textAlign = "right";
  pen.fillText(reading.network.exact_for, page.width - BORDER, foot + 13, 2 * w);
  return page.toDataURL();
}

// light grey, covered the more a pixel contributes, as `plot.overlay`
function laidOver(picture, values, scale, shades, strength) {
  const { data } = picture.getContext("2d").getImageData(0, 0, picture.width, picture.height);
  const last = shades.length - 3;
  const places = Float64Array.from(values.keys());
  return painted(places, picture.width, picture.height, (i) => {
    const grey = 0.299 * data[4 * i] + 0.587 * data[4 * i + 1] + 0.114 * data[4 * i + 2];
    const share = strength * Math.abs(relative(values[i], scale)) ** OPACITY;
    const end = values[i] < 0 ? 0 : last;
    const mixed = [0, 1, 2].map((c) => Math.round((255 - (255 - grey) * 0.55) * (1 - share) + shades[end + c] * share));
    return [...mixed, 255];
  });
}

function numbers(state, settings) {
  const { reading, target, versus, box } = state;
  const { network, probabilities } = reading;
  const shown = reading.parts(box, target, versus);
  const [, width] = reading.size;
  const values = Array.from(reading.map(target, versus), (value) => Number(value.toFixed(9)));
  const words = JSON.stringify(
    {
      codanet: settings.version,
      model: network.name,
      provenance: network.facts,
      temperature: network.temperature,
      bias: network.bias,
      ...(network.exact_for ? { exact_for: network.exact_for } : {}),
      image_size: reading.size,
      box,
      classes: reading.ranked().map((c) => ({
        class: network.classes[c],
        logit: reading.logits[c],
        probability: probabilities[c],
        ...(({ inside, outside }) => ({ inside, outside }))(reading.parts(box, c)),
      })),
      shown: {
        class: network.classes[target],
        rather_than: versus === null ? null : network.classes[versus],
        logit: shown.logit,
        inside: shown.inside,
        outside: shown.outside,
        bias: shown.bias,
        contributions: Array.from({ length: reading.size[0] }, (_, y) => values.slice(y * width, (y + 1) * width)),
      },
    },
    null,
    1,
  );
  return `data:application/json;base64,${btoa(Array.from(new TextEncoder().encode(words), (byte) => String.fromCharCode(byte)).join(""))}`;
}

function fileName(state, ending) {
  const name = state.reading.network.classes[state.target].replace(/[^A-Za-z0-9]/g, "-").slice(0, 40);
  return `why-${name}.${ending}`;
}
