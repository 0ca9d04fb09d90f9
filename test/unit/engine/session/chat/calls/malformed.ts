/** What stands where a call in JSON should, and is none. */
export const staysText: readonly string[] = [
  '',
  '{',
  '{"name": "f", "arguments": {',
  '{"name": 3, "arguments": {}}',
  '{"name": "", "arguments": {}}',
  '{"name": "f", "arguments": [1]}',
  '{"name": "f", "arguments": "not json"}',
  '{"arguments": {}}',
  '["f"]',
  'null',
  'f(x=1)',
  `${'['.repeat(100_000)}`,
  '{"name": "f", "arguments": {"x": 1,}}',
];
