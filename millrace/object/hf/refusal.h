// Explains a response of the hub without success, and says what the user can do about it.
#pragma once

#include <optional>
#include <string>

#include "millrace/base/clock.h"
#include "millrace/http/client/request.h"
#include "millrace/object/hf/repository.h"
#include "millrace/object/hf/settings.h"

namespace millrace::object::hf {

struct Refusal {
  Code code;            ///< IsRetryable(code) decides whether to retry
  std::string message;  ///< for the user: never has the token
  std::optional<Duration> wait;
  bool no_entry = false;  ///< the repository and the revision exist, the file or folder does not
};

/// The meaning of a response of the hub itself. `token_sent`: the request had the user's token.
Refusal Classify(const http::Response& response, const Repository& repository, const Settings& settings,
                 bool token_sent, WallTime now);
/// The meaning of a response of the storage that the hub redirected to.
Refusal ClassifyStorage(const http::Response& response, WallTime now);

}  // namespace millrace::object::hf
