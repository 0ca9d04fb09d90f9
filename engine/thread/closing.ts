/** The end of a thread, or of one engine in it: asked for once, and told to everybody who asks. */

/** What is closed. */
interface Home {
  readonly calls: {
    /** Null while it answers. */
    readonly ended: Error | null;
    /** → entries of the log that no checkpoint covers in a place outside of it; null: none is anchored */
    call(name: 'close', params: undefined): Promise<number | null>;
  };
  terminate(): Promise<void>;
}

export class Closing {
  /** Of the log that was closed; null before, and where none is anchored. */
  unanchoredEntries: number | null = null;
  readonly #home: Home;
  #closing: Promise<void> | null = null;

  constructor(home: Home) {
    this.#home = home;
  }

  /** Throws what could not be written, behind the end of the thread: that must not keep the process alive. */
  async close(): Promise<void> {
    if (this.#home.calls.ended !== null && this.#closing === null) return;
    this.#closing ??= this.#end();
    await this.#closing;
  }

  async #end(): Promise<void> {
    try {
      this.unanchoredEntries = await this.#home.calls.call('close', undefined);
    } finally {
      await this.#home.terminate();
    }
  }
}
