// A store that fails on purpose. Faults follow rules and a seed, so that every failure can be repeated.
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

/// The fault of a call that a rule selects.
struct Fault {
  /// The error that the caller gets. No value: the call succeeds (after the latency).
  std::optional<Code> code;
  /// True: the call takes effect before the caller gets the error, as after a lost response. False: it never reaches
  /// the store.
  bool after_effect = false;
  /// Runs before the call reaches the store, or with `after_effect` after its effect. May end the process.
  std::function<void()> action;
  /// Get only: writes this many bytes to the buffer, then fails with kUnavailable, as a broken connection does.
  std::optional<std::uint64_t> cut_after;
  Duration latency{};
  /// Put and CompleteMultipart only: drops the conditions of the call, as some services do.
  bool ignore_conditions = false;
  /// Put and Copy only: stores no metadata, as some services do.
  bool drop_metadata = false;
};

/// Selects calls. The first rule that selects a call applies.
struct FaultRule {
  std::optional<Operation> operation;  ///< no value: any
  std::string key_prefix;
  int skip = 0;              ///< pass this many matching calls first…
  int times = 1;             ///< …then apply to this many; -1: to all later ones
  double probability = 1.0;  ///< of each selected call, drawn from the seed
  Fault fault;
};

/// Wraps another store. Thread-safe. Describe(), Identity(), limits() and Presign() come from the inner store.
class FaultStore : public Store {
 public:
  /// Latencies pass on `clock`, on a thread of this store (with a FakeClock, at once or when the test advances it).
  static std::shared_ptr<FaultStore> Create(std::shared_ptr<Store> inner, std::uint64_t seed = 1,
                                            Clock& clock = SystemClock());
  virtual void Add(FaultRule rule) = 0;
  /// Replaces the inner store's Identity().
  virtual void SetIdentity(std::string identity) = 0;
  /// Removes all rules.
  virtual void Clear() = 0;
  /// The number of calls so far, failed ones included.
  virtual std::uint64_t calls(Operation operation) const = 0;
  /// The keys of all WillRead calls so far.
  virtual std::vector<std::string> announced() const = 0;
};

}  // namespace millrace::object
