// A click on a class or on a tile.
element.addEventListener("click", (event) => {
  const row = event.target.closest("[data-class], [data-key]");
  if (!row) return;
  trigger("select", row.dataset.key ? { key: row.dataset.key } : { number: Number(row.dataset.class) });
});
