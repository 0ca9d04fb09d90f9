// Written by scripts/generate-entries.ts. Change witness/entries/binary.ts, not this file.
#pragma once

namespace palimpsest {

enum FormType { kFormAnything = 0, kFormPlain = 1, kFormObject = 2, kFormRecord = 3, kFormList = 4, kFormInteger = 5, kFormReal = 6, kFormFlag = 7, kFormText = 8, kFormOne = 9, kFormTypes = 10 };
enum SpellStep { kSpellText = 0, kSpellNumber = 1, kSpellNumberOrNull = 2, kSpellFlag = 3, kSpellWord = 4, kSpellBody = 5, kSpellSteps = 6 };

}  // namespace palimpsest
