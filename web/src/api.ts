// Types of the hub's answers, and the client. internal/hub/view produces them.
import { useEffect, useRef, useState } from "preact/hooks";

export type Num = number | null;

export interface Owner {
  id: string;
  kind: string;
  name: string;
  team?: string;
  namespace?: string;
  cluster?: string;
  job?: string;
  user?: string;
  account?: string;
}

export interface Columns {
  uuid: string[];
  index: Num[];
  model: number[];
  shortModel: number[];
  vendor: number[];
  node: number[];
  cluster: number[];
  rack: number[];
  health: Num[];
  utilization: Num[];
  memory: Num[];
  memoryTotal: Num[];
  power: Num[];
  temperature: Num[];
  held: number[];
  idle: Num[];
  rate: Num[];
  heldRate: Num[];
  owners: number[][];
  uninvited: Record<string, number[]>; // by row
  since: Record<string, number>; // last sample of silent devices in Unix seconds, by row
  simulated: number[];
}

/** Simulation says how much of an answer is about simulated devices. */
export type Simulation = "" | "some" | "all";

export interface Headline {
  gpus: number;
  silent: number;
  held: number;
  idle: number;
  free: number;
  sick: number;
  warning: number;
  uninvited: number;
  simulated: number;
  nodes: number;
  silentNodes: number;
  owners: number;
  teams: number;
  watts: Num;
  utilization: Num;
  lostPerDay: Num;
  costPerHour: Num;
  silentPerHour: Num;
}

export interface FleetAnswer {
  at: number;
  title?: string;
  team?: string;
  currency?: string;
  idleAfter: number;
  headline: Headline;
  owners: Owner[];
  texts: string[];
  gpus: Columns;
}

/** Taken is device time, energy and money in the words of a report. Costs add up to cost. */
export interface Taken {
  time: Num; // seconds, held or free
  heldTime: Num; // used, idle and unmeasured
  usedTime: Num;
  idleTime: Num;
  unmeasuredTime: Num;
  freeTime: Num;
  energy: Num;
  co2: Num;
  cost: Num;
  usedCost: Num;
  idleCost: Num;
  unmeasuredCost: Num;
  freeCost: Num;
  energyCost: Num;
}

export interface Workload extends Owner, Taken {
  gpus: number;
  models: string[]; // short names
  nodes: string[];
  uninvited: number; // GPUs used without an allocation
  idle: number;
  sick: number;
  utilization: Num;
  memory: Num;
  watts: Num;
  perHour: Num;
}

export interface WorkloadsAnswer {
  at: number;
  simulated: Simulation;
  currency?: string;
  workloads: Workload[];
  notes?: string[];
}

export interface Finding {
  rule: string;
  title: string;
  detail: string;
  owner?: Owner;
  gpus?: { uuid: string; name?: string }[];
  perDay: Num;
}

export interface WorkloadAnswer {
  at: number;
  simulated: Simulation;
  currency?: string;
  workload: Workload;
  texts: string[];
  owners: Owner[];
  gpus: Columns;
  perGPU: (Taken & { gpu: string; index: string; model: string; node: string })[];
  findings: Finding[];
  pods: string[];
  serving: Served[];
  servingError?: string; // why serving is empty, if it could not be read
  training?: Training;
  trainingError?: string;
}

/** Training is what a workload did that trains, in the period. */
export interface Training {
  observed: boolean;
  reported: boolean;
  steps: Num;
  stepTime: Num;
  tokens: Num;
  samples: Num;
  checkpoints: Num;
  checkpointBytes: Num;
  restarts: Num;
  mfu: Num;
  mfuEstimated: boolean;
  loss: Num;
  gradientNorm: Num;
  goodput: Num;
  allocated: Num; // the parts add up to it
  parts: { name: string; time: Num }[];
}

export interface GPUAnswer {
  at: number;
  currency?: string;
  texts: string[];
  owners: Owner[];
  gpu: Columns;
  facts: { name: string; text: string }[];
  holders: (Owner & { held: Num; utilization: Num; memory: Num; watts: Num; partition?: string })[];
  peers: Columns;
}

export interface Event {
  time: number;
  name: string;
  severity: string;
  text: string;
  gpu?: string;
  index?: string;
  model?: string;
  node?: string;
  owner?: Owner;
  rule?: string;
  state?: string;
  action?: string;
  id?: string; // of an open finding
  mark?: Mark;
}

/** Mark is what somebody said about a finding. */
export interface Mark {
  by: string;
  comment?: string;
  until?: number; // seconds, of a silence
}

export interface EventsAnswer {
  from: number;
  to: number;
  kept: boolean;
  simulated: Simulation;
  more: boolean;
  open: Event[];
  events: Event[];
}

/** Share is what a team took. A name in parentheses is not that of a team. */
export interface Share extends Taken {
  team: string;
}

export interface Quota {
  team: string;
  what: string;
  money?: boolean;
  source: string;
  used: Num;
  limit: Num;
  over: boolean;
}

export interface Coverage {
  known: Num;
  unknown: Num;
  cost: Num;
  gpus: CoveredGPU[];
  more?: number;
  notSeen: { devices: number; time: Num; cost: Num };
}

export interface CoveredGPU {
  uuid: string;
  node: string;
  index: string;
  known: Num;
  unknown: Num;
  why: string[] | null;
  cost: Num;
}

export interface CostAnswer {
  currency?: string;
  priced: boolean;
  simulated: Simulation;
  timeZone: string;
  total: Taken;
  teams: Share[];
  quotas: Quota[];
  notes?: string[];
  coverage?: Coverage;
}

export interface WasteAnswer {
  currency?: string;
  findings: Finding[];
}

export interface Percentiles {
  p50: Num;
  p95: Num;
  p99: Num;
}

/** ServedCost is what engines served in a period, and what their GPUs cost. */
export interface ServedCost {
  time: Num; // device seconds
  energy: Num;
  cost: Num;
  idleCost: Num;
  tokensIn: Num;
  tokensOut: Num;
  tokensCached: Num;
  requests: Num;
  failed: Num;
  aborted: Num;
  perMillion: Num;
  perMillionOutput: Num;
  perMillionWeighted: Num;
  tokensPerJoule: Num;
  outputPerJoule: Num;
}

/** Objective is how an objective is met. */
export interface Objective {
  objective: string;
  text: string;
  target: Num; // the part that must be good
  threshold: Num;
  window: number; // of the error budget, in seconds
  bad: Num; // the part that was bad in the window
  burn: Record<string, Num>; // by window: 5m, 30m, 1h, 6h, 3d
  budget: Num; // the part of the error budget that is left
  ok: boolean | null;
  alert?: "page" | "ticket";
}

/** Limit is a part of the lost time and what explains it. */
export interface Limit {
  cause: string;
  name: string; // of the cause, for people
  share: Num;
  text: string;
}

/** Served is what a workload serves of a model, now and in the period. */
export interface Served {
  model: string;
  providers: string[];
  owner?: Owner;
  engines: number; // 0: served in the period only
  up: number;
  gpus: { uuid: string; partition?: string; profile?: string; index: string; model: string; node: string }[];
  running: Num;
  waiting: Num;
  finished: Record<string, Num> | null; // per second, by outcome
  tokensIn: Num; // per second
  tokensOut: Num;
  ttft: Percentiles;
  tpot: Percentiles;
  itl: Percentiles;
  e2e: Percentiles;
  queue: Percentiles;
  kvCache: Num;
  prefixHits: Num;
  sm: Num;
  tensor: Num;
  utilization: Num;
  memory: Num;
  watts: Num;
  period: ServedCost;
  objectives?: Objective[];
  goodput?: { low: Num; high: Num; of: Num };
  limits?: Limit[];
}

export interface ServingAnswer {
  at: number;
  from: number;
  to: number;
  window: number;
  currency?: string;
  inputWeight: number;
  simulated: Simulation;
  serving: Served[];
  total: ServedCost;
  noEngine?: ServedCost; // what workloads with engines held without one
  notes?: string[];
}

export interface QueuePool {
  cluster: string;
  model: string;
  all: Num;
  allocated: Num;
  free: Num;
  drained: Num;
  down: Num;
  pending: Num;
  blocked: Num; // free although jobs wait for so many
  perDay: Num;
  stranded: Record<string, number>;
  placeable: Record<string, number>;
}

export interface QueueJob {
  cluster: string;
  scheduler: string;
  queue: string;
  team?: string;
  id: string;
  name: string;
  model?: string;
  reason: string;
  because: string;
  gpus: Num;
  seconds: Num; // null: the jobs beyond the limit, together
  free: Num; // null: no GPU is known
}

export interface QueueTeam {
  team: string;
  asked: Num;
  given: Num;
  waiting: Num;
  busy: Num;
  idle: number;
  quota: Num;
}

export interface QueueShare {
  cluster: string;
  scheduler: string;
  queue: string;
  team?: string;
  model?: string;
  used: Num;
  nominal: Num;
  limit: Num;
  borrowed: Num;
  pending: Num;
  fairShare: Num;
}

export interface QueueWait {
  cluster: string;
  scheduler: string;
  queue: string;
  jobs: Num;
  mean: Num;
  p50: Num;
  p95: Num;
  firstWork: Num;
}

export interface QueueAnswer {
  at: number;
  from: number;
  to: number;
  currency?: string;
  simulated: Simulation;
  clusters: { cluster: string; scheduler: string; up: boolean | null; waiting: Num; gpus: Num; unusable: Num }[];
  pools: QueuePool[];
  jobs: QueueJob[];
  teams: QueueTeam[];
  queues: QueueShare[];
  waits: QueueWait[];
  missed: { time: Num; cost: Num }; // free in the period while jobs waited
}

export interface SizedWorkload extends Owner {
  models: { model: string; mean: Num }[];
  mean: Num;
  most: Num;
  now: Num;
  devices: number;
  used: Num;
  activity: Num;
  activityPeak: Num;
  memoryPeak: Num;
  memory: Num;
  observed: Num;
  advice: { kind: string; devices: number; enough: number; model?: string; profile?: string; memory: Num; text: string; perDay: Num; hours: Num }[];
  because?: string;
}

export interface SizingAnswer {
  at: number;
  from: number;
  to: number;
  headroom: Num;
  currency?: string;
  simulated: Simulation;
  workloads: SizedWorkload[];
  more?: number;
  notes?: string[];
}

export interface TimelineMoment {
  time: number; // Unix milliseconds
  what: string;
  text?: string; // why it waits, how it ended
  because?: string; // the former in words
}

export interface TimelineAnswer {
  scheduler: string;
  id: string;
  moments: TimelineMoment[];
}

export interface RangeAnswer {
  unit: string;
  times: number[];
  names: string[];
  lines: Num[][];
  more: boolean;
}

export interface Hit {
  type: "gpu" | "workload" | "node" | "team";
  id: string;
  title: string;
  detail: string;
}

/** Refusal is an error response of the hub. */
export class Refusal extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

/** The token for a hub that requires one. It is kept as long as the tab. */
export const token = {
  get: () => {
    try {
      return sessionStorage.getItem("token") ?? "";
    } catch {
      return "";
    }
  },
  set: (text: string) => {
    try {
      sessionStorage.setItem("token", text);
    } catch {
      // Without storage the user is asked again.
    }
  },
};

export type Params = Record<string, string | number | undefined>;

export async function ask<T>(what: string, params: Params, signal?: AbortSignal): Promise<T> {
  const q = new URLSearchParams();
  for (const [k, v] of Object.entries(params)) if (v !== undefined) q.set(k, String(v));
  const headers: HeadersInit = {};
  if (token.get()) headers["Authorization"] = "Bearer " + token.get();
  const query = q.toString();
  const r = await fetch(`api/page/${what}${query ? "?" + query : ""}`, { headers, signal });
  if (!r.ok) {
    let text = r.statusText;
    try {
      text = ((await r.json()) as { error?: string }).error ?? text;
    } catch {
      // Not JSON: the response of a proxy, for example.
    }
    throw new Refusal(r.status, text || `the hub responded with status ${r.status}`);
  }
  return (await r.json()) as T;
}

export interface Loaded<T> {
  data?: T;
  error?: Error;
  loading: boolean;
  again: () => void;
}

/**
 * shapeOf is equal for two queries if the answer to one may be shown while the other loads: the
 * present one step later, but never another period.
 */
function shapeOf(what: string, params: Params): string {
  if (params.period !== undefined) return what + JSON.stringify({ ...params, now: undefined });
  if (params.at !== undefined || params.from === undefined) return what + JSON.stringify(params);
  const { from, to, ...rest } = params;
  return what + JSON.stringify({ ...rest, span: Number(to) - Number(from) });
}

/**
 * useAnswer queries the hub, repeatedly while the page shows the present. On an error the
 * previous answer is kept.
 */
export function useAnswer<T>(what: string, params: Params, every = 0): Loaded<T> {
  const key = what + JSON.stringify(params);
  const shape = shapeOf(what, params);
  const [state, set] = useState<{ shape: string; data?: T; error?: Error; loading: boolean }>({ shape, loading: true });
  const [round, setRound] = useState(0);
  const latest = useRef(key);
  latest.current = key;
  useEffect(() => {
    const stop = new AbortController();
    let timer = 0;
    let pause = 3; // seconds until the next try, longer each time: a busy hub must not be asked all the time
    const load = async () => {
      if (document.hidden && every > 0) return void (timer = window.setTimeout(load, 1000));
      let wait = every;
      try {
        const data = await ask<T>(what, params, stop.signal);
        pause = 3;
        if (latest.current === key) set({ shape, data, loading: false });
      } catch (e) {
        if (stop.signal.aborted) return;
        wait = e instanceof Refusal && e.status < 500 ? 0 : pause;
        pause = Math.min(60, 2 * pause);
        set((s) => ({ shape, data: s.shape === shape ? s.data : undefined, error: e as Error, loading: false }));
      }
      if (wait > 0) timer = window.setTimeout(load, wait * 1000);
    };
    set((s) => ({ shape, data: s.shape === shape ? s.data : undefined, loading: true }));
    void load();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [key, every, round]);
  // Until the effect runs, the state belongs to the previous query.
  const data = state.shape === shape ? state.data : undefined;
  return { data, error: state.error, loading: state.loading || data === undefined && !state.error, again: () => setRound(round + 1) };
}
