/**
 * What packed bodies name by a number (`pack.ts`): texts, and the keys of objects. A body that was written once is read
 * with these lists for ever, so nothing in them is changed, moved or removed. What is not in them is spelled out, so
 * new fields need no place here. One that comes often may be put at the end of a list, under a new version of the
 * format.
 */

const listed = (text: string): readonly string[] => text.trim().split(/\s+/);

/** Texts. The first 128 take one byte, those behind them three at most. */
export const PACKED_TEXTS: readonly string[] = listed(`
  q8 k v kv trellis4 trellis3 trellis2 trellis1 rot4 rot3 rot2 rot1 f16 kivi4 kivi2 band3 band2 xq8 xq4 xq3
  layer page side from to epsilon epsilonNow epsilonFrom epsilonTo bytesFreed because bound measured origin rule
  threshold unit accepted bytesAfter bytesBefore decision order situation tokens verdict price retry default
  learned file option controller share deficit settled-trial fresh-trial trial-again pressure.critical
  price.slack KLD/byte 1 severity uniform uniform.step fixed fixed.k fixed.v budgetBytes bytes index kldBudget
  lowMemory movesMax outcomes sealBytes stepLatencyBudgetMs stepLatencyMsP95 tokensExpected trials urgent again
  canaryBytes canaries changes text probe age epsilonPromised samples value sd id source evidence bits cause
  layers state reason low-memory not-seen deficit-override put-back quality-gives-way kld-gives-way restore
  give-back shared topic gain age.young table table.k table.v pages
  rows meanKld standardError epsilon2 model name digest architecture shape queryHeads kvHeads headDim machine
  isa binding build threads policy version options context windowFormat openFormat windowTokens pageBytes
  latents kept operations fixedBytes thresholds skipLayers floor outlierKeys priority requested effective gains
  c law coefficient offset fade ranges logId fingerprint neighbours session distance seq log kvBytes kvBytesF16
  effectiveBits decisions refused priceThreshold predictedKld formats done aborted error kld what kind isAway
  attention.skip canary.every canary.renew canary.share divergence.cautious divergence.chosen divergence.length
  divergence.past dwell.tokens gain.least keys.outliers latency.enter latency.leave latent.operations
  pressure.ease pressure.enter pressure.leave pressure.low-memory price.rise price.start probe.gain probe.share
  probe.share.kld quality.degraded quality.degraded.leave quality.epsilon quality.kld quality.ratio
  quality.shift quality.watched quality.watched.leave trial.again trial.age trial.settled kivi8 fp8 rotq4 squat4
  higgs4 turbo4 nuq4 turbo4-prod rotq3 int3 higgs3 turbo3 nuq3 turbo3-prod rotq2 squat2 higgs2 turbo2 nuq2
  turbo2-prod KLD nats native
`);

/** Keys of objects, in the order of their UTF-16 code units; the first 32 take one byte. */
export const PACKED_SHAPES: readonly (readonly string[])[] = `
  epsilon from layer page side
  bound measured origin rule threshold unit
  trellis2
  trellis3
  bytesAfter bytesBefore decision epsilonNow order situation tokens verdict
  because bytesFreed epsilonFrom epsilonTo from layer page price retry side to
  accepted because
  accepted bytesFreed epsilonNow from layer page side to
  samples sd value
  trellis1 trellis2 trellis3 trellis4
  trellis2 trellis3 trellis4
  trellis1
  situation
  evidence id origin samples source unit value
  band2 band3 kivi2 kivi4 rot2 trellis2 trellis3 trellis4
  rot1 rot2 rot3 rot4
  rot2 rot3 rot4
  trellis1 trellis2
  trellis1 trellis2 trellis3
  trellis2 trellis3
  k v
  budgetBytes bytes index kldBudget lowMemory movesMax outcomes sealBytes stepLatencyBudgetMs stepLatencyMsP95 tokens tokensExpected trials urgent
  budgetBytes bytes canaryBytes index kldBudget lowMemory movesMax outcomes sealBytes stepLatencyBudgetMs stepLatencyMsP95 tokens tokensExpected trials urgent
  again budgetBytes bytes index kldBudget lowMemory movesMax outcomes sealBytes stepLatencyBudgetMs stepLatencyMsP95 tokens tokensExpected trials urgent
  again budgetBytes bytes canaryBytes index kldBudget lowMemory movesMax outcomes sealBytes stepLatencyBudgetMs stepLatencyMsP95 tokens tokensExpected trials urgent
  from layer page side to
  age epsilonNow epsilonPromised from layer page side to
`
  .trim()
  .split('\n')
  .map(listed);
