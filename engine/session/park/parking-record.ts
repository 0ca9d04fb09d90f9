/** One time that sessions are parked for another: who could be, who was chosen, and what each freed. */
import {
  type ParkingPolicy,
  type PausesSeen,
  parkedInTurn,
  type ReclaimRung,
  type Waiter,
} from '../../../policy/index.ts';
import type { PoolParking } from '../../../witness/index.ts';

/** Rows of sessions in one entry: some 150 bytes each, which leaves room to spare. */
const ROWS_MAX = 4096;

export interface ParkingAsked {
  readonly policy: ParkingPolicy;
  readonly rung: ReclaimRung['id'];
  /** Whoever asks. */
  readonly session: string;
  readonly lackingBytes: number;
  readonly seen: PausesSeen;
  readonly waiters: readonly Waiter[];
}

export class ParkingRecord {
  readonly #asked: ParkingAsked;
  readonly #chosen: { readonly id: string; readonly freedBytes: number }[] = [];

  constructor(asked: ParkingAsked) {
    this.#asked = asked;
  }

  /** Who is parked, one after the other, until so much is free; `park` says what one has freed. */
  choose(park: (id: string) => number): void {
    const { policy, waiters, seen, lackingBytes } = this.#asked;
    let freedBytes = 0;
    for (const { id } of parkedInTurn(policy, waiters, seen)) {
      const ownBytes = park(id);
      this.#chosen.push({ id, freedBytes: ownBytes });
      freedBytes += ownBytes;
      if (freedBytes >= lackingBytes) return;
    }
  }

  /** What the log has of it. */
  get body(): PoolParking {
    const { policy, rung, session, lackingBytes, seen, waiters } = this.#asked;
    const asked = { policy: policy.id, version: policy.version, session, rung, lackingBytes, seen };
    const isTooMany = waiters.length > ROWS_MAX;
    return {
      ...asked,
      waiters: isTooMany ? [] : waiters.map(written),
      chosen: isTooMany ? [] : this.#chosen,
      ...(isTooMany ? { leftOut: this.#chosen.length } : {}),
    };
  }
}

/** Without what most have not. */
const written = ({ pauses, meanLog, isInLine, ...waiter }: Waiter): PoolParking['waiters'][number] => ({
  ...waiter,
  ...(pauses === 0 ? {} : { pauses, meanLog }),
  ...(isInLine ? { isInLine } : {}),
});
