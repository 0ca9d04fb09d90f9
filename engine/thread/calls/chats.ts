/** Calls about a conversation, whose messages are on the caller's side. */
import type { Caller } from '../../../native/index.ts';
import type { SendOptions, ToolChoice } from '../../options/types.ts';
import { answerChat, countChat, describeChat } from '../../session/chat/answering.ts';
import type { Answered, ChatCount, ChatDescription, Conversation } from '../../session/chat/types.ts';
import type { Written } from '../../session/types.ts';
import type { Host } from '../host.ts';
import { telling } from './answers.ts';

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
    { tell, signal }: Caller<Written>,
  ): Promise<Answered> => {
    const answering = host.session(session);
    const told = telling(answering, options, tell);
    const heard = { ...options, signal, onToken: told.onToken };
    return answerChat(host.runtime.model, answering, chat, heard, told.tell);
  },
});
