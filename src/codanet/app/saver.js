// Hands a file made by the server to the browser's downloads.
watch("value", async () => {
  if (!props.value?.uri) return;
  const content = await (await fetch(props.value.uri)).blob();
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = props.value.name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
});
