/**
 * Sinks and the newest pages: StreamingLLM (arXiv 2309.17453), which keeps the first four tokens, as every cache does
 * here, and as many of the newest as fit. It goes by pages where the paper goes by tokens, and tokens keep their
 * positions where the paper counts them by their places in the cache.
 */
import { evictPolicy, newest } from './evict.ts';

export const streaming = evictPolicy('streaming-pages', () => ({
  stay: (_layer, pages, places) => newest(pages, places),
}));
