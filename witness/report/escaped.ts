/** Words of a log as text of a page. */
import { printable } from '../../native/index.ts';

/** Text that cannot become markup, in elements and in attributes. */
export const escaped = (text: string): string =>
  printable(text).replace(/[&<>"']/g, (char) => `&#${char.charCodeAt(0)};`);
