// Whether an entry is certainly sound: spelled in the one canonical way, and of the form that its kind must have. "No"
// means only that it was not certain here, because it is wrong, or because it has something that is rare and not known
// here (characters beyond ASCII, escapes); the caller then looks at it in full, and finds what is wrong with it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "entries.gen.h"

namespace palimpsest {

// The forms of the bodies of every kind, given by the caller as numbers (witness/forms.ts writes them) and checked
// before they are used.
class Forms {
 public:
  // False for numbers that are no forms. `names` must stay where it is for as long as this is used.
  bool read(const double* numbers, size_t count, const uint8_t* names, size_t nameBytes);

  // Index of the kind of an entry that is certainly sound and has this seq, or -1. An encrypted body is not looked at.
  int kindOf(const uint8_t* payload, size_t count, uint64_t seq) const;
  // The same for a body whose kind is known.
  int kindOf(std::string_view kind, std::string_view body) const;

 private:
  friend class Speller;

  struct Form {
    FormType type = kFormAnything;
    bool mayBeNull = false;
    // Fields or words: from, how many.
    uint32_t from = 0, count = 0;
    // Forms of names and of what is inside.
    uint32_t name = 0, inside = 0;
    // The range of integers, or of the length of lists and texts.
    double least = 0, most = 0;
  };
  struct Field {
    std::string_view name;
    // The key as JSON has it, the colon included; of kinds the name alone.
    std::string_view key;
    uint32_t form;
    bool mayBeAbsent;
  };

  class Reader;
  bool readField(Reader& from, uint32_t forms, bool isKey, std::vector<Field>* list);
  bool readForm(Reader& from, uint32_t forms);

  std::vector<Form> forms_;
  std::vector<Field> fields_;
  std::vector<std::string_view> words_;
  // A kind is a field: its name, and the form of its body.
  std::vector<Field> kinds_;
};

// What stands around the body of an entry, as views of its payload.
struct Envelope {
  double seq = 0;
  std::string_view seqText, session, kind;
  // Behind the name of the body.
  const char* body = nullptr;
};
// False where it is not certain that the text begins with an envelope, spelled as a writer spells it.
bool readEnvelope(const char* text, const char* end, Envelope* envelope);
// What every encrypted body begins with, and what follows its text. Before format 3 of the log bodies were sealed
// without a commitment.
constexpr std::string_view kCommittedHead = "{\"committed\":\"";
constexpr std::string_view kSealedHead = "{\"sealed\":\"";
constexpr std::string_view kSealedTail = "\"}}";

// Whether the text [at, end) begins with a number as JavaScript prints it; at is then behind it. A whole number of at
// most 15 digits goes into `integer`.
struct Numeral {
  bool isInteger = false;
  double integer = 0;
};
bool readNumeral(const char** at, const char* end, Numeral* numeral);

}  // namespace palimpsest
