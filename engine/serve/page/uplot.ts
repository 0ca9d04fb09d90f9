/** The charts' library, by the path that the server has it under (`page-files.ts`). */
export { default } from 'uplot';
