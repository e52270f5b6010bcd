// Every GPU is a link of a few pixels. Even 10,000 are plain elements: only blocks on screen
// are laid out (content-visibility), and only changed blocks are rendered again.
import { memo } from "preact/compat";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import * as f from "./format";
import { type Colour, type GPU, describe, lost, isIdle, isSilent, isTaken, nameOf, ownersOf, paint, stateOf, takersOf } from "./gpu";
import { href } from "./route";

export interface Block {
  key: string;
  title: string;
  link?: string;
  gpus: GPU[];
}

export interface Section {
  key: string;
  title: string;
  blocks: Block[];
}

export type Grouping = "cluster" | "rack" | "team" | "model";

export const groupings: [Grouping, string][] = [
  ["cluster", "Cluster and node"],
  ["rack", "Rack and node"],
  ["team", "Team and workload"],
  ["model", "Model and node"],
];

const last = ["free", "silent"]; // sections at the end

export function group(gpus: GPU[], by: Grouping): Section[] {
  const sections = new Map<string, Map<string, Block>>();
  for (const g of gpus) {
    const o = g.owners[0];
    let section = g.cluster || "no cluster name";
    let key = g.node;
    let title = g.node;
    if (by === "rack") section = g.rack ? (g.cluster ? `${g.cluster} · ${g.rack}` : g.rack) : g.cluster ? `${g.cluster} · no rack` : "no rack";
    if (by === "model") section = g.model;
    if (by === "team") {
      const none = isSilent(g) ? "silent" : "free";
      section = o ? o.team || "no team" : none;
      key = o ? o.id : none;
      title = o ? o.name || f.kindOf(o.kind) : isSilent(g) ? g.node : "unallocated";
      if (isSilent(g)) key = g.node;
    }
    let blocks = sections.get(section);
    if (!blocks) sections.set(section, (blocks = new Map()));
    let block = blocks.get(key);
    if (!block) blocks.set(key, (block = { key: section + "\n" + key, title, gpus: [], link: by === "team" && o ? href("workload", o.id) : href("fleet", "", { q: g.node }) }));
    block.gpus.push(g);
  }
  return [...sections].map(([title, blocks]) => ({ key: title, title, blocks: [...blocks.values()] })).sort((a, b) => last.indexOf(a.title) - last.indexOf(b.title));
}

interface BlockProps {
  block: Block;
  colour: Colour;
  teams: string[];
  dim?: (g: GPU) => boolean;
  signature: string;
}

const TileBlock = memo(
  ({ block, colour, teams, dim }: BlockProps) => (
    <div class="block" role="group" aria-label={block.title}>
      {block.link ? <a class="block-name" href={block.link} title={block.title} tabIndex={-1}>{block.title}</a> : <span class="block-name">{block.title}</span>}
      <div class="tiles">
        {block.gpus.map((g) => {
          const [cls, text] = paint(g, colour, teams);
          return (
            <a key={g.uuid} class={`tile ${cls}${dim?.(g) ? " dim" : ""}`} href={href("gpu", g.uuid)} data-gpu={g.uuid} data-text={text} tabIndex={-1} aria-label={describe(g)} />
          );
        })}
      </div>
    </div>
  ),
  (a, b) => a.signature === b.signature,
);

interface Props {
  gpus: GPU[];
  grouping: Grouping;
  colour: Colour;
  teams: string[];
  dim?: (g: GPU) => boolean;
  dimKey?: string;
  currency?: string;
  plain?: boolean; // without section titles
}

export function Tiles({ gpus, grouping, colour, teams, dim, dimKey = "", currency, plain }: Props) {
  const sections = useMemo(() => group(gpus, grouping), [gpus, grouping]);
  const byUUID = useMemo(() => new Map(gpus.map((g) => [g.uuid, g])), [gpus]);
  const box = useRef<HTMLDivElement>(null);
  const [tip, setTip] = useState<{ g: GPU; x: number; y: number } | null>(null);

  // Roving tabindex: Tab reaches one tile, arrow keys move between tiles.
  useEffect(() => {
    const all = box.current?.querySelectorAll<HTMLElement>(".tile");
    if (all?.length && !box.current?.querySelector('.tile[tabindex="0"]')) all[0]!.tabIndex = 0;
  });

  const focus = (el: HTMLElement | undefined | null) => {
    if (!el) return;
    box.current?.querySelectorAll<HTMLElement>('.tile[tabindex="0"]').forEach((t) => (t.tabIndex = -1));
    el.tabIndex = 0;
    el.focus();
  };

  const onKeyDown = (e: KeyboardEvent) => {
    const now = (e.target as HTMLElement).closest<HTMLElement>(".tile");
    if (!now || e.ctrlKey || e.metaKey || e.altKey) return;
    const all = [...box.current!.querySelectorAll<HTMLElement>(".tile")];
    const i = all.indexOf(now);
    const to = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: all.length - 1 }[e.key];
    if (to !== undefined) {
      e.preventDefault();
      return focus(all[Math.max(0, Math.min(all.length - 1, to))]);
    }
    if (e.key !== "ArrowDown" && e.key !== "ArrowUp") return;
    e.preventDefault();
    focus(nearest(all, now, e.key === "ArrowDown" ? 1 : -1));
  };

  const show = (e: Event) => {
    const el = (e.target as HTMLElement).closest<HTMLElement>(".tile");
    const g = el && byUUID.get(el.dataset["gpu"]!);
    if (!el || !g) return setTip(null);
    const r = el.getBoundingClientRect();
    setTip({ g, x: r.left + r.width / 2, y: r.bottom });
  };

  const size = gpus.length > 2500 ? "tiny" : gpus.length > 320 ? "small" : "big";
  return (
    <div class={`fleet-tiles ${size}`} ref={box} onKeyDown={onKeyDown} onMouseOver={show} onFocusIn={show} onMouseLeave={() => setTip(null)} onFocusOut={() => setTip(null)}>
      {sections.map((s) => (
        <section key={s.key} class="section" aria-label={s.title}>
          {!plain && (
            <h3 class="section-name">
              {s.title} <span class="muted">{f.plural(s.blocks.reduce((n, b) => n + b.gpus.length, 0), "GPU")}</span>
            </h3>
          )}
          <div class="blocks">
            {s.blocks.map((b) => (
              <TileBlock key={b.key} block={b} colour={colour} teams={teams} dim={dim} signature={signature(b, colour, teams, dimKey)} />
            ))}
          </div>
        </section>
      ))}
      {tip && <Tip {...tip} currency={currency} />}
    </div>
  );
}

function signature(b: Block, colour: Colour, teams: string[], dimKey: string): string {
  return `${location.hash}${colour}${dimKey}` + b.gpus.map((g) => g.uuid + paint(g, colour, teams).join() + ownersOf(g) + takersOf(g)).join();
}

/** nearest returns the closest tile in the next row. */
function nearest(all: HTMLElement[], now: HTMLElement, way: 1 | -1): HTMLElement | undefined {
  const from = now.getBoundingClientRect();
  const x = from.left + from.width / 2;
  let best: HTMLElement | undefined;
  let score = Infinity;
  const start = all.indexOf(now);
  for (let i = start + way, seen = 0; i >= 0 && i < all.length && seen < 2000; i += way, seen++) {
    const r = all[i]!.getBoundingClientRect();
    const dy = (r.top - from.top) * way;
    if (dy < 4) continue;
    const s = dy * 4 + Math.abs(r.left + r.width / 2 - x);
    if (s < score) {
      score = s;
      best = all[i];
    }
    if (dy * 4 > score) break;
  }
  return best;
}

function Tip({ g, x, y, currency }: { g: GPU; x: number; y: number; currency?: string }) {
  const width = 260;
  const left = Math.max(8, Math.min(x - width / 2, document.documentElement.clientWidth - width - 8));
  const below = y + 190 < innerHeight;
  const owners = ownersOf(g);
  const o = g.owners[0];
  return (
    <div class="tip" role="presentation" style={{ left: `${left}px`, width: `${width}px`, ...(below ? { top: `${y + 8}px` } : { bottom: `${innerHeight - y + 40}px` }) }}>
      <div class="tip-title">
        {g.node} · {nameOf(g)} {g.simulated && <span class="tag">simulated</span>}
      </div>
      <div class="muted">{g.model}</div>
      <dl>
        <dt>State</dt>
        <dd>{stateOf(g)}</dd>
        {!isSilent(g) && (
          <>
            <dt>Held by</dt>
            <dd>{owners ? `${owners}${o?.team ? ` (${o.team})` : ""}` : "unallocated"}</dd>
          </>
        )}
        {isTaken(g) && (
          <>
            <dt>Used by</dt>
            <dd>{takersOf(g)}, without an allocation</dd>
          </>
        )}
        {!isSilent(g) && (
          <>
            <dt>Busy</dt>
            <dd>{f.percent(g.utilization)}</dd>
            <dt>Memory</dt>
            <dd>{f.bytes(g.memory)} of {f.bytes(g.memoryTotal)}</dd>
            <dt>Power</dt>
            <dd>{f.watts(g.power)}, {f.celsius(g.temperature)}</dd>
          </>
        )}
        {isIdle(g) && lost(g) !== null && (
          <>
            <dt>Lost</dt>
            <dd>{f.money(lost(g), currency)} per day</dd>
          </>
        )}
      </dl>
    </div>
  );
}
