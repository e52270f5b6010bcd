import { useEffect } from "preact/hooks";
import { type EventsAnswer, type GPUAnswer, useAnswer } from "./api";
import { Chart } from "./chart";
import * as f from "./format";
import { isIdle, isSick, isSilent, isWarned, lost, nameOf, rows, stateOf } from "./gpu";
import { Answer, Bar, Events, OwnerLink, Stat, Stats, useNow } from "./parts";
import { type Route, href, spanOf, timesOf } from "./route";
import { Tiles } from "./tiles";

export function GPUPage({ route }: { route: Route }) {
  const span = spanOf(route.params);
  const now = useNow(span.seconds <= 3600 ? 10 : 60);
  const times = timesOf(span, now / 1000);
  const answer = useAnswer<GPUAnswer>("gpu", { uuid: route.arg, at: span.to }, span.live ? 10 : 0);
  const events = useAnswer<EventsAnswer>("events", { gpu: route.arg, ...times, at: undefined, limit: 100 });
  const nodeGPUs = answer.data ? [...answer.data.peers.uuid].sort((a, b) => order(answer.data!, a) - order(answer.data!, b)) : [];
  useEffect(() => {
    const key = (e: KeyboardEvent) => {
      if (e.target instanceof HTMLInputElement || e.ctrlKey || e.metaKey || (e.key !== "[" && e.key !== "]")) return;
      const to = nodeGPUs[nodeGPUs.indexOf(route.arg) + (e.key === "]" ? 1 : -1)];
      if (to) location.hash = href("gpu", to);
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  });
  const params = { gpu: route.arg };
  return (
    <Answer of={answer} what="this GPU">
      {(data) => {
        const g = rows(data.gpu, data.texts, data.owners)[0]!;
        const peers = rows(data.peers, data.texts, data.owners).sort((a, b) => (a.index ?? 0) - (b.index ?? 0));
        const tone = isSick(g) ? "sick" : isWarned(g) ? "warn" : isIdle(g) ? "idle" : g.held === 0 ? "info" : "good";
        const open = events.data?.open ?? [];
        return (
          <>
            <header class="title">
              <p class="crumbs">
                <a href={href("fleet")}>Fleet</a> <span aria-hidden="true">/</span> {g.cluster && <>{g.cluster} <span aria-hidden="true">/</span> </>}
                {g.rack && <>{g.rack} <span aria-hidden="true">/</span> </>}
                <a href={href("fleet", "", { q: g.node })}>{g.node}</a>
              </p>
              <h1>
                {nameOf(g)} <span class={`pill ${tone}`}>{stateOf(g)}</span> {g.simulated && <span class="tag">simulated</span>}
              </h1>
              <p class="muted">
                {g.model} · <span class="mono wrap-any">{g.uuid}</span>
              </p>
            </header>
            {open.length > 0 && (
              <section class="card alert" aria-label="Problems">
                <h2>Problems</h2>
                <ul class="wrong">
                  {open.map((e, i) => (
                    <li key={i}>
                      <strong>{e.text}</strong>
                      {e.action && !e.text.includes(e.action) && <div>{e.action}</div>}
                      <div class="muted small">
                        <span class="mono">{e.rule}</span> since {f.whenOf(e.time)}
                      </div>
                    </li>
                  ))}
                </ul>
              </section>
            )}
            <Stats>
              <Stat name="Busy" value={f.percent(g.utilization)} />
              <Stat name="Memory" value={f.bytes(g.memory)} note={`of ${f.bytes(g.memoryTotal)}`} />
              <Stat name="Power" value={f.watts(g.power)} />
              <Stat name="Temperature" value={f.celsius(g.temperature)} note="hottest sensor" />
              {g.held > 0 && <Stat name="Unused for" value={g.idle === null ? "–" : g.idle < 1 ? "in use" : f.minutes(g.idle)} tone={isIdle(g) ? "idle" : ""} note={isIdle(g) && lost(g) !== null ? `${f.money(lost(g), data.currency)} lost per day` : undefined} />}
              {g.rate !== null && <Stat name="Price" value={f.money(g.rate, data.currency)} note="per hour" />}
            </Stats>
            <section class="card">
              <h2>Workloads</h2>
              {data.holders.length === 0 ? (
                <p class="muted">{isSilent(g) ? "Unknown: the GPU does not report." : "Not allocated."}</p>
              ) : (
                <ul class="holders">
                  {data.holders.map((h, i) => (
                    <li key={i}>
                      <div>
                        <OwnerLink o={h} /> <span class="muted">{f.kindOf(h.kind)}{h.namespace && ` · ${h.namespace}`}{h.team && ` · team ${h.team}`}{h.user && ` · ${h.user}`}{h.partition && ` · ${h.partition}`}</span>
                      </div>
                      <div class="muted">
                        holds {f.percent(h.held)} <Bar value={h.utilization} tone={isIdle(g) ? "idle" : ""} /> uses {f.percent(h.utilization)}, {f.bytes(h.memory)}{h.watts !== null && `, ${f.watts(h.watts)}`}
                      </div>
                    </li>
                  ))}
                </ul>
              )}
            </section>
            <div class="charts">
              <Chart chart="gpu-utilization" title="Utilization" params={params} />
              <Chart chart="gpu-owners" title="Utilization by workload" params={params} />
              <Chart chart="gpu-memory" title="Memory" params={params} />
              <Chart chart="gpu-power" title="Power" params={params} />
              <Chart chart="gpu-clock" title="Clocks" params={params} />
              <Chart chart="gpu-temperature" title="Temperature" params={params} />
            </div>
            {peers.length > 1 && (
              <section class="card">
                <h2>
                  On the same node <span class="muted">{peers.length} GPUs; use [ and ] to switch</span>
                </h2>
                <Tiles gpus={peers} grouping="cluster" colour="status" teams={[]} currency={data.currency} plain />
              </section>
            )}
            <section class="card">
              <h2>Events</h2>
              <Answer of={events} what="events">
                {(e) => (!e.kept ? <p class="muted">This store does not keep events.</p> : e.events.length === 0 ? <p class="muted">No events in this time range.</p> : <Events list={e.events} gpu={false} />)}
              </Answer>
            </section>
            {data.facts.length > 0 && (
              <section class="card">
                <h2>Facts</h2>
                <dl class="facts">
                  {data.facts.map((x) => (
                    <div key={x.name}>
                      <dt>{x.name}</dt>
                      <dd class="mono">{x.text}</dd>
                    </div>
                  ))}
                </dl>
              </section>
            )}
          </>
        );
      }}
    </Answer>
  );
}

const order = (a: GPUAnswer, uuid: string) => a.peers.index[a.peers.uuid.indexOf(uuid)] ?? 0;
