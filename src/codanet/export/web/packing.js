// What is packed in the page: five letters for four bytes (RFC 1924's, with a comma for <), and gzip.
const LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~";

async function unpacked(name) {
  const block = document.getElementById(name);
  const words = block.textContent;
  const length = Number(block.dataset.bytes); // the last group may be filled up
  block.remove(); // the letters are not needed twice
  const values = new Uint8Array(128);
  for (let i = 0; i < 85; i++) values[LETTERS.charCodeAt(i)] = i;
  const bytes = new Uint8Array((words.length / 5) * 4);
  for (let i = 0, j = 0; i < words.length; i += 5, j += 4) {
    let value = values[words.charCodeAt(i)];
    for (let k = 1; k < 5; k++) value = value * 85 + values[words.charCodeAt(i + k)];
    bytes[j] = value / 16777216;
    bytes[j + 1] = value >>> 16;
    bytes[j + 2] = value >>> 8;
    bytes[j + 3] = value;
  }
  const stream = new Blob([bytes.subarray(0, length)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
