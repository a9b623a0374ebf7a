// Hands a file, given as base64, to the browser's downloads.
watch("value", () => {
  if (!props.value?.uri) return;
  const [kind, words] = props.value.uri.slice(5).split(";base64,");
  const content = Uint8Array.from(atob(words), (letter) => letter.charCodeAt(0));
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type: kind }));
  link.download = props.value.name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
});
