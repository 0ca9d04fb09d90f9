/**
 * Bytes of the memory that sessions share which need of others leaves them (`kvFloor`). All that are promised together
 * fit into the budget, so that each is there whenever its session wants it.
 */
import { KvError, type PagePool } from '../../native/index.ts';

/** What one session and its forks, which have a budget together, keep. */
export class Floor {
  readonly bytes: number;
  readonly #floors: Set<Floor>;
  #users = 1;

  constructor(bytes: number, floors: Set<Floor>) {
    this.bytes = bytes;
    this.#floors = floors;
    floors.add(this);
  }

  /** A fork has it as well. */
  share(): Floor {
    this.#users++;
    return this;
  }

  /** One that has it is closed. */
  leave(): void {
    if (--this.#users === 0) this.#floors.delete(this);
  }
}

export class Floors {
  readonly #pool: PagePool;
  readonly #budgetBytes: number;
  readonly #floors = new Set<Floor>();
  readonly #pinnedBytes: () => number;

  /** pinnedBytes: of the budget, what is set aside for others than sessions as long as they use it. */
  constructor(pool: PagePool, pinnedBytes: () => number = () => 0) {
    this.#pool = pool;
    this.#pinnedBytes = pinnedBytes;
    this.#budgetBytes = pool.budgetBytes;
  }

  /** Promises bytes until everybody has left who has them. Throws 'budget-exceeded' where all together do not fit. */
  commit(floorBytes: number): Floor {
    const committedBytes = this.committedBytes;
    const budgetBytes = this.#budgetBytes - this.#pinnedBytes();
    if (committedBytes + floorBytes > budgetBytes)
      throw new KvError(
        'budget-exceeded',
        `a kvFloor of ${floorBytes} bytes does not fit: others have ${committedBytes} of ${budgetBytes}`,
        {
          values: { kvFloor: floorBytes, committedBytes, budgetBytes, usedBytes: this.#pool.usedBytes },
          hint: 'ask for less, close a session that has one, or raise the kvBudget of the engine',
        },
      );
    return new Floor(floorBytes, this.#floors);
  }

  /** Bytes that are promised to all together. */
  get committedBytes(): number {
    let bytes = 0;
    for (const floor of this.#floors) bytes += floor.bytes;
    return bytes;
  }
}
