#include "forms.h"

#include <charconv>
#include <cmath>
#include <cstring>

namespace palimpsest {

namespace {

// A decimal of so many digits is the shortest text of the double that it is read as, and two of them are never read as
// one (DBL_DIG).
constexpr int kDigitsPlain = 15;
// No double needs more.
constexpr int kDigitsMost = 17;
// The longest numeral: a sign, 21 digits before or 17 behind five zeros and a point, an exponent.
constexpr int kNumeralBytes = 40;
// Beyond it there are fewer digits than that in a double.
constexpr int kExponentMost = 290;
constexpr int kDepthMost = 30;
// The numbers behind them that fit a byte say something else (sealed.h).
constexpr double kKindsMost = 250;
constexpr size_t kSessionBytesMost = 200;
constexpr double kTimeMsMost = 8.64e15;

bool isDigit(char c) { return c >= '0' && c <= '9'; }

// Whether these digits (the first and the last of them not zero) with the first one at 10^exponent are what JavaScript
// would print of the double that they are read as.
bool isShortest(const char* text, const char* end, const char* digits, int count, int exponent) {
#if defined(__cpp_lib_to_chars)
  double value;
  const auto [read, error] = std::from_chars(text, end, value);
  if (error != std::errc() || read != end) return false;
  char printed[kNumeralBytes];
  const auto [stop, failed] = std::to_chars(printed, printed + sizeof printed, std::fabs(value), std::chars_format::scientific);
  if (failed != std::errc()) return false;
  // "d.ddde±dd"
  const char* at = printed;
  if (*at++ != digits[0]) return false;
  int same = 1;
  if (at < stop && *at == '.') {
    for (at++; at < stop && isDigit(*at); at++)
      if (same >= count || *at != digits[same++]) return false;
  }
  if (same != count || stop - at < 3 || *at != 'e') return false;
  const bool isNegative = at[1] == '-';
  int found = 0;
  for (at += 2; at < stop; at++) found = 10 * found + (*at - '0');
  return (isNegative ? -found : found) == exponent;
#else
  // This C++ library does not read doubles.
  (void)text, (void)end, (void)digits, (void)count, (void)exponent;
  return false;
#endif
}

}  // namespace

bool readNumeral(const char** position, const char* end, Numeral* numeral) {
  const char* const start = *position;
  const char* at = start;
  *numeral = {};
  const bool isNegative = at < end && *at == '-';
  if (isNegative) at++;
  const char* const whole = at;
  while (at < end && isDigit(*at) && at - whole < 22) at++;
  const int wholeDigits = static_cast<int>(at - whole);
  if (wholeDigits == 0 || wholeDigits > 21 || (*whole == '0' && wholeDigits > 1)) return false;
  const bool isZero = *whole == '0';
  const bool hasPoint = at < end && *at == '.';
  if (!hasPoint && !(at < end && *at == 'e')) {
    if (wholeDigits > kDigitsPlain || (isZero && isNegative)) return false;
    double value = 0;
    for (const char* digit = whole; digit < at; digit++) value = 10 * value + (*digit - '0');
    *numeral = {true, isNegative ? -value : value};
    *position = at;
    return true;
  }
  char digits[kDigitsMost];
  int count = 0;
  // The exponent of the first digit that is not zero.
  int exponent = wholeDigits - 1;
  if (!isZero) {
    if (wholeDigits > kDigitsMost) return false;
    std::memcpy(digits, whole, wholeDigits);
    count = wholeDigits;
  }
  if (hasPoint) {
    const char* const fraction = ++at;
    if (isZero) {
      while (at < end && *at == '0') at++;
      exponent = -1 - static_cast<int>(at - fraction < 100 ? at - fraction : 100);
    }
    const char* const rest = at;
    while (at < end && isDigit(*at) && at - rest <= kDigitsMost) at++;
    const int restDigits = static_cast<int>(at - rest);
    if (restDigits == 0 || count + restDigits > kDigitsMost || at[-1] == '0') return false;
    std::memcpy(digits + count, rest, restDigits);
    count += restDigits;
  }
  if (at < end && *at == 'e') {
    if (isZero || wholeDigits != 1 || end - at < 3) return false;
    const bool isSmall = at[1] == '-';
    if (!isSmall && at[1] != '+') return false;
    at += 2;
    if (*at == '0') return false;
    int value = 0;
    const char* const first = at;
    while (at < end && isDigit(*at) && at - first < 4) value = 10 * value + (*at++ - '0');
    if (at == first || value > kExponentMost) return false;
    exponent = isSmall ? -value : value;
    // Between these JavaScript prints without an exponent.
    if (exponent > -7 && exponent < 21) return false;
  } else if (exponent < -6) {
    return false;
  }
  if (count > kDigitsPlain && !isShortest(start, at, digits, count, exponent)) return false;
  *position = at;
  return true;
}

// The numbers of the forms, one after the other, each checked against what it may be.
class Forms::Reader {
 public:
  Reader(const double* numbers, size_t count, const uint8_t* names, size_t nameBytes) : numbers_(numbers), count_(count), names_(names), nameBytes_(nameBytes) {}

  size_t count() const { return count_; }
  bool isAtEnd() const { return at_ == count_; }

  bool whole(double most, uint32_t* value) {
    if (at_ >= count_) return false;
    const double number = numbers_[at_++];
    if (!(number >= 0 && number <= most) || number != std::floor(number)) return false;
    *value = static_cast<uint32_t>(number);
    return true;
  }

  bool limit(double* value) {
    if (at_ >= count_ || !std::isfinite(numbers_[at_])) return false;
    *value = numbers_[at_++];
    return true;
  }

  bool word(std::string_view* text) {
    const double most = static_cast<double>(nameBytes_);
    uint32_t from, length;
    if (!whole(most, &from) || !whole(most, &length) || length > nameBytes_ - from) return false;
    *text = {reinterpret_cast<const char*>(names_) + from, length};
    return true;
  }

 private:
  const double* numbers_;
  size_t count_, at_ = 0;
  const uint8_t* names_;
  size_t nameBytes_;
};

bool Forms::readField(Reader& from, uint32_t forms, bool isKey, std::vector<Field>* list) {
  Field one;
  uint32_t mayBeAbsent;
  if (!from.word(&one.key) || !from.whole(forms - 1.0, &one.form) || !from.whole(1, &mayBeAbsent)) return false;
  if (isKey && !(one.key.size() >= 3 && one.key.starts_with('"') && one.key.ends_with("\":"))) return false;
  one.name = isKey ? one.key.substr(1, one.key.size() - 3) : one.key;
  one.mayBeAbsent = mayBeAbsent != 0;
  list->push_back(one);
  return true;
}

// Every form takes two numbers or more, so no count in it is larger than that of the numbers.
bool Forms::readForm(Reader& from, uint32_t forms) {
  const double most = static_cast<double>(from.count());
  Form form;
  uint32_t type, mayBeNull;
  if (!from.whole(kFormTypes - 1, &type) || !from.whole(1, &mayBeNull)) return false;
  form.type = static_cast<FormType>(type);
  form.mayBeNull = mayBeNull != 0;
  switch (form.type) {
    case kFormObject:
      form.from = static_cast<uint32_t>(fields_.size());
      if (!from.whole(most, &form.count)) return false;
      for (uint32_t n = 0; n < form.count; n++) {
        if (!readField(from, forms, true, &fields_)) return false;
        if (n > 0 && !(fields_[fields_.size() - 2].name < fields_.back().name)) return false;
      }
      break;
    case kFormRecord:
      if (!from.whole(forms - 1.0, &form.name) || !from.whole(forms - 1.0, &form.inside)) return false;
      break;
    case kFormList:
      if (!from.whole(forms - 1.0, &form.inside) || !from.limit(&form.least) || !from.limit(&form.most)) return false;
      break;
    case kFormInteger:
      if (!from.limit(&form.least) || !from.limit(&form.most)) return false;
      break;
    case kFormText:
      if (!from.limit(&form.most)) return false;
      break;
    case kFormOne:
      form.from = static_cast<uint32_t>(words_.size());
      if (!from.whole(most, &form.count)) return false;
      for (uint32_t n = 0; n < form.count; n++) {
        std::string_view text;
        if (!from.word(&text)) return false;
        words_.push_back(text);
      }
      break;
    default:
      break;
  }
  forms_.push_back(form);
  return true;
}

bool Forms::read(const double* numbers, size_t count, const uint8_t* names, size_t nameBytes) {
  Reader from(numbers, count, names, nameBytes);
  uint32_t forms, kinds;
  if (!from.whole(static_cast<double>(count), &forms) || !from.whole(kKindsMost, &kinds)) return false;
  for (uint32_t i = 0; i < kinds; i++)
    if (!readField(from, forms, false, &kinds_)) return false;
  for (uint32_t i = 0; i < forms; i++)
    if (!readForm(from, forms)) return false;
  return from.isAtEnd();
}

namespace {

bool readLiteral(const char** at, const char* end, std::string_view expected) {
  if (static_cast<size_t>(end - *at) < expected.size() || std::memcmp(*at, expected.data(), expected.size()) != 0) return false;
  *at += expected.size();
  return true;
}

// A string of printable ASCII that needs no escape.
bool readText(const char** at, const char* end, std::string_view* inside) {
  if (*at >= end || **at != '"') return false;
  const char* const start = *at + 1;
  const char* stop = start;
  while (stop < end && *stop >= 0x20 && *stop < 0x7f && *stop != '"' && *stop != '\\') stop++;
  if (stop >= end || *stop != '"') return false;
  *inside = {start, static_cast<size_t>(stop - start)};
  *at = stop + 1;
  return true;
}

}  // namespace

bool readEnvelope(const char* text, const char* end, Envelope* envelope) {
  Numeral number;
  const char* at = text;
  if (!readLiteral(&at, end, "{\"seq\":")) return false;
  const char* const seq = at;
  if (!readNumeral(&at, end, &number) || !number.isInteger || number.integer < 0) return false;
  envelope->seq = number.integer;
  envelope->seqText = {seq, static_cast<size_t>(at - seq)};
  if (!readLiteral(&at, end, ",\"timeMs\":") || !readNumeral(&at, end, &number) || !number.isInteger) return false;
  if (!(number.integer >= 0 && number.integer <= kTimeMsMost)) return false;
  if (!readLiteral(&at, end, ",\"session\":") || !readText(&at, end, &envelope->session) || envelope->session.size() > kSessionBytesMost) return false;
  if (!readLiteral(&at, end, ",\"kind\":") || !readText(&at, end, &envelope->kind) || !readLiteral(&at, end, ",\"body\":")) return false;
  envelope->body = at;
  return true;
}

// Reads one body from front to back.
class Speller {
 public:
  Speller(const Forms& forms, std::string_view body) : forms_(forms), at_(body.data()), end_(body.data() + body.size()) {}

  bool body(const Forms::Form& form) { return at_ < end_ && *at_ == '{' && value(form, 1) && at_ == end_; }

 private:
  bool literal(std::string_view expected) { return readLiteral(&at_, end_, expected); }

  bool take(char c) {
    if (at_ >= end_ || *at_ != c) return false;
    at_++;
    return true;
  }

  bool text(std::string_view* inside) { return readText(&at_, end_, inside); }

  // A key and its colon, behind the key before it in the order of the alphabet.
  bool key(std::string_view* name, const std::string_view* before) {
    // JSON.parse treats this one as no other.
    return text(name) && take(':') && (before == nullptr || *before < *name) && *name != "__proto__";
  }

  bool value(const Forms::Form& form, int depth) {
    if (depth > kDepthMost || at_ >= end_) return false;
    if (form.mayBeNull && *at_ == 'n') return literal("null");
    switch (form.type) {
      case kFormAnything: return anything(depth);
      case kFormPlain: return *at_ == '{' && anything(depth);
      case kFormObject: return object(form, depth);
      case kFormRecord: return record(form, depth);
      case kFormList: return list(form, depth);
      case kFormInteger: {
        Numeral number;
        return readNumeral(&at_, end_, &number) && number.isInteger && number.integer >= form.least && number.integer <= form.most;
      }
      case kFormReal: {
        Numeral number;
        return readNumeral(&at_, end_, &number);
      }
      case kFormFlag: return literal("true") || literal("false");
      case kFormText: {
        std::string_view inside;
        return text(&inside) && static_cast<double>(inside.size()) <= form.most;
      }
      case kFormOne: return oneOf(form);
      default: return false;
    }
  }

  // One of the words, as it stands in JSON.
  bool oneOf(const Forms::Form& form) {
    const char* const start = at_;
    if (*at_ == '"') {
      std::string_view inside;
      if (!text(&inside)) return false;
    } else {
      while (at_ < end_ && *at_ != ',' && *at_ != '}' && *at_ != ']') at_++;
    }
    return isWord(form, {start, static_cast<size_t>(at_ - start)});
  }

  bool isWord(const Forms::Form& form, std::string_view word) const {
    for (uint32_t i = 0; i < form.count; i++)
      if (forms_.words_[form.from + i] == word) return true;
    return false;
  }

  bool object(const Forms::Form& form, int depth) {
    if (!take('{')) return false;
    const Forms::Field* field = forms_.fields_.data() + form.from;
    const Forms::Field* const last = field + form.count;
    std::string_view before;
    bool isFirst = true;
    if (!(at_ < end_ && *at_ == '}')) {
      do {
        // All fields from here on stand behind the key before. Nearly always the next one comes.
        if (field != last && literal(field->key)) {
          isFirst = false;
          before = field->name;
          if (!value(forms_.forms_[field->form], depth + 1)) return false;
          field++;
          continue;
        }
        std::string_view name;
        if (!key(&name, isFirst ? nullptr : &before)) return false;
        isFirst = false;
        before = name;
        while (field != last && field->name < name) {
          if (!field->mayBeAbsent) return false;
          field++;
        }
        if (field != last && field->name == name) {
          if (!value(forms_.forms_[field->form], depth + 1)) return false;
          field++;
        } else if (!anything(depth + 1)) {
          return false;
        }
      } while (take(','));
    }
    for (; field != last; field++)
      if (!field->mayBeAbsent) return false;
    return take('}');
  }

  bool record(const Forms::Form& form, int depth) {
    if (!take('{')) return false;
    if (take('}')) return true;
    const Forms::Form& names = forms_.forms_[form.name];
    std::string_view before;
    bool isFirst = true;
    do {
      const char* const start = at_;
      std::string_view name;
      if (!key(&name, isFirst ? nullptr : &before)) return false;
      isFirst = false;
      before = name;
      const std::string_view quoted = {start, name.size() + 2};
      if (names.type == kFormOne ? !isWord(names, quoted) : names.type != kFormText || static_cast<double>(name.size()) > names.most) return false;
      if (!value(forms_.forms_[form.inside], depth + 1)) return false;
    } while (take(','));
    return take('}');
  }

  bool list(const Forms::Form& form, int depth) {
    if (!take('[')) return false;
    double items = 0;
    if (at_ < end_ && *at_ != ']') {
      do {
        if (++items > form.most || !value(forms_.forms_[form.inside], depth + 1)) return false;
      } while (take(','));
    }
    return items >= form.least && items <= form.most && take(']');
  }

  bool anything(int depth) {
    if (depth > kDepthMost || at_ >= end_) return false;
    switch (*at_) {
      case '"': {
        std::string_view inside;
        return text(&inside);
      }
      case 't': return literal("true");
      case 'f': return literal("false");
      case 'n': return literal("null");
      case '{': {
        at_++;
        if (take('}')) return true;
        std::string_view before;
        bool isFirst = true;
        do {
          std::string_view name;
          if (!key(&name, isFirst ? nullptr : &before) || !anything(depth + 1)) return false;
          isFirst = false;
          before = name;
        } while (take(','));
        return take('}');
      }
      case '[': {
        at_++;
        if (take(']')) return true;
        do {
          if (!anything(depth + 1)) return false;
        } while (take(','));
        return take(']');
      }
      default: {
        Numeral number;
        return readNumeral(&at_, end_, &number);
      }
    }
  }

  const Forms& forms_;
  const char* at_;
  const char* end_;
};

int Forms::kindOf(const uint8_t* payload, size_t count, uint64_t seq) const {
  const char* const text = reinterpret_cast<const char*>(payload);
  const char* const end = text + count;
  Envelope envelope;
  if (!readEnvelope(text, end, &envelope) || envelope.seq != static_cast<double>(seq) || end[-1] != '}') return -1;
  // The last bracket ends the envelope.
  const std::string_view body(envelope.body, static_cast<size_t>(end - 1 - envelope.body));
  const auto beginsAs = [&](std::string_view head) { return body.starts_with(head.substr(0, head.size() - 1)); };
  return beginsAs(kCommittedHead) || beginsAs(kSealedHead) ? -1 : kindOf(envelope.kind, body);
}

int Forms::kindOf(std::string_view kind, std::string_view body) const {
  for (size_t i = 0; i < kinds_.size(); i++)
    if (kinds_[i].name == kind) return Speller(*this, body).body(forms_[kinds_[i].form]) ? static_cast<int>(i) : -1;
  return -1;
}

}  // namespace palimpsest
