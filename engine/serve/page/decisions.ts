/** Decisions as they are made, each with its reason: of all sessions, or of the one that is shown. */
import { byId, el } from '../../../witness/report/page/dom.ts';
import { brief, entryId, grouped } from '../../../witness/report/page/words.ts';
import { askJson, follow } from './ask.ts';
import { shortId } from './words.ts';

const SHOWN = 40;

interface DecisionRow {
  readonly seq: number;
  readonly session: string;
  readonly tokens: number;
  readonly layer: number;
  readonly page: number;
  readonly side: 'k' | 'v' | 'kv';
  readonly from: string;
  readonly to: string;
  readonly accepted: boolean;
  readonly rule: string;
  readonly threshold: string;
  readonly measured: number;
  readonly bound: number;
  readonly unit: string;
  readonly verdictRule: string;
  readonly verdictThreshold: string;
  readonly verdictMeasured: number;
  readonly verdictBound: number;
}

const SIDES = { k: 'keys', v: 'values', kv: 'keys and values' } as const;

export class DecisionFeed {
  #ending = new AbortController();
  #rows: DecisionRow[] = [];
  #isDue = false;
  #isOfAll = true;
  #explains = true;
  readonly #elements = new Map<number, HTMLLIElement>();

  /** Follows the decisions of a session; null: of all; undefined: none. explains: whoever asks may be told of each. */
  follow(session: string | null | undefined, explains: boolean): void {
    [this.#isOfAll, this.#explains] = [session === null, explains];
    this.#ending.abort();
    this.#rows = [];
    this.#elements.clear();
    this.#due();
    byId('decisions').hidden = session === undefined;
    if (session === undefined) return;
    byId('h-decisions').textContent = session === null ? 'Decisions' : `Decisions of session ${shortId(session)}`;
    const ending = new AbortController();
    this.#ending = ending;
    const of = session === null ? '' : `session=${encodeURIComponent(session)}`;
    const take = (rows: readonly DecisionRow[]): void => {
      if (ending.signal.aborted) return;
      const bySeq = new Map([...this.#rows, ...rows].map((row) => [row.seq, row]));
      // What somebody reads the explanation of stays, however many are newer.
      this.#rows = [...bySeq.values()]
        .sort((a, b) => b.seq - a.seq)
        .filter(({ seq }, at) => at < SHOWN || this.#elements.get(seq)?.querySelector('.explained') != null);
      const left = new Set(this.#rows.map(({ seq }) => seq));
      for (const seq of this.#elements.keys()) if (!left.has(seq)) this.#elements.delete(seq);
      this.#due();
    };
    void follow(`/v1/decisions/stream?${of}`, ending.signal, ({ event, data }) => {
      if (event === 'decision') take([JSON.parse(data) as DecisionRow]);
    });
    askJson<{ rows: DecisionRow[] }>(`/v1/decisions?limit=${SHOWN}&${of}`, { signal: ending.signal }).then(
      ({ rows }) => take(rows),
      () => {},
    );
  }

  /** Draws at the next frame, however many come until then. */
  #due(): void {
    if (this.#isDue) return;
    this.#isDue = true;
    requestAnimationFrame(() => {
      this.#isDue = false;
      byId('no-decisions').hidden = this.#rows.length > 0;
      byId('decision-list').replaceChildren(...this.#rows.map((row) => this.#element(row)));
    });
  }

  #element(row: DecisionRow): HTMLLIElement {
    const known = this.#elements.get(row.seq);
    if (known !== undefined) return known;
    const { accepted } = row;
    const id = this.#explains ? el('button', { type: 'button', class: 'id' }, entryId(row.seq)) : entryId(row.seq);
    const element = el(
      'li',
      { class: accepted ? 'made' : 'refused' },
      el('span', { class: 'seq' }, id),
      el('span', { class: 'where' }, `layer ${row.layer}, page ${row.page}, ${SIDES[row.side]}`),
      el('span', { class: 'move' }, `${row.from} → ${row.to}`),
      el('span', { class: 'verdict' }, accepted ? 'made' : 'refused'),
      el('span', { class: 'why' }, reasonOf(row)),
      el('span', { class: 'at' }, `${this.#isOfAll ? `${shortId(row.session)}, ` : ''}${grouped(row.tokens)} tokens`),
    );
    if (id instanceof HTMLElement) explainAt(id, element, row.seq, () => this.#keep(row, element));
    this.#elements.set(row.seq, element);
    return element;
  }

  /** One that was pressed may have gone since it was drawn. */
  #keep(row: DecisionRow, element: HTMLLIElement): void {
    if (this.#rows.some(({ seq }) => seq === row.seq)) return;
    this.#elements.set(row.seq, element);
    this.#rows = [...this.#rows, row].sort((a, b) => b.seq - a.seq);
    this.#due();
  }
}

/** A press opens the whole explanation below a decision, and shuts it again. */
function explainAt(button: HTMLElement, host: HTMLElement, seq: number, onOpen: () => void): void {
  button.setAttribute('aria-expanded', 'false');
  button.setAttribute('aria-label', `Explain decision ${entryId(seq)}`);
  button.addEventListener('click', () => {
    const open = host.querySelector('.explained');
    button.setAttribute('aria-expanded', String(open === null));
    if (open !== null) return open.remove();
    const told = el('div', { class: 'explained' }, 'Reading the log…');
    host.append(told);
    onOpen();
    void explain(told, seq);
  });
}

async function explain(host: HTMLElement, seq: number): Promise<void> {
  try {
    const { sentences } = await askJson<{ sentences: { title: string; text: string }[] }>(
      `/v1/decisions/${entryId(seq)}/explain`,
    );
    host.replaceChildren(...sentences.map(({ title, text }) => el('p', {}, el('b', {}, `${title}: `), text)));
  } catch (error) {
    host.replaceChildren((error as Error).message);
  }
}

/** The rule and the numbers that it compared: of the verdict where a move was refused. */
function reasonOf(row: DecisionRow): string {
  const [rule, threshold, measured, bound] = row.accepted
    ? [row.rule, row.threshold, row.measured, row.bound]
    : [row.verdictRule, row.verdictThreshold, row.verdictMeasured, row.verdictBound];
  return `${rule}: ${brief(measured, 3)} against ${brief(bound, 3)} of ${threshold}`;
}
