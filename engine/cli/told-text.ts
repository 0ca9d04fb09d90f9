/** The text of a whole answer of a server, in the words of whichever API it was asked by. */
import { asRecord } from '../../native/index.ts';

type Told = Readonly<Record<string, unknown>>;

const recordsIn = (list: unknown): readonly Told[] =>
  Array.isArray(list) ? list.map((one) => asRecord(one) ?? {}) : [];

const textIn = (value: unknown): string | null => (typeof value === 'string' ? value : null);

/** null: it has none, or it calls tools, which the model wrote into its text. */
export function toldText(answer: Told): string | null {
  // The first of several has the receipt.
  const [choice = {}] = recordsIn(answer['choices']);
  const message = asRecord(choice['message'] ?? answer['message']);
  if (message !== undefined) return recordsIn(message['tool_calls']).length > 0 ? null : textIn(message['content']);
  const alone = textIn(choice['text'] ?? answer['response']);
  return alone ?? textOfBlocks(answer);
}

/** That of a response, or of a message of Anthropic's API. */
function textOfBlocks({ output, content }: Told): string | null {
  const items = recordsIn(output);
  const blocks = [...items.flatMap((item) => recordsIn(item['content'])), ...recordsIn(content)];
  const isCall = ({ type }: Told): boolean => type === 'function_call' || type === 'tool_use';
  if (blocks.length === 0 || [...items, ...blocks].some(isCall)) return null;
  return blocks.map(({ text }) => textIn(text) ?? '').join('');
}
