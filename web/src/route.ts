// Page, filters and time range are in the URL fragment, so that every view can be shared.
import { useEffect, useState } from "preact/hooks";
import type { Params } from "./api";

export interface Route {
  page: string;
  arg: string;
  params: URLSearchParams;
}

export function parse(hash: string): Route {
  const text = hash.replace(/^#\/?/, "");
  const [path = "", query = ""] = text.split("?", 2) as [string, string?];
  const [page = "", ...rest] = path.split("/");
  return { page: page || "fleet", arg: decode(rest.join("/")), params: new URLSearchParams(query) };
}

/** decode returns malformed text unchanged: a link may have been truncated. */
function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

const read = () => parse(location.hash);

export function useRoute(): Route {
  const [route, set] = useState(read);
  useEffect(() => {
    const update = () => set(read());
    addEventListener("hashchange", update);
    return () => removeEventListener("hashchange", update);
  }, []);
  return route;
}

/** The time range is kept across pages; other parameters are not. */
const lasting = ["range", "from", "to"];

export function href(page: string, arg = "", params: Record<string, string> = {}): string {
  const q = new URLSearchParams();
  const now = read().params;
  for (const key of lasting) if (now.has(key)) q.set(key, now.get(key)!);
  for (const [k, v] of Object.entries(params)) if (v) q.set(k, v);
  const query = q.toString();
  return `#/${page}${arg ? "/" + encodeURIComponent(arg) : ""}${query ? "?" + query : ""}`;
}

/** change sets parameters of the current page and removes empty ones. */
export function change(params: Record<string, string>, replace = true): void {
  const r = read();
  for (const [k, v] of Object.entries(params)) v ? r.params.set(k, v) : r.params.delete(k);
  const query = r.params.toString();
  const to = `#/${r.page}${r.arg ? "/" + encodeURIComponent(r.arg) : ""}${query ? "?" + query : ""}`;
  if (replace) {
    history.replaceState(null, "", to);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = to;
  }
}

export const ranges: [string, string, number][] = [
  ["15m", "Last 15 minutes", 900],
  ["1h", "Last hour", 3600],
  ["6h", "Last 6 hours", 6 * 3600],
  ["24h", "Last 24 hours", 86400],
  ["7d", "Last 7 days", 7 * 86400],
  ["30d", "Last 30 days", 30 * 86400],
];

/** Days and months in the time zone of the hub. Their seconds are those of the longest. */
export const calendar: [string, string, number][] = [
  ["today", "Today", 86400],
  ["yesterday", "Yesterday", 86400],
  ["month", "This month", 31 * 86400],
  ["last-month", "Last month", 31 * 86400],
];

export interface Span {
  live: boolean;
  seconds: number;
  from?: number;
  to?: number;
  name: string;
  period?: string; // of the calendar
}

/** The period that is shown unasked, in seconds: as long as there is data, at most a day. */
let fitted = 86400;

export const fits = () => fitted;

/** fit sets the period that is shown unasked. */
export function fit(seconds: number): void {
  const to = Math.min(Math.max(seconds, 900), 86400);
  if (to === fitted) return;
  fitted = to;
  dispatchEvent(new HashChangeEvent("hashchange"));
}

export function spanOf(params: URLSearchParams): Span {
  const from = Number(params.get("from"));
  const to = Number(params.get("to"));
  if (from > 0 && to > from) return { live: false, seconds: to - from, from, to, name: "custom" };
  const date = calendar.find(([key]) => key === params.get("range"));
  if (date) return { live: true, seconds: date[2], name: date[0], period: date[0] };
  const known = ranges.find(([key]) => key === params.get("range"));
  if (!known && fitted < 86400) return { live: true, seconds: fitted, name: "fitted" };
  const [name, , seconds] = known ?? ranges[3]!;
  return { live: true, seconds, name };
}

/** timesOf returns the time parameters of a query. For the present they move in steps, so that answers can be shared. */
export function timesOf(span: Span, now = Date.now() / 1000): Params {
  if (!span.live) return { from: span.from, to: span.to, at: span.to };
  const step = span.seconds <= 3600 ? 10 : 60;
  if (span.period) return { period: span.period, now: Math.floor(now / step) * step };
  const to = Math.floor(now / step) * step;
  return { from: to - span.seconds, to };
}
