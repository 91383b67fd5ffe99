// The calls that a store has in flight.
#pragma once

#include <memory>
#include <optional>
#include <stop_token>

#include "millrace/base/threads/sync.h"
#include "millrace/object/requests.h"

namespace millrace::object::s3 {

/// Counts calls, can cancel them all, and waits for the last. Thread-safe.
class InFlight {
 public:
  /// One call. Its token fires with the caller's token or when all calls are cancelled. Destruction ends the call.
  class Ticket {
   public:
    Ticket(InFlight& owner, std::stop_token callers);
    ~Ticket();
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;
    std::stop_token token() const { return token_; }

   private:
    struct Forward {
      std::stop_source to;
      void operator()() noexcept { to.request_stop(); }
    };
    InFlight& owner_;
    std::stop_token token_;
    std::optional<std::stop_callback<Forward>> from_caller_, from_owner_;
  };

  ~InFlight() { CancelAll(); }
  std::unique_ptr<Ticket> Begin(std::stop_token callers) { return std::make_unique<Ticket>(*this, std::move(callers)); }
  /// Cancels all calls and waits until they have ended. Never call it from a completion.
  void CancelAll() MR_EXCLUDES(mutex_);

 private:
  std::stop_source all_;
  Mutex mutex_;
  CondVar ended_;
  int count_ MR_GUARDED_BY(mutex_) = 0;
};

}  // namespace millrace::object::s3
