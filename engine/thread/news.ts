/** What the model's thread tells the caller's beside its answers, in the order in which it happens. */
import type { EngineEvent } from '../events/event.ts';
import type { LoadProgress } from '../transformer/types.ts';

export type News =
  | { readonly kind: 'loading'; readonly progress: LoadProgress }
  | { readonly kind: 'event'; readonly event: EngineEvent };
