/** Where an answer is in its grammar: which tokens may come next, and whether it may end. */

/** Tokens that may come next: bit `id % 32` of word `id / 32`. */
export type TokenMask = Int32Array;

export const allows = (mask: TokenMask, id: number): boolean => ((mask[id >>> 5]! >>> (id & 31)) & 1) === 1;

/** A mask, or any token of a vocabulary, but for one. */
export function without(mask: TokenMask | null, id: number, vocabSize: number): TokenMask {
  const left = mask?.slice() ?? new Int32Array(Math.ceil(vocabSize / 32)).fill(-1);
  left[id >>> 5]! &= ~(1 << (id & 31));
  return left;
}

/** Where a text is in a grammar. */
export interface Standing {
  /** The mask of the next token. */
  readonly mask: TokenMask;
  /** True if the text may end here. */
  readonly isComplete: boolean;
  /** True if it can only end here. */
  readonly isOver: boolean;
}

/** What an answer follows: nothing, until it begins what has to be followed, or a grammar from its first token on. */
export interface Following {
  /** The mask of the next token; null: any may come. */
  readonly mask: TokenMask | null;
  /** True if the text may end here; null: nothing has to be followed yet. */
  readonly isComplete: boolean | null;
  /** True if it can only end here. */
  readonly isOver: boolean;
  /** True if this token may not come next although the mask allows it. */
  refuses(id: number): Promise<boolean>;
  /** The token was written. */
  accept(id: number): Promise<void>;
  /** Whether a text that is complete is right in what no mask says. */
  fulfils(text: string): Promise<boolean>;
  close(): void;
}

/** What asks the thread that compiled the grammar. After the end of that thread each throws what ended it. */
export interface Matched {
  accept(id: number): Promise<Standing>;
  begin(beginning: string): Promise<Standing>;
  admits(beginning: string): Promise<boolean>;
  fulfils(text: string): Promise<boolean>;
  close(): void;
}

/** A text that follows a grammar, which lies in another thread. */
export class Constraint implements Following {
  readonly #matched: Matched;
  /** What that thread has not been told; null: it knows all. */
  readonly #fulfils: ((text: string) => boolean) | null;
  #standing: Standing;

  /** Owns what it asks. */
  constructor(matched: Matched, standing: Standing, fulfils: ((text: string) => boolean) | null) {
    this.#matched = matched;
    this.#standing = standing;
    this.#fulfils = fulfils;
  }

  get mask(): TokenMask {
    return this.#standing.mask;
  }

  get isComplete(): boolean {
    return this.#standing.isComplete;
  }

  get isOver(): boolean {
    return this.#standing.isOver;
  }

  /** The token was written. Throws 'bad-argument' where no token of the model goes on from it. */
  async accept(id: number): Promise<void> {
    this.#standing = await this.#matched.accept(id);
  }

  /** Throws 'unsupported' where a pattern takes too long. */
  async fulfils(text: string): Promise<boolean> {
    return this.#fulfils === null ? this.#matched.fulfils(text) : this.#fulfils(text);
  }

  /** The mask says everything. */
  async refuses(): Promise<boolean> {
    return false;
  }

  /** True if its text can begin so; before anything was written. */
  admits(beginning: string): Promise<boolean> {
    return this.#matched.admits(beginning);
  }

  /** Its text begins so, in whichever tokens that was written; before any other. Throws as accept. */
  async begin(beginning: string): Promise<void> {
    this.#standing = await this.#matched.begin(beginning);
  }

  close(): void {
    this.#matched.close();
  }
}
