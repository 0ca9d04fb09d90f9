/** The turns of a conversation: a question, and all that follows up to the next one. */
import type { ChatMessage } from '../../transformer/types.ts';

/** How many messages of the system a conversation begins with. They never leave. */
export function systemMessages(messages: readonly ChatMessage[]): number {
  const first = messages.findIndex(({ role }) => role !== 'system');
  return first < 0 ? messages.length : first;
}

/**
 * By turn that may leave, the oldest first: messages behind those of the system that are gone then. The newest turn
 * stays.
 */
export function leavingMessages(messages: readonly ChatMessage[]): number[] {
  const system = systemMessages(messages);
  const starts = messages.flatMap(({ role }, index) => (role === 'user' && index > system ? [index] : []));
  return starts.map((start) => start - system);
}
