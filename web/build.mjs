// Builds the dashboard into the directory that the hub embeds. Everything there except the
// placeholder is deleted first, so that no stale file is shipped.
import * as esbuild from "esbuild";
import { mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import path from "node:path";
import { fileURLToPath } from "node:url";

const here = path.dirname(fileURLToPath(import.meta.url));
const out = path.join(here, "../internal/hub/ui/dist");
const watch = process.argv.includes("--watch");

const pages = {
  name: "pages",
  setup(build) {
    build.onEnd(async (result) => {
      if (result.errors.length > 0) return;
      const files = result.outputFiles;
      const named = (re) => path.basename(files.find((f) => re.test(path.basename(f.path))).path);
      const index = (await readFile(path.join(here, "src/index.html"), "utf8"))
        .replaceAll("{{app.js}}", named(/^main-.*\.js$/))
        .replaceAll("{{app.css}}", named(/^main-.*\.css$/))
        .replaceAll("{{theme.js}}", named(/^theme-.*\.js$/));
      await mkdir(out, { recursive: true });
      for (const name of await readdir(out)) {
        if (name !== "placeholder.html") await rm(path.join(out, name), { recursive: true });
      }
      for (const f of files) await writeFile(path.join(out, path.basename(f.path)), f.contents);
      await writeFile(path.join(out, "favicon.svg"), await readFile(path.join(here, "src/favicon.svg")));
      await writeFile(path.join(out, "index.html"), index);
      const kB = files.reduce((sum, f) => sum + f.contents.length, 0) / 1024;
      console.log(`${files.length + 2} files, ${kB.toFixed(0)} KiB`);
    });
  },
};

const context = await esbuild.context({
  entryPoints: [path.join(here, "src/main.tsx"), path.join(here, "src/theme.ts")],
  bundle: true,
  minify: true,
  format: "esm",
  target: ["chrome123", "firefox121", "safari17.5"],
  jsx: "automatic",
  jsxImportSource: "preact",
  entryNames: "[name]-[hash]",
  outdir: out,
  write: false,
  legalComments: "eof",
  logLevel: "warning",
  plugins: [pages],
});
if (watch) {
  await context.watch();
} else {
  await context.rebuild();
  await context.dispose();
}
