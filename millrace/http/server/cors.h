// Cross-origin resource sharing (the Fetch standard, section 3.3): which pages of other sites a browser lets use a
// server.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/http/headers.h"
#include "millrace/http/server/server.h"

namespace millrace::http {

/// The origins whose pages may use a server. Immutable, therefore thread-safe.
class AllowedOrigins {
 public:
  AllowedOrigins() = default;
  /// "https://app.example.org", "http://localhost:3000", or "*" for all.
  /// Errors: kInvalidArgument for what is no origin, such as a URL with a path.
  static Result<AllowedOrigins> Parse(const std::vector<std::string>& origins);

  bool empty() const { return origins_.empty() && !all_; }
  /// Returns whether a page sent the request that may. False for requests without an Origin.
  bool Allow(const Headers& headers) const;
  /// Returns the Access-Control-Allow-Origin for a page that may; "" for others.
  std::string_view Answer(const Headers& headers) const;

 private:
  std::vector<std::string> origins_;
  bool all_ = false;
};

/// Returns a handler that lets pages of these origins read what `inner` answers, and that answers their browsers'
/// questions (preflight requests) itself. Other requests go to `inner` unchanged.
Handler ShareWith(AllowedOrigins origins, Handler inner);

}  // namespace millrace::http
