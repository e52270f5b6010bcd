import { type SizedWorkload, type SizingAnswer, useAnswer } from "./api";
import * as f from "./format";
import { Answer, type Head, OwnerLink, Table } from "./parts";

const heads = (currency: string | undefined): Head<SizedWorkload>[] => {
  const all: Head<SizedWorkload>[] = [
    { key: "name", title: "Workload", value: (w) => w.name, cell: (w) => <OwnerLink o={w} team /> },
    { key: "model", title: "GPUs", value: (w) => w.models.map((m) => m.model).join(", "), minor: true },
    { key: "now", title: "Has", value: (w) => w.now, cell: (w) => f.tenths(w.now), number: true },
    {
      key: "advice",
      title: "Advice",
      value: (w) => w.advice[0]?.text ?? "",
      cell: (w) => w.advice.map((a) => <div key={a.text}>{a.text}</div>),
    },
    { key: "busy", title: "Busy", value: (w) => w.activity, cell: (w) => f.percent(w.activity), number: true },
    { key: "peak", title: "Peak", value: (w) => w.activityPeak, cell: (w) => f.percent(w.activityPeak), number: true, minor: true },
    { key: "memory", title: "Memory peak", value: (w) => w.memoryPeak, cell: (w) => (w.memoryPeak === null ? "–" : `${f.bytes(w.memoryPeak)}${w.memory === null ? "" : ` of ${f.bytes(w.memory)}`}`), number: true, minor: true },
    { key: "seen", title: "Observed", value: (w) => w.observed, cell: (w) => f.span(w.observed), number: true, minor: true },
  ];
  if (currency) all.push({ key: "saves", title: "Per day", value: (w) => w.advice[0]?.perDay ?? null, cell: (w) => f.money(w.advice[0]?.perDay, currency), number: true });
  return all;
};

/** Sizing lists the workloads that asked for more than they used. */
export function Sizing({ times }: { times: Record<string, string | number | undefined> }) {
  const answer = useAnswer<SizingAnswer>("sizing", times);
  return (
    <section class="card">
      <h2>Asked for and not used</h2>
      <Answer of={answer} what="what workloads asked for">
        {(data) => {
          const list = data.workloads.filter((w) => w.advice.length > 0);
          if (list.length === 0) return <p class="muted">No workload of the selected period is known to need less than it has.</p>;
          return (
            <>
              <Table heads={heads(data.currency)} rows={list} sort={data.currency ? "-saves" : "-now"} id={(w) => w.id} caption="Workloads that need less than they have" max={20} />
              <p class="muted small">Advice adds {f.percent(data.headroom)} to the peaks of the selected period. It is about what a workload did: what it will do, its owner knows.</p>
            </>
          );
        }}
      </Answer>
    </section>
  );
}
