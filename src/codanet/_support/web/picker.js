// Choosing a picture: a tile, a file, a drop anywhere on the page, or a paste. The file goes to the server as it is.
const MOST = props.most_bytes;

function send(file) {
  if (!file) return;
  if (file.size > MOST) {
    trigger("upload", { problem: "large" });
    return;
  }
  const reader = new FileReader();
  reader.onload = () => trigger("upload", { content: String(reader.result).replace(/^[^,]*,?/, ""), title: file.name });
  reader.onerror = () => trigger("upload", { problem: "unreadable" });
  reader.readAsDataURL(file);
}

function cover(shown) {
  element.querySelector(".dropping").hidden = !shown;
}

element.addEventListener("click", (event) => {
  const tile = event.target.closest(".tile");
  if (!tile) return;
  if (tile.hasAttribute("data-upload")) element.querySelector(".file").click();
  else trigger("select", { key: tile.dataset.key });
});
element.addEventListener("change", (event) => {
  if (!event.target.matches(".file")) return;
  event.stopPropagation();
  send(event.target.files[0]);
  event.target.value = "";
});
window.addEventListener("dragover", (event) => {
  if (event.dataTransfer?.types.includes("Files")) {
    event.preventDefault();
    cover(true);
  }
});
window.addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) cover(false);
});
window.addEventListener("drop", (event) => {
  cover(false);
  if (!event.dataTransfer?.files.length) return;
  event.preventDefault();
  send(event.dataTransfer.files[0]);
});
window.addEventListener("paste", (event) => {
  const file = [...(event.clipboardData?.files ?? [])].find((each) => each.type.startsWith("image/"));
  if (file) send(file);
});
