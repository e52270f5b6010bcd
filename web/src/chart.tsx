// Line charts over time.
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { useEffect, useRef } from "preact/hooks";
import { type Params, type RangeAnswer, useAnswer } from "./api";
import * as f from "./format";
import { change, spanOf, timesOf, useRoute } from "./route";
import { useNow } from "./parts";

const formats: Record<string, (v: number | null) => string> = { ratio: f.percent, bytes: f.bytes, watts: f.watts, celsius: f.celsius, gpus: f.tenths, hertz: f.hertz, seconds: f.seconds, wait: f.span, tokens: f.rate, requests: f.tenths };

/** Tick increments of long times are minutes, hours and days. */
const times = [1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 14400, 21600, 43200, ...Array.from({ length: 12 }, (_, i) => 86400 * 2 ** i)];

/** Tick increments of byte axes are powers of two. */
const powers = Array.from({ length: 50 }, (_, i) => 2 ** i);

interface Props {
  chart: string;
  title: string;
  params?: Params;
  height?: number;
  /** Current values from the page. The last point of a chart is up to one step old. */
  now?: (number | null)[];
}

export function Chart({ chart, title, params = {}, height = 150, now: present }: Props) {
  const span = spanOf(useRoute().params);
  const now = useNow(span.seconds <= 3600 ? 10 : 60);
  const times = timesOf(span, now / 1000);
  delete times["at"];
  const answer = useAnswer<RangeAnswer>("range", { chart, ...params, ...times });
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const data = answer.data;
  const some = data !== undefined && data.lines.some((l) => l.some((v) => v !== null));

  useEffect(() => {
    const el = box.current;
    if (!data || !some || !el) return;
    const draw = () => {
      plot.current?.destroy();
      plot.current = new uPlot(options(data, el.clientWidth, height), [data.times, ...data.lines] as uPlot.AlignedData, el);
    };
    draw();
    const resize = new ResizeObserver(() => el.clientWidth > 0 && plot.current?.setSize({ width: el.clientWidth, height }));
    resize.observe(el);
    const media = matchMedia("(prefers-color-scheme: dark)");
    media.addEventListener("change", draw);
    addEventListener("themechange", draw);
    return () => {
      resize.disconnect();
      media.removeEventListener("change", draw);
      removeEventListener("themechange", draw);
      plot.current?.destroy();
      plot.current = null;
    };
  }, [data, some, height]);

  const format = formats[data?.unit ?? ""] ?? f.count;
  const last = (l: (number | null)[]) => l.findLast((v) => v !== null) ?? null;
  return (
    <figure class="chart">
      <figcaption>
        <span class="chart-title">{title}</span>
        {some && (
          <span class="chart-legend">
            {data.names.map((n, i) => (
              <span key={n + i}>
                <i class={`line line${i % 8}`} aria-hidden="true" />
                {n} <b>{format(present?.[i] ?? last(data.lines[i]!))}</b>
              </span>
            ))}
          </span>
        )}
      </figcaption>
      <div ref={box} class="plot" style={{ minHeight: `${height}px` }} role="img" aria-label={some ? summary(title, data, format) : title}>
        {!some && <p class="chart-none muted">{answer.error ? "Cannot load this chart; retrying." : data ? "No data in this time range." : "Loading …"}</p>}
      </div>
    </figure>
  );
}

/** summary describes a chart for screen readers. */
function summary(title: string, data: RangeAnswer, format: (v: number | null) => string): string {
  const parts = data.names.map((n, i) => {
    const all = data.lines[i]!.filter((v) => v !== null);
    return all.length ? `${n} from ${format(Math.min(...all))} to ${format(Math.max(...all))}, last ${format(all.at(-1)!)}` : `${n} unknown`;
  });
  return `${title}: ${parts.join("; ")}`;
}

function options(data: RangeAnswer, width: number, height: number): uPlot.Options {
  const v = colour;
  const format = formats[data.unit] ?? f.count;
  const axis = { stroke: v("--muted"), font: "11px system-ui, sans-serif", ticks: { show: false }, grid: { stroke: v("--line"), width: 1 } };
  return {
    width,
    height,
    padding: [8, 8, 0, 0],
    legend: { show: false },
    cursor: { points: { size: 6 }, drag: { x: true, y: false, setScale: false } },
    scales: { y: { range: (_u, min, max) => (data.unit === "ratio" ? [0, Math.max(1, max)] : [Math.min(0, min ?? 0), (max || 1) * 1.08]) } },
    axes: [
      { ...axis, grid: { show: false }, space: 70, size: 26, values: (u, splits) => timeTicks(u, splits) },
      { ...axis, size: 62, space: 30, incrs: data.unit === "bytes" ? powers : data.unit === "wait" ? times : undefined, values: (_u, splits) => splits.map((s) => format(s)) },
    ],
    series: [
      {},
      ...data.names.map((label, i) => ({
        label,
        stroke: v(`--line${i % 8}`),
        width: 1.75,
        dash: /^(Total|Limit|Held)$/.test(label) ? [4, 4] : undefined,
        fill: data.names.length === 1 ? v("--line0-soft") : undefined,
        points: { show: data.times.length < 3 },
      })),
    ],
    plugins: [readout(data, format)],
    hooks: {
      // A range selected with the mouse becomes the page's time range.
      setSelect: [
        (u) => {
          if (u.select.width < 8) return;
          const from = Math.round(u.posToVal(u.select.left, "x"));
          const to = Math.round(u.posToVal(u.select.left + u.select.width, "x"));
          if (to - from >= 60) change({ from: String(from), to: String(to), range: "" }, false);
        },
      ],
    },
  };
}

/** colour resolves a CSS variable in the current theme, because a canvas cannot use variables. */
function colour(name: string): string {
  const probe = document.createElement("i");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const text = getComputedStyle(probe).color;
  probe.remove();
  return text;
}

function timeTicks(u: uPlot, splits: number[]): string[] {
  const long = (u.scales["x"]!.max ?? 0) - (u.scales["x"]!.min ?? 0) > 2 * 86400;
  return splits.map((s) => (long ? f.dayOf(s * 1000).replace(/^\w+,? /, "") : f.timeOf(s * 1000).slice(0, 5)));
}

/** readout shows the values under the mouse as text. */
function readout(data: RangeAnswer, format: (v: number | null) => string): uPlot.Plugin {
  let el: HTMLDivElement;
  return {
    hooks: {
      init: (u) => {
        el = document.createElement("div");
        el.className = "readout";
        el.hidden = true;
        u.over.append(el);
      },
      setCursor: (u) => {
        const i = u.cursor.idx;
        el.hidden = i === null || i === undefined || (u.cursor.left ?? -1) < 0;
        if (el.hidden) return;
        el.replaceChildren();
        const when = document.createElement("div");
        when.textContent = f.whenOf(data.times[i!]! * 1000);
        el.append(when);
        data.names.forEach((n, k) => {
          const row = document.createElement("div");
          row.textContent = `${n} ${format(data.lines[k]![i!] ?? null)}`;
          el.append(row);
        });
        const left = u.cursor.left!;
        const room = u.over.clientWidth;
        el.style.left = left > room / 2 ? "" : `${left + 12}px`;
        el.style.right = left > room / 2 ? `${room - left + 12}px` : "";
      },
    },
  };
}
