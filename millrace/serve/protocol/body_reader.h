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

/// Reads members of one object, and remembers the first thing that is wrong with it. The object outlives the reader.
class BodyReader {
 public:
  explicit BodyReader(const Json& body) : body_(body) {}

  bool good() const { return !error_; }
  ApiError error() const { return *error_; }
  void Refuse(std::string_view param, std::string message, std::string code = "");

  /// Returns a member; null if it is absent or null.
  const Json* Find(std::string_view key);
  // These leave `into` as it is, if the member is absent.
  void Flag(std::string_view key, bool& into);
  void Text(std::string_view key, std::string& into);
  void Number(std::string_view key, double& into, double least, double most);
  std::optional<std::int64_t> Integer(std::string_view key, std::int64_t least, std::int64_t most);
  /// Refuses a member of the interface unless it is absent, or has a value that changes nothing.
  void Neutral(std::string_view key, const Json& value);
  /// Takes a member that changes nothing here, whatever it is.
  void Ignore(std::string_view key) { known_.push_back(key); }
  /// Refuses members that no call named, with the nearest known name.
  void RejectUnknown();

 private:
  const Json& body_;
  std::vector<std::string_view> known_;
  std::optional<ApiError> error_;
};

}  // namespace millrace::serve
