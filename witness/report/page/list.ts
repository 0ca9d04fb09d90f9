/** The decisions: filters, and a list of which only the rows in view exist as elements, however long it is. */
import type { Column, ReportData, Table } from './data.ts';
import { SIDE_LETTERS } from './data.ts';
import { el } from './dom.ts';
import { brief, bytesText, decided, entryId, explained, grouped, type Sources } from './words.ts';

/** Rows above and below those in view, so that scrolling shows no gaps. */
const SPARE_ROWS = 8;
/** What print shows: more would be a book. */
export const PRINTED_ROWS = 100;

/** What the filters ask for; '' asks for nothing. */
export interface Asked {
  readonly layer: string;
  readonly page: string;
  readonly side: string;
  readonly form: string;
  readonly reason: string;
  readonly outcome: string;
}

/** Rows of the decisions that a filter lets through, in order. */
export function matching(data: ReportData, decisions: Table, asked: Asked): Uint32Array {
  const of = (name: string): Column => decisions.of(name);
  const tests: ((row: number) => boolean)[] = [];
  const equal = (name: string, wanted: string): void => {
    if (wanted === '') return;
    const [column, value] = [of(name), Number(wanted)];
    tests.push((row) => column[row] === value);
  };
  equal('layer', asked.layer);
  equal('page', asked.page);
  equal('side', asked.side);
  equal('accepted', asked.outcome);
  if (asked.form !== '') {
    const [from, to, form] = [of('from'), of('to'), Number(asked.form)];
    tests.push((row) => to[row] === form || from[row] === form);
  }
  if (asked.reason !== '') {
    // A rule or a threshold, of the plan or of the verdict, as in `audit list --reason`.
    const meant = data.reasons.map(([rule, threshold]) => rule === asked.reason || threshold === asked.reason);
    const [because, verdict] = [of('because'), of('verdict')];
    tests.push((row) => meant[because[row]!] === true || meant[verdict[row]!] === true);
  }
  const found = new Uint32Array(decisions.length);
  let count = 0;
  for (let row = 0; row < decisions.length; row++) if (tests.every((test) => test(row))) found[count++] = row;
  return found.subarray(0, count);
}

const HEADS = ['entry', 'tokens', 'place', 'move', 'verdict', 'reason', 'ε', 'freed'];

/** The cells of a row as text, in the order of HEADS. */
export function cellsOf(sources: Sources, row: number): string[] {
  const { data, decisions } = sources;
  const one = decided(sources, row);
  const ruleOf = (column: string): string => data.reasons[decisions.of(column)[row]!]?.[0] ?? '?';
  const [planned, judged] = [ruleOf('because'), ruleOf('verdict')];
  return [
    entryId(one.seq),
    grouped(one.tokens),
    `L${one.layer} p${one.page}${SIDE_LETTERS[one.side]}`,
    `${one.from} → ${one.to}`,
    one.accepted ? 'made' : 'refused',
    planned === judged ? planned : `${planned}, ${judged}`,
    brief(decisions.of('epsilonTo')[row]!, 2),
    bytesText(decisions.of('freed')[row]!),
  ];
}

export class DecisionList {
  readonly #sources: Sources;
  readonly #view: HTMLElement;
  readonly #rowsHost: HTMLElement;
  readonly #space: HTMLElement;
  readonly #count: HTMLElement;
  readonly #detail: HTMLElement;
  readonly #onChoose: (row: number) => void;
  #rows = new Uint32Array(0);
  #rowHeight = 28;
  /** Place in `#rows` of the row that the keyboard is on. */
  #active = 0;
  #shown = { first: -1, last: -1 };

  constructor(
    sources: Sources,
    hosts: { readonly view: HTMLElement; readonly count: HTMLElement; readonly detail: HTMLElement },
    onChoose: (row: number) => void,
  ) {
    this.#sources = sources;
    this.#view = hosts.view;
    this.#count = hosts.count;
    this.#detail = hosts.detail;
    this.#onChoose = onChoose;
    this.#rowsHost = el('div', { class: 'rows', role: 'rowgroup' });
    this.#space = el('div', { class: 'space', role: 'presentation' }, this.#rowsHost);
    const head = el(
      'div',
      { class: 'row head', role: 'row' },
      ...HEADS.map((name, i) => el('span', { role: 'columnheader', class: `c${i}` }, name)),
    );
    this.#view.append(head, this.#space);
    this.#view.addEventListener('scroll', () => this.#draw(), { passive: true });
    this.#view.addEventListener('keydown', (event) => this.#key(event));
    this.#rowsHost.addEventListener('click', (event) => {
      const row = (event.target as Element).closest('[data-at]');
      if (row instanceof HTMLElement) this.#choose(Number(row.dataset['at']), false);
    });
    new ResizeObserver(() => this.#measure()).observe(this.#view);
  }

  /** Shows the rows that a filter lets through, from the first on. */
  filter(asked: Asked): void {
    const { data, decisions } = this.#sources;
    this.#rows = matching(data, decisions, asked) as Uint32Array<ArrayBuffer>;
    this.#active = 0;
    const all = decisions.length;
    const unlisted =
      data.decisionCount > all ? `; the later ones of ${grouped(data.decisionCount)} are not listed` : '';
    this.#count.textContent =
      this.#rows.length === all
        ? `${grouped(all)} ${all === 1 ? 'decision' : 'decisions'}${unlisted}`
        : `${grouped(this.#rows.length)} of ${grouped(all)} decisions${unlisted}`;
    this.#view.setAttribute('aria-rowcount', String(this.#rows.length + 1));
    this.#view.scrollTop = 0;
    this.#measure();
  }

  #measure(): void {
    const height = Number.parseFloat(getComputedStyle(this.#view).getPropertyValue('--row'));
    if (height > 0) this.#rowHeight = height;
    this.#space.style.height = `${this.#rows.length * this.#rowHeight}px`;
    this.#shown = { first: -1, last: -1 };
    this.#draw();
  }

  #draw(): void {
    const { scrollTop, clientHeight } = this.#view;
    const first = Math.max(0, Math.floor(scrollTop / this.#rowHeight) - SPARE_ROWS);
    const last = Math.min(this.#rows.length, Math.ceil((scrollTop + clientHeight) / this.#rowHeight) + SPARE_ROWS);
    if (first === this.#shown.first && last === this.#shown.last) return;
    this.#shown = { first, last };
    this.#rowsHost.style.transform = `translateY(${first * this.#rowHeight}px)`;
    this.#rowsHost.replaceChildren(...Array.from({ length: last - first }, (_, i) => this.#row(first + i)));
    this.#mark();
  }

  #row(at: number): HTMLElement {
    const cells = cellsOf(this.#sources, this.#rows[at]!);
    const isRefused = cells[4] === 'refused';
    return el(
      'div',
      { class: `row${isRefused ? ' no' : ''}`, role: 'row', id: `row-${at}`, 'aria-rowindex': at + 2, 'data-at': at },
      ...cells.map((text, i) => el('span', { role: 'gridcell', class: `c${i}` }, text)),
    );
  }

  #mark(): void {
    for (const row of this.#rowsHost.children)
      row.setAttribute('aria-selected', String(Number((row as HTMLElement).dataset['at']) === this.#active));
    if (this.#rows.length > 0) this.#view.setAttribute('aria-activedescendant', `row-${this.#active}`);
    else this.#view.removeAttribute('aria-activedescendant');
  }

  #key(event: KeyboardEvent): void {
    const page = Math.max(1, Math.floor(this.#view.clientHeight / this.#rowHeight) - 2);
    const steps: Readonly<Record<string, number>> = {
      ArrowDown: 1,
      ArrowUp: -1,
      PageDown: page,
      PageUp: -page,
      Home: Number.NEGATIVE_INFINITY,
      End: Number.POSITIVE_INFINITY,
    };
    const step = steps[event.key];
    if (step !== undefined) {
      event.preventDefault();
      this.#active = Math.max(0, Math.min(this.#rows.length - 1, this.#active + step));
      this.#reveal();
    } else if (event.key === 'Enter' || event.key === ' ') {
      event.preventDefault();
      this.#choose(this.#active, true);
    }
  }

  #reveal(): void {
    const top = this.#active * this.#rowHeight;
    // The head of the list covers one row.
    const room = this.#view.clientHeight - this.#rowHeight;
    if (top < this.#view.scrollTop) this.#view.scrollTop = top;
    else if (top + this.#rowHeight > this.#view.scrollTop + room) this.#view.scrollTop = top + this.#rowHeight - room;
    this.#draw();
    this.#mark();
  }

  #choose(at: number, isByKey: boolean): void {
    const row = this.#rows[at];
    if (row === undefined) return;
    this.#active = at;
    this.#mark();
    const one = decided(this.#sources, row);
    const title = el('h3', { tabindex: -1 }, `Decision ${entryId(one.seq)}`);
    const back = el('button', { type: 'button' }, 'Back to the list');
    back.addEventListener('click', () => this.#view.focus());
    const words = explained(this.#sources, row).flatMap(([name, text]) => [el('dt', {}, name), el('dd', {}, text)]);
    this.#detail.parentElement?.classList.add('open');
    this.#detail.replaceChildren(title, el('dl', {}, ...words), back);
    this.#onChoose(row);
    if (isByKey) title.focus();
    this.#detail.scrollIntoView({ block: 'nearest' });
  }
}

/** The first decisions as a plain table, which only print shows. */
export function printedTable(sources: Sources): HTMLElement {
  const { length } = sources.decisions;
  const rows = Array.from({ length: Math.min(length, PRINTED_ROWS) }, (_, row) =>
    el('tr', {}, ...cellsOf(sources, row).map((text) => el('td', {}, text))),
  );
  const caption = length > rows.length ? `The first ${rows.length} of ${grouped(length)} decisions` : 'All decisions';
  const head = el('tr', {}, ...HEADS.map((name) => el('th', { scope: 'col' }, name)));
  return el(
    'table',
    { class: 'print-only' },
    el('caption', {}, caption),
    el('thead', {}, head),
    el('tbody', {}, ...rows),
  );
}
