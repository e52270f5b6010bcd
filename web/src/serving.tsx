import { type Objective, type Params, type Percentiles, type Served, type ServedCost, type ServingAnswer, useAnswer } from "./api";
import { Chart } from "./chart";
import * as f from "./format";
import { Answer, Empty, type Head, OwnerLink, Part, Simulated, Stat, Stats, Table, useNow } from "./parts";
import { type Route, change, href, spanOf, timesOf } from "./route";

/** What a cache or a queue must have to stand out. */
const full = 0.95;

const nameOf = (s: Served) => s.model || "unknown model";
const keyOf = (s: Served) => [s.model, s.owner?.id, s.owner?.team, s.owner?.user].join("\n");
const kindOf: Record<string, string> = { vllm: "vLLM", sglang: "SGLang", tgi: "TGI", tei: "TEI", triton: "Triton", tensorrt_llm: "TensorRT-LLM", nvidia_nim: "NIM", dynamo: "Dynamo", ray_serve: "Ray Serve", llama_cpp: "llama.cpp", lmdeploy: "LMDeploy", ollama: "Ollama", kserve: "KServe" };
const engineOf = (s: Served) => s.providers.map((p) => kindOf[p] ?? p).join(", ");
const done = (s: Served) => (s.finished ? Object.values(s.finished).reduce<number>((n, v) => n + (v ?? 0), 0) : null);
const sum = (list: Served[], of: (s: Served) => number | null) => list.map(of).reduce<number | null>((n, v) => (v === null ? n : (n ?? 0) + v), null);
const stuck = (s: Served) => (s.waiting ?? 0) >= 1 && (s.kvCache ?? 0) >= full;

/** missed returns the objectives whose error budget burns too fast. */
const missed = (s: Served) => s.objectives?.filter((o) => o.alert) ?? [];

/** devices writes the GPUs of a row, such as 2 x H100 on h100-01. */
function devices(s: Served): string {
  const models = [...new Set(s.gpus.map((g) => g.model + (g.profile ? ` ${g.profile}` : "")))].join(", ");
  const nodes = [...new Set(s.gpus.map((g) => g.node))];
  return s.gpus.length === 0 ? "" : `${s.gpus.length} \u00d7 ${models} on ${nodes.length > 2 ? f.plural(nodes.length, "node") : nodes.join(", ")}`;
}

/** spread writes the other percentiles. */
const spread = (of: Percentiles) => (of.p50 === null ? undefined : `median ${f.seconds(of.p50)}, p99 ${f.seconds(of.p99)}`);

/** list writes what is known. */
const list = (parts: (string | false)[]) => parts.filter(Boolean).join(", ");

/** Under shows a value, and below it one that goes with it. */
const Under = ({ value, note, title }: { value: string; note: string | null; title?: string }) => (
  <span title={title}>
    {value}
    {note !== null && <div class="muted small">{note}</div>}
  </span>
);

/** Latency shows the 95th percentile and the median. */
const Latency = ({ of }: { of: Percentiles }) => (
  <Under value={f.seconds(of.p95)} note={of.p50 === null ? null : f.seconds(of.p50)} title={of.p50 === null ? undefined : `p50 ${f.seconds(of.p50)}, p95 ${f.seconds(of.p95)}, p99 ${f.seconds(of.p99)}`} />
);

function heads(currency: string | undefined, priced: boolean, owner: boolean): Head<Served>[] {
  const all: Head<Served>[] = [
    {
      key: "model",
      title: "Model",
      value: nameOf,
      cell: (s) => (
        <>
          <a href={href("model", s.model, s.owner ? { workload: s.owner.id } : {})}>{nameOf(s)}</a>
          {missed(s).length > 0 && (
            <>
              {" "}
              <span class={`pill ${missed(s).some((o) => o.alert === "page") ? "sick" : "warn"}`} title={missed(s).map((o) => o.text).join("; ")}>
                misses {f.plural(missed(s).length, "objective")}
              </span>
            </>
          )}
          <div class="muted small whole">
            {engineOf(s)}
            {s.engines > 1 && ` \u00d7 ${s.engines}`}
            {s.engines === 0 ? " \u00b7 ended" : devices(s) && ` \u00b7 ${devices(s)}`}
            {s.up < s.engines && <span class="idle-text"> \u00b7 {s.engines - s.up} cannot be read</span>}
          </div>
        </>
      ),
    },
  ];
  if (owner) all.push({ key: "owner", title: "Workload", value: (s) => s.owner?.name, cell: (s) => (s.owner ? <OwnerLink o={s.owner} team /> : <span class="muted">unknown</span>), minor: true });
  all.push(
    { key: "requests", title: "Requests", value: done, cell: (s) => f.rate(done(s)), number: true },
    { key: "out", title: "Tokens out", value: (s) => s.tokensOut, cell: (s) => f.rate(s.tokensOut), number: true },
    { key: "ttft", title: "First token", value: (s) => s.ttft.p95, cell: (s) => <Latency of={s.ttft} />, number: true },
    { key: "tpot", title: "Per token", value: (s) => s.tpot.p95 ?? s.itl.p95, cell: (s) => <Latency of={s.tpot.p95 === null ? s.itl : s.tpot} />, number: true, minor: true },
    { key: "e2e", title: "Whole request", value: (s) => s.e2e.p95, cell: (s) => <Latency of={s.e2e} />, number: true, minor: true, roomy: true },
    { key: "waiting", title: "Waiting", value: (s) => s.waiting, cell: (s) => <span class={stuck(s) ? "idle-text" : ""}>{f.count(s.waiting)}</span>, number: true },
    { key: "cache", title: "KV cache", value: (s) => s.kvCache, cell: (s) => <Part value={s.kvCache} tone={stuck(s) ? "idle" : ""} />, number: true },
    { key: "busy", title: "GPU busy", value: (s) => s.utilization, cell: (s) => (
        <>
          <Part value={s.utilization} />
          {s.sm !== null && <div class="muted small">SM {f.percent(s.sm)}</div>}
          {s.tensor !== null && <div class="muted small">tensor {f.percent(s.tensor)}</div>}
        </>
      ), number: true, minor: true, roomy: true },
    { key: "watts", title: "Power", value: (s) => s.watts, cell: (s) => <Under value={f.watts(s.watts)} note={s.memory === null ? null : f.bytes(s.memory)} title="power of the GPUs, and their memory in use" />, number: true, minor: true, roomy: true },
  );
  if (priced) all.push({ key: "price", title: "Per million", value: (s) => s.period.perMillion, cell: (s) => f.price(s.period.perMillion, currency), number: true });
  else all.push({ key: "joule", title: "Tokens per joule", value: (s) => s.period.tokensPerJoule, cell: (s) => f.tenths(s.period.tokensPerJoule), number: true });
  return all;
}

export function ServedTable({ rows, currency, owner = true, sort = "-out", setSort }: { rows: Served[]; currency?: string; owner?: boolean; sort?: string; setSort?: (s: string) => void }) {
  const priced = rows.some((s) => s.period.perMillion !== null);
  return (
    <div class="served">
      <Table heads={heads(currency, priced, owner)} rows={rows} sort={sort} setSort={setSort} id={keyOf} caption="Models and how they are served" />
    </div>
  );
}

/** ServingCharts draws a model, a workload, or all. steps: the engine has no time per token, but the time between steps. */
export function ServingCharts({ params, steps }: { params: Params; steps?: boolean }) {
  return (
    <div class="charts">
      <Chart chart="serving-tokens" title="Tokens" params={params} />
      <Chart chart="serving-queue" title="Requests" params={params} />
      <Chart chart="serving-cache" title="Cache" params={params} />
      <Chart chart="serving-ttft" title="Time to first token" params={params} />
      {steps ? <Chart chart="serving-itl" title="Time between tokens" params={params} /> : <Chart chart="serving-tpot" title="Time per output token" params={params} />}
      <Chart chart="serving-latency" title="Whole request" params={params} />
    </div>
  );
}

const burnHeads: Head<Objective>[] = [
  {
    key: "text",
    title: "Objective",
    value: (o) => o.text,
    cell: (o) => (
      <>
        {o.text} {o.alert ? <span class={`pill ${o.alert === "page" ? "sick" : "warn"}`}>{o.alert === "page" ? "burns fast" : "burns"}</span> : o.ok === false ? <span class="pill warn">missed</span> : null}
      </>
    ),
  },
  { key: "bad", title: "Bad", value: (o) => o.bad, cell: (o) => (o.bad !== null && o.bad > 0 && o.bad < 0.01 ? f.count(Math.round(o.bad * 10000) / 100) + "\u202f%" : f.percent(o.bad)), number: true },
  { key: "1h", title: "Burn rate, 1 h", value: (o) => o.burn["1h"], cell: (o) => f.tenths(o.burn["1h"]), number: true },
  { key: "6h", title: "6 h", value: (o) => o.burn["6h"], cell: (o) => f.tenths(o.burn["6h"]), number: true, minor: true },
  { key: "3d", title: "3 d", value: (o) => o.burn["3d"], cell: (o) => f.tenths(o.burn["3d"]), number: true, minor: true },
  { key: "budget", title: "Budget left", value: (o) => o.budget, cell: (o) => (o.budget !== null && o.budget < 0 ? <span class="idle-text">overspent</span> : <Part value={o.budget} />), number: true },
];

/** Objectives shows how a model meets its objectives, and what is in the way. */
function Objectives({ of }: { of: Served }) {
  const some = of.objectives ?? [];
  const limits = of.limits ?? [];
  if (some.length + limits.length === 0) return null;
  return (
    <section class="card">
      <h2>Objectives</h2>
      {some.length > 0 && <Table heads={burnHeads} rows={some} sort="text" id={(o) => o.objective} caption="Objectives and their error budgets" />}
      {of.goodput && of.goodput.of !== null && of.goodput.high !== null && (
        <p class="muted small">
          Requests that met every objective: {of.goodput.low === null || of.goodput.low === of.goodput.high ? "" : `${f.rate(of.goodput.low)} to `}
          {f.rate(of.goodput.high)} of {f.rate(of.goodput.of)}. Histograms count each objective by itself, so only the limits are known.
        </p>
      )}
      {limits.length > 0 && (
        <>
          <h3>What the lost time is due to</h3>
          <ul>
            {limits.map((l) => (
              <li key={l.cause}>
                <strong>{l.name}</strong> <Part value={l.share} tone={l.cause === "unexplained" ? "" : "idle"} /> <span class="muted">{l.text}</span>
              </li>
            ))}
          </ul>
        </>
      )}
    </section>
  );
}

function useServing(route: Route) {
  const span = spanOf(route.params);
  const now = useNow(span.seconds <= 3600 ? 10 : 60);
  return useAnswer<ServingAnswer>("serving", timesOf(span, now / 1000));
}

const Notes = ({ data, table }: { data: ServingAnswer; table?: boolean }) => (
  <>
    <p class="muted small">
      {table ? `Latencies are the 95th percentile and, below it, the median, over the last ${f.minutes(data.window / 60)}. ` : `Latencies, rates and GPUs are those of the last ${f.minutes(data.window / 60)}. `}
      {table && <span class="roomy">Below the power of the GPUs is their memory in use. </span>}
      Cost per million counts prompt and output tokens of the selected period.
    </p>
    {data.notes?.map((n) => (
      <p key={n} class="muted small">
        {n}
      </p>
    ))}
  </>
);

/** Spent says what the tokens of the period cost. */
const Spent = ({ of, currency }: { of: ServedCost; currency?: string }) =>
  of.cost === null ? null : (
    <p>
      {f.money(of.cost, currency)}{" "}
      <span class="muted">
        for {f.many(of.tokensIn)} prompt and {f.many(of.tokensOut)} output tokens in the selected period{!!of.idleCost && `, ${f.money(of.idleCost, currency)} of it idle`}
      </span>
    </p>
  );

export function ServingPage({ route }: { route: Route }) {
  const answer = useServing(route);
  return (
    <>
      <header class="title">
        <h1>Serving {answer.data && <Simulated of={answer.data.simulated} />}</h1>
        <p class="muted">What inference engines serve now, beside the GPUs under them.</p>
      </header>
      <Answer of={answer} what="what is served">
        {(data) => {
          const list = data.serving;
          if (list.length === 0)
            return (
              <Empty title="No inference engine">
                Agents find vLLM, SGLang, TGI, Triton, NIM, llama.cpp and others on the GPUs of their machine, or read the pages that --inference-target names.
              </Empty>
            );
          const waiting = sum(list, (s) => s.waiting) ?? 0;
          return (
            <section class="card">
              <div class="card-head wrap">
                <p>
                  {f.plural(new Set(list.filter((s) => s.engines > 0).map((s) => s.model)).size, "model")}{" "}
                  <span class="muted">
                    on {f.plural(list.reduce((n, s) => n + s.engines, 0), "engine")}, {f.rate(sum(list, (s) => s.tokensOut), " output tokens")}, {f.plural(Math.round(waiting), "request")} {Math.round(waiting) === 1 ? "waits" : "wait"}
                  </span>
                </p>
                <Spent of={data.total} currency={data.currency} />
              </div>
              <ServedTable rows={list} currency={data.currency} sort={route.params.get("sort") ?? "-out"} setSort={(sort) => change({ sort })} />
              <Notes data={data} table />
            </section>
          );
        }}
      </Answer>
    </>
  );
}

export function ModelPage({ route }: { route: Route }) {
  const answer = useServing(route);
  const workload = route.params.get("workload") ?? "";
  return (
    <Answer of={answer} what="this model">
      {(data) => {
        const s = data.serving.find((s) => s.model === route.arg && (!workload || s.owner?.id === workload));
        if (!s) return <Empty title="No engine serves this model">Choose another time range, or go back to <a href={href("serving")}>all models</a>.</Empty>;
        const p = s.period;
        return (
          <>
            <header class="title">
              <p class="crumbs">
                <a href={href("serving")}>Serving</a>
              </p>
              <h1>
                {nameOf(s)} <Simulated of={data.simulated} />
              </h1>
              <p class="muted">
                {engineOf(s)}
                {devices(s) && ` on ${devices(s)}`}
                {s.owner && <> {"\u00b7"} <OwnerLink o={s.owner} team /></>}
              </p>
            </header>
            <Stats>
              <Stat name="First token, p95" value={f.seconds(s.ttft.p95)} note={spread(s.ttft)} tone={stuck(s) ? "idle" : ""} />
              <Stat name={s.tpot.p95 === null ? "Between tokens, p95" : "Per token, p95"} value={f.seconds(s.tpot.p95 ?? s.itl.p95)} note={spread(s.tpot.p95 === null ? s.itl : s.tpot)} />
              <Stat name="Whole request, p95" value={f.seconds(s.e2e.p95)} note={spread(s.e2e)} />
              <Stat name="Tokens out" value={f.rate(s.tokensOut)} note={`${f.rate(s.tokensIn)} in`} />
              <Stat name="Requests" value={f.rate(done(s))} note={`${f.count(s.running)} run, ${f.count(s.waiting)} wait`} tone={stuck(s) ? "idle" : ""} />
              <Stat name="KV cache" value={f.percent(s.kvCache)} note={s.prefixHits === null ? undefined : `${f.percent(s.prefixHits)} of prompts cached`} tone={stuck(s) ? "idle" : ""} />
              <Stat name="GPU busy" value={f.percent(s.utilization)} note={list([s.sm !== null && `SM ${f.percent(s.sm)}`, s.tensor !== null && `tensor ${f.percent(s.tensor)}`])} />
              <Stat name="Power" value={f.watts(s.watts)} note={s.memory !== null && `${f.bytes(s.memory)} of memory`} />
            </Stats>
            {(p.tokensIn !== null || p.tokensOut !== null) && (
              <>
                <h2>In the selected period</h2>
                <Stats>
                  <Stat name="Output tokens" value={f.many(p.tokensOut)} note={p.tokensIn !== null && `${f.many(p.tokensIn)} of prompts${p.tokensCached === null ? "" : `, ${f.many(p.tokensCached)} cached`}`} />
                  {p.cost !== null && (
                    <>
                      <Stat name="Cost" value={f.money(p.cost, data.currency)} note={p.idleCost !== null && (p.idleCost === 0 ? "none of it idle" : `${f.money(p.idleCost, data.currency)} of it idle`)} />
                      <Stat name="Per million tokens" value={f.price(p.perMillion, data.currency)} note="prompts and output" />
                      <Stat name="Per million of output" value={f.price(p.perMillionOutput, data.currency)} />
                      <Stat name="Per million, weighted" value={f.price(p.perMillionWeighted, data.currency)} note={`a prompt token counts ${f.count(data.inputWeight)}`} />
                    </>
                  )}
                  <Stat name="Tokens per joule" value={f.tenths(p.tokensPerJoule)} note={f.energy(p.energy)} />
                </Stats>
              </>
            )}
            <Objectives of={s} />
            <ServingCharts params={{ model: route.arg, ...(workload ? { workload } : {}) }} steps={s.tpot.p95 === null} />
            <section class="card">
              <h2>Its GPUs</h2>
              <ul>
                {[...s.gpus].sort((a, b) => `${a.node} ${a.index}`.localeCompare(`${b.node} ${b.index}`, undefined, { numeric: true })).map((g) => (
                  <li key={g.uuid + (g.partition ?? "")}>
                    <a href={href("gpu", g.uuid)}>
                      {g.node} {"\u00b7"} GPU {g.index}
                    </a>{" "}
                    <span class="muted">
                      {g.model} {g.profile}
                    </span>
                  </li>
                ))}
              </ul>
            </section>
            <Notes data={data} />
          </>
        );
      }}
    </Answer>
  );
}
