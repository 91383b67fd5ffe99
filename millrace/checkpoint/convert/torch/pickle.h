// Python's pickle as torch.save and torch.distributed.checkpoint use it: read without running anything, and written.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"

namespace millrace::checkpoint {

/// What a pickle describes, as a graph of values. A callable is a name and a call of it a value of its own: nothing is
/// looked up, imported or run. Immutable, therefore thread-safe.
class Pickle {
 public:
  using Id = std::uint32_t;  ///< of a value
  static constexpr Id kNone = 0xffffffff;
  enum class ValueKind : std::uint8_t {
    kNone,
    kBool,        ///< number
    kInt,         ///< number
    kUnsigned,    ///< an int that only fits bits of `number` without a sign
    kBigInt,      ///< an int of more than 64 bits: text, decimal
    kFloat,       ///< real
    kText,        ///< text, UTF-8
    kBytes,       ///< text
    kList,        ///< items
    kTuple,       ///< items
    kDict,        ///< items: key, value, key, value, …
    kGlobal,      ///< text: "torch.FloatStorage"
    kCall,        ///< what items[0], a kGlobal, makes of the kTuple items[1]; then as kDict or kList from items[2] on
    kPersistent,  ///< what the archive knows by items[0]
  };
  struct Value {
    ValueKind kind = ValueKind::kNone;
    std::int64_t number = 0;
    double real = 0;
    std::string text;
    std::vector<Id> items;
    Id state = kNone;  ///< of a kCall: what __setstate__ would get
  };

  struct Limits {
    std::uint64_t bytes = 256 * 1024 * 1024;  ///< of the pickle
    std::uint64_t values = 16'000'000;
  };
  /// Reads one pickle. `allowed` are the names that a kGlobal may have, sorted; any other is kUnsupported and is named.
  /// kCorrupt where the bytes are no pickle, kResourceExhausted beyond the limits. `name` names it in messages.
  static Result<Pickle> Read(std::string_view bytes, std::span<const std::string_view> allowed, std::string_view name,
                             Limits limits);
  static Result<Pickle> Read(std::string_view bytes, std::span<const std::string_view> allowed, std::string_view name) {
    return Read(bytes, allowed, name, Limits());
  }

  Id top() const { return top_; }
  const Value& operator[](Id id) const { return values_[id]; }
  const Value& root() const { return values_[top_]; }

  /// Of a kDict, or a kCall's state or items, the value of a text key; nullptr where there is none.
  const Value* Member(const Value& dict, std::string_view key) const;
  /// Whether it is a call of that name.
  bool IsCall(const Value& value, std::string_view global) const {
    return value.kind == ValueKind::kCall && values_[value.items[0]].text == global;
  }
  std::span<const Id> Arguments(const Value& call) const { return values_[call.items[1]].items; }

 private:
  friend class PickleMachine;
  std::vector<Value> values_;
  Id top_ = kNone;
};

/// Whether it is an int in decimal digits, of a size that pickles are read and written with.
bool IsBigInt(std::string_view decimal);

/// Writes a pickle of protocol 2, value by value in the order in which a stack machine wants them. The caller balances.
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
  /// A name of Python's, looked up by who loads it: "torch", "FloatStorage".
  void Global(std::string_view module, std::string_view name);
  void EmptyDict() { out_ += '}'; }
  void EmptyList() { out_ += ']'; }
  void EmptyTuple() { out_ += ')'; }
  void Mark() { out_ += '('; }
  void SetItems() { out_ += 'u'; }  ///< dict, Mark, key, value, … → dict
  void Appends() { out_ += 'e'; }   ///< list, Mark, item, … → list
  void Tuple() { out_ += 't'; }     ///< Mark, item, … → tuple
  void Reduce() { out_ += 'R'; }    ///< callable, tuple → what it makes of it
  void NewObject() { out_ += '\x81'; }
  void Build() { out_ += 'b'; }         ///< object, state → object
  void PersistentId() { out_ += 'Q'; }  ///< id → what the archive knows by it
  /// Mark and Tuple around numbers.
  template <class Numbers>
  void IntTuple(const Numbers& numbers) {
    Mark();
    for (auto number : numbers) Int(static_cast<std::int64_t>(number));
    Tuple();
  }
  std::string Finish() && {
    out_ += '.';
    return std::move(out_);
  }
  std::size_t size() const { return out_.size(); }

 private:
  std::string out_;
};

}  // namespace millrace::checkpoint
