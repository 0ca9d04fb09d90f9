/** The token ids that activate an adapter (activation.ts), as files have them. */
import { z } from 'zod';

/** Those of published adapters are a few words. */
const INVOCATION_TOKENS_MAX = 128;

export const invocationTokens = z.array(z.int().min(0)).min(1).max(INVOCATION_TOKENS_MAX);
