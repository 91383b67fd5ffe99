// Reads the members of a request's body.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/serve/protocol/api_error.h"

namespace millrace::serve {

/// Reads the members of one JSON object, and remembers the first error. The object must outlive the reader.
class BodyReader {
 public:
  explicit BodyReader(const Json& body) : body_(body) {}

  bool good() const { return !error_; }
  ApiError error() const { return *error_; }
  /// Sets the error, unless there is one already.
  void Refuse(std::string_view param, std::string message, std::string code = "");

  /// Returns a member; null if it is absent or null.
  const Json* Find(std::string_view key);
  // The next four read a member. If the member is absent, `into` does not change, and Integer() returns nothing.
  void Flag(std::string_view key, bool& into);
  void Text(std::string_view key, std::string& into);
  void Number(std::string_view key, double& into, double least, double most);
  std::optional<std::int64_t> Integer(std::string_view key, std::int64_t least, std::int64_t most);
  /// Reads a member that this server does not support. Sets the error unless the member is absent, or has the value
  /// that changes nothing.
  void Neutral(std::string_view key, const Json& value);
  /// Accepts a member with any value. The member has no effect.
  void Ignore(std::string_view key) { known_.push_back(key); }
  /// Sets the error if the object has a member that no call has named, and that is not null. The message suggests the
  /// nearest known name.
  void RejectUnknown();

 private:
  const Json& body_;
  std::vector<std::string_view> known_;
  std::optional<ApiError> error_;
};

}  // namespace millrace::serve
