/**
 * From logits to the next token. The same logits, tokens, options and seed give the same token on every machine: all is
 * computed in float64 in a fixed order, equals go to the lowest id, and the random number of a position follows from
 * the seed and the position alone. So a sampler keeps nothing that a parked session would have to keep: an answer that
 * is interrupted goes on as if it had not been.
 */
import { KvError } from '../../../native/index.ts';
import { allows, type TokenMask } from '../grammar/constraint.ts';
import type { Tokenizer } from '../types.ts';
import { Breakers } from './breakers.ts';
import { admitAll, type Candidates, candidates, draw, forbid, minP, topK, topP, typicalP } from './candidates.ts';
import { checkSampling, type SamplingOptions } from './options.ts';
import { penalize, penalizeRepetition, windowOf } from './penalties.ts';
import { RandomNumbers } from './random.ts';

/**
 * The most likely token, the lowest id among equals. Throws KvError 'bad-value' for NaN, +inf or if no token is
 * possible.
 */
export function greedy(logits: Float32Array | Float64Array): number {
  let best = -1;
  let largest = -Infinity;
  for (let id = 0; id < logits.length; id++) {
    const logit = logits[id]!;
    if (logit > largest) {
      largest = logit;
      best = id;
    }
    // NaN fails every comparison, so it needs a test of its own.
    if (Number.isNaN(logit)) throw badLogits(id, logit);
  }
  if (best < 0 || largest === Infinity) throw badLogits(best, largest);
  return best;
}

function badLogits(id: number, logit: number): KvError {
  return new KvError('bad-value', 'the logits of a step are not numbers to choose from', {
    values: { id, logit },
    hint: 'the weights or the cache hold NaN or infinity; load the model again and verify its checksum',
  });
}

/** What a sampler knows of the model. */
export interface Vocabulary {
  /** V, the length of the logits. */
  readonly size: number;
  readonly tokenizer: Pick<Tokenizer, 'decode' | 'stream'>;
}

/** Room of a vocabulary, for all samplers of it: each uses it within one call, and leaves nothing in it. */
const rooms = new WeakMap<Vocabulary['tokenizer'], Candidates>();

function roomOf({ tokenizer, size }: Vocabulary): Candidates {
  const known = rooms.get(tokenizer);
  if (known?.scores.length === size) return known;
  const made = candidates(size);
  rooms.set(tokenizer, made);
  return made;
}

/** Chooses the tokens of one text, one after the other. */
export class Sampler {
  readonly #options: Required<SamplingOptions>;
  readonly #vocabulary: Vocabulary;
  readonly #biases: readonly (readonly [id: number, bias: number])[];
  /** Which of the samplers have an effect. */
  readonly #does: { readonly penalties: boolean; readonly dry: boolean; readonly choose: boolean };
  #marks = new Uint32Array(0);
  #lengths = new Int32Array(0);
  #breakers: Breakers | null = null;

  /** Throws KvError 'bad-argument' for options out of range. */
  constructor(options: SamplingOptions, vocabulary: Vocabulary) {
    const all = checkSampling(options, vocabulary.size);
    this.#options = all;
    this.#vocabulary = vocabulary;
    this.#biases = Object.entries(all.logitBias).map(([id, bias]) => [Number(id), bias]);
    this.#does = {
      penalties: all.repeatPenalty !== 1 || all.frequencyPenalty !== 0 || all.presencePenalty !== 0,
      dry: all.dryMultiplier > 0,
      // The most likely token outlives all but typicalP.
      choose: all.temperature > 0 || all.typicalP < 1,
    };
  }

  /**
   * logits [V] behind `history`, all tokens so far, which begins as it did at the call before; mask: the tokens that a
   * grammar allows, before all else. → token id. Throws 'bad-value' for logits that are NaN, +inf or all −inf, and
   * 'bad-argument' where logitBias leaves no token.
   */
  next(logits: Float32Array, history: readonly number[], mask: TokenMask | null = null): number {
    const likeliest = greedy(logits);
    const { penalties, dry, choose } = this.#does;
    const changed = penalties || dry || this.#biases.length > 0;
    if (!changed && !choose && (mask === null || allows(mask, likeliest))) return likeliest;
    const all = roomOf(this.#vocabulary);
    all.scores.set(logits);
    if (mask !== null) forbid(all, mask);
    if (changed) this.#change(all.scores, history);
    admitAll(all);
    if (all.count === 0)
      throw new KvError(
        'bad-argument',
        `${this.#biases.length > 0 ? 'logitBias' : 'the grammar'} leaves no token that is possible`,
        {
          values: { biases: this.#biases.length },
          hint: 'leave out some of the tokens that it bans',
        },
      );
    const { topK: k, typicalP: typical, topP: nucleus, minP: least, temperature, seed } = this.#options;
    if (choose) {
      topK(all, k);
      typicalP(all, typical);
      topP(all, nucleus);
      minP(all, least);
    }
    return draw(all, temperature, new RandomNumbers(seed, history.length).uniform());
  }

  /** Biases and penalties. */
  #change(scores: Float64Array, history: readonly number[]): void {
    for (const [id, bias] of this.#biases) scores[id]! += bias;
    if (this.#marks.length === 0) this.#marks = new Uint32Array(scores.length);
    if (this.#does.penalties) penalize(scores, history, this.#options, this.#marks);
    if (!this.#does.dry) return;
    const { drySequenceBreakers, dryPenaltyLastN } = this.#options;
    const window = windowOf(history, dryPenaltyLastN);
    if (this.#lengths.length < window) this.#lengths = new Int32Array(2 * window);
    this.#breakers ??= new Breakers(drySequenceBreakers, this.#vocabulary.tokenizer);
    penalizeRepetition(scores, history, this.#options, this.#breakers, this.#marks, this.#lengths);
  }
}
