/** The series of a pool in the log: what was decided for all of its sessions together, each time in one entry. */
import { type NoteBody, newPoolId, type WitnessLog } from '../../witness/index.ts';
import type { Meter } from '../metrics/meter.ts';

export class PoolSeries {
  readonly #id = newPoolId();
  readonly #log: WitnessLog | undefined;
  readonly #meter: Meter;

  /** log: left out, nothing is written. */
  constructor(log: WitnessLog | undefined, meter: Meter) {
    this.#log = log;
    this.#meter = meter;
  }

  /** → seq of the entry; null: there is none */
  write(body: Pick<NoteBody, 'pool' | 'parking' | 'adapterGone'>): number | null {
    if (this.#log === undefined) return null;
    const seq = this.#log.append(this.#id, 'note', body);
    if (seq === null) this.#meter.dropped.add({});
    return seq;
  }
}
