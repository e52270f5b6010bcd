import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import "./style.css";
import { Cost } from "./cost";
import { Custom, Help, rangeOptions, Search } from "./dialogs";
import { Fleet } from "./fleet";
import * as f from "./format";
import { GPUPage } from "./gpupage";
import { Health } from "./health";
import { ask } from "./api";
import { Empty, Skeleton } from "./parts";
import { ProfilePage } from "./profile";
import { QueuePage } from "./queue";
import { type Route, change, fit, fits, href, spanOf, useRoute } from "./route";
import { JobPage } from "./job";
import { ModelPage, ServingPage } from "./serving";
import { WorkloadPage, Workloads } from "./workloads";

const pages: [page: string, title: string, key: string, also: string][] = [
  ["fleet", "Fleet", "f", "gpu"],
  ["workloads", "Workloads", "w", "workload"],
  ["serving", "Serving", "s", "model"],
  ["queue", "Queue", "q", "job"],
  ["health", "Health", "h", ""],
  ["cost", "Cost", "c", ""],
  ["profile", "Profile", "p", ""],
];

type Theme = "light" | "dark";

const system = () => (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
const themeNow = () => (document.documentElement.dataset["theme"] as Theme | undefined) ?? system();

function toggleTheme(): Theme {
  const to = themeNow() === "dark" ? "light" : "dark";
  document.documentElement.dataset["theme"] = to;
  try {
    localStorage.setItem("theme", to);
  } catch {
    // Session storage is cleared with the tab.
  }
  dispatchEvent(new Event("themechange"));
  return to;
}

function typing(e: KeyboardEvent): boolean {
  return e.target instanceof HTMLElement && e.target.closest("input, select, textarea, dialog") !== null;
}

/** useFit adapts the default period to the data. It returns false until the first answer, or failure. */
function useFit(): boolean {
  const [ready, set] = useState(false);
  useEffect(() => {
    let timer = 0;
    const load = async () => {
      try {
        fit((await ask<{ seconds: number }>("since", {})).seconds);
      } catch {
        // The pages say what is wrong with the hub.
      }
      set(true);
      if (fits() < 86400) timer = window.setTimeout(load, 60_000);
    };
    void load();
    return () => clearTimeout(timer);
  }, []);
  return ready;
}

function App() {
  const route = useRoute();
  const ready = useFit();
  const [open, setOpen] = useState<"" | "search" | "help" | "custom">("");
  const [theme, setTheme] = useState(themeNow);
  const chord = useRef(0);
  const main = useRef<HTMLElement>(null);
  const place = route.page + "/" + route.arg;

  useEffect(() => {
    const key = (e: KeyboardEvent) => {
      if (typing(e) || e.ctrlKey || e.metaKey || e.altKey) return;
      const go = Date.now() - chord.current < 1200 ? pages.find((p) => p[2] === e.key) : undefined;
      chord.current = e.key === "g" ? Date.now() : 0;
      if (go) location.hash = href(go[0]);
      else if (e.key === "/") setOpen("search");
      else if (e.key === "?") setOpen("help");
      else if (e.key === "t") setTheme(toggleTheme());
      else return;
      e.preventDefault();
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, []);

  // On navigation, scroll to the top and move the focus for screen readers.
  const started = useRef(false);
  useEffect(() => {
    const title = pages.find((p) => p[0] === route.page || p[3] === route.page)?.[1] ?? "Not found";
    document.title = `${title} · gpumeter`;
    if (started.current) {
      scrollTo(0, 0);
      main.current?.focus({ preventScroll: true });
    }
    started.current = true;
  }, [place]);

  return (
    <>
      <a class="skip" href="#main" onClick={(e) => (e.preventDefault(), main.current?.focus())}>
        Skip to content
      </a>
      <div class="top">
        <div class="top-row">
          <a class="logo" href={href("fleet")} aria-label="gpumeter, fleet">
            <svg viewBox="0 0 32 32" width="22" height="22" aria-hidden="true">
              <rect x="3" y="3" width="12" height="12" rx="3" />
              <rect x="17" y="3" width="12" height="12" rx="3" opacity=".5" />
              <rect x="3" y="17" width="12" height="12" rx="3" opacity=".25" />
              <rect x="17" y="17" width="12" height="12" rx="3" />
            </svg>
            <span>gpumeter</span>
          </a>
          <nav aria-label="Pages">
            {pages.map(([page, title, , also]) => (
              <a key={page} href={href(page)} aria-current={route.page === page || route.page === also ? "page" : undefined}>
                {title}
              </a>
            ))}
          </nav>
          <div class="tools">
            <button class="search-button" onClick={() => setOpen("search")} aria-label="Search" aria-keyshortcuts="/">
              <svg viewBox="0 0 16 16" width="14" height="14" aria-hidden="true">
                <circle cx="7" cy="7" r="4.5" fill="none" stroke="currentColor" stroke-width="1.6" />
                <path d="M10.5 10.5 14 14" stroke="currentColor" stroke-width="1.6" stroke-linecap="round" />
              </svg>
              <span class="wide">Search</span> <kbd class="wide">/</kbd>
            </button>
            <TimePicker route={route} custom={() => setOpen("custom")} />
            <button class="icon" onClick={() => setTheme(toggleTheme())} aria-label={theme === "dark" ? "Light theme" : "Dark theme"} title="Theme (t)">
              <svg viewBox="0 0 16 16" width="15" height="15" aria-hidden="true">
                <circle cx="8" cy="8" r="6.2" fill="none" stroke="currentColor" stroke-width="1.5" />
                <path d="M8 1.8a6.2 6.2 0 0 1 0 12.4z" fill="currentColor" />
              </svg>
            </button>
            <button class="icon wide" onClick={() => setOpen("help")} aria-label="Help" title="Help (?)">
              ?
            </button>
          </div>
        </div>
      </div>
      <main id="main" ref={main} tabIndex={-1} key={place}>
        {ready ? <Page route={route} /> : <Skeleton what="the page" />}
      </main>
      {open === "search" && <Search close={() => setOpen("")} />}
      {open === "help" && <Help close={() => setOpen("")} />}
      {open === "custom" && <Custom close={() => setOpen("")} />}
    </>
  );
}

function TimePicker({ route, custom }: { route: Route; custom: () => void }) {
  const span = spanOf(route.params);
  const pick = (v: string) => (v === "choose" ? custom() : change({ range: v === "fitted" || (v === "24h" && fits() >= 86400) ? "" : v, from: "", to: "" }));
  return (
    <>
      <select
        class="time"
        aria-label="Time"
        value={span.name}
        onChange={(e) => {
          const v = e.currentTarget.value;
          e.currentTarget.value = span.name;
          pick(v);
        }}
      >
        {fits() < 86400 && <option value="fitted">All data so far</option>}
        {rangeOptions.map(([key, text]) => (
          <option key={key} value={key}>
            {text}
          </option>
        ))}
        {!span.live && <option value="custom">{`${f.whenOf(span.from! * 1000)} – ${f.whenOf(span.to! * 1000)}`}</option>}
        <option value="choose">Choose …</option>
      </select>
      {!span.live && (
        <button class="live" onClick={() => change({ from: "", to: "" })}>
          Back to now
        </button>
      )}
    </>
  );
}

function Page({ route }: { route: Route }) {
  switch (route.page) {
    case "fleet":
      return <Fleet route={route} />;
    case "workloads":
      return <Workloads route={route} />;
    case "workload":
      return <WorkloadPage route={route} />;
    case "serving":
      return <ServingPage route={route} />;
    case "model":
      return <ModelPage route={route} />;
    case "gpu":
      return <GPUPage route={route} />;
    case "queue":
      return <QueuePage route={route} />;
    case "job":
      return <JobPage route={route} />;
    case "health":
      return <Health route={route} />;
    case "profile":
      return <ProfilePage route={route} />;
    case "cost":
      return <Cost route={route} />;
    default:
      return (
        <Empty title="Page not found">
          <a href={href("fleet")}>Go to the fleet</a>
        </Empty>
      );
  }
}

const app = document.getElementById("app")!;
app.replaceChildren();
render(<App />, app);
