// A store that fails on purpose: what goes wrong is scripted or drawn from a seed, so every failure can be repeated.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "millrace/base/clock.h"
#include "millrace/object/store.h"

namespace millrace::object {

enum class Operation {
  kHead,
  kGet,
  kList,
  kPut,
  kDelete,
  kDeleteMany,
  kCopy,
  kCreateMultipart,
  kUploadPart,
  kCopyPart,
  kCompleteMultipart,
  kAbortMultipart,
  kListParts,
  kListUploads,
};
std::string_view OperationName(Operation operation);

/// What happens to a call that a rule selects.
struct Fault {
  /// The error the caller sees. Nothing: the call goes through (after the latency).
  std::optional<Code> code;
  /// The call reaches the store and takes effect before the caller sees the error: a lost response. Else it never
  /// reaches the store.
  bool after_effect = false;
  /// Called before the call reaches the store, or with `after_effect` once it has taken effect; may end the process.
  std::function<void()> action;
  /// Get only: this many bytes land in the buffer, then the call fails as a cut connection would (kUnavailable).
  std::optional<std::uint64_t> cut_after;
  Duration latency{};
  /// Put and CompleteMultipart only: the call goes through without its conditions, as on some services.
  bool ignore_conditions = false;
};

/// Selects calls; the first rule that selects a call decides about it.
struct FaultRule {
  std::optional<Operation> operation;  ///< nothing: any
  std::string key_prefix;
  int skip = 0;              ///< let this many matching calls through first…
  int times = 1;             ///< …then fail this many; -1: all that follow
  double probability = 1.0;  ///< each selected with this chance, drawn from the seed
  Fault fault;
};

/// Wraps any store. Thread-safe. Describe(), Identity(), limits() and Presign() are the inner store's.
class FaultStore : public Store {
 public:
  /// `clock` pays the latencies (with a FakeClock, at once or when the test says) on a thread of this store's.
  static std::shared_ptr<FaultStore> Create(std::shared_ptr<Store> inner, std::uint64_t seed = 1,
                                            Clock& clock = SystemClock());
  virtual void Add(FaultRule rule) = 0;
  /// Tells the store from others by another name, as if it were a service.
  virtual void SetIdentity(std::string identity) = 0;
  /// Forgets all rules.
  virtual void Clear() = 0;
  /// Calls seen so far, failed ones included.
  virtual std::uint64_t calls(Operation operation) const = 0;
  /// The keys that WillRead was told so far.
  virtual std::vector<std::string> announced() const = 0;
};

}  // namespace millrace::object
