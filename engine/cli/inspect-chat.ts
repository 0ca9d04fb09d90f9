/** `palimpsest inspect MODEL --chat FILE` says what a model is given for a conversation: prompt and token ids. */
import { jsonText, plural, printable, readRegular } from '../../native/index.ts';
import { conversationIn } from '../transformer/conversation-file.ts';
import { obtainModel } from '../transformer/hub/obtain.ts';
import { withTokenizer } from '../transformer/inspect-model.ts';
import { cacheDirOf, flag, type Settings } from './options.ts';

const CONVERSATION_BYTES_MAX = 2 ** 26;

export async function inspectChat(model: string, file: string, settings: Settings): Promise<void> {
  const bytes = readRegular(file, { bytesMax: CONVERSATION_BYTES_MAX, code: 'bad-argument' });
  const { messages, options } = conversationIn(bytes, file);
  const offline = flag(settings, 'offline');
  await obtainModel(model, { offline });
  const told = await withTokenizer(model, { cacheDir: cacheDirOf(settings) }, (tokenizer) => {
    const date = new Date();
    const ids = tokenizer.chat(messages, { ...options, date });
    return { kind: 'chat', messages: messages.length, prompt: tokenizer.prompt(messages, { ...options, date }), ids };
  });
  const lines = told.prompt.split('\n').map(printable).join('\n');
  const plain = `${lines}\n\n${plural(told.ids.length, 'token')}: ${told.ids.join(' ')}`;
  process.stdout.write(`${flag(settings, 'json') ? jsonText(told) : plain}\n`);
}
