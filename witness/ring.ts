/**
 * Keys of sessions as the bytes in which the binary reads them (native/log/sealed.h), so that it encrypts and opens
 * many entries in one call.
 */
import type { KeyObject } from 'node:crypto';
import { saltKeyOf } from './commitment.ts';

/** Names that stand in an envelope as they are; the binary looks at no others. */
const PLAIN = /^[ !#-[\]-~]{1,200}$/;
/**
 * A ring is searched from one end to the other, and has as many sessions as a few megabytes of log hardly ever have.
 */
const SESSIONS_MAX = 64;

export class KeyRing {
  readonly #keys = new Map<string, Buffer>();
  #bytes: Buffer | null = null;

  /** `key` null: nobody has it. */
  set(session: string, key: KeyObject | null): void {
    if (this.#keys.has(session) || !PLAIN.test(session)) return;
    const [first] = this.#keys;
    if (this.#keys.size >= SESSIONS_MAX && first !== undefined) {
      first[1].fill(0);
      this.#keys.delete(first[0]);
    }
    const name = Buffer.from(session, 'latin1');
    const secret = key?.export() ?? Buffer.alloc(0);
    const salts = key === null ? secret : saltKeyOf(secret);
    this.#keys.set(session, Buffer.concat([Buffer.of(key === null ? 0 : 1, name.length), name, secret, salts]));
    secret.fill(0);
    salts.fill(0);
    this.#forgetBytes();
  }

  /** Valid until the next call of anything here. */
  get bytes(): Uint8Array {
    this.#bytes ??= Buffer.concat([...this.#keys.values()]);
    return this.#bytes;
  }

  /** Overwrites all keys: the ring is empty. */
  wipe(): void {
    for (const one of this.#keys.values()) one.fill(0);
    this.#keys.clear();
    this.#forgetBytes();
  }

  #forgetBytes(): void {
    this.#bytes?.fill(0);
    this.#bytes = null;
  }
}
