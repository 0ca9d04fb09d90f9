/** Making elements. Text always becomes a text node, so nothing that a log says can become markup. */

type Attributes = Readonly<Record<string, string | number | boolean | null>>;
type Child = Node | string;

const SVG = 'http://www.w3.org/2000/svg';

function fill<E extends Element>(element: E, attributes: Attributes, children: readonly Child[]): E {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === false) continue;
    element.setAttribute(name, value === true ? '' : String(value));
  }
  element.append(...children);
  return element;
}

export const el = <K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] => fill(document.createElement(tag), attributes, children);

export const svg = (tag: string, attributes: Attributes = {}, ...children: Child[]): SVGElement =>
  fill(document.createElementNS(SVG, tag) as SVGElement, attributes, children);

/** The element with this id, which the page has. */
export function byId<E extends HTMLElement>(id: string): E {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`the page has no #${id}`);
  return found as E;
}

/** Rows below their titles, folded away: what a chart shows, for those who read tables or cannot see the chart. */
export function asTable(caption: string, titles: readonly string[], rows: readonly (readonly string[])[]): HTMLElement {
  const head = el('tr', {}, ...titles.map((title) => el('th', { scope: 'col' }, title)));
  const body = rows.map((cells) =>
    el('tr', {}, ...cells.map((cell, i) => (i === 0 ? el('th', { scope: 'row' }, cell) : el('td', {}, cell)))),
  );
  const table = el('table', {}, el('caption', {}, caption), el('thead', {}, head), el('tbody', {}, ...body));
  return el(
    'details',
    { class: 'as-table' },
    el('summary', {}, 'As a table'),
    el('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': caption }, table),
  );
}

/** Draws into `host` now and whenever its width changes. */
export function drawn(host: HTMLElement, draw: (width: number) => Node): void {
  let last = 0;
  const redraw = (): void => {
    const width = Math.floor(host.clientWidth);
    if (width === last || width === 0) return;
    last = width;
    host.replaceChildren(draw(width));
  };
  redraw();
  new ResizeObserver(redraw).observe(host);
}
