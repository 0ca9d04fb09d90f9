/** Dates as Python's `strftime` writes them, in English and in the time of this machine. */
import { TemplateFault } from './fault.ts';

const DAYS = ['Sunday', 'Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday'];
const MONTHS = [
  'January',
  'February',
  'March',
  'April',
  'May',
  'June',
  'July',
  'August',
  'September',
  'October',
  'November',
  'December',
];

const two = (number: number): string => String(number).padStart(2, '0');

function dayOfYear(date: Date): number {
  const midnight = Date.UTC(date.getFullYear(), date.getMonth(), date.getDate());
  return Math.round((midnight - Date.UTC(date.getFullYear(), 0, 0)) / 86_400_000);
}

const WRITERS: Readonly<Record<string, (date: Date) => string>> = {
  a: (date) => DAYS[date.getDay()]!.slice(0, 3),
  A: (date) => DAYS[date.getDay()]!,
  b: (date) => MONTHS[date.getMonth()]!.slice(0, 3),
  B: (date) => MONTHS[date.getMonth()]!,
  d: (date) => two(date.getDate()),
  D: (date) => strftime(date, '%m/%d/%y'),
  e: (date) => String(date.getDate()).padStart(2),
  f: (date) => `${String(date.getMilliseconds()).padStart(3, '0')}000`,
  F: (date) => strftime(date, '%Y-%m-%d'),
  h: (date) => strftime(date, '%b'),
  H: (date) => two(date.getHours()),
  I: (date) => two(((date.getHours() + 11) % 12) + 1),
  j: (date) => String(dayOfYear(date)).padStart(3, '0'),
  m: (date) => two(date.getMonth() + 1),
  M: (date) => two(date.getMinutes()),
  n: () => '\n',
  p: (date) => (date.getHours() < 12 ? 'AM' : 'PM'),
  R: (date) => strftime(date, '%H:%M'),
  S: (date) => two(date.getSeconds()),
  t: () => '\t',
  T: (date) => strftime(date, '%H:%M:%S'),
  u: (date) => String(date.getDay() || 7),
  w: (date) => String(date.getDay()),
  y: (date) => two(date.getFullYear() % 100),
  Y: (date) => String(date.getFullYear()),
  z: () => '',
  Z: () => '',
  '%': () => '%',
};

/** `%-d` and the like leave out the zeros in front. */
export function strftime(date: Date, format: string): string {
  return format.replace(/%(-?)([a-zA-Z%])/g, (whole, sign: string, letter: string) => {
    const writer = Object.hasOwn(WRITERS, letter) ? WRITERS[letter] : undefined;
    if (writer === undefined) throw new TemplateFault(`strftime_now does not know ${whole}`);
    const text = writer(date);
    return sign === '-' ? text.replace(/^[0 ]+(?=.)/, '') : text;
  });
}
