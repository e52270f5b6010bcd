// Search and help. The native dialog element traps the focus and closes with Escape.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { type Hit, ask } from "./api";
import { calendar, href, ranges, change, spanOf, timesOf, useRoute } from "./route";

function Dialog({ label, close, children }: { label: string; close: () => void; children: ComponentChildren }) {
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const d = ref.current!;
    if (!d.open) d.showModal();
    return () => d.close();
  }, []);
  return (
    <dialog ref={ref} aria-label={label} onClose={close} onClick={(e) => e.target === ref.current && close()}>
      {children}
    </dialog>
  );
}

const words: Record<Hit["type"], string> = { gpu: "GPU", workload: "Workload", node: "Node", team: "Team" };

function target(h: Hit): string {
  switch (h.type) {
    case "gpu":
      return href("gpu", h.id);
    case "workload":
      return href("workload", h.id);
    case "team":
      return href("workloads", "", { team: h.id });
    default:
      return href("fleet", "", { q: h.id });
  }
}

export function Search({ close }: { close: () => void }) {
  const [q, setQ] = useState("");
  const [hits, setHits] = useState<Hit[] | null>(null);
  const [of, setOf] = useState(""); // what the hits are for
  const [at, setAt] = useState(0);
  const [bad, setBad] = useState("");
  const entered = useRef(""); // Enter was pressed before the hits for it arrived
  const span = spanOf(useRoute().params);
  useEffect(() => {
    if (!q.trim()) return setHits(null);
    const stop = new AbortController();
    const timer = setTimeout(async () => {
      try {
        const a = await ask<{ hits: Hit[] }>("search", { q, ...timesOf(span) }, stop.signal);
        if (entered.current === q && a.hits.length) return go(a.hits[0]);
        setHits(a.hits);
        setOf(q);
        setAt(0);
        setBad("");
      } catch (e) {
        if (!stop.signal.aborted) setBad((e as Error).message);
      }
    }, 120);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [q]);
  const go = (h: Hit | undefined) => {
    if (!h) return;
    location.hash = target(h);
    close();
  };
  const key = (e: KeyboardEvent) => {
    const n = hits?.length ?? 0;
    if (e.key === "ArrowDown" || e.key === "ArrowUp") {
      e.preventDefault();
      if (n) setAt((at + (e.key === "ArrowDown" ? 1 : n - 1)) % n);
    } else if (e.key === "Enter") {
      e.preventDefault();
      if (of === q) go(hits?.[at]);
      else entered.current = q;
    }
  };
  useEffect(() => document.getElementById(`hit${at}`)?.scrollIntoView({ block: "nearest" }), [at]);
  return (
    <Dialog label="Search" close={close}>
      <div class="search">
        <input
          type="search"
          list={undefined}
          autofocus
          placeholder="A node, GPU, workload, team, user or job …"
          value={q}
          onInput={(e) => setQ(e.currentTarget.value)}
          onKeyDown={key}
          role="combobox"
          aria-label="Search"
          aria-expanded={!!hits?.length}
          aria-controls="hits"
          aria-activedescendant={hits?.length ? `hit${at}` : undefined}
        />
        <ul id="hits" role="listbox" aria-label="Results">
          {hits?.map((h, i) => (
            <li key={h.type + h.id} id={`hit${i}`} role="option" aria-selected={i === at} onClick={() => go(h)} onMouseMove={() => setAt(i)}>
              <span class="hit-type">{words[h.type]}</span>
              <span class="hit-title">{h.title}</span>
              <span class="muted hit-detail">{h.detail}</span>
            </li>
          ))}
        </ul>
        <p class="muted small" role="status">
          {bad || (hits && hits.length === 0 ? `No results for “${q}”.` : hits ? "↑ ↓ to choose, Enter to open, Escape to close" : "Type to search.")}
        </p>
      </div>
    </Dialog>
  );
}

const keys: [string, string][] = [
  ["/", "search"],
  ["g then f, w, s, h, c", "go to fleet, workloads, serving, health, cost"],
  ["Tab, arrows", "move between tiles; Enter opens"],
  ["[ and ]", "previous and next GPU on the same node"],
  ["t", "toggle dark and light theme"],
  ["?", "this help"],
  ["Escape", "close"],
];

export function Help({ close }: { close: () => void }) {
  return (
    <Dialog label="Help" close={close}>
      <div class="help">
        <h2>Keys</h2>
        <dl>
          {keys.map(([k, text]) => (
            <div key={k}>
              <dt>
                <kbd>{k}</kbd>
              </dt>
              <dd>{text}</dd>
            </div>
          ))}
        </dl>
        <h2>Terms</h2>
        <p>
          A GPU is <b>held</b> when a scheduler has allocated it to a workload, and <b>idle</b> when its holder has not used it for ten minutes. <b>Busy</b> is the fraction of time in which a kernel ran. <b>Sick</b> means that nothing new should be scheduled on it. The URL
          contains the whole view and can be shared.
        </p>
        <p>Drag across a chart to zoom in on that time range.</p>
        <button onClick={close}>Close</button>
      </div>
    </Dialog>
  );
}

const local = (s: number) => new Date(s * 1000 - new Date(s * 1000).getTimezoneOffset() * 60000).toISOString().slice(0, 16);

export function Custom({ close }: { close: () => void }) {
  const span = spanOf(useRoute().params);
  const end = span.to ?? Math.floor(Date.now() / 1000);
  const [from, setFrom] = useState(local(span.from ?? end - span.seconds));
  const [to, setTo] = useState(local(end));
  const [bad, setBad] = useState("");
  const submit = (e: SubmitEvent) => {
    e.preventDefault();
    const a = Math.floor(new Date(from).getTime() / 1000);
    const b = Math.floor(new Date(to).getTime() / 1000);
    if (!(a < b)) return setBad("The end must be after the start.");
    change({ from: String(a), to: String(b), range: "" }, false);
    close();
  };
  return (
    <Dialog label="Choose a time range" close={close}>
      <form class="custom" onSubmit={submit}>
        <h2>Choose a time range</h2>
        <label>
          From <input type="datetime-local" value={from} onInput={(e) => setFrom(e.currentTarget.value)} required />
        </label>
        <label>
          To <input type="datetime-local" value={to} onInput={(e) => setTo(e.currentTarget.value)} required />
        </label>
        {bad && <p role="alert">{bad}</p>}
        <p class="muted small">The fleet page shows the state at the end of the range.</p>
        <button type="submit" class="primary">
          Show
        </button>{" "}
        <button type="button" onClick={close}>
          Cancel
        </button>
      </form>
    </Dialog>
  );
}

export const rangeOptions = [...ranges, ...calendar].map(([key, text]): [string, string] => [key, text]);
