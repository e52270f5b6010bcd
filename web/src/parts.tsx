// Components shared by all pages.
import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import type { Event, Finding, Loaded, Owner, Simulation } from "./api";
import { Refusal, token } from "./api";
import * as f from "./format";
import { href } from "./route";

/** useNow returns the current time, updated every few seconds. */
export function useNow(step: number): number {
  const [now, set] = useState(() => Date.now());
  useEffect(() => {
    const timer = setInterval(() => set(Date.now()), step * 1000);
    return () => clearInterval(timer);
  }, [step]);
  return now;
}

/** Answer shows a loaded answer, or why loading failed. */
export function Answer<T>({ of, children, what }: { of: Loaded<T>; what: string; children: (data: T) => ComponentChildren }) {
  if (of.data !== undefined) {
    return (
      <>
        {of.error && <Trouble error={of.error} stale again={of.again} what={what} />}
        {children(of.data)}
      </>
    );
  }
  if (of.error) return <Trouble error={of.error} again={of.again} what={what} />;
  return <Skeleton what={what} />;
}

/** Simulated marks an answer about devices that do not exist. */
export function Simulated({ of }: { of: Simulation }) {
  return of === "" ? null : <span class="tag">{of === "all" ? "simulated" : "partly simulated"}</span>;
}

export function Skeleton({ what }: { what: string }) {
  return (
    <div class="skeleton" role="status" aria-label={`Loading ${what}`}>
      <i /> <i /> <i />
    </div>
  );
}

function Trouble({ error, stale, again, what }: { error: Error; stale?: boolean; again: () => void; what: string }) {
  if (error instanceof Refusal && error.status === 401) return <Login again={again} />;
  if (error instanceof Refusal && error.status === 404) return <Empty title="No data for this time range">{error.message.replace(/^not found: /, "")}. Choose another time range, or search with /.</Empty>;
  const text = error instanceof Refusal ? error.message : "The hub is not responding.";
  if (stale)
    return (
      <p class="banner" role="status">
        {text} What you see is from before; trying again.
      </p>
    );
  return (
    <Empty title={`Cannot show ${what}`} alert>
      {text} <button onClick={again}>Try again</button>
    </Empty>
  );
}

function Login({ again }: { again: () => void }) {
  const [text, set] = useState("");
  const submit = (e: SubmitEvent) => {
    e.preventDefault();
    token.set(text.trim());
    again();
  };
  return (
    <form class="empty" onSubmit={submit}>
      <h2>This hub requires a token</h2>
      <p>{token.get() ? "The token was rejected. " : ""}Ask the operator of this hub for a read token, for the fleet or for your team.</p>
      <label>
        Token <input type="password" autocomplete="current-password" value={text} onInput={(e) => set(e.currentTarget.value)} />
      </label>{" "}
      <button type="submit">Open</button>
    </form>
  );
}

export function Empty({ title, children, alert }: { title: string; children?: ComponentChildren; alert?: boolean }) {
  return (
    <div class="empty" role={alert ? "alert" : undefined}>
      <h2>{title}</h2>
      <p>{children}</p>
    </div>
  );
}

export function Stat({ name, value, note, tone }: { name: string; value: ComponentChildren; note?: ComponentChildren; tone?: string }) {
  return (
    <div class={`stat ${tone ?? ""}`}>
      <dt>{name}</dt>
      <dd>
        <span class="stat-value">{value}</span>
        {note && <span class="stat-note">{note}</span>}
      </dd>
    </div>
  );
}

export const Stats = ({ children }: { children: ComponentChildren }) => <dl class="stats">{children}</dl>;

export function OwnerLink({ o, team }: { o: Owner; team?: boolean }) {
  return (
    <span class="owner">
      <a href={href("workload", o.id)}>{o.name || f.kindOf(o.kind)}</a>
      {team && o.team && <span class="muted"> {o.team}</span>}
    </span>
  );
}

/** Bar shows a fraction, with its text next to it. */
export function Bar({ value, tone }: { value: number | null; tone?: string }) {
  return (
    <span class={`bar ${tone ?? ""}`} aria-hidden="true">
      <i style={{ width: `${Math.max(0, Math.min(1, value ?? 0)) * 100}%` }} />
    </span>
  );
}

/** Part is a bar with its percentage. */
export function Part({ value, tone }: { value: number | null; tone?: string }) {
  return (
    <>
      <Bar value={value} tone={tone} />
      <span class="part">{f.percent(value)}</span>
    </>
  );
}

export function Choice<T extends string>({ label, value, options, set }: { label: string; value: T; options: [T, string][]; set: (v: T) => void }) {
  return (
    <label class="choice">
      <span>{label}</span>
      <select value={value} onChange={(e) => set(e.currentTarget.value as T)}>
        {options.map(([v, text]) => (
          <option key={v} value={v}>
            {text}
          </option>
        ))}
      </select>
    </label>
  );
}

export interface Head<R> {
  key: string;
  title: string;
  value: (r: R) => string | number | null | undefined; // sort key
  cell?: (r: R) => ComponentChildren;
  number?: boolean;
  minor?: boolean; // hidden on narrow screens
  roomy?: boolean; // only on wide screens
}

interface TableProps<R> {
  heads: Head<R>[];
  rows: R[];
  sort: string; // key; a leading - sorts in descending order
  setSort?: (sort: string) => void;
  id: (r: R) => string;
  caption: string;
  max?: number;
}

/** Table is sortable by every column. It shows the first rows and a button for more. */
export function Table<R>({ heads, rows, sort, setSort, id, caption, max = 200 }: TableProps<R>) {
  const [own, setOwn] = useState(sort);
  const [limit, setLimit] = useState(max);
  const by = setSort ? sort : own;
  const key = by.replace(/^-/, "");
  const sorted = useMemo(() => {
    const head = heads.find((h) => h.key === key);
    if (!head) return rows;
    const way = by.startsWith("-") ? -1 : 1;
    return [...rows].sort((a, b) => {
      const [x, y] = [head.value(a), head.value(b)];
      if (x === null || x === undefined) return y === null || y === undefined ? 0 : 1; // unknown values sort last
      if (y === null || y === undefined) return -1;
      return way * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), undefined, { numeric: true }));
    });
  }, [rows, by, heads]);
  const press = (h: Head<R>) => (setSort ?? setOwn)(by === h.key ? "-" + h.key : by === "-" + h.key ? h.key : (h.number ? "-" : "") + h.key);
  return (
    <div class="table-box">
      <table>
        <caption class="hidden">{caption}</caption>
        <thead>
          <tr>
            {heads.map((h) => (
              <th key={h.key} scope="col" class={`${h.number ? "number" : ""} ${h.minor ? "minor" : ""} ${h.roomy ? "roomy" : ""}`} aria-sort={key === h.key ? (by.startsWith("-") ? "descending" : "ascending") : undefined}>
                <button class="sort" onClick={() => press(h)}>
                  {h.title}
                  <span aria-hidden="true">{key === h.key ? (by.startsWith("-") ? " ↓" : " ↑") : ""}</span>
                </button>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {sorted.slice(0, limit).map((r) => (
            <tr key={id(r)}>
              {heads.map((h) => (
                <td key={h.key} data-head={h.title} class={`${h.number ? "number" : ""} ${h.minor ? "minor" : ""} ${h.roomy ? "roomy" : ""}`}>
                  {h.cell ? h.cell(r) : (h.value(r) ?? "–")}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {sorted.length > limit && (
        <p class="more">
          <button onClick={() => setLimit(limit + 500)}>Show more</button> <span class="muted">{f.count(sorted.length - limit)} more</span>
        </p>
      )}
    </div>
  );
}

const severities: Record<string, [string, string]> = { ERROR: ["sick", "critical"], FATAL: ["sick", "critical"], WARN: ["warn", "warning"], INFO: ["info", "info"] };
export const severityOf = (s: string) => severities[s] ?? ["info", "info"];

export function Events({ list, days, gpu = true }: { list: Event[]; days?: boolean; gpu?: boolean }) {
  let day = "";
  return (
    <ol class="events">
      {list.map((e, i) => {
        const [cls, word] = severityOf(e.severity);
        const d = f.dayOf(e.time);
        const head = days && d !== day ? <h3 class="day">{(day = d)}</h3> : null;
        return (
          <li key={`${e.time} ${i}`}>
            {head}
            <div class="event">
              <time dateTime={new Date(e.time).toISOString()}>{days ? f.timeOf(e.time) : f.whenOf(e.time)}</time>
              <span class={`pill ${cls}`}>{word}</span>
              <div>
                <div>{e.text}</div>
                <div class="muted small">
                  {gpu && e.gpu && <a href={href("gpu", e.gpu)}>{e.node ? `${e.node} · ` : ""}GPU {e.index ?? e.gpu}</a>}
                  {gpu && !e.gpu && e.node}
                  {e.owner && (
                    <>
                      {gpu ? " · " : ""}
                      <OwnerLink o={e.owner} team />
                    </>
                  )}
                  {(gpu || e.owner) && " "}
                  <span class="mono">{e.rule || e.name}</span>
                </div>
              </div>
            </div>
          </li>
        );
      })}
    </ol>
  );
}

export function Findings({ list, currency, owner = true }: { list: Finding[]; currency?: string; owner?: boolean }) {
  return (
    <ul class="findings">
      {list.map((x, i) => (
        <li key={i}>
          <div>
            <strong>{x.title}</strong> {owner && x.owner && <OwnerLink o={x.owner} team />}
            <div class="muted">{x.detail}</div>
            {x.gpus && x.gpus.length > 0 && (
              <div class="small">
                {x.gpus.slice(0, 8).map((g, n) => (
                  <span key={g.uuid}>
                    {n ? ", " : ""}
                    {g.name ? <a href={href("gpu", g.uuid)}>{g.name}</a> : <span class="mono">{g.uuid}</span>}
                  </span>
                ))}
                {x.gpus.length > 8 && <span class="muted"> and {x.gpus.length - 8} more</span>}
              </div>
            )}
          </div>
          <div class="finding-money">
            {x.perDay === null ? <span class="muted">no price</span> : <strong>{f.money(x.perDay, currency)}</strong>}
            {x.perDay !== null && <span class="muted small"> per day</span>}
          </div>
        </li>
      ))}
    </ul>
  );
}
