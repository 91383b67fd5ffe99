#include "millrace/checkpoint/convert/torch/pickle.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <optional>

#include "millrace/base/bytes.h"
#include "millrace/base/text.h"

namespace millrace::checkpoint {
namespace {

/// The most bytes of an int that may fit 64 bits: an unsigned one has a ninth byte for the sign.
constexpr std::size_t kLongestNumber = 9;
/// The largest int: 256 bytes, or 2,048 bits. A bound, since the conversion to decimal takes quadratic time. A guess:
/// hashes and most keys are smaller. 2^2047 has 617 decimal digits.
constexpr std::size_t kLongestBigInt = 256, kMaxDigits = 617;
/// The longest module and name of a global together. A guess: those of torch have fewer than 70 characters.
constexpr std::size_t kLongestGlobal = 512;

// The instructions of each Step function of PickleMachine.
constexpr std::string_view kNumberCodes = "IJKMG\x8a\x8b", kTextCodes = "XBC\x8c\x8d\x8e",
                           kContainerCodes = "]})aesut\x85\x86\x87", kObjectCodes = "cRbQ\x93\x81",
                           kMemoCodes = "qrhj\x94";

template <class T>
T BigEndian(std::string_view bytes) {
  return std::byteswap(LoadLittle<T>(AsBytes(bytes).data()));
}

/// Returns the negative of a two's complement number, least significant byte first.
std::string Negated(std::string number) {
  int carry = 1;
  for (char& byte : number) {
    const int sum = static_cast<unsigned char>(~byte) + carry;
    byte = static_cast<char>(sum & 0xff);
    carry = sum >> 8;
  }
  return number;
}

/// Returns a two's complement number, least significant byte first, as decimal text.
std::string DecimalOf(std::string_view bytes) {
  const bool negative = (bytes.back() & 0x80) != 0;
  std::string number(bytes);
  number += negative ? '\xff' : '\0';
  if (negative) number = Negated(std::move(number));
  std::string digits;
  while (number.find_first_not_of('\0') != number.npos) {
    unsigned rest = 0;
    for (std::size_t i = number.size(); i-- > 0;) {
      const unsigned value = rest * 256 + static_cast<unsigned char>(number[i]);
      number[i] = static_cast<char>(value / 10);
      rest = value % 10;
    }
    digits += static_cast<char>('0' + rest);
  }
  if (digits.empty()) digits += '0';
  if (negative) digits += '-';
  std::ranges::reverse(digits);
  return digits;
}

}  // namespace

/// The stack machine that runs a pickle. Supports only instructions that build values. Instructions that call a Python
/// object push a kCall value instead.
class PickleMachine {
 public:
  /// Without `allowed`, every global is taken.
  PickleMachine(std::string_view bytes, std::optional<std::span<const std::string_view>> allowed,
                std::uint64_t most_values)
      : rest_(bytes), size_(bytes.size()), allowed_(allowed), most_values_(most_values) {}

  Result<Pickle> Run() {
    for (;;) {
      const std::size_t at = size_ - rest_.size();
      auto code = Take(1);
      Status done = code ? Step((*code)[0]) : Fail(code.error());
      if (!done) return Fail(done.error().Context(fmt::format("at byte {} of the pickle", at)));
      if (pickle_.top_ != Pickle::kNone) return std::move(pickle_);
    }
  }

 private:
  using Id = Pickle::Id;
  using ValueKind = Pickle::ValueKind;
  using Value = Pickle::Value;

  Result<std::string_view> Take(std::uint64_t bytes) {
    if (bytes > rest_.size()) return Fail(Code::kCorrupt, "the pickle is cut off");
    std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }
  template <class T>
  Result<T> TakeNumber() {
    return LoadLittle<T>(AsBytes(MR_TRY(Take(sizeof(T)))).data());
  }
  Result<std::string_view> TakeLine() {
    const std::size_t end = rest_.find('\n');
    if (end == rest_.npos || end > kLongestGlobal) return Fail(Code::kCorrupt, "a name has no end");
    std::string_view line = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    return line;
  }

  Status Push(Value value) {
    if (pickle_.values_.size() >= most_values_)
      return Fail(Code::kResourceExhausted, "the pickle describes more than {} values", most_values_);
    pickle_.values_.push_back(std::move(value));
    stack_.push_back(static_cast<Id>(pickle_.values_.size() - 1));
    return {};
  }
  Status PushInt(std::int64_t number) { return Push({.kind = ValueKind::kInt, .number = number}); }
  Status PushText(ValueKind kind, std::string_view text) {
    if (kind == ValueKind::kText && !IsValidUtf8(text)) return Fail(Code::kCorrupt, "a text is not UTF-8");
    return Push({.kind = kind, .text = std::string(text)});
  }
  Status PushLong(std::string_view bytes);
  Status PushGlobal(std::string_view module, std::string_view name);
  Status PushAgain(std::uint64_t key);
  Status PushCall();

  Result<Id> Pop() {
    if (stack_.size() <= Floor()) return Fail(Code::kCorrupt, "a value is missing");
    Id id = stack_.back();
    stack_.pop_back();
    return id;
  }
  std::size_t Floor() const { return marks_.empty() ? 0 : marks_.back(); }
  /// Pops the last mark and all values above it.
  Result<std::vector<Id>> PopMark() {
    if (marks_.empty()) return Fail(Code::kCorrupt, "a mark is missing");
    std::vector<Id> items(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }
  Status PushTuple(std::size_t count) {
    std::vector<Id> items(count);
    for (std::size_t i = count; i-- > 0;) items[i] = MR_TRY(Pop());
    return Push({.kind = ValueKind::kTuple, .items = std::move(items)});
  }
  Status AddItems(const std::vector<Id>& items, ValueKind to) {
    if (stack_.size() <= Floor()) return Fail(Code::kCorrupt, "a container is missing");
    Value& container = pickle_.values_[stack_.back()];
    if (container.kind != to && container.kind != ValueKind::kCall)
      return Fail(Code::kCorrupt, "items are added to a value that is not a container");
    if (to == ValueKind::kDict && items.size() % 2 != 0) return Fail(Code::kCorrupt, "a key has no value");
    container.items.insert(container.items.end(), items.begin(), items.end());
    return {};
  }
  Status Remember(std::uint64_t key) {
    if (stack_.size() <= Floor()) return Fail(Code::kCorrupt, "the memo gets no value");
    if (memo_.size() >= most_values_) return Fail(Code::kResourceExhausted, "the memo has too many values");
    memo_[key] = stack_.back();
    return {};
  }

  Status Step(char code);
  Status StepNumber(char code);
  Status StepText(char code);
  Status StepContainer(char code);
  Status StepObject(char code);
  Status StepMemo(char code);

  std::string_view rest_;
  const std::size_t size_;
  const std::optional<std::span<const std::string_view>> allowed_;
  const std::uint64_t most_values_;
  Pickle pickle_;
  std::vector<Id> stack_;
  std::vector<std::size_t> marks_;  ///< stack heights at which marks were set
  std::map<std::uint64_t, Id> memo_;
};

Status PickleMachine::PushLong(std::string_view bytes) {
  if (bytes.size() > kLongestBigInt) return Fail(Code::kUnsupported, "an int has more than 2,048 bits");
  if (bytes.size() > kLongestNumber) return Push({.kind = ValueKind::kBigInt, .text = DecimalOf(bytes)});
  __int128 number = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) number = number * 256 + static_cast<unsigned char>(bytes[i]);
  if (!bytes.empty() && (bytes.back() & 0x80) != 0) number -= static_cast<__int128>(1) << (8 * bytes.size());
  if (number >= INT64_MIN && number <= INT64_MAX) return PushInt(static_cast<std::int64_t>(number));
  if (number < 0 || number > std::numeric_limits<std::uint64_t>::max())
    return Push({.kind = ValueKind::kBigInt, .text = DecimalOf(bytes)});
  return Push({.kind = ValueKind::kUnsigned, .number = static_cast<std::int64_t>(static_cast<std::uint64_t>(number))});
}

Status PickleMachine::PushGlobal(std::string_view module, std::string_view name) {
  std::string global = fmt::format("{}.{}", module, name);
  if (allowed_ && !std::binary_search(allowed_->begin(), allowed_->end(), std::string_view(global))) {
    return Fail(Code::kUnsupported,
                "the pickle names {}, which could run code; in Python, load the file, replace that object by its "
                "state_dict() or delete it, and save the rest",
                global);
  }
  return Push({.kind = ValueKind::kGlobal, .text = std::move(global)});
}

Status PickleMachine::PushAgain(std::uint64_t key) {
  auto known = memo_.find(key);
  if (known == memo_.end()) return Fail(Code::kCorrupt, "the memo has no value {}", key);
  stack_.push_back(known->second);
  return {};
}

Status PickleMachine::PushCall() {
  const Id arguments = MR_TRY(Pop()), callee = MR_TRY(Pop());
  const ValueKind kind = pickle_.values_[callee].kind;
  const bool is_callable = kind == ValueKind::kGlobal || (kind == ValueKind::kCall && !allowed_);
  if (!is_callable || pickle_.values_[arguments].kind != ValueKind::kTuple)
    return Fail(Code::kCorrupt, "a call does not consist of a global and a tuple");
  return Push({.kind = ValueKind::kCall, .items = {callee, arguments}});
}

Status PickleMachine::Step(char code) {
  if (kNumberCodes.contains(code)) return StepNumber(code);
  if (kTextCodes.contains(code)) return StepText(code);
  if (kContainerCodes.contains(code)) return StepContainer(code);
  if (kObjectCodes.contains(code)) return StepObject(code);
  if (kMemoCodes.contains(code)) return StepMemo(code);
  switch (static_cast<unsigned char>(code)) {
    case 0x80:  // PROTO
      if (const auto protocol = static_cast<unsigned char>(MR_TRY(Take(1))[0]); protocol > 5)
        return Fail(Code::kUnsupported, "the pickle has protocol {}, this program reads up to 5", protocol);
      return {};
    case 0x95:  // FRAME
      MR_TRY(Take(8));
      return {};
    case '.':
      pickle_.top_ = MR_TRY(Pop());
      return {};
    case 'N':
      return Push({});
    case 0x88:
    case 0x89:
      return Push({.kind = ValueKind::kBool, .number = static_cast<unsigned char>(code) == 0x88});
    case '0':  // POP
      MR_TRY(Pop());
      return {};
    case '1':  // POP_MARK
      MR_TRY(PopMark());
      return {};
    case '(':
      marks_.push_back(stack_.size());
      return {};
    default:
      return Fail(Code::kUnsupported, "torch does not write the instruction {:#04x}", static_cast<unsigned char>(code));
  }
}

Status PickleMachine::StepNumber(char code) {
  switch (static_cast<unsigned char>(code)) {
    case 'J':
      return PushInt(MR_TRY(TakeNumber<std::int32_t>()));
    case 'K':
      return PushInt(MR_TRY(TakeNumber<std::uint8_t>()));
    case 'M':
      return PushInt(MR_TRY(TakeNumber<std::uint16_t>()));
    case 0x8a:
      return PushLong(MR_TRY(Take(MR_TRY(TakeNumber<std::uint8_t>()))));
    case 0x8b:
      return PushLong(MR_TRY(Take(MR_TRY(TakeNumber<std::uint32_t>()))));
    case 'G': {
      const auto bits = BigEndian<std::uint64_t>(MR_TRY(Take(8)));
      return Push({.kind = ValueKind::kFloat, .real = std::bit_cast<double>(bits)});
    }
    default:
      break;
  }
  const std::string_view line = MR_TRY(TakeLine());  // 'I': protocol 0
  if (line == "00" || line == "01") return Push({.kind = ValueKind::kBool, .number = line == "01"});
  return Fail(Code::kUnsupported, "the pickle has protocol 0");
}

Status PickleMachine::StepText(char code) {
  switch (static_cast<unsigned char>(code)) {
    case 'X':
      return PushText(ValueKind::kText, MR_TRY(Take(MR_TRY(TakeNumber<std::uint32_t>()))));
    case 0x8c:
      return PushText(ValueKind::kText, MR_TRY(Take(MR_TRY(TakeNumber<std::uint8_t>()))));
    case 0x8d:
      return PushText(ValueKind::kText, MR_TRY(Take(MR_TRY(TakeNumber<std::uint64_t>()))));
    case 'B':
      return PushText(ValueKind::kBytes, MR_TRY(Take(MR_TRY(TakeNumber<std::uint32_t>()))));
    case 'C':
      return PushText(ValueKind::kBytes, MR_TRY(Take(MR_TRY(TakeNumber<std::uint8_t>()))));
    default:
      return PushText(ValueKind::kBytes, MR_TRY(Take(MR_TRY(TakeNumber<std::uint64_t>()))));
  }
}

Status PickleMachine::StepContainer(char code) {
  switch (static_cast<unsigned char>(code)) {
    case ']':
      return Push({.kind = ValueKind::kList});
    case '}':
      return Push({.kind = ValueKind::kDict});
    case ')':
      return Push({.kind = ValueKind::kTuple});
    case 'a':
      return AddItems({MR_TRY(Pop())}, ValueKind::kList);
    case 'e':
      return AddItems(MR_TRY(PopMark()), ValueKind::kList);
    case 's': {
      const Id value = MR_TRY(Pop()), key = MR_TRY(Pop());
      return AddItems({key, value}, ValueKind::kDict);
    }
    case 'u':
      return AddItems(MR_TRY(PopMark()), ValueKind::kDict);
    case 't': {
      std::vector<Id> items = MR_TRY(PopMark());
      return Push({.kind = ValueKind::kTuple, .items = std::move(items)});
    }
    default:
      return PushTuple(static_cast<unsigned char>(code) - 0x84u);
  }
}

Status PickleMachine::StepObject(char code) {
  switch (static_cast<unsigned char>(code)) {
    case 'c': {
      const std::string_view module = MR_TRY(TakeLine());
      return PushGlobal(module, MR_TRY(TakeLine()));
    }
    case 0x93: {
      const Id name = MR_TRY(Pop()), module = MR_TRY(Pop());
      const Value &a = pickle_.values_[module], &b = pickle_.values_[name];
      if (a.kind != ValueKind::kText || b.kind != ValueKind::kText || a.text.size() + b.text.size() > kLongestGlobal)
        return Fail(Code::kCorrupt, "a global's name is not a short text");
      return PushGlobal(a.text, b.text);
    }
    case 'R':
    case 0x81:
      return PushCall();
    case 'b': {
      const Id state = MR_TRY(Pop());
      if (stack_.size() <= Floor()) return Fail(Code::kCorrupt, "a state has no object");
      Value& object = pickle_.values_[stack_.back()];
      if (object.kind != ValueKind::kCall) return Fail(Code::kCorrupt, "a state belongs to a value that has none");
      object.state = state;
      return {};
    }
    default: {
      const Id key = MR_TRY(Pop());
      return Push({.kind = ValueKind::kPersistent, .items = {key}});
    }
  }
}

Status PickleMachine::StepMemo(char code) {
  switch (static_cast<unsigned char>(code)) {
    case 'q':
      return Remember(MR_TRY(TakeNumber<std::uint8_t>()));
    case 'r':
      return Remember(MR_TRY(TakeNumber<std::uint32_t>()));
    case 0x94:
      return Remember(memo_.size());
    case 'h':
      return PushAgain(MR_TRY(TakeNumber<std::uint8_t>()));
    default:
      return PushAgain(MR_TRY(TakeNumber<std::uint32_t>()));
  }
}

namespace {

Result<Pickle> RunPickle(std::string_view bytes, std::optional<std::span<const std::string_view>> allowed,
                         std::string_view name, const Pickle::Limits& limits) {
  if (bytes.size() > limits.bytes)
    return Fail(Code::kResourceExhausted, "{}: a pickle of {} bytes is too large", name, bytes.size());
  auto pickle = PickleMachine(bytes, allowed, limits.values).Run();
  if (!pickle) return Fail(pickle.error().Context(std::string(name)));
  return pickle;
}

}  // namespace

Result<Pickle> Pickle::Read(std::string_view bytes, std::span<const std::string_view> allowed, std::string_view name,
                            Limits limits) {
  return RunPickle(bytes, allowed, name, limits);
}

Result<Pickle> Pickle::ReadWithObjects(std::string_view bytes, std::string_view name, Limits limits) {
  return RunPickle(bytes, std::nullopt, name, limits);
}

const Pickle::Value* Pickle::Member(const Value& dict, std::string_view key) const {
  const Value* in = &dict;
  if (dict.kind == ValueKind::kCall && dict.state != kNone) in = &values_[dict.state];
  if (in->kind != ValueKind::kDict && in->kind != ValueKind::kCall) return nullptr;
  for (std::size_t i = in->kind == ValueKind::kCall ? 2 : 0; i + 1 < in->items.size(); i += 2) {
    const Value& name = values_[in->items[i]];
    if (name.kind == ValueKind::kText && name.text == key) return &values_[in->items[i + 1]];
  }
  return nullptr;
}

void PickleWriter::Int(std::int64_t value) {
  auto append = [this](auto number) { out_.append(reinterpret_cast<const char*>(&number), sizeof number); };
  if (value >= 0 && value < 256) {
    out_ += 'K';
    append(static_cast<std::uint8_t>(value));
  } else if (value >= INT32_MIN && value <= INT32_MAX) {
    out_ += 'J';
    append(static_cast<std::int32_t>(value));
  } else {
    out_ += "\x8a\x08";
    append(value);
  }
}

void PickleWriter::Unsigned(std::uint64_t value) {
  if (std::in_range<std::int64_t>(value)) return Int(static_cast<std::int64_t>(value));
  out_ += "\x8a\x09";
  out_.append(reinterpret_cast<const char*>(&value), sizeof value);
  out_ += '\0';
}

bool IsBigInt(std::string_view decimal) {
  if (decimal.starts_with('-')) decimal.remove_prefix(1);
  return !decimal.empty() && decimal.size() <= kMaxDigits && decimal.find_first_not_of("0123456789") == decimal.npos;
}

void PickleWriter::BigInt(std::string_view decimal) {
  const bool negative = decimal.starts_with('-');
  std::string number(1, '\0');
  for (const char digit : decimal.substr(negative ? 1 : 0)) {
    unsigned carry = static_cast<unsigned>(digit - '0');
    for (char& byte : number) {
      const unsigned value = static_cast<unsigned char>(byte) * 10u + carry;
      byte = static_cast<char>(value & 0xff);
      carry = value >> 8;
    }
    if (carry > 0) number += static_cast<char>(carry);
  }
  number += '\0';  // the sign
  if (negative) number = Negated(std::move(number));
  const auto size = static_cast<std::uint32_t>(number.size());
  if (size < 256) {  // LONG1: the only form that torch.load(weights_only=True) reads
    out_ += '\x8a';
    out_ += static_cast<char>(size);
  } else {
    out_ += '\x8b';
    out_.append(reinterpret_cast<const char*>(&size), sizeof size);
  }
  out_ += number;
}

void PickleWriter::Float(double value) {
  const auto bits = std::byteswap(std::bit_cast<std::uint64_t>(value));
  out_ += 'G';
  out_.append(reinterpret_cast<const char*>(&bits), sizeof bits);
}

void PickleWriter::Text(std::string_view utf8) {
  const auto size = static_cast<std::uint32_t>(utf8.size());
  out_ += 'X';
  out_.append(reinterpret_cast<const char*>(&size), sizeof size);
  out_ += utf8;
}

void PickleWriter::Bytes(std::string_view bytes) {
  if (bytes.empty()) {
    Global("__builtin__", "bytes");
    EmptyTuple();
    Reduce();
    return;
  }
  // Protocol 2 has no instruction for bytes. As Python does, write a text with the bytes as code points, and a call
  // that encodes it as latin1.
  std::string text;
  for (const char byte : bytes) {
    const auto code = static_cast<unsigned char>(byte);
    if (code >= 0x80) text += static_cast<char>(0xc0 | (code >> 6));
    text += static_cast<char>(code >= 0x80 ? 0x80 | (code & 0x3f) : code);
  }
  Global("_codecs", "encode");
  OpenMark();
  Text(text);
  Text("latin1");
  Tuple();
  Reduce();
}

void PickleWriter::Global(std::string_view module, std::string_view name) {
  out_ += fmt::format("c{}\n{}\n", module, name);
}

}  // namespace millrace::checkpoint
