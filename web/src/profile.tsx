// A profile as a flame graph, from the line of Python to the kernel. The file stays in the browser.
import { useMemo, useRef, useState } from "preact/hooks";
import * as f from "./format";
import { Choice, Empty } from "./parts";
import { type Route, change } from "./route";

interface Frame {
  kind: "python" | "native" | "kernel" | "wait" | "note";
  function: string;
  file?: string;
  line?: number;
}

interface Stack {
  pid: number;
  frames: number[];
  launches?: number;
  gpu?: number;
  wait?: number;
}

export interface Profile {
  start: string;
  seconds: number;
  host: string;
  estimated: boolean;
  comments: string[];
  processes: { pid: number; name: string; python?: string; problem?: string; launches: number }[];
  frames: Frame[];
  stacks: Stack[];
}

type Value = "gpu" | "launches" | "wait";

/** A node of the graph: a frame below one path of callers. */
interface Node {
  key: string;
  frame: Frame;
  value: number;
  self: number;
  depth: number;
  parent?: Node;
  children: Map<string, Node>;
}

const maxBytes = 64 << 20;
const smallest = 0.0007; // of the width: narrower ones cannot be seen

export function parse(text: string): Profile {
  const p = JSON.parse(text) as Profile;
  if (!Array.isArray(p.frames) || !Array.isArray(p.stacks) || !Array.isArray(p.processes)) throw new Error("it is no profile of gpumeter trace --profile");
  if (p.stacks.some((s) => !Array.isArray(s.frames) || s.frames.some((i) => !p.frames[i]))) throw new Error("its stacks have frames that it does not list");
  return p;
}

function tree(p: Profile, of: Value): Node {
  const node = (frame: Frame, key: string, parent?: Node): Node => ({ key, frame, value: 0, self: 0, depth: parent ? parent.depth + 1 : 0, parent, children: new Map() });
  const root = node({ kind: "note", function: p.host ? `all of ${p.host}` : "all" }, "");
  const names = new Map(p.processes.map((x) => [x.pid, x.name]));
  for (const s of p.stacks) {
    const value = s[of] ?? 0;
    if (value <= 0) continue;
    let at = root;
    at.value += value;
    const step = (key: string, frame: Frame) => {
      let next = at.children.get(key);
      if (!next) at.children.set(key, (next = node(frame, `${at.key}/${key}`, at)));
      at = next;
      at.value += value;
    };
    step(`p${s.pid}`, { kind: "note", function: `${names.get(s.pid) || "process"} ${s.pid}` });
    for (const i of s.frames) step(String(i), p.frames[i]!);
    at.self += value;
  }
  return root;
}

const title = (x: Frame) => (x.kind === "python" ? `${x.function} (${(x.file ?? "").replace(/.*\//, "")}${x.line ? ":" + x.line : ""})` : x.function);
const sorted = (n: Node) => [...n.children.values()].sort((a, b) => b.value - a.value || (a.key < b.key ? -1 : 1));

export function ProfilePage({ route }: { route: Route }) {
  const [profile, set] = useState<Profile | null>(null);
  const [name, setName] = useState("");
  const [problem, setProblem] = useState("");
  const open = async (file: File | undefined | null) => {
    if (!file) return;
    setName(file.name);
    setProblem("");
    try {
      if (file.size > maxBytes) throw new Error("it is larger than 64 MiB");
      set(parse(await file.text()));
    } catch (e) {
      set(null);
      setProblem(`${file.name} cannot be shown: ${e instanceof Error ? e.message : e}. The page shows profiles that end in .json; go tool pprof shows those in .pb.gz.`);
    }
  };
  return (
    <div onDragOver={(e) => e.preventDefault()} onDrop={(e) => (e.preventDefault(), void open(e.dataTransfer?.files[0]))}>
      <h1>Profile</h1>
      <section class="card">
        <label>
          Profile, written by <code>gpumeter trace --profile 30s -o train.json</code>:{" "}
          <input type="file" accept=".json,application/json" onChange={(e) => void open(e.currentTarget.files?.[0])} />
        </label>
        <p class="muted small">The file is read by the browser and not sent to the hub.</p>
        {problem && <p role="alert">{problem}</p>}
      </section>
      {profile && <Graph profile={profile} name={name} route={route} />}
    </div>
  );
}

function Graph({ profile, name, route }: { profile: Profile; name: string; route: Route }) {
  const asked = route.params.get("value") as Value | null;
  const of: Value = asked ?? (profile.estimated ? "gpu" : "launches");
  const root = useMemo(() => tree(profile, of), [profile, of]);
  const [zoom, setZoom] = useState("");
  const [at, setAt] = useState("");
  const [q, setQ] = useState("");
  const box = useRef<HTMLDivElement>(null);

  const find = (key: string): Node | undefined => {
    let n: Node | undefined = root;
    for (const part of key.split("/").slice(1)) n = n?.children.get(part);
    return n;
  };
  const top = find(zoom) ?? root;
  const text = (v: number) => (of === "launches" ? f.count(Math.round(v)) : `${v < 1 ? f.count(v * 1000) + "\u202fms" : f.count(v) + "\u202fs"}`);
  const share = (v: number) => (root.value ? f.percent(v / root.value) : "");

  // The rows: callers of what is zoomed to, then what it calls.
  const rows: { n: Node; from: number; width: number }[] = [];
  const above: Node[] = [];
  for (let n: Node | undefined = top.parent; n; n = n.parent) above.unshift(n);
  for (const n of above) rows.push({ n, from: 0, width: 1 });
  const place = (n: Node, from: number, width: number) => {
    if (width < smallest) return;
    rows.push({ n, from, width });
    let x = from;
    for (const c of sorted(n)) {
      const w = (width * c.value) / n.value;
      place(c, x, w);
      x += w;
    }
  };
  if (root.value > 0) place(top, 0, 1);
  const height = rows.reduce((h, r) => Math.max(h, r.n.depth + 1), 1);
  const shown = rows.some((r) => r.n.key === at) ? at : top.key;
  const current = find(shown) ?? top;
  const hit = (n: Node) => q !== "" && title(n.frame).toLowerCase().includes(q.toLowerCase());

  const go = (n: Node | undefined) => {
    if (!n || !rows.some((r) => r.n === n)) return;
    setAt(n.key);
    requestAnimationFrame(() => box.current?.querySelector<HTMLElement>('[tabindex="0"]')?.focus());
  };
  const beside = (n: Node, step: number) => {
    const level = n.parent ? sorted(n.parent) : [n];
    return level[level.indexOf(n) + step];
  };
  const key = (e: KeyboardEvent) => {
    switch (e.key) {
      case "ArrowUp":
        go(current.parent);
        break;
      case "ArrowDown":
        go(sorted(current)[0]);
        break;
      case "ArrowLeft":
        go(beside(current, -1));
        break;
      case "ArrowRight":
        go(beside(current, 1));
        break;
      case "Escape":
        setZoom("");
        break;
      default:
        return;
    }
    e.preventDefault();
    e.stopPropagation();
  };

  // The functions in which, and the kernels on which, the most is spent.
  const tops = useMemo(() => {
    const by = new Map<string, { frame: Frame; value: number }>();
    const visit = (n: Node, python: Frame | undefined) => {
      const inner = n.frame.kind === "python" ? n.frame : python;
      if (n.self > 0) {
        for (const x of [inner, n.frame]) {
          if (!x) continue;
          const id = `${x.kind} ${x.function} ${x.kind === "python" ? x.file : ""}`;
          const had = by.get(id) ?? { frame: x, value: 0 };
          had.value += n.self;
          by.set(id, had);
        }
      }
      for (const c of n.children.values()) visit(c, inner);
    };
    visit(root, undefined);
    const list = [...by.values()].sort((a, b) => b.value - a.value);
    return [list.filter((x) => x.frame.kind === "python").slice(0, 10), list.filter((x) => x.frame.kind === "kernel" || x.frame.kind === "wait").slice(0, 10)] as const;
  }, [root]);

  return (
    <>
      <section class="card">
        <h2>
          {name} <span class="muted">{f.whenOf(Date.parse(profile.start))}, {f.count(profile.seconds)} s</span>
        </h2>
        <p class="muted small">
          {profile.processes.map((x) => `${x.name} ${x.pid}: ${f.count(x.launches)} launches${x.python ? `, Python ${x.python}` : ""}${x.problem ? `; ${x.problem}` : ""}`).join(" · ")}
        </p>
        <div class="controls">
          <Choice label="Value" value={of} options={[["gpu", "GPU time (estimate)"], ["launches", "Launches"], ["wait", "Waits"]]} set={(v) => (setZoom(""), change({ value: v }))} />
          <input type="search" aria-label="Find a function" placeholder="Find a function" value={q} onInput={(e) => setQ(e.currentTarget.value)} />
          {zoom && <button onClick={() => setZoom("")}>Show all</button>}
        </div>
        {root.value === 0 ? (
          <Empty title="Nothing to show">{of === "gpu" ? "The time on the device is unknown: nobody waited for it." : "The profile has no such value."}</Empty>
        ) : (
          <>
            <div class="flame" ref={box} role="group" aria-label="Flame graph: callers above, kernels at the bottom. Arrow keys move, Enter zooms, Escape shows all." style={{ height: `${height * 20}px` }} onKeyDown={key}>
              {rows.map(({ n, from, width }) => (
                <button
                  key={n.key}
                  class={`${n.frame.kind} ${hit(n) ? "hit" : ""}`}
                  style={{ left: `${from * 100}%`, width: `${width * 100}%`, top: `${n.depth * 20}px` }}
                  tabIndex={n.key === shown ? 0 : -1}
                  title={`${title(n.frame)}\n${text(n.value)}, ${share(n.value)}`}
                  aria-label={`${title(n.frame)}: ${text(n.value)}, ${share(n.value)}`}
                  onFocus={() => setAt(n.key)}
                  onClick={() => (setAt(n.key), setZoom(n.key))}
                >
                  {width > 0.02 ? title(n.frame) : ""}
                </button>
              ))}
            </div>
            <p class="small" aria-live="polite">
              <strong>{title(current.frame)}</strong> {text(current.value)}, {share(current.value)}
              {current.frame.file && <span class="muted mono"> {current.frame.file}{current.frame.line ? `:${current.frame.line}` : ""}</span>}
            </p>
          </>
        )}
        {profile.comments.map((c) => (
          <p class="muted small" key={c}>{c}</p>
        ))}
      </section>
      {tops.map((list, i) => (
        <section class="card" key={i}>
          <h2>{i === 0 ? "Innermost Python functions" : "Kernels and waits"}</h2>
          <table>
            <thead>
              <tr>
                <th scope="col">Function</th>
                <th scope="col" class="num">{of === "launches" ? "Launches" : "Time"}</th>
                <th scope="col" class="num">Share</th>
              </tr>
            </thead>
            <tbody>
              {list.map((x) => (
                <tr key={title(x.frame) + x.frame.file}>
                  <td>
                    {x.frame.function} {x.frame.kind === "python" && <span class="muted mono">{x.frame.file}</span>}
                  </td>
                  <td class="num">{text(x.value)}</td>
                  <td class="num">{share(x.value)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </section>
      ))}
    </>
  );
}
