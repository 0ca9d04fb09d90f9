import { mergeConfig } from 'vitest/config';
import base from '../../vitest.config.ts';
export default mergeConfig(base, { test: { coverage: { provider: 'v8', reporter: ['text','json'], include: ['witness/*.ts','memory/threshold-*.ts','memory/signature.ts','memory/log-ranges.ts'] } } });
