import { type Event, type EventsAnswer, type Mark, useAnswer } from "./api";
import * as f from "./format";
import { Answer, Choice, Empty, Events, OwnerLink, Simulated, severityOf, useNow } from "./parts";
import { type Route, type Span, change, href, spanOf, timesOf } from "./route";

type Severity = "" | "warn" | "sick";
const severities: [Severity, string][] = [["", "All"], ["warn", "Warning and worse"], ["sick", "Critical"]];
type Kind = "" | "health" | "workload" | "throttle";
const kinds: [Kind, string][] = [["", "All"], ["health", "Health"], ["throttle", "Throttling"], ["workload", "Workloads"]];

const kindOf = (e: Event): Kind => (e.name.startsWith("gpu.workload") ? "workload" : e.name === "gpu.throttle" ? "throttle" : "health");
const rank = (e: Event) => ["info", "warn", "sick"].indexOf(severityOf(e.severity)[0]);

export function Health({ route }: { route: Route }) {
  const span = spanOf(route.params);
  const now = useNow(span.seconds <= 3600 ? 10 : 60);
  const times = timesOf(span, now / 1000);
  const answer = useAnswer<EventsAnswer>("events", { ...times, at: undefined });
  const severity = (route.params.get("severity") as Severity | null) ?? "";
  const kind = (route.params.get("kind") as Kind | null) ?? "";
  const q = (route.params.get("q") ?? "").toLowerCase();
  return (
    <>
      <h1>
        Health and events {answer.data && <Simulated of={answer.data.simulated} />}
      </h1>
      <Answer of={answer} what="events">
        {(data) => {
          if (!data.kept) return <Empty title="This store does not keep events">The configured backend stores only metrics. The fleet page shows the health of each GPU.</Empty>;
          const list = data.events.filter((e) => (!severity || rank(e) >= ["", "warn", "sick"].indexOf(severity)) && (!kind || kindOf(e) === kind) && (!q || [e.text, e.node, e.gpu, e.owner?.name, e.rule, e.name].join("\n").toLowerCase().includes(q)));
          // What somebody acknowledged or silenced comes last and does not alarm.
          const open = [...data.open].sort((a, b) => Number(!!a.mark) - Number(!!b.mark) || rank(b) - rank(a) || b.time - a.time);
          const fresh = open.filter((e) => !e.mark).length;
          return (
            <>
              <section class={`card ${fresh ? "alert" : ""}`}>
                <h2>
                  Open problems <span class="muted">{open.length}{fresh < open.length ? `, ${open.length - fresh} acknowledged or silenced` : ""}</span>
                </h2>
                {open.length === 0 ? (
                  <p class="muted">No open problems.</p>
                ) : (
                  <ul class="wrong">
                    {open.map((e, i) => {
                      const [cls, word] = severityOf(e.severity);
                      return (
                        <li key={i}>
                          <span class={`pill ${cls}`}>{word}</span>{" "}
                          {e.gpu ? <a href={href("gpu", e.gpu)}>{e.node ? `${e.node} · ` : ""}GPU {e.index ?? e.gpu}</a> : <strong>{e.node}</strong>}
                          {e.owner && <> <span class="muted">{e.rule === "fleet_not_allocated" ? "used by" : "held by"}</span> <OwnerLink o={e.owner} team /></>}
                          <div>{e.text}</div>
                          <div class="muted small">
                            <span class="mono">{e.rule}</span> since {f.whenOf(e.time)}
                            {e.id && <> · <span class="mono">{e.id}</span></>}
                          </div>
                          <Said of={e.mark} />
                        </li>
                      );
                    })}
                  </ul>
                )}
              </section>
              <section class="card">
                <div class="card-head wrap">
                  <h2>
                    Timeline <span class="muted">{f.count(list.length)}{data.more ? ", more available" : ""}</span>
                  </h2>
                  <div class="controls">
                    <input type="search" placeholder="Filter by text, node …" aria-label="Filter events" value={route.params.get("q") ?? ""} onInput={(e) => change({ q: e.currentTarget.value })} />
                    <Choice label="Severity" value={severity} options={severities} set={(v) => change({ severity: v })} />
                    <Choice label="Kind" value={kind} options={kinds} set={(v) => change({ kind: v })} />
                  </div>
                </div>
                <Strip list={list} span={span} from={data.from} to={data.to} />
                {list.length === 0 ? <Empty title="No events">There are no events in this time range that match the filter.</Empty> : <Events list={list.slice(0, 300)} days />}
                {list.length > 300 && <p class="muted">And {f.count(list.length - 300)} older ones: choose a shorter time.</p>}
              </section>
            </>
          );
        }}
      </Answer>
    </>
  );
}

/** Said shows who acknowledged or silenced a finding. */
function Said({ of }: { of: Mark | undefined }) {
  if (!of) return null;
  return (
    <div class="muted small">
      <span class="tag">{of.until ? "silenced" : "acknowledged"}</span> by {of.by}
      {of.until && <> until {f.whenOf(of.until * 1000)}</>}
      {of.comment && <>: {of.comment}</>}
    </div>
  );
}

/** Strip is a histogram of events over time. The list below is its accessible form. */
function Strip({ list, from, to }: { list: Event[]; span: Span; from: number; to: number }) {
  const n = 60;
  const bins = Array.from({ length: n }, () => [0, 0, 0]);
  for (const e of list) {
    const i = Math.min(n - 1, Math.max(0, Math.floor(((e.time / 1000 - from) / (to - from)) * n)));
    bins[i]![rank(e)]!++;
  }
  const most = Math.max(1, ...bins.map((b) => b[0]! + b[1]! + b[2]!));
  const counts = [0, 1, 2].map((r) => list.filter((e) => rank(e) === r).length);
  return (
    <figure class="strip">
      <svg viewBox={`0 0 ${n * 10} 40`} preserveAspectRatio="none" role="img" aria-label={`Events over time: ${counts[2]} critical, ${counts[1]} warnings, ${counts[0]} others`}>
        {bins.map((b, i) => {
          let y = 40;
          return ["info", "warn", "sick"].map((cls, r) => {
            const h = ((b[r] ?? 0) / most) * 38;
            y -= h;
            return h > 0 ? <rect key={`${i} ${r}`} class={cls} x={i * 10 + 1} width={8} y={y} height={h} /> : null;
          });
        })}
      </svg>
      <figcaption class="muted small">
        <span>{f.whenOf(from * 1000)}</span>
        <span>{f.whenOf(to * 1000)}</span>
      </figcaption>
    </figure>
  );
}
