// Runs before the first paint to avoid a flash of the wrong theme.
try {
  const theme = localStorage.getItem("theme");
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
} catch {
  // Storage is disabled: use the system's theme.
}
