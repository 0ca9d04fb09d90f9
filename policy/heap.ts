/** A binary heap of slots that knows where each slot stands, so that any of them can be taken out again. */
import { SLOTS } from './sides.ts';

export class SlotHeap {
  size = 0;
  #slots = new Int32Array(SLOTS);
  #places = new Int32Array(SLOTS).fill(-1);
  readonly #before: (a: number, b: number) => boolean;

  /** `before` must be a strict total order that does not change for slots inside. */
  constructor(before: (a: number, b: number) => boolean) {
    this.#before = before;
  }

  /** The first slot, −1 when empty. */
  get first(): number {
    return this.size === 0 ? -1 : this.#slots[0]!;
  }

  has(slot: number): boolean {
    return slot < this.#places.length && this.#places[slot]! >= 0;
  }

  add(slot: number): void {
    if (this.has(slot)) return;
    if (this.size === this.#slots.length) this.#slots = doubled(this.#slots, this.size * 2, 0);
    while (slot >= this.#places.length) this.#places = doubled(this.#places, this.#places.length * 2, -1);
    this.#put(this.size++, slot);
    this.#rise(this.size - 1);
  }

  remove(slot: number): void {
    if (!this.has(slot)) return;
    const place = this.#places[slot]!;
    this.#places[slot] = -1;
    const last = this.#slots[--this.size]!;
    if (last === slot) return;
    this.#put(place, last);
    this.#rise(place);
    this.#sink(this.#places[last]!);
  }

  #put(place: number, slot: number): void {
    this.#slots[place] = slot;
    this.#places[slot] = place;
  }

  #rise(start: number): void {
    const slot = this.#slots[start]!;
    let place = start;
    while (place > 0) {
      const parent = (place - 1) >> 1;
      if (!this.#before(slot, this.#slots[parent]!)) break;
      this.#put(place, this.#slots[parent]!);
      place = parent;
    }
    this.#put(place, slot);
  }

  #sink(start: number): void {
    const slot = this.#slots[start]!;
    let place = start;
    for (;;) {
      let child = 2 * place + 1;
      if (child >= this.size) break;
      if (child + 1 < this.size && this.#before(this.#slots[child + 1]!, this.#slots[child]!)) child++;
      if (!this.#before(this.#slots[child]!, slot)) break;
      this.#put(place, this.#slots[child]!);
      place = child;
    }
    this.#put(place, slot);
  }
}

function doubled(source: Int32Array, size: number, fill: number): Int32Array<ArrayBuffer> {
  const target = new Int32Array(size).fill(fill);
  target.set(source);
  return target;
}
