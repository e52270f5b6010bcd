import { useMemo } from "preact/hooks";
import { type FleetAnswer, useAnswer } from "./api";
import { Chart } from "./chart";
import * as f from "./format";
import { type Colour, type GPU, colours, isFree, isIdle, isSick, isSilent, isTaken, isWarned, legend, lost, nameOf, rows, stateOf } from "./gpu";
import { Answer, Choice, Empty, type Head, OwnerLink, Table } from "./parts";
import { type Route, change, href, spanOf } from "./route";
import { type Grouping, groupings, Tiles } from "./tiles";

type Only = "" | "silent" | "idle" | "sick" | "warning" | "taken" | "free";
const tests: Record<Exclude<Only, "">, (g: GPU) => boolean> = { silent: isSilent, idle: (g) => isIdle(g), sick: isSick, warning: isWarned, taken: isTaken, free: isFree };
const titles: Record<Exclude<Only, "">, string> = { silent: "Silent", idle: "Held and idle", sick: "Sick", warning: "Warnings", taken: "Used without an allocation", free: "Free" };

export function Fleet({ route }: { route: Route }) {
  const span = spanOf(route.params);
  const answer = useAnswer<FleetAnswer>("fleet", { at: span.to }, span.live ? 10 : 0);
  return <Answer of={answer} what="the fleet">{(data) => <Shown data={data} route={route} />}</Answer>;
}

function Shown({ data, route }: { data: FleetAnswer; route: Route }) {
  const all = useMemo(() => rows(data.gpus, data.texts, data.owners), [data]);
  const teams = useMemo(() => [...new Set(data.owners.map((o) => o.team ?? ""))].sort(), [data]);
  if (all.length === 0)
    return (
      <Empty title="No GPU has reported yet">
        Start an agent that sends to this hub: <code>gpumeter agent --otlp-endpoint {location.origin}</code>. Without a GPU, <code>--simulate mixed</code> simulates a mixed fleet. This page refreshes automatically.
      </Empty>
    );
  const colour = (route.params.get("color") as Colour | null) ?? "status";
  const grouping = (route.params.get("group") as Grouping | null) ?? "cluster";
  const only = (route.params.get("only") as Only | null) ?? "";
  const q = (route.params.get("q") ?? "").toLowerCase();
  const found = q ? all.filter((g) => matches(g, q)) : all;
  const test = only ? tests[only] : undefined;
  const chosen = test ? found.filter(test) : [];
  return (
    <>
      <Sentence data={data} only={only} />
      <div class="charts two">
        <Chart chart="fleet-use" title="GPUs held and busy" height={110} now={[data.headline.held]} />
        <Chart chart="fleet-power" title="Power" height={110} now={[data.headline.watts]} />
      </div>
      {only && (
        <section class="card" aria-label={titles[only]}>
          <div class="card-head">
            <h2>
              {titles[only]} <span class="muted">{f.count(chosen.length)}</span>
            </h2>
            <button onClick={() => change({ only: "" })}>Show all</button>
          </div>
          {chosen.length === 0 ? <p class="muted">None. Good.</p> : <List gpus={chosen} currency={data.currency} only={only} />}
        </section>
      )}
      <section class="card" aria-label="All GPUs">
        <div class="card-head wrap">
          <h2>
            {q ? "Matching GPUs" : "All GPUs"} <span class="muted">{f.count(found.length)}</span>
          </h2>
          <div class="controls">
            <input type="search" placeholder="Filter by node, owner …" aria-label="Filter GPUs" value={route.params.get("q") ?? ""} onInput={(e) => change({ q: e.currentTarget.value })} />
            <Choice label="Color" value={colour} options={colours} set={(v) => change({ color: v === "status" ? "" : v })} />
            <Choice label="Group" value={grouping} options={groupings} set={(v) => change({ group: v === "cluster" ? "" : v })} />
          </div>
        </div>
        <ul class="legend" aria-label="Legend">
          {legend(colour, teams, data.headline.silent > 0).map(([cls, mark, text]) => (
            <li key={text}>
              <span class={`tile key ${cls}`} aria-hidden="true">{mark}</span> {text}
            </li>
          ))}
        </ul>
        {found.length === 0 ? (
          <Empty title="No GPU matches">
            No GPU has “{q}” in its node, model, cluster, owner or team now. <a href={href("workloads", "", { q })}>Look among workloads, with those that ended</a> or <button onClick={() => change({ q: "" })}>show all GPUs</button>
          </Empty>
        ) : (
          <Tiles gpus={found} grouping={grouping} colour={colour} teams={teams} dim={test && ((g) => !test(g))} dimKey={only} currency={data.currency} />
        )}
      </section>
    </>
  );
}

function matches(g: GPU, q: string): boolean {
  const text = [g.node, g.model, g.vendor, g.cluster, g.rack, g.uuid, ...(isTaken(g) ? ["used without an allocation"] : []), ...[...g.owners, ...g.uninvited].flatMap((o) => [o.name, o.team, o.namespace, o.user, o.job])].join("\n").toLowerCase();
  return q.split(/\s+/).every((w) => text.includes(w));
}

/** Sentence summarizes the fleet: what is held, what is wasted, and its power draw. */
function Sentence({ data, only }: { data: FleetAnswer; only: Only }) {
  const h = data.headline;
  const link = (to: Only, text: string, tone = "") => (
    <a class={`figure ${tone}`} href={href("fleet", "", { only: only === to ? "" : to })} aria-current={only === to ? "true" : undefined}>
      {text}
    </a>
  );
  const lostMoney = h.lostPerDay !== null;
  return (
    <header class="headline">
      {(data.title || data.team) && <p class="eyebrow">{[data.title, data.team && `team ${data.team} only`].filter(Boolean).join(" · ")}</p>}
      <h1>
        {h.silent > 0 && (
          <>
            {link("silent", `${f.count(h.gpus - h.silent)} of ${f.plural(h.gpus, "GPU")} report`, "warn-text")}:{" "}
          </>
        )}
        <b>{f.count(h.held)}</b> {h.silent === 0 && <>of {f.plural(h.gpus, "GPU")} </>}{h.held === 1 ? "is" : "are"} held,{" "}
        {h.idle === 0 ? "none of them idle" : link("idle", `${f.count(h.idle)} of them idle`, "idle-text")}
        {h.idle > 0 && lostMoney && (
          <>
            , losing <a class="figure idle-text" href={href("cost")}>{f.money(h.lostPerDay, data.currency, 100)} per day</a>
          </>
        )}
        {h.idle > 0 && !lostMoney && <> ({f.plural(h.idle * 24, "GPU-hour")} per day)</>}
        {h.watts !== null && (
          <>
            , and the fleet draws <b>{f.watts(h.watts)}</b>
          </>
        )}
        .
      </h1>
      <p class="muted">
        {h.silent > 0 && <>{link("silent", `${f.count(h.silent)} silent${h.silentNodes > 0 ? ` on ${f.plural(h.silentNodes, "node")}` : ""}`, "warn-text")} · </>}
        {h.sick > 0 && <>{link("sick", `${f.count(h.sick)} sick`, "sick-text")} · </>}
        {h.warning > 0 && <>{link("warning", f.count(h.warning) + (h.warning === 1 ? " warning" : " warnings"), "warn-text")} · </>}
        {h.sick === 0 && h.warning === 0 && h.silent === 0 && "all healthy · "}
        {h.uninvited > 0 && <>{link("taken", `${f.count(h.uninvited)} used without an allocation`, "warn-text")} · </>}
        {h.free > 0 && <>{link("free", `${f.count(h.free)} free`)} · </>}
        {f.percent(h.utilization)} busy on average · {f.plural(h.nodes, "node")} · {f.plural(h.owners, "workload")}
        {h.teams > 0 && ` of ${f.plural(h.teams, "team")}`}
        {h.costPerHour !== null && ` · ${f.money(h.costPerHour, data.currency)} per hour`}
        {h.silent > 0 && h.silentPerHour !== null && `, ${f.money(h.silentPerHour, data.currency)} of it for silent GPUs`}
        {h.idle > 0 && ` · idle: held but unused for ${data.idleAfter} min or more`}
        {` · at ${f.timeOf(data.at * 1000)}`}
        {h.simulated > 0 && <span class="tag">{h.simulated === h.gpus ? "simulated" : `${f.count(h.simulated)} simulated`}</span>}
      </p>
    </header>
  );
}

function List({ gpus, currency, only }: { gpus: GPU[]; currency?: string; only: Only }) {
  const heads: Head<GPU>[] = [
    { key: "gpu", title: "GPU", value: (g) => `${g.node} ${g.index}`, cell: (g) => <a href={href("gpu", g.uuid)}>{g.node} · {nameOf(g)}</a> },
    ...(only === "idle" || only === "free" ? [] : [{ key: "state", title: "State", value: (g: GPU) => stateOf(g) }]),
    ...(only === "free" || only === "silent" ? [] : [{ key: "owner", title: "Held by", value: (g: GPU) => g.owners[0]?.name, cell: (g: GPU) => (g.owners.length ? g.owners.map((o) => <OwnerLink key={o.id} o={o} team />) : "unallocated") }]),
    ...(only === "taken" ? [{ key: "taker", title: "Used by", value: (g: GPU) => g.uninvited[0]?.name, cell: (g: GPU) => g.uninvited.map((o) => <OwnerLink key={o.id} o={o} team />) }] : []),
    { key: "model", title: "Model", value: (g) => g.shortModel, minor: true },
    { key: "util", title: "Busy", value: (g) => g.utilization, cell: (g) => f.percent(g.utilization), number: true },
    { key: "memory", title: "Memory", value: (g) => g.memory, cell: (g) => f.bytes(g.memory), number: true, minor: true },
    ...(only === "idle" ? [{ key: "idle", title: "Idle for", value: (g: GPU) => g.idle, cell: (g: GPU) => f.minutes(g.idle), number: true }] : []),
    { key: "lost", title: only === "idle" ? "Lost per day" : "Cost per day", value: (g) => (only === "idle" ? lost(g) : g.rate === null ? null : g.rate * 24), cell: (g) => f.money(only === "idle" ? lost(g) : g.rate === null ? null : g.rate * 24, currency), number: true },
  ];
  return <Table heads={heads} rows={gpus} sort={only === "idle" ? (gpus.some((g) => g.rate !== null) ? "-lost" : "-idle") : "gpu"} id={(g) => g.uuid} caption={`${gpus.length} GPUs`} max={20} />;
}
