// Who is taken first of those that wait: the one that was served least for its weight, those of a higher priority
// before the others, and nobody never.
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { Client } from '../../../../engine/scheduler/fairness.ts';
import { Line, PASSED_MAX } from '../../../../engine/scheduler/line.ts';

/** Most tokens of a turn. */
const QUANTUM = 128;

const client = (weight = 1, priority = 0): Client => ({ weight, priority });

/** Takes turns of a line, one at a time, for those that always ask for the next one. */
class Turns {
  readonly line = new Line<{ readonly client: Client }>();
  readonly served = new Map<Client, number>();

  ask(one: Client): void {
    this.line.add({ client: one });
  }

  /** Serves the first in line. → who it was */
  serve(tokens: number): Client {
    const first = this.line.inOrder()[0]!;
    this.line.take([first]);
    this.line.served(first.client, tokens);
    this.served.set(first.client, (this.served.get(first.client) ?? 0) + tokens / first.client.weight);
    return first.client;
  }
}

describe('those of one priority', () => {
  it('that always want more differ by at most two turns for a weight, whoever else comes and goes', () => {
    const weights = fc.array(fc.double({ min: 0.25, max: 8, noNaN: true }), { minLength: 2, maxLength: 8 });
    // Which of the others asks before a turn, and how many tokens the turn has.
    const turns = fc.array(fc.tuple(fc.nat(7), fc.integer({ min: 1, max: QUANTUM })), { minLength: 1, maxLength: 400 });
    fc.assert(
      fc.property(weights, turns, fc.nat(40), (given, steps, lateAt) => {
        const all = given.map((weight) => client(weight));
        const [always, late, ...others] = all as [Client, Client, ...Client[]];
        const run = new Turns();
        const waiting = new Set<Client>();
        const ask = (one: Client): void => {
          if (!waiting.has(one)) run.ask(one);
          waiting.add(one);
        };
        let before: number | null = null;
        const between = (): number => (run.served.get(always) ?? 0) - (run.served.get(late) ?? 0);
        for (const [at, [who, tokens]] of steps.entries()) {
          ask(always);
          if (at >= lateAt) ask(late);
          if (at === lateAt) before = between();
          const other = others[who];
          if (other !== undefined) ask(other);
          waiting.delete(run.serve(tokens));
          const bound = 2 * QUANTUM * Math.max(1 / always.weight, 1 / late.weight);
          if (before !== null && Math.abs(between() - before) > bound + 1e-6) return false;
        }
        return true;
      }),
      { numRuns: 2000 },
    );
  });

  it('have nothing made up for that they did not want', () => {
    const [old, young] = [client(), client()];
    const run = new Turns();
    run.ask(young);
    expect(run.serve(1)).toBe(young);
    for (let i = 0; i < 50; i++) {
      run.ask(old);
      run.serve(QUANTUM);
    }
    // It comes back with what the other has, so the two take turns.
    const order: Client[] = [];
    run.ask(old);
    run.ask(young);
    for (let i = 0; i < 8; i++) {
      const one = run.serve(QUANTUM);
      order.push(one);
      run.ask(one);
    }
    expect(order.filter((one) => one === young).length).toBe(4);
  });

  it('are served by their weights', () => {
    const [one, three] = [client(1), client(3)];
    const run = new Turns();
    run.ask(one);
    run.ask(three);
    let turns = 0;
    for (let i = 0; i < 400; i++) {
      const served = run.serve(16);
      run.ask(served);
      if (served === three) turns++;
    }
    expect(turns).toBe(300);
  });
});

describe('a higher priority', () => {
  it('is a lower number, and goes first, but has no more than eight turns of nine beside a lower one', () => {
    const [urgent, later] = [client(1, -1), client(1, 5)];
    const run = new Turns();
    run.ask(later);
    const order: Client[] = [];
    for (let i = 0; i < 2 * (PASSED_MAX + 1); i++) {
      run.ask(urgent);
      order.push(run.serve(QUANTUM));
      if (order.at(-1) === later) run.ask(later);
      else expect(order.at(-1)).toBe(urgent);
      run.line.drop(run.line.find((one) => one.client === urgent) ?? { client: urgent });
    }
    expect(order.flatMap((one, at) => (one === later ? at : []))).toEqual([PASSED_MAX, 2 * PASSED_MAX + 1]);
  });

  it('that was there before has passed nobody', () => {
    const [urgent, later] = [client(1, -1), client(1, 5)];
    const run = new Turns();
    for (let i = 0; i < 2 * PASSED_MAX; i++) run.ask(urgent);
    run.ask(later);
    const order = Array.from({ length: 2 * PASSED_MAX + 1 }, () => run.serve(1));
    expect(order.indexOf(later)).toBe(2 * PASSED_MAX);
  });
});
