/** A request with one answer, in the words of whichever API it was asked by. */
import type { EventStream } from './event-stream.ts';
import { type Failure, failureOf } from './failure.ts';
import type { Service } from './service.ts';
import type { Answer, BegunTurn } from './turn.ts';

export abstract class OneAnswer {
  readonly isStreamed: boolean;
  protected readonly service: Service;
  protected readonly begun: BegunTurn;

  /** isStreamed: what the request says of `stream`. */
  protected constructor(service: Service, begun: BegunTurn, isStreamed: boolean | null | undefined) {
    this.service = service;
    this.begun = begun;
    this.isStreamed = isStreamed === true;
  }

  /** Its session in the log. */
  get session(): string {
    return this.begun.session;
  }

  /** All of it at once. Throws what the answer failed with. */
  async whole(): Promise<object> {
    return this.asWhole(await this.begun.whole());
  }

  /** Told as it comes. What goes wrong on the way is the last that is told, and nothing follows it. */
  async tell(events: EventStream): Promise<void> {
    try {
      await this.tellAll(events);
    } catch (thrown) {
      await this.tellFailure(events, failureOf(thrown).error);
    }
  }

  /** What a client is told that waited for the end. */
  protected abstract asWhole(answer: Answer): object | Promise<object>;

  /** Tells all of it, piece by piece. Throws what the answer failed with. */
  protected abstract tellAll(events: EventStream): Promise<void>;

  protected abstract tellFailure(events: EventStream, error: Failure['error']): Promise<void>;
}
