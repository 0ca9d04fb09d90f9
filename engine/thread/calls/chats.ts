/** Calls about a conversation, whose messages are on the caller's side. */
import type { Caller } from '../../../native/index.ts';
import type { Progress, SendOptions, ToolChoice } from '../../options/types.ts';
import { answerChat, countChat, describeChat } from '../../session/chat/answering.ts';
import type { Answered, ChatCount, ChatDescription, Conversation } from '../../session/chat/types.ts';
import type { Host } from '../host.ts';

export interface OfChat {
  readonly session: string;
  readonly chat: Conversation;
}

export const chatCalls = (host: Host) => ({
  describeChat: (params: {
    readonly chat: Conversation;
    readonly toolChoice: ToolChoice | undefined;
  }): Promise<ChatDescription> => describeChat(host.runtime, params),

  countChat: ({ session, chat }: OfChat): Promise<ChatCount> =>
    countChat(host.runtime.model, host.session(session), chat),

  answerChat: (
    { session, chat, options }: OfChat & { readonly options: SendOptions },
    { tell, signal }: Caller<{ readonly text?: string; readonly progress?: Progress }>,
  ): Promise<Answered> => answerChat(host.runtime.model, host.session(session), chat, { ...options, signal }, tell),
});
