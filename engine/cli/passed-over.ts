/**
 * What a command could not read: sessions that were erased or whose keys are not here, and entries that make no sense.
 * It goes on without them, and says so.
 */
import { plural } from '../../native/index.ts';
import { type SenselessEntry, senselessText, type Unopened } from '../../witness/index.ts';

/** How many sessions, by why they cannot be read. */
export type PassedOver = Readonly<Record<Unopened, number>>;

export function countPassedOver(reasons: Iterable<Unopened>): PassedOver {
  const passed = { erased: 0, missing: 0 };
  for (const why of reasons) passed[why]++;
  return passed;
}

/** One line on stderr, where something was passed over; what is printed stays as it is for programs that read it. */
export function tellPassedOver({ erased, missing }: PassedOver): void {
  const parts = [
    ...(erased === 0 ? [] : [`${plural(erased, 'session')} that ${erased === 1 ? 'was' : 'were'} erased`]),
    ...(missing === 0 ? [] : [`${plural(missing, 'session')} whose ${missing === 1 ? 'key is' : 'keys are'} not here`]),
  ];
  if (parts.length > 0) process.stderr.write(`Passed over: ${parts.join(', ')}.\n`);
}

/** Entries that are named. */
const NAMED_MAX = 5;

/** A line on stderr for each entry that was passed over because it makes no sense. */
export function tellSenseless(entries: readonly SenselessEntry[]): void {
  for (const entry of entries.slice(0, NAMED_MAX)) process.stderr.write(`Passed over: ${senselessText(entry)}.\n`);
  if (entries.length > NAMED_MAX)
    process.stderr.write(`Passed over: ${entries.length - NAMED_MAX} more such; palimpsest audit verify names them.\n`);
}
