import { type TimelineAnswer, type TimelineMoment, useAnswer } from "./api";
import * as f from "./format";
import { Answer, Empty, Stat, Stats, useNow } from "./parts";
import { type Route, href, spanOf, timesOf } from "./route";

/** what happened, as a sentence without its subject. */
const words: Record<string, string> = {
  created: "Created",
  reserved: "Has its quota in Kueue",
  admitted: "Admitted by Kueue",
  released: "Released: nothing holds it back any more",
  waits: "Waits",
  scheduled: "Has its GPUs",
  sandboxed: "Volumes and network are there",
  initialized: "Init containers have ended",
  started: "Runs",
  held: "Seen on a GPU by the agent of the node",
  active: "First work on a GPU",
  ended: "Ended",
};

/** The stretches of its life: the first moment that is known of each end counts. */
const stretches: [from: string[], to: string[], title: string, note: string][] = [
  [["created", "released"], ["scheduled", "started", "held"], "Waited", "until it had its GPUs"],
  [["scheduled", "sandboxed", "initialized"], ["started"], "Started in", "images, volumes, init containers"],
  [["started", "held", "scheduled"], ["active"], "Before its first work", "had its GPUs, did not use them"],
  [["active"], ["ended"], "Worked", "from its first work to its end"],
];

const timeOf = (list: TimelineMoment[], names: string[]) => names.map((name) => list.find((m) => m.what === name)?.time).find((t) => t !== undefined);

function Summary({ list, now }: { list: TimelineMoment[]; now: number }) {
  const last = list.filter((m) => m.what !== "waits").at(-1)?.what ?? "";
  const open = stretches.find(([from, to]) => from.includes(last) && timeOf(list, to) === undefined);
  return (
    <Stats>
      {stretches.map((s) => {
        const [from, to, title, note] = s;
        const a = timeOf(list, from);
        const b = timeOf(list, to) ?? (s === open ? now : undefined);
        return a !== undefined && b !== undefined && <Stat key={title} name={title} value={f.span(Math.max(0, b - a) / 1000)} note={s === open ? `so far, ${note}` : note} />;
      })}
    </Stats>
  );
}

export function JobPage({ route }: { route: Route }) {
  const span = spanOf(route.params);
  const now = useNow(span.seconds <= 3600 ? 10 : 60);
  const ask: Record<string, string> = {};
  for (const key of ["pod", "scheduler", "cluster", "id"]) {
    const v = route.params.get(key);
    if (v) ask[key] = v;
  }
  const answer = useAnswer<TimelineAnswer>("timeline", { ...ask, ...timesOf(span, now / 1000) });
  return (
    <>
      <header class="title">
        <p class="crumbs">
          <a href={href("queue")}>Queue</a>
        </p>
        <h1>{route.arg}</h1>
        <p class="muted">From its creation to its first work on a GPU, as its scheduler and the agent of its node saw it.</p>
      </header>
      <Answer of={answer} what="this job">
        {(data) => {
          if (data.moments.length === 0) return <Empty title="Nothing is known of this job in the selected period" />;
          const known = data.moments.filter((m) => m.what !== "waits");
          return (
            <>
              <Summary list={data.moments} now={now} />
              <section class="card">
                <h2>What happened</h2>
                <ol class="events moments">
                  {data.moments.map((m, i) => {
                    const before = i > 0 ? m.time - data.moments[i - 1]!.time : null;
                    return (
                      <li key={`${m.what} ${m.time} ${i}`} class="event">
                        <time dateTime={new Date(m.time).toISOString()}>{f.whenOf(m.time)}</time>
                        <span class="muted small after">{before !== null && before > 0 ? `+${f.span(before / 1000)}` : ""}</span>
                        <div>
                          {words[m.what] ?? m.what}
                          {m.text && m.what === "waits" && (
                            <>
                              {" "}
                              <span class="pill info">{m.text.replace("_", " ")}</span> <span class="muted">{m.because}</span>
                            </>
                          )}
                          {m.text && m.what !== "waits" && <span class="muted"> {m.text}</span>}
                        </div>
                      </li>
                    );
                  })}
                </ol>
                {known.length === 0 && <p class="muted small">Its creation is not known here: records of jobs are not sent to this store, or it was created before the selected period.</p>}
              </section>
            </>
          );
        }}
      </Answer>
    </>
  );
}
