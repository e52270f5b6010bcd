import { type Training } from "./api";
import * as f from "./format";
import { Part, Stat, Stats } from "./parts";

const names: Record<string, [string, string]> = {
  step: ["Stepping", "steps that lasted"],
  data_wait: ["Waits for data", "the GPU had nothing to do between steps"],
  collective_wait: ["Waits for ranks", "for the slowest rank of the machine"],
  checkpoint: ["Checkpoints", "no steps while it wrote"],
  other: ["Other work", "evaluation, compilation, generation"],
  startup: ["Starting", "before the first step"],
  lost: ["Lost to restarts", "until the first step after one, and steps made again"],
  idle: ["Idle", "nothing launched, or no process that trains"],
};

/** TrainingCard shows the steps of a workload and where its allocated time went. */
export function TrainingCard({ of }: { of: Training }) {
  const share = (v: number | null) => (v !== null && of.allocated ? v / of.allocated : null);
  return (
    <section class="card">
      <h2>
        Training <span class="muted">{of.reported && of.observed ? "reported and observed" : of.reported ? "reported" : "observed from outside"}</span>
      </h2>
      <Stats>
        <Stat name="Goodput" value={f.percent(of.goodput)} note="steps, of allocated time" tone={of.goodput !== null && of.goodput < 0.5 ? "idle" : ""} />
        <Stat name="Steps" value={f.many(of.steps)} note={of.stepTime !== null ? `${f.seconds(of.stepTime)} each` : undefined} />
        <Stat name="MFU" value={f.percent(of.mfu)} note={of.mfu !== null && of.mfuEstimated ? "estimate" : undefined} />
        <Stat name="Checkpoints" value={f.many(of.checkpoints)} note={of.checkpoints ? f.bytes(of.checkpointBytes) : undefined} />
        <Stat name="Restarts" value={f.many(of.restarts)} />
        {of.tokens !== null ? <Stat name="Tokens" value={f.many(of.tokens)} /> : of.samples !== null ? <Stat name="Samples" value={f.many(of.samples)} /> : null}
        {of.loss !== null ? <Stat name="Loss" value={f.tenths(of.loss)} note={of.gradientNorm !== null ? `gradient norm ${f.tenths(of.gradientNorm)}` : undefined} /> : null}
      </Stats>
      {of.parts.length > 0 && (
        <div class="scroll">
          <table class="plain">
            <caption class="hidden">Where allocated time went</caption>
            <thead>
              <tr>
                <th scope="col">Allocated time</th>
                <th scope="col" class="number">
                  {f.hours(of.allocated)}
                </th>
                <th scope="col" class="number">
                  Part
                </th>
              </tr>
            </thead>
            <tbody>
              {of.parts.map((p) => (
                <tr key={p.name}>
                  <th scope="row">
                    {names[p.name]?.[0] ?? p.name} <span class="muted small">{names[p.name]?.[1]}</span>
                  </th>
                  <td class="number">{f.hours(p.time)}</td>
                  <td class="number">
                    <Part value={share(p.time)} tone={p.name === "idle" ? "idle" : p.name === "lost" ? "sick" : ""} />
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}
