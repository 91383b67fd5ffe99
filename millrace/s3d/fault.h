// Faults to order: what `--fault` describes, decided request by request.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/sync.h"
#include "millrace/http/server/server.h"
#include "millrace/s3d/protocol/s3_error.h"

namespace millrace::s3d {

/// The grammar, for --help and the README.
extern const std::string_view kFaultHelp;

/// What befalls one request.
struct Fault {
  enum class Cut {
    kNone,
    kBeforeOperation,  ///< reset at once: nothing is done
    kBeforeAnswer,     ///< reset once the operation is done: the client cannot know
    kInBody,           ///< reset half-way through the answer's body
    kTruncate,         ///< the same, but the connection ends in good order
  };
  Duration latency{};
  std::uint64_t bytes_per_second = 0;  ///< 0: no limit
  std::vector<S3Error> error;          ///< at most one
  Cut cut = Cut::kNone;
  bool unconditional = false;  ///< If-Match and If-None-Match of a write are ignored
  bool damage = false;  ///< one bit in the middle of the request's body turns, or, where it has none, of the answer's
};

/// A parsed specification. Any thread may call Decide. The n-th request that a rule matches always meets the same fate:
/// it depends on the seed, the rule and n alone.
class FaultPlan {
 public:
  FaultPlan();
  ~FaultPlan();
  /// Fails with kInvalidArgument, naming the part that is not understood. An empty text means no faults.
  static Result<std::unique_ptr<FaultPlan>> Parse(std::string_view text);

  Fault Decide(std::string_view operation, std::string_view bucket, std::string_view key);

 private:
  struct Rule;
  std::uint64_t seed_ = 1;
  Mutex mutex_;
  std::vector<Rule> rules_ MR_GUARDED_BY(mutex_);
};

/// Reads a request's body no faster than the fault allows, or with its damage.
std::unique_ptr<http::ServerRequest> ApplyToRequest(const Fault& fault, http::ServerRequest& request, Clock& clock);
/// Sends the answer as the fault has it: slowly, damaged, in part, or not at all.
std::unique_ptr<http::ServerResponse> ApplyToResponse(const Fault& fault, http::ServerResponse& response,
                                                      std::stop_token stop, Clock& clock);

}  // namespace millrace::s3d
