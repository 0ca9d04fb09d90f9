/**
 * Stands in for vitest where it cannot run: its bundler has no binary for an emulated machine, but its runner and its
 * expectations are plain JavaScript. scripts/test-arm64.mjs puts this file where the compiled tests find it as
 * `vitest`.
 */
import { GLOBAL_EXPECT, getState, JestAsymmetricMatchers, JestChaiExpect, JestExtend, setState } from '@vitest/expect';
import * as chai from 'chai';

export { afterAll, afterEach, beforeAll, beforeEach, describe, it, test } from '@vitest/runner';

chai.use(JestExtend);
chai.use(JestChaiExpect);
chai.use(JestAsymmetricMatchers);

export const expect = (value, message) => chai.expect(value, message);
Object.assign(expect, chai.expect, { getState: () => getState(expect), setState: (state) => setState(state, expect) });
Object.defineProperty(globalThis, GLOBAL_EXPECT, { value: expect, configurable: true });
setState({ assertionCalls: 0, isExpectingAssertions: false, expectedAssertionsNumber: null, testPath: '' }, expect);
