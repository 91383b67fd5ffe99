// Fault injection: `--fault` describes which requests fail, and how.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"
#include "millrace/http/server/server.h"
#include "millrace/s3d/oddity.h"
#include "millrace/s3d/protocol/s3_error.h"

namespace millrace::s3d {

/// The grammar with the table of oddities, for --help.
std::string FaultHelp();

/// The fault of one request.
struct Fault {
  enum class Disconnect {
    kNone,
    kBeforeOperation,  ///< reset before the operation: nothing is done
    kBeforeAnswer,     ///< reset after the operation: the client cannot know whether it was done
    kInBody,           ///< reset half-way through the answer's body, or after cut_after bytes of it
    kTruncate,         ///< like kInBody, but the connection is closed in good order
  };
  Duration latency{};
  Duration white_space{};              ///< before the answer to a copy or a completion, white space is sent so long
  std::uint64_t bytes_per_second = 0;  ///< 0: no limit
  std::optional<S3Error> error;        ///< the answer instead of the operation's
  Disconnect disconnect = Disconnect::kNone;
  std::optional<std::uint64_t> cut_after;  ///< bytes of the answer's body; shorter bodies are sent whole
  bool unconditional = false;              ///< If-Match and If-None-Match of a write are ignored
  Oddities oddities;
  bool damage = false;  ///< one bit in the middle of the request's body is flipped; without a body, of the answer's
};

/// A parsed specification. Thread-safe. The n-th request that a rule matches always gets the same fault. It depends
/// only on the seed, the rule and n.
class FaultPlan {
 public:
  FaultPlan();
  ~FaultPlan();
  /// Parses a specification. An empty text means no faults.
  /// Errors: kInvalidArgument; the message names the rule that does not parse.
  static Result<std::unique_ptr<FaultPlan>> Parse(std::string_view text);

  Fault Decide(std::string_view operation, std::string_view bucket, std::string_view key);
  /// The memory of the odd endpoint from request to request.
  OddityMemory& memory() { return memory_; }

 private:
  struct Rule;
  std::uint64_t seed_ = 1;
  OddityMemory memory_;
  Mutex mutex_;
  std::vector<Rule> rules_ MR_GUARDED_BY(mutex_);
};

/// Returns a request whose body is as slow, or as damaged, as the fault says. Borrows its arguments.
std::unique_ptr<http::ServerRequest> ApplyToRequest(const Fault& fault, http::ServerRequest& request, Clock& clock);
/// Returns a response that is sent as the fault says: slowly, damaged, in part, or not at all. Borrows its arguments.
std::unique_ptr<http::ServerResponse> ApplyToResponse(const Fault& fault, http::ServerResponse& response,
                                                      std::stop_token stop, Clock& clock);

}  // namespace millrace::s3d
