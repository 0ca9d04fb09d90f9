/** Reads the binary of a WebAssembly module from its first byte to its last, and refuses what does not fit. */
import { KvError } from '../../native/index.ts';

/** The error for bytes that are no module that is served. at: the byte. */
export function badModule(what: string, at: number, values: Readonly<Record<string, unknown>> = {}): KvError {
  return new KvError('bad-pack', `the module is refused at byte ${at}: ${what}`, {
    values: { fault: 'module', at, ...values },
  });
}

const LONGEST = { 32: 5, 33: 5, 64: 10 } as const;

export class Cursor {
  at: number;
  readonly bytes: Uint8Array;
  readonly end: number;

  constructor(bytes: Uint8Array, at = 0, end = bytes.length) {
    this.bytes = bytes;
    this.at = at;
    this.end = end;
  }

  get left(): number {
    return this.end - this.at;
  }

  refuse(what: string): never {
    throw badModule(what, this.at);
  }

  u8(): number {
    if (this.at >= this.end) this.refuse('it ends too early');
    return this.bytes[this.at++]!;
  }

  /** A whole number below 2^32. It may be padded, as linkers do, but not beyond 5 bytes. */
  u32(): number {
    let value = 0;
    for (let shift = 0; shift < 35; shift += 7) {
      const byte = this.u8();
      if (shift === 28 && byte > 0x0f) this.refuse('a number has more than 32 bits');
      value += (byte & 0x7f) * 2 ** shift;
      if (byte < 0x80) return value;
    }
    return this.refuse('a number has more than 5 bytes');
  }

  /** A signed number of so many bits, whose value is wanted only as far as an i32 goes. */
  signed(bits: 32 | 33 | 64): number {
    let value = 0n;
    for (let place = 0; place < LONGEST[bits]; place++) {
      const byte = this.u8();
      value |= BigInt(byte & 0x7f) << BigInt(7 * place);
      if (byte >= 0x80) continue;
      const length = BigInt(7 * (place + 1));
      const full = BigInt.asIntN(Number(length), value);
      if (BigInt.asIntN(bits, full) !== full) this.refuse(`a number has more than ${bits} bits`);
      return Number(full);
    }
    return this.refuse('a number is too long');
  }

  /** How many things follow, each of at least one byte. */
  count(what: string, most: number): number {
    const count = this.u32();
    if (count > most || count > this.left) this.refuse(`${count} ${what}, where ${Math.min(most, this.left)} may be`);
    return count;
  }

  /** Goes on behind so many bytes. → where they begin */
  skip(bytes: number): number {
    if (bytes > this.left) this.refuse(`${bytes} bytes are said to follow, and ${this.left} do`);
    const start = this.at;
    this.at += bytes;
    return start;
  }

  /** A cursor over so many bytes, behind which this one goes on. */
  within(bytes: number): Cursor {
    const start = this.skip(bytes);
    return new Cursor(this.bytes, start, start + bytes);
  }

  /** Throws unless everything was read. */
  done(what: string): void {
    if (this.at !== this.end) this.refuse(`${what} ends here, and ${this.left} bytes follow`);
  }
}
