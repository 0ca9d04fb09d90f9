/**
 * What the TypeScript and the C++ code must agree on, as text and as its digest. A binary with another digest is
 * refused when it is loaded.
 */
import { createHash } from 'node:crypto';
import { servedFamilies, servedFormats } from './format.ts';
import {
  DENSE_FEATURES,
  DENSE_FORMS,
  DENSE_NORMS,
  DENSE_SLOTS,
  DENSE_TYPES,
  ISA_NAMES,
  ISAS_BEST_FIRST,
  KEPT_ROWS_OPERATIONS,
  LATENT_NAMES,
  LATENT_OPERATIONS,
  LIMITS,
  ORIGINAL_OPERATIONS,
  STATUSES,
} from './layout.ts';

/** What descriptions of formats say to policies alone: it is of no concern to the binary. */
const FOR_POLICIES: readonly string[] = ['replaces', 'rungs', 'outlierGauge'];

const described = () => ({
  limits: LIMITS,
  statuses: STATUSES.map(({ name }) => name),
  isas: [ISA_NAMES, ISAS_BEST_FIRST],
  latents: [LATENT_NAMES, LATENT_OPERATIONS],
  originals: ORIGINAL_OPERATIONS,
  keptRows: KEPT_ROWS_OPERATIONS,
  dense: [DENSE_SLOTS, DENSE_NORMS, DENSE_FEATURES, DENSE_FORMS, DENSE_TYPES],
  formats: servedFamilies(),
});

/** The ABI string: a version number, the number of formats, and the digest. */
export function abi(): string {
  const text = JSON.stringify(described(), (key, value: unknown) => (FOR_POLICIES.includes(key) ? undefined : value));
  const digest = createHash('sha256').update(text).digest('hex').slice(0, 32);
  return `11 formats=${servedFormats().length} layout=${digest}`;
}
