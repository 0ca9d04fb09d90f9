/** The tier map of one session: what every page of its cache is in, as the report draws it, and now. */
import { type ReportData, SIDE_NAMES, Table } from '../../../witness/report/page/data.ts';
import { byId, el } from '../../../witness/report/page/dom.ts';
import { History } from '../../../witness/report/page/history.ts';
import { palette, TierMap } from '../../../witness/report/page/map.ts';
import { bytesText, grouped } from '../../../witness/report/page/words.ts';
import { askJson } from './ask.ts';
import type { SessionNow } from './snapshot.ts';
import { colourOf, TIERS } from './tiers.ts';
import { shortId } from './words.ts';

type MapData = ReportData & { readonly formTiers: readonly string[] };

/** A session that goes on is looked at again so often, or more rarely where its log is long. */
const AGAIN_MS = 2000;
const SHARE = 5;

const STEPS: Readonly<Record<string, readonly [layer: number, page: number]>> = {
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
};

export class SessionMap {
  #session: string | null = null;
  #tokens = -1;
  #askedMs = 0;
  #tookMs = 0;
  #isAsking = false;
  #data: MapData | null = null;
  #maps: readonly TierMap[] = [];
  #history: History | null = null;
  readonly #cursor = { side: -1, layer: 0, page: 0 };

  constructor() {
    for (const id of ['map-k', 'map-v']) new ResizeObserver(() => this.#paint()).observe(byId(id));
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.#paint());
  }

  get session(): string | null {
    return this.#session;
  }

  /** Shows a session; null: none. */
  open(session: string | null): void {
    this.#session = session;
    Object.assign(this.#cursor, { side: -1, layer: 0, page: 0 });
    this.#tokens = -1;
    this.#askedMs = 0;
    byId('session').hidden = session === null;
    byId('h-session').textContent = session === null ? 'Session' : `Session ${shortId(session)}`;
    byId('session-facts').textContent = 'Reading its log…';
    for (const id of ['map-k', 'map-v', 'map-legend']) byId(id).replaceChildren();
    this.#maps = [];
  }

  /** What a snapshot says of it: it is looked at again when it has changed. */
  async show(now: SessionNow | undefined): Promise<void> {
    const session = this.#session;
    const tokens = now?.tokens ?? 0;
    if (session === null || this.#isAsking || tokens === this.#tokens || this.#isEarly()) return;
    [this.#isAsking, this.#tokens, this.#askedMs] = [true, tokens, Date.now()];
    try {
      const data = await askJson<MapData>(`/v1/sessions/${encodeURIComponent(session)}/map`);
      if (this.#session === session) this.#draw(data);
    } catch (error) {
      // A session that has just begun is in the log soon.
      this.#tokens = -1;
      if (this.#session === session) byId('session-facts').textContent = (error as Error).message;
    } finally {
      this.#isAsking = false;
      this.#tookMs = Date.now() - this.#askedMs;
    }
  }

  /** Reading the log of a session takes the server's time, which others want too. */
  #isEarly(): boolean {
    return Date.now() - this.#askedMs < Math.max(AGAIN_MS, SHARE * this.#tookMs);
  }

  #draw(data: MapData): void {
    const [situations, decisions, changes] = [data.situations, data.decisions, data.changes].map(
      (columns) => new Table(columns),
    );
    const history = new History(data, situations!, decisions!, changes!);
    [this.#data, this.#history] = [data, history];
    const isNew = this.#maps.length === 0;
    const focused = this.#maps.findIndex(({ canvas }) => canvas === document.activeElement);
    this.#maps = [0, 1].map((side) => new TierMap(data, history, side));
    for (const [side, map] of this.#maps.entries()) {
      this.#listen(map, side);
      byId(side === 0 ? 'map-k' : 'map-v').replaceChildren(map.canvas);
    }
    if (!isNew && focused >= 0) this.#maps[focused]!.canvas.focus({ preventScroll: true });
    const bytes = history.frames.at(-1)?.bytes ?? 0;
    const f16 = data.tokens * data.f16BytesPerToken;
    const share = f16 === 0 || bytes === 0 ? '' : `: ${bytesText(bytes)} instead of ${bytesText(f16)} in 16 bits`;
    byId('session-facts').textContent =
      `${data.model}, ${grouped(data.tokens)} tokens${share}. ${grouped(data.decisionCount)} decisions by policy ${data.policy}.`;
    this.#legend(data, history);
    this.#paint();
  }

  #legend(data: MapData, history: History): void {
    const used = new Set([data.windowForm, ...history.moves.map(({ to }) => to)]);
    const names = new Set(['window', ...[...used].map((form) => data.formTiers[form]!)]);
    byId('map-legend').replaceChildren(
      ...[...TIERS.map(({ name }) => name), 'freed']
        .filter((name) => names.has(name))
        .map((name) => {
          const forms = [...used].filter((form) => data.formTiers[form] === name).sort((a, b) => a - b);
          const listed = name === 'window' ? 'open page' : forms.map((form) => data.forms[form]).join(', ');
          return el('li', {}, el('span', { class: `swatch ${name}` }), name, el('span', { class: 'soft' }, listed));
        }),
    );
  }

  #paint(): void {
    const [data, history] = [this.#data, this.#history];
    if (data === null || history === null) return;
    const colours = { ...palette(), forms: data.formTiers.map((tier) => colourOf(tier)), open: colourOf('window') };
    for (const [side, map] of this.#maps.entries()) {
      const width = Math.floor(map.canvas.parentElement?.clientWidth ?? 0);
      if (width > 0 && history.frames.length > 0)
        map.draw(history.frames.length - 1, width, colours, this.#cursor.side === side ? this.#cursor : null);
    }
  }

  #tell(side: number, layer: number, page: number): void {
    byId('cell').textContent = this.#maps[side]!.tell(this.#history!.frames.length - 1, layer, page);
  }

  #listen(map: TierMap, side: number): void {
    const { canvas } = map;
    const { layers, pages } = this.#history!;
    canvas.tabIndex = 0;
    canvas.setAttribute('role', 'application');
    canvas.setAttribute(
      'aria-label',
      `Tiers of ${SIDE_NAMES[side]}: ${layers} layers by ${pages} pages. Arrow keys move.`,
    );
    const point = (event: MouseEvent): void => {
      const cell = map.at(event.offsetX, event.offsetY);
      if (cell !== null) this.#tell(side, cell.layer, cell.page);
    };
    canvas.addEventListener('pointermove', point);
    canvas.addEventListener('click', point);
    canvas.addEventListener('focus', () => {
      this.#cursor.side = side;
      this.#paint();
    });
    canvas.addEventListener('blur', () => {
      this.#cursor.side = -1;
      this.#paint();
    });
    canvas.addEventListener('keydown', (event) => {
      const step = STEPS[event.key];
      if (step === undefined) return;
      event.preventDefault();
      const cursor = this.#cursor;
      cursor.layer = Math.max(0, Math.min(layers - 1, cursor.layer + step[0]));
      cursor.page = Math.max(0, Math.min(pages - 1, cursor.page + step[1]));
      this.#paint();
      this.#tell(side, cursor.layer, cursor.page);
    });
  }
}
