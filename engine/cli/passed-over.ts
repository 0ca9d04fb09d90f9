/**
 * What a command could not read: sessions that were erased or whose keys are not here, and entries that make no sense.
 * It goes on without them, and says so.
 */
import { plural, printable } from '../../native/index.ts';
import { type SenselessEntry, senselessText, type Unopened, type Unreadable } from '../../witness/index.ts';

/** `reasons`: why each session cannot be read. */
export function countPassedOver(reasons: ReadonlyMap<string, Unopened>): Unreadable {
  const count = (why: Unopened): number => [...reasons.values()].filter((one) => one === why).length;
  const damaged = [...reasons].filter(([, why]) => why === 'damaged').map(([session]) => session);
  return { erased: count('erased'), missing: count('missing'), damaged };
}

/** One line on stderr, where something was passed over; what is printed stays as it is for programs that read it. */
export function tellPassedOver({ erased, missing, damaged }: Unreadable): void {
  const parts = [
    ...(erased === 0 ? [] : [`${plural(erased, 'session')} that ${erased === 1 ? 'was' : 'were'} erased`]),
    ...(missing === 0 ? [] : [`${plural(missing, 'session')} whose ${missing === 1 ? 'key is' : 'keys are'} not here`]),
  ];
  if (parts.length > 0) process.stderr.write(`Passed over: ${parts.join(', ')}.\n`);
  for (const session of damaged.slice(0, NAMED_MAX))
    process.stderr.write(`Passed over: session ${printable(session)}, whose key file is damaged.\n`);
  if (damaged.length > NAMED_MAX)
    process.stderr.write(
      `Passed over: ${plural(damaged.length - NAMED_MAX, 'more session')} whose key files are damaged.\n`,
    );
}

/** Sessions and entries that are named. */
const NAMED_MAX = 5;

/** A line on stderr for each entry that was passed over because it makes no sense. */
export function tellSenseless(entries: readonly SenselessEntry[]): void {
  for (const entry of entries.slice(0, NAMED_MAX)) process.stderr.write(`Passed over: ${senselessText(entry)}.\n`);
  if (entries.length > NAMED_MAX)
    process.stderr.write(`Passed over: ${entries.length - NAMED_MAX} more such; palimpsest audit verify names them.\n`);
}
