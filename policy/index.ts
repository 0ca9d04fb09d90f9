/** WHY move it? Situation → decisions, and nothing else: no clock, no chance, no files. The room's only entry. */
import { KvError } from '../native/index.ts';
import { age, ageOne } from './policies/age.ts';
import { h2o } from './policies/h2o.ts';
import { price } from './policies/price.ts';
import { priceFour, priceOne, priceThree, priceTwo } from './policies/price-earlier.ts';
import { scissorhands } from './policies/scissorhands.ts';
import { pyramidkv, snapkv } from './policies/snapkv.ts';
import { streaming } from './policies/streaming.ts';
import { fixedPolicy, nonePolicy, tablePolicy } from './policies/table.ts';
import { tiersPolicy } from './policies/tiers.ts';
import { uniform, uniformOne } from './policies/uniform.ts';
import type { Policy } from './types.ts';

export * from './activations.ts';
export { Arrows, QUALITY_SOURCES, type QualitySource, regionIn } from './arrows.ts';
export { openPolicy } from './asked.ts';
export { Asking, type AskingSeen, giverOf, poolPolicy, type TurnSeen } from './asking.ts';
export { type Course, checkCourse, fourDigits, type Noise, OCTAVES } from './course.ts';
export { believable, Evidence } from './evidence.ts';
export { codesLike, type Foreseen, type Foresight, foresee } from './foresight.ts';
export { FormArrows } from './form-arrows.ts';
export {
  FORM_ARROWS,
  FORM_EVENTS,
  FORM_KINDS,
  FORM_STATES,
  type FormArrow,
  type FormEvent,
  type FormEventType,
  type FormKind,
  type FormState,
  formMachine,
  kindOf,
  nextForm,
  refusalOf,
} from './form-machine.ts';
export { GROWTH_PAGES, type Growth, type GrowthPoint, type GrowthSeen, growthOf } from './growth.ts';
export { gainOf, goesFirst, type KeptThing } from './keeping.ts';
export { FORMS, isLatent, RUNGS, STEPS, TIERS, type Tier, tierOf } from './ladder.ts';
export { LATENT_GIVES_WAY, LatentGuard } from './latent-guard.ts';
export * from './law.ts';
export { type Change, Layers } from './layers.ts';
export {
  isKnownMachine,
  type LayerAction,
  type LayerEvent,
  type LayerMachine,
  layerMachine,
  machineDigest,
  SIGNAL_STEPS,
  SIGNALS,
  type Signal,
  stoppingMachine,
} from './machine.ts';
export { OutlierKeys } from './outlier-keys.ts';
export { isPackId, isToPack, PACK_RULE } from './packs.ts';
export {
  LONGEST,
  PARKING_POLICIES,
  type ParkingPolicy,
  parkedInTurn,
  parkingPolicy,
  RETURNING,
  type Waiter,
} from './parking.ts';
export { Pauses, type PausesEnded, type PausesOf, type PausesSeen } from './pauses.ts';
export {
  checkOwnSizes,
  type TierOptions,
  type TierSize,
  type TiersAsked,
  type TiersOptions,
  tiersAsked,
} from './policies/tier-options.ts';
export { movableBytes, unitsOf } from './policies/uniform.ts';
export {
  CHEAPEST,
  EQUAL,
  EVEN,
  LARGEST,
  LEAST_RECENT,
  POOL_POLICIES,
  type PoolMember,
  type PoolPolicy,
  PROPORTIONAL,
} from './pool.ts';
export { predictedBy } from './predicted.ts';
export {
  type AdapterProposal,
  likelyUse,
  PROPOSAL_TOKENS,
  type Precedent,
  precedentWeight,
  proposeAdapters,
  proposeAgain,
  type ScaledDigest,
} from './proposal.ts';
export {
  RECLAIM_LADDER,
  RECLAIM_STAGES,
  type ReclaimRung,
  type ReclaimStage,
  RUNG_IDS,
  type RungId,
  rungsOf,
  rungText,
  WAITING_BITS,
  type WaitingPlace,
} from './reclaim.ts';
export { type Band, Scan, type Step } from './scan.ts';
export { type Concurrency, concurrencyAfter, refaultRatio, type ThrashWindow, UNBOUNDED } from './thrash.ts';
export {
  BOUND_IDS,
  checkThresholds,
  checkThresholdValue,
  defaultThresholds,
  rangeOf,
  type ThresholdId,
  thresholdOf,
  withThreshold,
} from './thresholds.ts';
export * from './types.ts';
export { isUselessPair, type Move, UNSAFE, type Unsafe, unsafe, unsafeRule, usefulPair } from './unsafe.ts';

const plain =
  (policy: Policy) =>
  (options: Readonly<Record<string, unknown>>): Policy => {
    const names = Object.keys(options);
    if (names.length > 0) {
      throw new KvError('bad-config', `policy '${policy.id}' takes no options`, {
        values: { given: names.join(', ') },
      });
    }
    return policy;
  };

/** id → policy from its options. The first is the default under a budget. */
export const policies: Readonly<Record<string, (options: Readonly<Record<string, unknown>>) => Policy>> = {
  price: plain(price),
  'price-1': plain(priceOne),
  uniform: plain(uniform),
  age: plain(age),
  tiers: tiersPolicy,
  'streaming-pages': plain(streaming),
  'h2o-pages': plain(h2o),
  'snapkv-pages': plain(snapkv),
  'pyramidkv-pages': plain(pyramidkv),
  'scissorhands-pages': plain(scissorhands),
  table: tablePolicy,
  fixed: fixedPolicy,
  none: plain(nonePolicy),
};

/** Earlier versions of policies, by the name and version that stand in a log. */
const EARLIER: Readonly<Record<string, Policy>> = {
  'price 1': priceOne,
  'price 2': priceTwo,
  'price 3': priceThree,
  'price 4': priceFour,
  'uniform 1': uniformOne,
  'age 1': ageOne,
};

/**
 * A policy by name, or the version of it that a log names. Options are data, since they stand in the log. Throws
 * 'unsupported' for an unknown name, 'bad-config' for options that do not fit.
 */
export function createPolicy(id: string, options: Readonly<Record<string, unknown>> = {}, version?: number): Policy {
  const earlier = EARLIER[`${id} ${version}`];
  if (earlier !== undefined) return plain(earlier)(options);
  const create = Object.hasOwn(policies, id) ? policies[id] : undefined;
  if (create === undefined) {
    throw new KvError('unsupported', `unknown policy '${id}'`, {
      values: { given: id, known: Object.keys(policies).join(', ') },
      hint: `use one of ${Object.keys(policies).join(', ')}`,
    });
  }
  return create(options);
}
export {
  nextPackState,
  PACK_ARROWS,
  PACK_EVENTS,
  PACK_STATES,
  type PackArrow,
  type PackEvent,
  type PackState,
  packMachine,
  readsPages,
  writesPages,
} from './pack-machine.ts';
