// Human-readable numbers. Unknown values are a dash.
import type { Num } from "./api";

const none = "–";
const lang = "en-GB";
const plain = [0, 1, 2].map((d) => new Intl.NumberFormat(lang, { maximumFractionDigits: d }));

export const known = (v: Num | undefined): v is number => v !== null && v !== undefined && !Number.isNaN(v);

export function count(v: Num | undefined): string {
  return known(v) ? plain[Number.isInteger(v) ? 0 : 2]!.format(v) : none;
}

export const tenths = (v: Num | undefined) => (known(v) ? plain[1]!.format(v) : none);

export const hertz = (v: Num | undefined) => (known(v) ? plain[0]!.format(v / 1e6) + "\u202fMHz" : none);

export function percent(v: Num | undefined): string {
  if (!known(v)) return none;
  const p = v * 100;
  return (p > 0 && p < 1 ? "<1" : Math.round(p)) + "\u202f%";
}

function scaled(v: number, base: number, units: string[]): string {
  let i = 0;
  while (Math.abs(v) >= base && i < units.length - 1) {
    v /= base;
    i++;
  }
  return plain[Math.abs(v) < 10 && i > 0 ? 1 : 0]!.format(v) + "\u202f" + units[i];
}

export function bytes(v: Num | undefined): string {
  return known(v) ? scaled(v, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]) : none;
}

export function watts(v: Num | undefined): string {
  if (!known(v)) return none;
  if (v < 10_000) return plain[0]!.format(v) + "\u202fW";
  return v < 1e6 ? plain[1]!.format(v / 1000) + "\u202fkW" : plain[2]!.format(v / 1e6) + "\u202fMW";
}

export function energy(joules: Num | undefined): string {
  if (!known(joules)) return none;
  const kWh = joules / 3.6e6;
  if (kWh < 1) return plain[0]!.format(kWh * 1000) + "\u202fWh";
  return kWh < 10_000 ? plain[kWh < 100 ? 1 : 0]!.format(kWh) + "\u202fkWh" : plain[1]!.format(kWh / 1000) + "\u202fMWh";
}

export function mass(grams: Num | undefined): string {
  if (!known(grams)) return none;
  return grams < 1000 ? plain[0]!.format(grams) + "\u202fg" : grams < 1e6 ? plain[1]!.format(grams / 1000) + "\u202fkg" : plain[1]!.format(grams / 1e6) + "\u202ft";
}

export function celsius(v: Num | undefined): string {
  return known(v) ? Math.round(v) + "\u202f°C" : none;
}

export function minutes(v: Num | undefined): string {
  if (!known(v)) return none;
  if (v < 60) return Math.floor(v) + "\u202fmin";
  const h = v / 60;
  if (v >= 23.7 * 60) return "24\u202fh or more";
  return h < 10 && v % 60 >= 1 ? `${Math.floor(h)}\u202fh ${Math.floor(v % 60)}\u202fmin` : Math.round(h) + "\u202fh";
}

/** seconds of a latency, with two significant digits or more. */
export function seconds(v: Num | undefined): string {
  if (!known(v)) return none;
  if (v < 0.9995) return plain[v < 0.00995 ? 1 : 0]!.format(v * 1000) + "\u202fms";
  return plain[v < 10 ? 2 : v < 100 ? 1 : 0]!.format(v) + "\u202fs";
}

/** span is a long time in its two largest units. */
export function span(s: Num | undefined): string {
  if (!known(s)) return none;
  if (s < 60) return Math.floor(s) + "\u202fs";
  const [min, h] = [Math.floor(s / 60), Math.floor(s / 3600)];
  const two = (a: number, unit: string, b: number, small: string) => `${a}\u202f${unit}` + (b ? ` ${b}\u202f${small}` : "");
  return h >= 24 ? two(Math.floor(h / 24), "d", h % 24, "h") : h ? two(h, "h", min % 60, "min") : two(min, "min", Math.floor(s % 60), "s");
}

/** rate is a number per second. */
export const rate = (v: Num | undefined, of = "") => (known(v) ? (v >= 10_000 ? scaled(v, 1000, ["", "k", "M"]).trim() : plain[v < 10 ? 2 : v < 100 ? 1 : 0]!.format(v)) : none) + (known(v) || of ? of + "/s" : "");

/** many is a large count, rounded. */
export const many = (v: Num | undefined) => (known(v) ? (v < 10_000 ? plain[0]!.format(v) : scaled(v, 1000, ["", "k", "M", "G", "T"])) : none);

export function hours(seconds: Num | undefined): string {
  if (!known(seconds)) return none;
  const h = seconds / 3600;
  return plain[h < 10 ? 1 : 0]!.format(h) + "\u202fh";
}

/** price is money for a small thing, such as a million tokens: with four digits below one. */
export const price = (v: Num | undefined, currency = "USD") => money(v, currency, 1000, known(v) && Math.abs(v) < 1 ? 4 : 2);

export function money(v: Num | undefined, currency = "USD", whole = 1000, fraction = 2): string {
  if (!known(v)) return none;
  const digits = v === 0 || Math.abs(v) >= whole ? 0 : fraction;
  try {
    return new Intl.NumberFormat(lang, { style: "currency", currency, currencyDisplay: "code", minimumFractionDigits: digits, maximumFractionDigits: digits }).format(v);
  } catch {
    return plain[digits]!.format(v) + "\u202f" + currency;
  }
}

const clock = new Intl.DateTimeFormat(lang, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat(lang, { weekday: "short", day: "numeric", month: "short" });
const both = new Intl.DateTimeFormat(lang, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

export const timeOf = (ms: number) => clock.format(ms);
export const dayOf = (ms: number) => day.format(ms);
export const whenOf = (ms: number) => both.format(ms);

export function ago(ms: number, now = Date.now()): string {
  const s = Math.max(0, Math.round((now - ms) / 1000));
  if (s < 60) return s + "\u202fs ago";
  if (s < 3600) return Math.round(s / 60) + "\u202fmin ago";
  if (s < 86400) return Math.round(s / 3600) + "\u202fh ago";
  return Math.round(s / 86400) + "\u202fdays ago";
}

export function plural(n: number, one: string, many = one + "s"): string {
  return `${count(n)} ${n === 1 ? one : many}`;
}

const kinds: Record<string, string> = {
  slurm_job: "Slurm job",
  raycluster: "Ray cluster",
  rayjob: "Ray job",
  cronjob: "cron job",
  statefulset: "stateful set",
  daemonset: "daemon set",
};
export const kindOf = (kind: string) => kinds[kind] ?? kind;
