// Reads and writes Python's pickle, as torch.save and torch.distributed.checkpoint use it. Reading runs no code: a call
// in a pickle becomes a value that names the callable and its arguments.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"

namespace millrace::checkpoint {

/// The content of a pickle: a graph of values that refer to each other by index. Immutable, therefore thread-safe.
class Pickle {
 public:
  using Id = std::uint32_t;                ///< index of a value
  static constexpr Id kNone = 0xffffffff;  ///< no value
  enum class ValueKind : std::uint8_t {
    kNone,
    kBool,        ///< number
    kInt,         ///< number
    kUnsigned,    ///< an int from 2^63 to 2^64 - 1: the bits of `number`, as unsigned
    kBigInt,      ///< an int that needs more than 64 bits: text, decimal
    kFloat,       ///< real
    kText,        ///< text, UTF-8
    kBytes,       ///< text
    kList,        ///< items
    kTuple,       ///< items
    kDict,        ///< items: key, value, key, value, …
    kGlobal,      ///< text: "torch.FloatStorage"
    kCall,        ///< items: a kGlobal, the kTuple of its arguments, then the items of the dict or list that it makes
    kPersistent,  ///< items[0]: a persistent id, such as that of a storage in the archive
  };
  struct Value {
    ValueKind kind = ValueKind::kNone;
    std::int64_t number = 0;
    double real = 0;
    std::string text;
    std::vector<Id> items;
    Id state = kNone;  ///< of a kCall: the argument of __setstate__
  };

  /// Bounds on memory. The numbers are guesses, far above what the states of models and optimizers need.
  struct Limits {
    std::uint64_t bytes = 256 * 1024 * 1024;  ///< of the pickle
    std::uint64_t values = 16'000'000;
  };
  /// Reads one pickle. `allowed` lists the names that a kGlobal may have, sorted. `name` names the pickle in messages.
  /// Errors: kUnsupported for another global, which the message names, and for other instructions than torch writes;
  /// kCorrupt if the bytes are not a pickle; kResourceExhausted beyond the limits.
  static Result<Pickle> Read(std::string_view bytes, std::span<const std::string_view> allowed, std::string_view name,
                             Limits limits);
  static Result<Pickle> Read(std::string_view bytes, std::span<const std::string_view> allowed, std::string_view name) {
    return Read(bytes, allowed, name, Limits());
  }
  /// Like Read, but accepts every global. For pickles that also hold objects of a program's own classes. Runs no code:
  /// such an object is a kCall, whose items[0] may then also be a kCall.
  static Result<Pickle> ReadWithObjects(std::string_view bytes, std::string_view name, Limits limits);
  static Result<Pickle> ReadWithObjects(std::string_view bytes, std::string_view name) {
    return ReadWithObjects(bytes, name, Limits());
  }

  Id top() const { return top_; }
  const Value& operator[](Id id) const { return values_[id]; }
  const Value& root() const { return values_[top_]; }

  /// Returns the value of a text key in a kDict, in a kCall's state if it has one, or else in a kCall's items. Returns
  /// nullptr if there is no such key.
  const Value* Member(const Value& dict, std::string_view key) const;
  /// Returns whether the value is a call of `global`.
  bool IsCall(const Value& value, std::string_view global) const {
    return value.kind == ValueKind::kCall && values_[value.items[0]].text == global;
  }
  /// REQUIRES: `call` is a kCall.
  std::span<const Id> Arguments(const Value& call) const { return values_[call.items[1]].items; }

 private:
  friend class PickleMachine;
  std::vector<Value> values_;
  Id top_ = kNone;
};

/// Returns whether the text is a decimal int of at most 617 digits, the largest size that Pickle and PickleWriter
/// support.
bool IsBigInt(std::string_view decimal);

/// Writes a pickle of protocol 2. Each call appends one instruction of the pickle stack machine. The caller must make
/// the calls in a valid order. The comments below show the stack before and after a call.
class PickleWriter {
 public:
  PickleWriter() : out_("\x80\x02") {}
  void None() { out_ += 'N'; }
  void Bool(bool value) { out_ += value ? '\x88' : '\x89'; }
  void Int(std::int64_t value);
  void Unsigned(std::uint64_t value);
  /// REQUIRES: IsBigInt(decimal).
  void BigInt(std::string_view decimal);
  void Float(double value);
  void Text(std::string_view utf8);
  void Bytes(std::string_view bytes);
  /// A Python global that the loader looks up, such as "torch", "FloatStorage".
  void Global(std::string_view module, std::string_view name);
  void EmptyDict() { out_ += '}'; }
  void EmptyList() { out_ += ']'; }
  void EmptyTuple() { out_ += ')'; }
  void OpenMark() { out_ += '('; }
  void SetItems() { out_ += 'u'; }  ///< dict, OpenMark, key, value, … → dict
  void Appends() { out_ += 'e'; }   ///< list, OpenMark, item, … → list
  void Tuple() { out_ += 't'; }     ///< OpenMark, item, … → tuple
  void Reduce() { out_ += 'R'; }    ///< callable, tuple of arguments → result
  void NewObject() { out_ += '\x81'; }
  void Build() { out_ += 'b'; }         ///< object, state → object
  void PersistentId() { out_ += 'Q'; }  ///< id → the object of that persistent id
  /// A tuple of ints.
  template <class Numbers>
  void IntTuple(const Numbers& numbers) {
    OpenMark();
    for (auto number : numbers) Int(static_cast<std::int64_t>(number));
    Tuple();
  }
  /// Ends the pickle and returns its bytes.
  std::string Finish() && {
    out_ += '.';
    return std::move(out_);
  }
  std::size_t size() const { return out_.size(); }

 private:
  std::string out_;
};

}  // namespace millrace::checkpoint
