// Converts columns to one row per device; names and colors of devices.
import type { Columns, Num, Owner } from "./api";
import * as f from "./format";

export interface GPU {
  uuid: string;
  index: Num;
  model: string;
  shortModel: string;
  vendor: string;
  node: string;
  cluster: string;
  rack: string;
  health: Num;
  utilization: Num;
  memory: Num;
  memoryTotal: Num;
  power: Num;
  temperature: Num;
  held: number;
  idle: Num;
  rate: Num;
  heldRate: Num; // of held time, without energy
  owners: Owner[];
  uninvited: Owner[]; // workloads that use the device without an allocation
  simulated: boolean;
  since: Num; // Unix seconds of the last sample of a silent device; null if the device reports
}

export function rows(c: Columns, texts: string[], owners: Owner[]): GPU[] {
  const simulated = new Set(c.simulated);
  return c.uuid.map((uuid, i) => ({
    uuid,
    index: c.index[i]!,
    model: texts[c.model[i]!]!,
    shortModel: texts[c.shortModel[i]!]!,
    vendor: texts[c.vendor[i]!]!,
    node: texts[c.node[i]!]!,
    cluster: texts[c.cluster[i]!]!,
    rack: texts[c.rack[i]!]!,
    health: c.health[i]!,
    utilization: c.utilization[i]!,
    memory: c.memory[i]!,
    memoryTotal: c.memoryTotal[i]!,
    power: c.power[i]!,
    temperature: c.temperature[i]!,
    held: c.held[i]!,
    idle: c.idle[i]!,
    rate: c.rate[i]!,
    heldRate: c.heldRate[i]!,
    owners: c.owners[i]!.map((n) => owners[n]!),
    uninvited: (c.uninvited[i] ?? []).map((n) => owners[n]!),
    simulated: simulated.has(i),
    since: c.since[i] ?? null,
  }));
}

export const idleAfter = 10; // minutes; the hub sends the value with the fleet

export const isSick = (g: GPU) => g.health !== null && g.health <= 0;
export const isWarned = (g: GPU) => g.health !== null && g.health > 0 && g.health < 1;
export const isIdle = (g: GPU, after = idleAfter) => g.held > 0 && g.idle !== null && g.idle >= after;
export const isTaken = (g: GPU) => g.uninvited.length > 0;
export const isSilent = (g: GPU) => g.since !== null;
export const isFree = (g: GPU) => g.held === 0 && !isSilent(g);
/** lost is the cost per day of the held time of an idle device. */
export const lost = (g: GPU): Num => (g.heldRate === null ? null : g.heldRate * 24);

export const nameOf = (g: GPU) => (g.index === null ? g.uuid : `GPU ${g.index}`);
const namesOf = (list: Owner[]) => list.map((o) => o.name || f.kindOf(o.kind)).join(", ");
export const ownersOf = (g: GPU) => namesOf(g.owners);
export const takersOf = (g: GPU) => namesOf(g.uninvited);

export function stateOf(g: GPU): string {
  if (g.since !== null) return `silent since ${f.whenOf(g.since * 1000)}`;
  if (g.health === -1) return "not responding";
  if (g.health === 0) return "sick";
  if (isWarned(g)) return "warning";
  if (isTaken(g)) return "used without an allocation";
  if (isIdle(g)) return `idle for ${f.minutes(g.idle)}`;
  if (isFree(g)) return "free";
  return g.utilization === null ? "held" : `${f.percent(g.utilization)} busy`;
}

export function describe(g: GPU): string {
  const parts = [`${g.node} ${nameOf(g)}`, g.shortModel, stateOf(g)];
  if (!stateOf(g).endsWith("busy") && g.utilization !== null) parts.push(`${f.percent(g.utilization)} busy`);
  const owners = ownersOf(g);
  if (owners) parts.push(`held by ${owners}`);
  if (isTaken(g)) parts.push(`used by ${takersOf(g)} without an allocation`);
  return parts.join(", ");
}

export type Colour = "status" | "health" | "idle" | "utilization" | "memory" | "team";

export const colours: [Colour, string][] = [
  ["status", "Status"],
  ["health", "Health"],
  ["idle", "Idle while held"],
  ["utilization", "Utilization"],
  ["memory", "Memory"],
  ["team", "Team"],
];

const ramp = (v: Num) => (v === null ? "none" : "u" + Math.min(5, Math.floor(v * 6)));

/** Paint is the class of a tile and a short text with the same information, for use without color. */
export type Paint = [cls: string, text: string];

const short = (v: Num) => (v === null ? "" : String(Math.round(v * 100)));

function sickness(g: GPU): Paint | undefined {
  if (g.health === -1) return ["lost", "✕"];
  if (g.health === 0) return ["sick", "!"];
  if (isWarned(g)) return ["warn", "▲"];
  return undefined;
}

function idling(g: GPU): string {
  if (g.idle === null) return "";
  return g.idle >= 60 ? Math.floor(g.idle / 60) + "h" : Math.floor(g.idle) + "m";
}

export function paint(g: GPU, by: Colour, teams: string[]): Paint {
  if (isSilent(g)) return ["silent", "○"];
  switch (by) {
    case "health":
      return sickness(g) ?? (g.health === null ? ["none", "?"] : ["good", "✓"]);
    case "idle":
      if (isFree(g)) return ["free", ""];
      return isIdle(g) ? ["idle", idling(g)] : g.idle === null ? ["none", "?"] : ["u1", ""];
    case "utilization":
      return g.utilization === null ? ["none", "?"] : [ramp(g.utilization), short(g.utilization)];
    case "memory": {
      const part = g.memory !== null && g.memoryTotal ? g.memory / g.memoryTotal : null;
      return part === null ? ["none", "?"] : [ramp(part), short(part)];
    }
    case "team": {
      if (isFree(g)) return ["free", ""];
      const team = g.owners[0]?.team ?? "";
      return ["team" + (teams.indexOf(team) % 8), team.slice(0, 2)];
    }
    default:
      return sickness(g) ?? (isTaken(g) ? ["taken", "≠"] : isIdle(g) ? ["idle", idling(g)] : isFree(g) ? ["free", ""] : g.utilization === null ? ["none", "–"] : [ramp(g.utilization), short(g.utilization)]);
  }
}

export function legend(by: Colour, teams: string[], silent = false): [cls: string, mark: string, text: string][] {
  return silent ? [...known(by, teams), ["silent", "○", "silent"]] : known(by, teams);
}

function known(by: Colour, teams: string[]): [cls: string, mark: string, text: string][] {
  const busy: [string, string, string][] = [
    ["u0", "", "0 %"],
    ["u2", "", "50 %"],
    ["u5", "", "100 % busy"],
  ];
  switch (by) {
    case "health":
      return [["good", "✓", "good"], ["warn", "▲", "warning"], ["sick", "!", "sick"], ["lost", "✕", "not responding"], ["none", "?", "unknown"]];
    case "idle":
      return [["idle", "", "held and idle, by duration"], ["u1", "", "used"], ["free", "", "free"]];
    case "utilization":
      return busy;
    case "memory":
      return [["u0", "", "0 %"], ["u2", "", "50 %"], ["u5", "", "100 % of memory"]];
    case "team":
      return [...teams.slice(0, 8).map((t, i): [string, string, string] => ["team" + i, t.slice(0, 2), t || "no team"]), ["free", "", "free"]];
    default:
      return [["sick", "!", "sick"], ["lost", "✕", "not responding"], ["warn", "▲", "warning"], ["taken", "≠", "used without an allocation"], ["idle", "", "held and idle"], ["free", "", "free"], ["none", "–", "held, use not measured"], ...busy];
  }
}
