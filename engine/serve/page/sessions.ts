/** The list of sessions: open ones, and behind them those that ended last. One is chosen with a click or Enter. */
import { byId, el } from '../../../witness/report/page/dom.ts';
import { bytesText, grouped } from '../../../witness/report/page/words.ts';
import { askJson } from './ask.ts';
import type { SessionNow, Snapshot } from './snapshot.ts';
import { priceText, rateText, shortId } from './words.ts';

const ENDED_MAX = 12;

interface LoggedSession {
  readonly session: string;
  readonly model: string;
  readonly tokens: number;
  readonly end: string;
}

export class SessionList {
  readonly #body = byId('session-table').querySelector('tbody')!;
  readonly #rows = new Map<string, HTMLTableRowElement>();
  readonly #onChosen: (session: string) => void;
  #open: readonly SessionNow[] = [];
  #ended: readonly SessionNow[] | null = null;
  #known: string | null = null;
  #isAsking = false;
  #chosen: string | null = null;

  constructor(onChosen: (session: string) => void) {
    this.#onChosen = onChosen;
  }

  /** All that are listed. */
  get all(): readonly SessionNow[] {
    const open = new Set(this.#open.map(({ session }) => session));
    return [...this.#open, ...(this.#ended ?? []).filter(({ session }) => !open.has(session))];
  }

  /** True if there was no session, as far as whoever asks is told. */
  get isEmpty(): boolean {
    return this.all.length === 0 && !this.#isAsking;
  }

  show({ sessions, hasLog, seesAll }: Snapshot): void {
    this.#open = sessions;
    const known = sessions
      .map(({ session }) => session)
      .sort()
      .join();
    if (hasLog && seesAll && known !== this.#known) void this.#askEnded();
    this.#known = known;
    this.#draw();
  }

  /** Marks the one that is shown; null: none. */
  mark(session: string | null): void {
    this.#chosen = session;
    this.#draw();
  }

  async #askEnded(): Promise<void> {
    this.#isAsking = true;
    try {
      const { rows } = await askJson<{ rows: LoggedSession[] }>(`/v1/sessions?limit=${ENDED_MAX + this.#open.length}`);
      this.#ended = rows.map((row) => ({ ...ENDED, session: row.session, model: row.model, tokens: row.tokens }));
      this.#draw();
    } catch {
      // The next snapshot that differs asks again.
      this.#known = null;
    } finally {
      this.#isAsking = false;
    }
  }

  #draw(): void {
    const all = this.all;
    byId('no-sessions').hidden = all.length > 0;
    byId('session-table').hidden = all.length === 0;
    const rows = all.map((one) => this.#row(one));
    const kept = new Set(rows);
    for (const [session, row] of this.#rows) if (!kept.has(row)) this.#rows.delete(session);
    // Whoever stands on a row stays there.
    const isSame = rows.length === this.#body.rows.length && rows.every((row, at) => this.#body.rows[at] === row);
    if (isSame) return;
    const focused = document.activeElement;
    this.#body.replaceChildren(...rows);
    if (focused instanceof HTMLElement && this.#body.contains(focused)) focused.focus();
  }

  #row(one: SessionNow): HTMLTableRowElement {
    let row = this.#rows.get(one.session);
    if (row === undefined) {
      row = el('tr');
      row.addEventListener('click', () => this.#onChosen(one.session));
      const button = el('button', { type: 'button', class: 'id', title: one.session }, shortId(one.session));
      row.append(el('th', { scope: 'row' }, button), el('td', {}));
      for (const name of ['n', 'n wide', 'n', 'n', 'n wide']) row.append(el('td', { class: name }));
      this.#rows.set(one.session, row);
    }
    row.className = `${one.state}${one.session === this.#chosen ? ' chosen' : ''}`;
    row.querySelector('button')!.setAttribute('aria-pressed', String(one.session === this.#chosen));
    const texts = [
      one.state,
      grouped(one.tokens),
      one.state === 'working' ? rateText(one.tokensPerSecond) : '–',
      one.bytes === 0 ? '–' : bytesText(one.bytes),
      one.bits === null ? '–' : one.bits.toFixed(2),
      one.price === null ? '–' : priceText(one.price),
    ];
    for (const [at, text] of texts.entries()) {
      const cell = row.cells[at + 1]!;
      if (cell.textContent !== text) cell.textContent = text;
    }
    return row;
  }
}

const ENDED = {
  state: 'ended',
  tokensPerSecond: 0,
  bytes: 0,
  budgetBytes: null,
  bits: null,
  gaveUpBytes: 0,
  price: null,
} as const;
