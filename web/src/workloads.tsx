import { type Workload, type WorkloadAnswer, type WorkloadsAnswer, type EventsAnswer, useAnswer } from "./api";
import { Chart } from "./chart";
import * as f from "./format";
import { rows } from "./gpu";
import { Answer, Empty, Events, Findings, type Head, Part, Simulated, Stat, Stats, Table, useNow } from "./parts";
import { type Route, change, href, spanOf, timesOf } from "./route";
import { ServedTable, ServingCharts } from "./serving";
import { Tiles } from "./tiles";
import { TrainingCard } from "./training";

const part = (a: number | null, b: number | null) => (a !== null && b ? a / b : null);

/** takes reports whether a workload uses a GPU that was not allocated to it. */
const takes = (w: Workload) => w.uninvited > 0;

function heads(currency: string | undefined, priced: boolean, clusters: boolean): Head<Workload>[] {
  const all: Head<Workload>[] = [
    {
      key: "name",
      title: "Workload",
      value: (w) => w.name,
      cell: (w) => (
        <>
          <a href={href("workload", w.id)}>{w.name || f.kindOf(w.kind)}</a>
          <div class="muted small whole">
            {f.kindOf(w.kind)}
            {clusters && w.cluster && ` · ${w.cluster}`}
            {w.namespace && ` · ${w.namespace}`}
            {w.job && ` · ${w.job}`}
            {w.user && ` · ${w.user}`}
          </div>
        </>
      ),
    },
    { key: "team", title: "Team", value: (w) => w.team || null, cell: (w) => w.team || <span class="muted">none</span> },
    { key: "gpus", title: "GPUs", value: (w) => w.gpus, cell: (w) => (takes(w) ? <span class="idle-text">{w.gpus > 0 && `${f.count(w.gpus)} and `}{f.count(w.uninvited)} not allocated</span> : w.gpus > 0 ? f.count(w.gpus) : <span class="muted">ended</span>), number: true },
    { key: "model", title: "Model", value: (w) => w.models[0], cell: (w) => w.models.join(", "), minor: true },
    {
      key: "util",
      title: "Busy now",
      value: (w) => w.utilization,
      cell: (w) => <Part value={w.utilization} tone={w.idle > 0 ? "idle" : ""} />,
      number: true,
    },
    { key: "memory", title: "Memory", value: (w) => w.memory, cell: (w) => f.bytes(w.memory), number: true, minor: true },
    { key: "watts", title: "Power", value: (w) => w.watts, cell: (w) => f.watts(w.watts), number: true, minor: true },
    { key: "hours", title: "GPU-hours", value: (w) => w.heldTime, cell: (w) => f.hours(w.heldTime), number: true },
    { key: "waste", title: "Idle", value: (w) => part(w.idleTime, w.heldTime), cell: (w) => f.percent(part(w.idleTime, w.heldTime)), number: true },
  ];
  if (priced)
    all.push(
      { key: "cost", title: "Cost", value: (w) => w.cost, cell: (w) => f.money(w.cost, currency), number: true },
      { key: "idleCost", title: "Idle cost", value: (w) => w.idleCost, cell: (w) => f.money(w.idleCost, currency), number: true },
    );
  else all.push({ key: "energy", title: "Energy", value: (w) => w.energy, cell: (w) => f.energy(w.energy), number: true });
  return all;
}

export function Workloads({ route }: { route: Route }) {
  const span = spanOf(route.params);
  const now = useNow(span.seconds <= 3600 ? 10 : 60);
  const answer = useAnswer<WorkloadsAnswer>("workloads", timesOf(span, now / 1000));
  const q = (route.params.get("q") ?? "").toLowerCase();
  const team = route.params.get("team") ?? "";
  return (
    <>
      <header class="title">
        <h1>
          Workloads {answer.data && <Simulated of={answer.data.simulated} />}
        </h1>
        <p class="muted">GPUs, utilization, memory and power are current; hours and costs cover the selected period.</p>
      </header>
      <Answer of={answer} what="workloads">
        {(data) => {
          const teams = [...new Set(data.workloads.map((w) => w.team ?? ""))].sort();
          const list = data.workloads.filter((w) => (!team || (w.team ?? "") === team) && (!q || [w.name, w.kind, takes(w) ? "not allocated" : w.gpus === 0 ? "ended" : "", w.team, w.namespace, w.user, w.account, w.job, ...w.models, ...w.nodes].join("\n").toLowerCase().includes(q)));
          const priced = data.workloads.some((w) => w.cost !== null);
          const held = list.reduce((n, w) => n + w.gpus, 0);
          const holders = list.filter((w) => w.gpus > 0).length;
          const thieves = list.filter(takes).length;
          const ended = list.filter((w) => w.gpus === 0 && !takes(w)).length;
          return (
            <section class="card">
              <div class="card-head wrap">
                <p>
                  {f.plural(holders, "workload")}{" "}
                  <span class="muted">
                    {holders === 1 ? "holds" : "hold"} {f.plural(Math.round(held * 100) / 100, "GPU")} now{thieves > 0 && `, ${f.count(thieves)} ${thieves === 1 ? "uses" : "use"} GPUs without an allocation`}
                    {ended > 0 && `, ${f.count(ended)} ended`}
                  </span>
                </p>
                <div class="controls">
                  <input type="search" placeholder="Filter by name, user …" aria-label="Filter workloads" value={route.params.get("q") ?? ""} onInput={(e) => change({ q: e.currentTarget.value })} />
                  <label class="choice">
                    <span>Team</span>
                    <select value={team} onChange={(e) => change({ team: e.currentTarget.value })}>
                      <option value="">All</option>
                      {teams.filter(Boolean).map((t) => (
                        <option key={t}>{t}</option>
                      ))}
                    </select>
                  </label>
                </div>
              </div>
              {list.length === 0 ? (
                <Empty title={data.workloads.length ? "No workload matches" : "No workload held a GPU in this period"}>{data.workloads.length ? "Change the filter." : "Workloads appear here when Kubernetes, Slurm or a container runtime allocates a GPU to them."}</Empty>
              ) : (
                <Table heads={heads(data.currency, priced, new Set(data.workloads.map((w) => w.cluster)).size > 1)} rows={list} sort={route.params.get("sort") ?? "-gpus"} setSort={(sort) => change({ sort })} id={(w) => w.id} caption="Workloads and what they use" />
              )}
              {data.notes?.map((n) => <p key={n} class="muted small">{n}</p>)}
            </section>
          );
        }}
      </Answer>
    </>
  );
}

export function WorkloadPage({ route }: { route: Route }) {
  const span = spanOf(route.params);
  const now = useNow(span.seconds <= 3600 ? 10 : 60);
  const times = timesOf(span, now / 1000);
  const answer = useAnswer<WorkloadAnswer>("workload", { id: route.arg, ...times });
  const events = useAnswer<EventsAnswer>("events", { workload: route.arg, ...times, at: undefined, limit: 100 });
  return (
    <Answer of={answer} what="this workload">
      {(data) => {
        const w = data.workload;
        const gpus = rows(data.gpus, data.texts, data.owners);
        const waste = part(w.idleTime, w.heldTime);
        return (
          <>
            <header class="title">
              <p class="crumbs">
                <a href={href("workloads")}>Workloads</a>
              </p>
              <h1>
                {w.name || f.kindOf(w.kind)} <Simulated of={data.simulated} />
              </h1>
              <p class="muted">
                {f.kindOf(w.kind)}
                {w.job && ` ${w.job}`}
                {w.namespace && ` in ${w.namespace}`}
                {w.cluster && ` on ${w.cluster}`}
                {w.team && <> · team <a href={href("workloads", "", { team: w.team })}>{w.team}</a></>}
                {w.user && ` · user ${w.user}`}
                {w.account && ` · account ${w.account}`}
              </p>
            </header>
            <Stats>
              <Stat name="Holds now" value={takes(w) ? `${f.plural(w.uninvited, "GPU")}, not allocated` : w.gpus === 0 ? "none" : f.plural(w.gpus, "GPU")} note={w.models.join(", ")} />
              <Stat name="Busy now" value={f.percent(w.utilization)} note={w.idle > 0 ? `${f.plural(w.idle, "GPU")} idle` : undefined} tone={w.idle > 0 ? "idle" : ""} />
              <Stat name="Held" value={f.hours(w.heldTime)} note="GPU-hours in this period" />
              <Stat name="Idle" value={f.percent(waste)} note={f.hours(w.idleTime)} tone={waste !== null && waste > 0.5 ? "idle" : ""} />
              {w.cost !== null ? (
                <>
                  <Stat name="Cost" value={f.money(w.cost, data.currency)} note={w.perHour !== null && w.perHour > 0 ? `${f.money(w.perHour, data.currency)} per hour` : undefined} />
                  <Stat name="Idle cost" value={f.money(w.idleCost, data.currency)} note="of held time, without energy" tone={(w.idleCost ?? 0) > 0.5 * w.cost ? "idle" : ""} />
                </>
              ) : null}
              <Stat name="Energy" value={f.energy(w.energy)} note={w.co2 !== null ? `${f.mass(w.co2)} CO₂` : undefined} />
            </Stats>
            {data.findings.length > 0 && (
              <section class="card">
                <h2>Findings</h2>
                <Findings list={data.findings} currency={data.currency} owner={false} />
              </section>
            )}
            {gpus.length > 0 && (
              <section class="card">
                <h2>
                  Its GPUs <span class="muted">{gpus.length}</span>
                </h2>
                <Tiles gpus={gpus} grouping="cluster" colour="status" teams={[]} currency={data.currency} plain />
              </section>
            )}
            {data.trainingError && <p class="muted small">What it trained could not be read: {data.trainingError}.</p>}
            {data.training && <TrainingCard of={data.training} />}
            {data.servingError && <p class="muted small">Which models it serves could not be read: {data.servingError}.</p>}
            {data.serving.length > 0 && (
              <section class="card">
                <h2>Models that it serves</h2>
                <ServedTable rows={data.serving} currency={data.currency} owner={false} />
              </section>
            )}
            {data.serving.length > 0 && <ServingCharts params={{ workload: route.arg }} steps={data.serving.every((s) => s.tpot.p95 === null)} />}
            <div class="charts">
              <Chart chart="workload-gpus" title="GPUs held and busy" params={{ workload: route.arg }} />
              <Chart chart="workload-memory" title="Memory" params={{ workload: route.arg }} />
              <Chart chart="workload-power" title="Power" params={{ workload: route.arg }} />
            </div>
            {data.perGPU.length > 0 && (
              <section class="card">
                <h2>Usage per GPU</h2>
                <PerGPU data={data} />
              </section>
            )}
            <section class="card">
              <h2>Events</h2>
              <Answer of={events} what="events">
                {(e) => (!e.kept ? <p class="muted">This store does not keep events.</p> : e.events.length === 0 ? <p class="muted">No events in this time range.</p> : <Events list={e.events} />)}
              </Answer>
            </section>
            {data.pods.length > 0 && (
              <section class="card">
                <h2>
                  Pods and containers <span class="muted">{data.pods.length}</span>
                </h2>
                <p class="mono small wrap-any">
                  {data.pods.slice(0, 60).map((p) => (
                    <>{w.namespace ? <a href={href("job", p, { pod: `${w.namespace}/${p}` })}>{p}</a> : p} </>
                  ))}
                </p>
              </section>
            )}
          </>
        );
      }}
    </Answer>
  );
}

function PerGPU({ data }: { data: WorkloadAnswer }) {
  type Row = WorkloadAnswer["perGPU"][number];
  const priced = data.perGPU.some((r) => r.cost !== null);
  const list: Head<Row>[] = [
    { key: "gpu", title: "GPU", value: (r) => `${r.node} ${r.index}`, cell: (r) => <a href={href("gpu", r.gpu)}>{r.node} · {r.index === "" ? r.gpu : `GPU ${r.index}`}</a> },
    { key: "model", title: "Model", value: (r) => r.model, minor: true },
    { key: "hours", title: "Held", value: (r) => r.heldTime, cell: (r) => f.hours(r.heldTime), number: true },
    { key: "used", title: "Used", value: (r) => part(r.usedTime, r.heldTime), cell: (r) => f.percent(part(r.usedTime, r.heldTime)), number: true },
    { key: "energy", title: "Energy", value: (r) => r.energy, cell: (r) => f.energy(r.energy), number: true, minor: true },
  ];
  if (priced)
    list.push(
      { key: "cost", title: "Cost", value: (r) => r.cost, cell: (r) => f.money(r.cost, data.currency), number: true },
      { key: "idleCost", title: "Idle cost", value: (r) => r.idleCost, cell: (r) => f.money(r.idleCost, data.currency), number: true },
    );
  return <Table heads={list} rows={data.perGPU} sort="gpu" id={(r) => r.gpu + r.node} caption="Usage per GPU" max={32} />;
}
