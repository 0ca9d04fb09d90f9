/** The map of formats, and the moment of the run that it shows. */
import { SIDE_NAMES } from './data.ts';
import { asTable, byId, el } from './dom.ts';
import { inkOf, letterOf, mix, palette, TierMap } from './map.ts';
import { cursors, data, history, moment, repaints } from './session.ts';
import { brief, bytesText, grouped } from './words.ts';

/** How long the whole run plays, and how often a second it is drawn. */
const PLAY_MS = 12_000;

export function drawLegend(): void {
  const used = data.forms.map((_, form) => form === data.windowForm || form === data.openForm);
  for (const { to, from } of history.moves) [used[to], used[from]] = [true, true];
  const items = data.forms.flatMap((name, form) => {
    if (used[form] !== true) return [];
    const swatch = el(
      'span',
      { class: `swatch${form >= data.formats && form !== data.freedForm ? ' latent' : ''}`, 'aria-hidden': 'true' },
      letterOf(name),
    );
    const paint = (): void => {
      const colours = palette();
      const ink = inkOf(data.formBits[form]!);
      swatch.style.backgroundColor = mix(colours, ink);
      swatch.style.color = mix(colours, ink > 0.5 ? 0 : 1);
    };
    repaints.push(paint);
    const bits = form === data.freedForm ? 'nothing is left of them' : `${brief(data.formBits[form]!, 2)} bits`;
    return [el('li', {}, swatch, `${name}, ${bits}`)];
  });
  byId('legend').replaceChildren(...items);
}

/** Told which page somebody asks about. */
type OnPage = (side: number, layer: number, page: number) => void;

const ARROWS: Readonly<Record<string, readonly [number, number]>> = {
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
};

/** The two maps, of keys and of values, one cell of which the keyboard is on. */
class Maps {
  readonly maps = [0, 1].map((side) => new TierMap(data, history, side));
  readonly #hosts: readonly HTMLElement[];
  readonly #keyboard = { side: 0, layer: 0, page: 0 };
  #isOnMap = false;
  readonly #readout = byId('cell');
  readonly #live = byId('live');
  readonly #onPage: OnPage;

  constructor(onPage: OnPage) {
    this.#onPage = onPage;
    this.#hosts = this.maps.map((map, side) => {
      const host = byId(side === 0 ? 'map-k' : 'map-v');
      host.append(map.canvas);
      return host;
    });
    repaints.push(() => this.paint());
    for (const host of this.#hosts) new ResizeObserver(() => this.paint()).observe(host);
    for (const [side, map] of this.maps.entries()) {
      describe(map.canvas, side);
      this.#listenPointer(map, side);
      this.#listenKeys(map.canvas, side);
    }
  }

  paint(): void {
    const colours = palette();
    for (const [side, map] of this.maps.entries()) {
      const width = Math.floor(this.#hosts[side]!.clientWidth);
      const isHere = this.#isOnMap && this.#keyboard.side === side;
      if (width > 0) map.draw(moment.frame, width, colours, isHere ? this.#keyboard : null);
    }
  }

  #tellCell(side: number, layer: number, page: number): void {
    this.#readout.textContent = this.maps[side]!.tell(moment.frame, layer, page);
  }

  #listenPointer(map: TierMap, side: number): void {
    map.canvas.addEventListener('pointermove', (event) => {
      const cell = map.at(event.offsetX, event.offsetY);
      if (cell !== null) this.#tellCell(side, cell.layer, cell.page);
    });
    map.canvas.addEventListener('click', (event) => {
      const cell = map.at(event.offsetX, event.offsetY);
      if (cell !== null) this.#onPage(side, cell.layer, cell.page);
    });
  }

  #listenKeys(canvas: HTMLCanvasElement, side: number): void {
    const keyboard = this.#keyboard;
    canvas.addEventListener('focus', () => {
      [this.#isOnMap, keyboard.side] = [true, side];
      this.paint();
    });
    canvas.addEventListener('blur', () => {
      this.#isOnMap = false;
      this.paint();
    });
    canvas.addEventListener('keydown', (event) => {
      const move = ARROWS[event.key];
      if (event.key === 'Enter') this.#onPage(side, keyboard.layer, keyboard.page);
      if (move === undefined) return;
      event.preventDefault();
      keyboard.layer = Math.max(0, Math.min(history.layers - 1, keyboard.layer + move[0]));
      keyboard.page = Math.max(0, Math.min(history.pages - 1, keyboard.page + move[1]));
      this.paint();
      this.#tellCell(side, keyboard.layer, keyboard.page);
      this.#live.textContent = this.#readout.textContent;
    });
  }
}

/** What a reader hears of a map that he cannot see. */
function describe(canvas: HTMLCanvasElement, side: number): void {
  canvas.tabIndex = 0;
  canvas.setAttribute('role', 'application');
  canvas.setAttribute(
    'aria-label',
    `Formats of ${SIDE_NAMES[side]}: ${history.layers} layers by ${history.pages} pages. Arrow keys move, Enter lists the decisions of the page.`,
  );
}

/** Draws both maps. → shows a frame */
function drawMaps(onPage: OnPage): (next: number) => void {
  const maps = new Maps(onPage);
  const place = byId('moment');
  drawPrintedMaps();
  tableOfMap(maps.maps);
  return (next) => {
    moment.frame = next;
    const { tokens, bytes, moves } = history.frames[moment.frame]!;
    const before = history.frames[moment.frame - 1]?.moves ?? 0;
    place.textContent = `${grouped(tokens)} tokens, ${bytesText(bytes)}; ${grouped(moves - before)} ${moves - before === 1 ? 'move' : 'moves'} here, ${grouped(moves)} so far`;
    maps.paint();
    for (const cursor of cursors.values()) cursor(tokens);
  };
}

/** Print cannot be scrubbed, so it gets the run in four pictures. */
function drawPrintedMaps(): void {
  const host = byId('printed-maps');
  const { frames: all } = history;
  const shown = [0.25, 0.5, 0.75, 1].map((share) => all.findLastIndex(({ tokens }) => tokens <= share * data.tokens));
  const frames = [...new Set(shown)].filter((one) => one >= 0);
  const pictures = frames.flatMap((one) =>
    [0, 1].map((side) => {
      const map = new TierMap(data, history, side);
      repaints.push(() => map.draw(one, 340, palette(), null, 2));
      return el(
        'figure',
        {},
        map.canvas,
        el('figcaption', {}, `${SIDE_NAMES[side]} at ${grouped(history.frames[one]!.tokens)} tokens`),
      );
    }),
  );
  host.append(...pictures);
}

/** The map at the place of the scrubber in numbers, made when somebody unfolds it. */
function tableOfMap(maps: readonly TierMap[]): void {
  const host = byId('map-table');
  const body = el('div', {
    class: 'scroll',
    tabindex: 0,
    role: 'region',
    'aria-label': 'Pages in each format by layer',
  });
  host.append(body);
  const fill = (): void => {
    if (!(host as HTMLDetailsElement).open) return;
    const [k, v] = maps.map((map) => map.counts(moment.frame)) as [number[][], number[][]];
    const used = data.forms.flatMap((_, form) => ([...k, ...v].some((counts) => counts[form]! > 0) ? [form] : []));
    const titles = [
      'layer',
      ...used.map((form) => `keys ${data.forms[form]}`),
      ...used.map((form) => `values ${data.forms[form]}`),
    ];
    const rows = k.map((counts, layer) => [
      String(layer),
      ...used.map((form) => String(counts[form])),
      ...used.map((form) => String(v[layer]![form])),
    ]);
    const table = asTable(
      `Sealed pages in each format at ${grouped(history.frames[moment.frame]!.tokens)} tokens`,
      titles,
      rows,
    ).querySelector('table')!;
    body.replaceChildren(table);
  };
  host.addEventListener('toggle', fill);
  repaints.push(fill);
}

function scrub(show: (next: number) => void): void {
  const range = byId<HTMLInputElement>('scrubber');
  const play = byId('play');
  const live = byId('live');
  range.max = String(history.frames.length - 1);
  let timer = 0;
  const say = (): void => void (range.ariaValueText = byId('moment').textContent);
  const stop = (): void => {
    clearInterval(timer);
    timer = 0;
    play.textContent = 'Play';
    live.textContent = byId('moment').textContent;
  };
  range.addEventListener('input', () => {
    if (timer !== 0) stop();
    show(range.valueAsNumber);
    say();
  });
  play.addEventListener('click', () => {
    if (timer !== 0) return stop();
    const last = history.frames.length - 1;
    if (range.valueAsNumber === last) range.value = '0';
    // Who wants less motion gets a picture a second.
    const tick = matchMedia('(prefers-reduced-motion: reduce)').matches ? 1000 : 60;
    const step = Math.max(1, Math.round((last * tick) / PLAY_MS));
    play.textContent = 'Pause';
    timer = setInterval(() => {
      range.value = String(Math.min(last, range.valueAsNumber + step));
      show(range.valueAsNumber);
      say();
      if (range.valueAsNumber >= last) stop();
    }, tick) as unknown as number;
  });
  range.value = String(moment.frame);
  show(moment.frame);
  say();
}

/** Draws the maps and lets the run be walked through. */
export function drawTiers(onPage: (side: number, layer: number, page: number) => void): void {
  const show = drawMaps(onPage);
  if (history.frames.length > 0) scrub(show);
}

/** Goes to the moment of an entry. */
export function seek(seq: number): void {
  const move = history.moves.findIndex((one) => one.seq >= seq);
  if (move < 0) return;
  const at = history.frames.findIndex(({ moves }) => moves > move);
  const range = byId<HTMLInputElement>('scrubber');
  range.value = String(Math.max(0, at));
  range.dispatchEvent(new Event('input'));
}
