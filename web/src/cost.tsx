import { type CostAnswer, type CoveredGPU, type Loaded, type Share, type Taken, type WasteAnswer, useAnswer } from "./api";
import * as f from "./format";
import { Answer, Bar, Empty, Findings, type Head, Part, Simulated, Table, useNow } from "./parts";
import { type Route, calendar, href, ranges, spanOf, timesOf } from "./route";

export function Cost({ route }: { route: Route }) {
  const span = spanOf(route.params);
  const now = useNow(60);
  const times = timesOf({ ...span, seconds: Math.max(span.seconds, 900) }, now / 1000);
  const answer = useAnswer<CostAnswer>("cost", times);
  const waste = useAnswer<WasteAnswer>("waste", times);
  const known = ranges.find(([k]) => k === span.name);
  const date = calendar.find(([k]) => k === span.name);
  const name = date ? `${date[1]}` : known ? `In the ${known[1].toLowerCase()}` : span.live ? "So far" : "In this period";
  return <Answer of={answer} what="the cost">{(data) => <Shown data={data} waste={waste} name={name} />}</Answer>;
}

function Shown({ data, waste, name }: { data: CostAnswer; waste: Loaded<WasteAnswer>; name: string }) {
  const money = (v: number | null) => f.money(v, data.currency);
  const t = data.total;
  const priced = t.cost !== null;
  const value = (money: keyof Taken, time: keyof Taken) => (priced ? t[money] : t[time]) ?? 0;
  const whole = value("cost", "time");
  const free = value("freeCost", "freeTime");
  const idle = value("idleCost", "idleTime");
  const unknown = value("unmeasuredCost", "unmeasuredTime");
  const used = value("usedCost", "usedTime");
  const energy = priced ? (t.energyCost ?? 0) : 0; // of owned GPUs; the price of others includes it
  const show = (v: number) => (priced ? f.money(v, data.currency, whole >= 1000 ? 1 : undefined) : f.hours(v)); // all parts use the precision of the total
  const parts: [string, string, number][] = [
    ["u4", "used", used],
    ["idle", "held and idle", idle],
    ["free", "unallocated", free],
    ...(unknown > 0 ? ([["none", "held, use not measured", unknown]] as [string, string, number][]) : []),
    ...(energy > 0 ? ([["u2", "energy", energy]] as [string, string, number][]) : []),
  ];
  const missed = data.coverage?.notSeen;
  if (whole === 0 && !missed?.devices && !waste.data?.findings.length && data.quotas.length === 0)
    return (
      <>
        <h1>Cost and idle</h1>
        <Empty title="No data in this time range">Costs are computed from the agents' metrics. Choose a time range with data.</Empty>
      </>
    );
  return (
    <>
      <header class="headline">
        <h1>
          {name} the fleet {priced ? "cost " : "gave "}
          <b>{priced ? money(whole) : `${f.hours(whole)} of GPUs`}</b>: <b>{show(used)}</b> used, <b class="idle-text">{show(idle)}</b> held and idle, <b>{show(free)}</b> unallocated
          {unknown > 0 && (
            <>
              , <b>{show(unknown)}</b> held, use not measured
            </>
          )}
          {energy > 0 && (
            <>
              , <b>{show(energy)}</b> energy
            </>
          )}
          .
        </h1>
        <p class="muted">
          {f.energy(t.energy)}
          {t.co2 !== null && ` · ${f.mass(t.co2)} CO₂`} · {f.hours(t.time)} of GPUs
          {data.timeZone !== "UTC" && ` · days and months in ${data.timeZone}`}
          <Simulated of={data.simulated} />
          {!priced && " · no prices: start the hub with a price file to see money"}
        </p>
        {missed && missed.devices > 0 && (
          <p class="muted">
            Nobody saw {f.hours(missed.time)} of {f.plural(missed.devices, "GPU")}, which {missed.cost === null ? "have no price" : <>would cost {money(missed.cost)}</>}: with them the fleet {priced ? `cost ${money(whole + (missed.cost ?? 0))}` : `gave ${f.hours((t.time ?? 0) + (missed.time ?? 0))}`}.
          </p>
        )}
        <div class="parts" role="img" aria-label={parts.map(([, text, v]) => `${text} ${f.percent(whole ? v / whole : 0)}`).join(", ")}>
          {parts.map(([cls, text, v]) => (v > 0 ? <i key={text} class={`tile ${cls}`} style={{ flexGrow: v / whole }} /> : null))}
        </div>
        <ul class="legend">
          {parts.map(([cls, text, v]) => (
            <li key={text}>
              <span class={`tile key ${cls}`} aria-hidden="true" /> {text} <b>{f.percent(whole ? v / whole : 0)}</b>
            </li>
          ))}
        </ul>
      </header>
      <section class="card">
        <h2>
          Waste <span class="muted">{waste.data?.findings.length}</span>
        </h2>
        <p class="muted small note">
          Over the selected period: workloads that were idle for an hour or more, and workloads that hold more than they need. The fleet page counts GPUs that are idle right now, for 10 minutes or more, so the numbers may differ.
        </p>
        <Answer of={waste} what="the waste">
          {(found) => (found.findings.length === 0 ? <p class="muted">No waste found.</p> : <Findings list={found.findings} currency={found.currency} />)}
        </Answer>
      </section>
      <section class="card">
        <h2>By team</h2>
        {withNobody(data).length === 0 ? <p class="muted">No GPU was allocated in this period.</p> : <Teams data={data} priced={priced} />}
      </section>
      <section class="card">
        <h2>Quotas</h2>
        {data.quotas.length === 0 ? (
          <p class="muted">No team has a quota. Quotas come from a file, Kubernetes ResourceQuotas or Slurm account limits.</p>
        ) : (
          <ul class="quotas">
            {data.quotas.map((q, i) => (
              <li key={i}>
                <div>
                  <strong>{q.team}</strong> {q.over && <span class="pill sick">over quota</span>} <span class="muted small">{q.source}</span>
                </div>
                <div>
                  <Bar value={q.used !== null && q.limit ? q.used / q.limit : null} tone={q.over ? "sick" : ""} /> {q.money ? `${money(q.used)} of ${money(q.limit)} this month` : `${f.count(q.used)} of ${f.count(q.limit)} ${q.what}`}
                </div>
              </li>
            ))}
          </ul>
        )}
      </section>
      {data.coverage && <Covered data={data} />}
      {data.notes?.map((n) => <p key={n} class="muted small">{n}</p>)}
    </>
  );
}

const reasons: Record<string, string> = {
  not_seen_before: "not seen before",
  not_seen_since: "not seen since",
  not_seen: "not seen in this period",
  gap: "no samples in between",
  sampling: "sampling",
};

/** Covered says how much device time the numbers above lack, and why. */
function Covered({ data }: { data: CostAnswer }) {
  const c = data.coverage!;
  const whole = (c.known ?? 0) + (c.unknown ?? 0);
  const why = (g: CoveredGPU) => (g.why ?? []).map((w) => reasons[w] ?? w).join(", ");
  const heads: Head<CoveredGPU>[] = [
    { key: "node", title: "Node", value: (g) => g.node, cell: (g) => g.node },
    { key: "gpu", title: "GPU", value: (g) => g.index, cell: (g) => <a href={href("gpu", g.uuid)}>GPU {g.index}</a> },
    { key: "why", title: "Why", value: why, cell: why },
    { key: "known", title: "Known", value: (g) => g.known, cell: (g) => f.hours(g.known), number: true },
    { key: "unknown", title: "Unknown", value: (g) => g.unknown, cell: (g) => f.hours(g.unknown), number: true },
  ];
  if (c.cost !== null) heads.push({ key: "cost", title: "Cost", value: (g) => g.cost, cell: (g) => f.money(g.cost, data.currency), number: true });
  return (
    <section class="card">
      <h2>Coverage</h2>
      <p class="muted small note">
        {f.percent(whole ? (c.known ?? 0) / whole : 0)} of the GPU time in this period is known.
        {c.gpus.length > 0 && " The rest is not in the total: an agent, its connection or the hub was away."}
        {c.gpus.length > 0 && c.notSeen.cost !== null && ` It would cost ${f.money(c.notSeen.cost, data.currency)}, without energy, at the prices of the GPUs.`}
      </p>
      {c.gpus.length > 0 && <Table heads={heads} rows={c.gpus} sort="-unknown" id={(g) => g.uuid} caption="GPUs with unknown time" />}
      {c.more ? <p class="muted small">and {c.more} more GPUs</p> : null}
    </section>
  );
}

/** withNobody adds the row of the hours that nobody saw to those of the teams. It is not in the total. */
function withNobody(data: CostAnswer): Share[] {
  const n = data.coverage?.notSeen;
  if (!n || n.devices === 0) return data.teams;
  const none = { heldTime: null, usedTime: null, idleTime: null, unmeasuredTime: null, freeTime: null, energy: null, co2: null, usedCost: null, idleCost: null, unmeasuredCost: null, freeCost: null, energyCost: null };
  return [...data.teams, { team: "(not seen)", time: n.time, cost: n.cost, ...none }];
}

function Teams({ data, priced }: { data: CostAnswer; priced: boolean }) {
  const part = (s: Share) => (s.idleTime !== null && s.heldTime ? s.idleTime / s.heldTime : null);
  const heads: Head<Share>[] = [
    { key: "team", title: "Team", value: (s) => s.team, cell: (s) => (s.team.startsWith("(") ? <span class="muted">{s.team}</span> : <a href={href("workloads", "", { team: s.team })}>{s.team}</a>) },
    { key: "hours", title: "GPU-hours", value: (s) => s.time, cell: (s) => f.hours(s.time), number: true },
    { key: "waste", title: "Idle", value: part, cell: (s) => <Part value={part(s)} tone="idle" />, number: true },
    { key: "energy", title: "Energy", value: (s) => s.energy, cell: (s) => f.energy(s.energy), number: true, minor: true },
    { key: "co2", title: "CO₂", value: (s) => s.co2, cell: (s) => f.mass(s.co2), number: true, minor: true },
  ];
  if (priced)
    heads.push(
      { key: "cost", title: "Cost", value: (s) => s.cost, cell: (s) => f.money(s.cost, data.currency), number: true },
      { key: "idleCost", title: "Idle cost", value: (s) => s.idleCost, cell: (s) => f.money(s.idleCost, data.currency), number: true },
    );
  return <Table heads={heads} rows={withNobody(data)} sort={priced ? "-cost" : "-hours"} id={(s) => s.team} caption="Cost by team" />;
}
