/**
 * Several caches in one call, as a step of several conversations has them: one call to append to a layer and one to
 * attend over it, however many there are. Each cache holds and answers what it would alone, to the bit.
 */
import { fail, floats, integer, record, shapeError, show } from './arguments.ts';
import { NativeCache } from './cache.ts';
import { KvError } from './error.ts';
import { type BatchHandle, check, errorOf, loadBinary } from './load.ts';
import { checkedQueries } from './queries.ts';
import type { AttendOptions, CacheShape, KvCache } from './types.ts';

/** A cache and how many tokens of the step are its own. */
export interface BatchMember {
  readonly cache: KvCache;
  readonly tokens: number;
}

interface Known {
  readonly cache: NativeCache;
  readonly tokens: number;
}

const TOKENS_MOST = 2 ** 30;

/** The same error, which also says which member it is of. */
const ofMember = ({ code, message, values, hint, cause }: KvError, member: number): KvError =>
  new KvError(code, message, { values: { ...values, member }, hint, cause });

/** Runs `work` of a member. What it throws says which one it was. */
function saying<Made>(member: number, work: () => Made): Made {
  try {
    return work();
  } catch (error) {
    throw error instanceof KvError ? ofMember(error, member) : error;
  }
}

/**
 * Caches that go on together. `begin` says who takes part in a step and with how many tokens; in k, v, q and out, and
 * whatever else has a row for each token, members stand one behind the other in that order.
 */
export class Batch {
  readonly #handle: BatchHandle = new (loadBinary().Batch)();
  readonly #refused = new Float64Array(1);
  #members: readonly Known[] = [];
  #tokens = 0;

  /**
   * Says who takes part from now on, in place of those before. Throws 'bad-argument' for a cache that is there twice or
   * of another pool than the first, 'bad-shape' for one of another shape, 'unsupported' for one that was opened with
   * another instruction set, and 'closed'. `values.member` says which; nobody takes part then.
   */
  begin(members: readonly BatchMember[]): void {
    this.#members = [];
    check(this.#handle.clear(), 'begin a batch');
    if (!Array.isArray(members) || members.length === 0)
      fail('members must be a list of caches', { members: show(members) });
    const known = members.map((member, index) => saying(index, () => this.#known(member)));
    this.#tokens = known.reduce((sum, { tokens }) => sum + tokens, 0);
    integer(this.#tokens, 'tokens', 1, TOKENS_MOST);
    const met = new Set<NativeCache>();
    for (const [index, { cache, tokens }] of known.entries()) {
      saying(index, () => {
        if (met.has(cache)) fail('a cache takes part once', {});
        met.add(cache);
        checkSame(cache, known[0]!.cache);
        check(
          this.#handle.add(cache.handles().cache, tokens),
          'put caches that were opened with different instruction sets in one batch',
        );
      });
    }
    this.#members = known;
  }

  #known(member: BatchMember): Known {
    record(member, 'member');
    const cache = NativeCache.of(member.cache);
    cache.handles();
    return { cache, tokens: integer(member.tokens, 'tokens', 1, TOKENS_MOST) };
  }

  /** The members, in order. */
  get members(): readonly BatchMember[] {
    return this.#members;
  }

  /** The tokens of all members. */
  get tokens(): number {
    return this.#members.length === 0 ? 0 : this.#tokens;
  }

  /**
   * Appends keys and values of all members to a layer, [T, n, d] with T as `tokens`. All append, or none: throws what
   * the cache that is refused would throw, and `values.member` says which.
   */
  append(layer: number, k: Float32Array, v: Float32Array): void {
    const { kvHeads, headDim, layers } = this.#shape();
    integer(layer, 'layer', 0, layers - 1);
    const row = kvHeads * headDim;
    if (floats(k, 'k').length !== this.#tokens * row || floats(v, 'v').length !== k.length) {
      shapeError(`k and v must both hold ${this.#tokens} rows of ${row} numbers`, { k: k.length, v: v.length, row });
    }
    this.#refused[0] = -1;
    const status = this.#handle.append(layer, k, v, this.#refused);
    if (status === 0) return;
    throw this.#refusal(status, 'append', (cache, from, to) =>
      cache.appendRefusal(status, layer, k.subarray(from * row, to * row), v.subarray(from * row, to * row)),
    );
  }

  /**
   * Causal attention of the tokens of each member, the last of its cache, over what that cache holds: q and out are
   * [T, H, d]. Throws what the cache that is refused would throw, and `values.member` says which; nothing is counted or
   * kept then, of any.
   */
  attend(layer: number, q: Float32Array, out: Float32Array, options: AttendOptions = {}): void {
    const shape = this.#shape();
    integer(layer, 'layer', 0, shape.layers - 1);
    const { tokens, xNorms, lse, observe, beside } = checkedQueries(shape, q, out, options);
    if (tokens !== this.#tokens)
      shapeError(`q must hold the ${this.#tokens} tokens of the members`, { tokens, wanted: this.#tokens });
    this.#refused[0] = -1;
    const status = this.#handle.attend(layer, q, out, xNorms, lse, observe, this.#refused, beside?.lse, beside?.out);
    if (status === 0) return;
    const row = shape.queryHeads * shape.headDim;
    throw this.#refusal(status, `attend over layer ${layer}`, (cache, from, to) =>
      cache.attendRefusal(status, layer, q.subarray(from * row, to * row), beside),
    );
  }

  #shape(): CacheShape {
    return this.#members[0]?.cache.shape ?? fail('no cache takes part: begin() says which', {});
  }

  /** What `refused` says of the member that the binary has refused, whose tokens are [from, to) of the call. */
  #refusal(status: number, doing: string, refused: (cache: NativeCache, from: number, to: number) => KvError): KvError {
    const at = this.#refused[0]!;
    const member = this.#members[at];
    if (member === undefined) return errorOf(status, doing, {});
    const from = this.#members.slice(0, at).reduce((sum, { tokens }) => sum + tokens, 0);
    return saying(at, () => {
      member.cache.handles();
      return ofMember(refused(member.cache, from, from + member.tokens), at);
    });
  }
}

function checkSame(cache: NativeCache, first: NativeCache): void {
  if (cache.handles().pool !== first.handles().pool) fail('the caches must have one pool', {});
  for (const name of ['layers', 'queryHeads', 'kvHeads', 'headDim'] as const) {
    if (cache.shape[name] === first.shape[name]) continue;
    shapeError('the caches must have one shape', { [name]: cache.shape[name], first: first.shape[name] });
  }
}
