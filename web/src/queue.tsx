import { type QueueAnswer, type QueueJob, type QueuePool, type QueueShare, type QueueTeam, type QueueWait, useAnswer } from "./api";
import { Chart } from "./chart";
import * as f from "./format";
import { Answer, Empty, type Head, Simulated, Table, useNow } from "./parts";
import { Sizing } from "./sizing";
import { type Route, change, href, spanOf, timesOf } from "./route";

const sum = <T,>(list: T[], of: (x: T) => number | null) => list.reduce((n, x) => n + (of(x) ?? 0), 0);

/** decided: the job waits because somebody said so, not for devices. */
const decided = (j: QueueJob) => ["held", "dependency", "begin_time", "license"].includes(j.reason);

/** stuck: GPUs are free in front of it. */
const stuck = (j: QueueJob) => !decided(j) && j.seconds !== null && (j.free ?? 0) >= (j.gpus ?? 0) && (j.gpus ?? 0) > 0;

/** where names the queue, and the cluster if there are several. */
const where = (x: { cluster: string; queue: string }, several: boolean) => (several && x.cluster ? `${x.cluster} \u00b7 ${x.queue}` : x.queue);

const jobHeads = (several: boolean): Head<QueueJob>[] => [
  {
    key: "name",
    title: "Job",
    value: (j) => j.name,
    cell: (j) =>
      j.seconds === null ? (
        <span class="muted">jobs with shorter waits</span>
      ) : (
        <>
          <a href={href("job", j.name, { scheduler: j.scheduler, cluster: j.cluster, id: j.id })}>{j.name}</a> {j.scheduler === "slurm" && <span class="muted">{j.id}</span>}
          <div class="muted small whole">{where(j, several)}</div>
        </>
      ),
  },
  { key: "team", title: "Team", value: (j) => j.team || (j.scheduler === "slurm" ? "" : j.queue), minor: true },
  { key: "gpus", title: "GPUs", value: (j) => j.gpus, cell: (j) => f.count(j.gpus), number: true },
  { key: "seconds", title: "Waited", value: (j) => j.seconds, cell: (j) => f.span(j.seconds), number: true },
  {
    key: "reason",
    title: "Because",
    value: (j) => j.reason,
    cell: (j) =>
      j.seconds === null ? null : (
        <>
          <span class={`pill ${stuck(j) ? "warn" : "info"}`}>{j.reason.replace("_", " ")}</span> <span class="muted">{j.because}</span>
        </>
      ),
  },
  {
    key: "free",
    title: "Free",
    value: (j) => j.free,
    cell: (j) =>
      j.seconds === null ? null : (
        <span class={stuck(j) ? "idle-text" : ""}>
          {f.count(j.free)} <span class="muted">{j.model || "of any model"}</span>
        </span>
      ),
    number: true,
    minor: true,
  },
];

const causes: Record<string, string> = { not_ready: "their node is down", cordoned: "their node is cordoned", taint: "nobody tolerates the taint", cpu: "too little CPU beside them", memory: "too little memory beside them" };

/** fits says how many jobs of each size would fit. */
const fits = (p: QueuePool) =>
  Object.entries(p.placeable)
    .filter(([size]) => Number(size) <= 8)
    .map(([size, n]) => `${n} \u00d7 ${size}`)
    .join(", ");

const poolHeads = (several: boolean, currency: string | undefined): Head<QueuePool>[] => {
  const all: Head<QueuePool>[] = [
    {
      key: "model",
      title: "GPUs",
      value: (p) => p.model,
      cell: (p) => (
        <>
          {p.model || "no model named"}
          {several && <span class="muted"> {p.cluster}</span>}
          <div class="muted small whole">
            {Object.entries(p.stranded)
              .filter(([, n]) => n > 0)
              .map(([cause, n]) => `${f.count(n)} of no use: ${causes[cause] ?? cause}`)
              .join(", ")}
          </div>
        </>
      ),
    },
    { key: "all", title: "All", value: (p) => p.all, cell: (p) => f.count(p.all), number: true },
    { key: "allocated", title: "Given", value: (p) => p.allocated, cell: (p) => f.count(p.allocated), number: true },
    { key: "free", title: "Free", value: (p) => p.free, cell: (p) => f.count(p.free), number: true },
    { key: "out", title: "Drained, down", value: (p) => (p.drained ?? 0) + (p.down ?? 0), cell: (p) => f.count((p.drained ?? 0) + (p.down ?? 0)), number: true, minor: true },
    { key: "fits", title: "Jobs that fit", value: (p) => p.placeable["1"] ?? null, cell: (p) => <span title="number of jobs by GPUs of each job">{fits(p) || "–"}</span>, minor: true },
    { key: "pending", title: "Waited for", value: (p) => p.pending, cell: (p) => f.count(p.pending), number: true },
    { key: "blocked", title: "Free meanwhile", value: (p) => p.blocked, cell: (p) => <span class={p.blocked ? "idle-text" : ""}>{f.count(p.blocked)}</span>, number: true },
  ];
  if (currency) all.push({ key: "money", title: "Per day", value: (p) => p.perDay, cell: (p) => f.money(p.perDay, currency), number: true });
  return all;
};

const teamHeads: Head<QueueTeam>[] = [
  { key: "team", title: "Team", value: (t) => t.team || "(none)" },
  { key: "asked", title: "Asked", value: (t) => t.asked, cell: (t) => f.count(t.asked), number: true },
  { key: "given", title: "Given", value: (t) => t.given, cell: (t) => f.count(t.given), number: true },
  { key: "waiting", title: "Waits for", value: (t) => t.waiting, cell: (t) => f.count(t.waiting), number: true },
  { key: "busy", title: "Busy", value: (t) => t.busy, cell: (t) => f.tenths(t.busy), number: true },
  { key: "idle", title: "Idle", value: (t) => t.idle, cell: (t) => <span class={t.idle ? "idle-text" : ""}>{f.count(t.idle)}</span>, number: true },
  {
    key: "quota",
    title: "Quota",
    value: (t) => t.quota,
    cell: (t) => (
      <>
        {t.quota !== null && (t.given ?? 0) > t.quota && <span class="pill warn">over</span>} {f.count(t.quota)}
      </>
    ),
    number: true,
  },
];

const shareHeads: Head<QueueShare>[] = [
  {
    key: "queue",
    title: "Queue",
    value: (q) => q.queue || q.team,
    cell: (q) => (
      <>
        {q.queue || q.team} <span class="muted">{[q.scheduler, q.queue && q.team, q.model].filter(Boolean).join(", ")}</span>
      </>
    ),
  },
  { key: "used", title: "Used", value: (q) => q.used, cell: (q) => f.tenths(q.used), number: true },
  { key: "nominal", title: "Own share", value: (q) => q.nominal, cell: (q) => f.tenths(q.nominal), number: true },
  { key: "borrowed", title: "Borrowed", value: (q) => q.borrowed, cell: (q) => <span class={q.borrowed ? "idle-text" : ""}>{f.tenths(q.borrowed)}</span>, number: true },
  { key: "limit", title: "Limit", value: (q) => q.limit, cell: (q) => f.tenths(q.limit), number: true },
  { key: "pending", title: "Waits for", value: (q) => q.pending, cell: (q) => f.tenths(q.pending), number: true },
  { key: "fair", title: "Fair share", value: (q) => q.fairShare, cell: (q) => f.count(q.fairShare), number: true, minor: true },
];

const waitHeads = (several: boolean): Head<QueueWait>[] => [
  { key: "queue", title: "Queue", value: (w) => where(w, several) },
  { key: "jobs", title: "Jobs placed", value: (w) => w.jobs, cell: (w) => f.count(Math.round(w.jobs ?? 0)), number: true },
  { key: "p50", title: "Median wait", value: (w) => w.p50, cell: (w) => f.span(w.p50), number: true },
  { key: "p95", title: "95th percentile", value: (w) => w.p95, cell: (w) => f.span(w.p95), number: true },
  { key: "mean", title: "Mean", value: (w) => w.mean, cell: (w) => f.span(w.mean), number: true, minor: true },
  { key: "work", title: "Median to first work", value: (w) => w.firstWork, cell: (w) => f.span(w.firstWork), number: true },
];

/** sources are who is asked about a queue, by scheduler; the others have metrics pages. */
const sources: Record<string, string> = { slurm: "The Slurm controller", kubernetes: "The Kubernetes API" };

function Headline({ data }: { data: QueueAnswer }) {
  const waiting = sum(data.clusters, (c) => c.waiting);
  const gpus = sum(data.clusters, (c) => c.gpus);
  const longest = data.jobs.reduce<number | null>((n, j) => (j.seconds !== null && j.seconds > (n ?? -1) ? j.seconds : n), null);
  const blocked = sum(data.pools, (p) => p.blocked);
  const money = sum(data.pools, (p) => p.perDay);
  const hours = Math.round((data.missed.time ?? 0) / 3600);
  const out = data.clusters.filter((c) => c.up === false);
  return (
    <header class="headline">
      <p class="eyebrow">
        What waits for GPUs, why, and in front of which free ones <Simulated of={data.simulated} />
      </p>
      <h1>
        {waiting === 0 ? (
          "No job waits for a GPU"
        ) : (
          <>
            <b>{f.plural(waiting, "job")}</b> {waiting === 1 ? "waits" : "wait"} for <b>{f.plural(gpus, "GPU")}</b>
          </>
        )}
        {blocked > 0 && (
          <>
            {" "}
            while <b class="idle-text">{f.count(blocked)}</b> of their kind {blocked === 1 ? "is" : "are"} free
          </>
        )}
        .
      </h1>
      <p class="muted">
        {[
          longest !== null && `The longest wait is ${f.span(longest)}.`,
          money > 0 && `The free GPUs that jobs wait for cost ${f.money(money, data.currency)} a day.`,
          hours > 0 && `In the selected period ${f.plural(hours, "GPU-hour")} ${hours === 1 ? "was" : "were"} free while jobs waited for them${data.missed.cost === null ? "" : `, worth ${f.money(data.missed.cost, data.currency)}`}.`,
        ]
          .filter(Boolean)
          .join(" ")}
      </p>
      {out.map((c) => (
        <p key={c.cluster + c.scheduler} class="banner" role="status">
          {sources[c.scheduler] ?? `The metrics page of ${c.scheduler}`}
          {c.cluster && ` of ${c.cluster}`} does not answer everything: some numbers are missing.
        </p>
      ))}
    </header>
  );
}

export function QueuePage({ route }: { route: Route }) {
  const span = spanOf(route.params);
  const now = useNow(span.seconds <= 3600 ? 10 : 60);
  const answer = useAnswer<QueueAnswer>("queue", timesOf(span, now / 1000));
  return (
    <Answer of={answer} what="the queue">
      {(data) => {
        if (data.clusters.length + data.queues.length + data.jobs.length === 0)
          return (
            <Empty title="No scheduler reports its queue">
              Start one or two agents with <code>--scheduler kubernetes</code>, or one with <code>--scheduler slurm</code>.
            </Empty>
          );
        const several = new Set(data.clusters.map((c) => c.cluster)).size > 1;
        return (
          <>
            <Headline data={data} />
            {data.jobs.length > 0 && (
              <section class="card">
                <h2>Waiting</h2>
                <Table heads={jobHeads(several)} rows={data.jobs} sort={route.params.get("sort") ?? "-seconds"} setSort={(sort) => change({ sort })} id={(j) => j.cluster + j.scheduler + j.id} caption="Jobs that wait for GPUs" />
              </section>
            )}
            {data.pools.length > 0 && (
              <section class="card">
                <h2>In front of them</h2>
                <Table heads={poolHeads(several, data.currency)} rows={data.pools} sort="-all" id={(p) => p.cluster + p.model} caption="GPUs by model" />
                <p class="muted small">
                  Free meanwhile: GPUs that are free while jobs wait for as many of their kind. Jobs that somebody holds do not count. Jobs that fit: how many jobs of 1, 2, 4 and 8 GPUs on one node would find room, each size by itself.
                </p>
              </section>
            )}
            <div class="charts">
              <Chart chart="queue-gpus" title="GPUs" />
              <Chart chart="queue-reasons" title="Waited for, by reason" />
              <Chart chart="queue-wait" title="Wait of jobs that were placed" />
            </div>
            {data.teams.length > 0 && (
              <section class="card">
                <h2>By team</h2>
                <Table heads={teamHeads} rows={data.teams} sort="-asked" id={(t) => t.team} caption="What teams ask for, have and use" />
                <p class="muted small">Asked is given and waited for. Busy is the measured use of what is given, in whole GPUs; idle GPUs have done nothing for ten minutes.</p>
              </section>
            )}
            <Sizing times={timesOf(span, now / 1000)} />
            {data.queues.length > 0 && (
              <section class="card">
                <h2>Queues, as their systems count</h2>
                <Table heads={shareHeads} rows={data.queues} sort="-used" id={(q) => [q.cluster, q.scheduler, q.queue, q.team, q.model].join("\n")} caption="Queues of queueing systems" />
              </section>
            )}
            {data.waits.length > 0 && (
              <section class="card">
                <h2>Waits in the selected period</h2>
                <Table heads={waitHeads(several)} rows={data.waits} sort="-jobs" id={(w) => [w.cluster, w.scheduler, w.queue].join("\n")} caption="How long jobs waited" />
              </section>
            )}
          </>
        );
      }}
    </Answer>
  );
}
